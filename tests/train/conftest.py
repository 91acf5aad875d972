"""Whole runs: tested without shape checks, which make them three times slower, and without drawing."""

# Files of whole runs are marked `unchecked`. Shapes are checked where parts are tested: in test_loop.py and
# test_head_monitor.py here, and in tests/tasks.

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from clearhead.train.head_monitor import HeadLog
from clearhead.train.observers import LossPlot, Observer

DRAWING = {LossPlot: LossPlot.close, HeadLog: HeadLog.close}


@pytest.fixture(scope="package", autouse=True)
def undrawn() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LossPlot, "close", Observer.close)
        patch.setattr(HeadLog, "close", lambda self: self.file.close())
        yield


@contextmanager
def drawing() -> Iterator[None]:
    """Context manager: runs draw their curves."""
    with pytest.MonkeyPatch.context() as patch:
        for kind, close in DRAWING.items():
            patch.setattr(kind, "close", close)
        yield
