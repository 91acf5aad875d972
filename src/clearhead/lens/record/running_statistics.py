"""RunningStatistics: mean and spread of each head's measures, added up sight by sight in constant memory."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.lens.record.attention_views import Sight

MEASURES = ("entropy", "peak", "distance", "first")


class Spread(NamedTuple):
    """Mean and standard deviation over queries."""

    mean: Float[Tensor, " heads"]
    std: Float[Tensor, " heads"]


class Statistics(NamedTuple):
    """One number per head, in the order of `heads`; NaN if no query of the head had a visible key."""

    heads: tuple[int, ...]
    queries: Int[Tensor, " heads"]
    entropy: Spread
    peak: Spread
    distance: Spread
    first: Spread


class RunningStatistics:
    """Sums over all queries of several sights of one attention, from which means and spreads follow.

    The sums are of differences from the first value of each head: squares of large numbers would lose the spread.
    """

    def __init__(self) -> None:
        self.heads: list[int] = []
        self.counts = torch.zeros(0, dtype=torch.long)
        self.shifts, self.sums, self.squares = (torch.zeros(len(MEASURES), 0, dtype=torch.float64) for _ in range(3))

    def add(self, sight: Sight) -> None:
        """Adds all queries of a sight that see anything, also what is not a number: it must show in the mean."""
        self._reserve(sight.heads)
        at = [self.heads.index(head) for head in sight.heads]
        real = sight.logsumexp != -math.inf
        self._set_shifts(sight, at, real)
        self.counts[at] += real.sum((0, 2))
        for n, name in enumerate(MEASURES):
            apart = (getattr(sight, name).double() - self.shifts[n, at][:, None]).masked_fill(~real, 0.0)
            self.sums[n, at] += apart.sum((0, 2))
            self.squares[n, at] += apart.square().sum((0, 2))

    def merge(self, other: RunningStatistics) -> None:
        """Adds the sums of another."""
        self._reserve(other.heads)
        at = [self.heads.index(head) for head in other.heads]
        empty = self.counts[at] == 0
        self.shifts[:, at] = torch.where(empty, other.shifts, self.shifts[:, at])
        moved = other.shifts - self.shifts[:, at]
        self.squares[:, at] += other.squares + 2 * moved * other.sums + other.counts * moved.square()
        self.sums[:, at] += other.sums + other.counts * moved
        self.counts[at] += other.counts

    def result(self) -> Statistics:
        """The statistics so far, with heads in order."""
        order = sorted(range(len(self.heads)), key=self.heads.__getitem__)
        counts, shifts = self.counts[order], self.shifts[:, order]
        means = self.sums[:, order] / counts
        spreads = (self.squares[:, order] / counts - means.square()).clamp(min=0).sqrt()
        spread = [Spread(shift + mean, std) for shift, mean, std in zip(shifts, means, spreads, strict=True)]
        return Statistics(tuple(self.heads[place] for place in order), counts, *spread)

    def _reserve(self, heads: list[int] | tuple[int, ...]) -> None:
        more = [head for head in heads if head not in self.heads]
        self.heads += more
        self.counts = torch.nn.functional.pad(self.counts, (0, len(more)))
        self.shifts, self.sums, self.squares = (
            torch.nn.functional.pad(one, (0, len(more))) for one in (self.shifts, self.sums, self.squares)
        )

    def _set_shifts(self, sight: Sight, at: list[int], real: Tensor) -> None:
        """Of heads without any query so far, the values of the first query that sees anything."""
        for place, head in enumerate(at):
            if not self.counts[head] and bool(real[:, place].any()):
                batch, query = real[:, place].nonzero()[0].tolist()
                numbers = [float(getattr(sight, name)[batch, place, query]) for name in MEASURES]
                self.shifts[:, head] = torch.tensor(numbers, dtype=torch.float64)
