"""Kept: the q and k of an attention, from which any window of its weights can be had exactly."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from clearhead.attention.inputs import Call


@dataclass(frozen=True)
class Kept:
    """What went into an attention, on the CPU."""

    whole: Call
    logsumexp: Tensor

    def call(self) -> Call:
        return self.whole

    def window(self, sample: int, place: int, queries: int | slice | None, keys: int | slice | None) -> Tensor:
        raise NotImplementedError
