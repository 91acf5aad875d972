"""Whole runs: tested without shape checks, which make them three times slower, and without drawing."""

# Shapes are checked where parts are tested: in test_loop.py and test_head_monitor.py here, and in tests/tasks.

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from clearhead.train.head_monitor import HeadLog
from clearhead.train.observers import LossPlot, Observer

RUNS = (
    *("test_run", "test_run_settings", "test_resume", "test_resume_every_task", "test_processes", "test_observers"),
    *("test_fine_tuning", "test_starting_weights", "test_language_model_start"),
)
DRAWING = {LossPlot: LossPlot.close, HeadLog: HeadLog.close}


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.path.stem in RUNS:
        item.add_marker(pytest.mark.unchecked)


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
