"""ModelLane: a model that runs one request at a time, in their order; a request whose page has left ends early."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from clearhead.errors import LensError
from clearhead.tasks.trace import Tracer

CHECK_INTERVAL = 0.05  # seconds between two checks whether the page of a request has left
FREE_DELAY = 1.0  # seconds after which requests that are being answered no longer hold tensors of the text before


class ModelLane:
    """A queue for one model. A waiting request, or one under way, raises LensError once its page has left.

    With `frees_memory`, what a request used is returned to the system after it.
    """

    def __init__(self, tracer: Tracer, *, frees_memory: bool = False) -> None:
        self.tracer, self.frees_memory = tracer, frees_memory
        self._changed, self._queue = threading.Condition(), deque[object]()  # whoever is first may run the model

    @contextmanager
    def turn(self) -> Iterator[Tracer]:
        """Waits until all requests before this one are done, and yields the tracer. Turns cannot be nested."""
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
        try:
            self._wait_for(ticket)
            yield self.tracer
        finally:
            with self._changed:
                self._queue.remove(ticket)
                self._changed.notify_all()
            if self.frees_memory:
                free_memory_soon()

    def give_way(self) -> None:
        """Within a turn: lets every request that waits run first, and then goes on."""
        with self._changed:
            self._queue.rotate(-1)
            self._changed.notify_all()
            ticket = self._queue[-1]
        self._wait_for(ticket)

    def _wait_for(self, ticket: object) -> None:
        with self._changed:
            while self._queue[0] is not ticket:
                self._changed.wait(CHECK_INTERVAL)
                end_if_left()


class _Request(threading.local):
    """The request that a thread answers."""

    has_left: Callable[[], bool] | None = None
    next_check = 0.0


_request = _Request()


@contextmanager
def end_when(has_left: Callable[[], bool]) -> Iterator[None]:
    """Within it, what this thread does with a model ends with LensError once `has_left()` is true."""
    _request.has_left = has_left
    try:
        yield
    finally:
        _request.has_left = None


def end_if_left(*_: Any) -> None:
    """Raises LensError if the page of this thread's request has left; also a forward pre-hook of all modules."""
    if _request.has_left is None or (now := time.monotonic()) < _request.next_check:
        return
    _request.next_check = now + CHECK_INTERVAL
    if _request.has_left():
        raise LensError("cancelled: the page that asked for this has left")


def free_memory_soon() -> None:
    """Calls `free_memory` in a second, from another thread."""
    timer = threading.Timer(FREE_DELAY, free_memory)
    timer.daemon = True
    timer.start()


def free_memory() -> None:
    """Frees unused objects, and returns free memory to the system.

    A forward pass and its attentions refer to each other, so that only the garbage collector frees them. glibc keeps
    what is freed below its largest blocks, a gigabyte after a few long texts.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:  # musl has none
        trim(0)
