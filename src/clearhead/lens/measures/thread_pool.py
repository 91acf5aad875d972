"""Worker threads that process a list of items, each with its own number of PyTorch threads.

PyTorch splits every operation among its threads and waits for the last of them. With a hundred short ones in a row
that is a hundred times waiting, which is slow where anything else runs on the machine. Here each thread does
operations by itself, and they wait for each other once.
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

    Left to itself it makes use of as many as PyTorch uses here. An error in one of them ends all.

    >>> found = []
    >>> run_in_threads(found.append, [3])
    >>> found
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
    crew = _WorkQueue(work, items, threads)
    helpers = [threading.Thread(target=crew.run, daemon=True) for _ in range(workers)]
    try:
        # A thread that sets its number of threads sets that of threads yet to come as well: this is put right at once.
        with _start_lock:
            for helper in helpers:
                helper.start()
            for _ in helpers:
                crew.ready.acquire()
            torch.set_num_threads(usual)
        for helper in helpers:
            helper.join()
    finally:
        crew.stop()
        for helper in helpers:
            if helper.ident is not None:
                helper.join()
    if crew.error is not None:
        raise crew.error


class _WorkQueue(Generic[Item]):
    """The items left, shared by worker threads; list.pop is atomic."""

    def __init__(self, work: Callable[[Item], None], items: Sequence[Item], threads: int) -> None:
        self.work, self.left, self.threads = work, list(reversed(items)), threads
        self.ready = threading.Semaphore(0)
        self.inference = torch.is_inference_mode_enabled()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            torch.get_num_threads()  # PyTorch gives a new thread the number of all, when it is first asked: not later
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
