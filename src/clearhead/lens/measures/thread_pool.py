"""Worker threads that process a list of items, each with its own number of PyTorch threads.

PyTorch splits every operation among its threads and waits for the last of them: a hundred short operations wait a
hundred times, which is slow on a busy machine. Here each thread runs whole operations, and they wait once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch

Item = TypeVar("Item")
_start_lock = threading.Lock()


def run_in_threads(
    work: Callable[[Item], None], items: Sequence[Item], workers: int | None = None, threads: int | None = None
) -> None:
    """Calls `work(item)` for every item on several threads, each using `threads` PyTorch threads.

    By default there are as many threads as PyTorch uses. An error in one of them ends all.

    >>> done = []
    >>> run_in_threads(done.append, [3])
    >>> done
    [3]
    """
    usual = torch.get_num_threads()
    workers = min(usual if workers is None else workers, len(items))
    threads = usual // max(workers, 1) if threads is None else threads
    alone = workers < 2 and threads == usual
    if alone or "OpenMP" not in torch.__config__.parallel_info().split("ATen parallel backend:")[-1]:
        for item in items:
            work(item)
        return
    queue = _WorkQueue(work, items, threads)
    pool = [threading.Thread(target=queue.run, daemon=True) for _ in range(workers)]
    try:
        # set_num_threads in a thread also changes the default of later threads: it is restored at once.
        with _start_lock:
            for thread in pool:
                thread.start()
            for _ in pool:
                queue.ready.acquire()
            torch.set_num_threads(usual)
        for thread in pool:
            thread.join()
    finally:
        queue.stop()
        for thread in pool:
            if thread.ident is not None:
                thread.join()
    if queue.error is not None:
        raise queue.error


class _WorkQueue(Generic[Item]):
    """The items left, shared by worker threads; list.pop is atomic."""

    def __init__(self, work: Callable[[Item], None], items: Sequence[Item], threads: int) -> None:
        self.work, self.left, self.threads = work, list(reversed(items)), threads
        self.ready = threading.Semaphore(0)
        self.inference = torch.is_inference_mode_enabled()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            torch.get_num_threads()  # the first query resets the number of a new thread: so it comes before setting it
            torch.set_num_threads(self.threads)
        finally:
            self.ready.release()
        with torch.inference_mode(self.inference), torch.no_grad():
            while self.left:
                try:
                    item = self.left.pop()
                except IndexError:  # another took it
                    return
                try:
                    self.work(item)
                except BaseException as error:
                    self.error = error
                    self.stop()

    def stop(self) -> None:
        self.left.clear()
