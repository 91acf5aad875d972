"""Waiting: how far a long work is, and how much longer it takes, said on the standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

OFTEN, SELDOM = 0.2, 15.0  # seconds from word to word: on a terminal, where all is one line, and in a file


class Waiting:
    """Called with how many of `total` are done; `each` is how many seconds one should take, if that is known."""

    def __init__(
        self,
        what: str,
        total: int,
        *,
        each: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.what, self.total, self.clock = what, total, clock
        self.terminal = sys.stderr.isatty()
        self.begin = self.said = clock()
        if total:
            self._tell(0, None if each is None else each * total)

    def __call__(self, done: int) -> None:
        now = self.clock()
        if done == self.total:
            self._say("")
        elif done == 1 or now - self.said >= (OFTEN if self.terminal else SELDOM):
            self.said = now
            self._tell(done, (now - self.begin) / done * (self.total - done))

    def _tell(self, done: int, left: float | None) -> None:
        self._say(f"clearhead: {done} of {self.total} {self.what}{'' if left is None else f', {duration(left)} left'}")

    def _say(self, words: str) -> None:
        if self.terminal:
            print(f"\r\x1b[K{words}", end="", file=sys.stderr, flush=True)
        elif words:
            print(words, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """A time in few words.

    >>> [duration(seconds) for seconds in (0.2, 59.0, 100.0, 3e3, 9e3)]
    ['about 1 s', 'about 59 s', 'about 2 min', 'about 50 min', 'about 2.5 h']
    """
    if seconds < 99.5:
        return f"about {max(1, round(seconds))} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5970 else f"about {seconds / 3600:.1f} h"
