"""ModelLane: a model that runs one request at a time, in their order; a request whose page has left ends early."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from clearhead.errors import LensError

CHECK_INTERVAL = 0.05  # seconds between two checks whether the page of a request has left


class ModelLane:
    """A queue for one model. A waiting request, or one under way, raises LensError once its page has left."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._changed, self._queue = threading.Condition(), deque[object]()  # whoever is first may run the model

    @contextmanager
    def turn(self) -> Iterator[nn.Module]:
        """Waits until all requests before this one are done, and yields the model. Turns cannot be nested."""
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
        try:
            self._wait_for(ticket)
            yield self.model
        finally:
            with self._changed:
                self._queue.remove(ticket)
                self._changed.notify_all()

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
