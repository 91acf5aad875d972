"""Worker threads that process a list of items, each with its own number of PyTorch threads.

PyTorch splits every operation among its threads and waits for the last of them: a hundred short operations wait a
hundred times, which is slow on a busy machine. Here each thread runs whole operations, and they wait once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

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
    alone = not items or (workers < 2 and threads == usual)
    if alone or "OpenMP" not in torch.__config__.parallel_info().split("ATen parallel backend:")[-1]:
        for item in items:
            work(item)
        return
    inference = torch.is_inference_mode_enabled()

    def run(item: Item) -> None:
        with torch.inference_mode(inference), torch.no_grad():
            work(item)

    with start_workers(workers, threads) as pool:
        for _ in pool.map(run, items):  # raises the first error, and cancels the items left
            pass


def start_workers(workers: int, threads: int) -> ThreadPoolExecutor:
    """A pool of running threads, each of which uses `threads` PyTorch threads."""
    usual, all_started = torch.get_num_threads(), threading.Barrier(workers + 1, timeout=60)

    def start() -> None:
        torch.get_num_threads()  # the first query resets the number of a new thread: so it comes before setting it
        torch.set_num_threads(threads)
        all_started.wait()

    pool = ThreadPoolExecutor(workers, initializer=start)
    with _start_lock:
        for _ in range(workers):  # a thread starts when there is something to do
            pool.submit(bool)
        all_started.wait()
        torch.set_num_threads(usual)  # those of the pool have also changed the default of later threads
    return pool
