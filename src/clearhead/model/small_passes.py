"""Small forward passes of several threads run one after another.

PyTorch releases Python's global lock in every operation, and then waits to get it back. Where an operation takes
microseconds, threads side by side do little else: four took two to three times as long as one
(benchmarks/results/shared_predictor_cpu_2026-11-18.md).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from torch import nn

SMALL = 100_000_000  # tokens × weights of a pass; above it, two threads on two cores were faster than one
_LOCK = threading.RLock()

Step = TypeVar("Step")


def pass_lock(model: nn.Module, tokens: int) -> AbstractContextManager[object]:
    """The lock of a forward pass over this number of tokens; a large pass, or one on a GPU, needs none."""
    parameters = list(model.parameters())
    small = tokens * sum(parameter.numel() for parameter in parameters) < SMALL
    return _LOCK if small and all(parameter.is_cpu for parameter in parameters) else nullcontext()


def lock_steps(steps: Iterator[Step], lock: AbstractContextManager[object]) -> Iterator[Step]:
    """The steps of decoding; the lock is held while each is computed, but not while the caller uses it."""
    while True:
        with lock:
            try:
                step = next(steps)
            except StopIteration:
                return
        yield step
