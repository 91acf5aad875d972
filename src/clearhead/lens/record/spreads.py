"""What a head does over a corpus: the mean and spread of its measures over all queries that see anything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.lens.record.attention_views import Sight

MEASURES = ("entropy", "peak", "distance", "first")


class Spread(NamedTuple):
    """The mean over queries, and how far they are from it: the root of the mean square."""

    mean: Float[Tensor, " heads"]
    std: Float[Tensor, " heads"]


class Statistics(NamedTuple):
    """One number a head, in the order of `heads`; not a number where a head had no query that sees anything."""

    heads: tuple[int, ...]
    queries: Int[Tensor, " heads"]
    entropy: Spread
    peak: Spread
    distance: Spread
    first: Spread


def over_all(sights: Sequence[Sight]) -> Statistics:
    """Over several sights of one attention, each query counting alike."""
    heads = tuple(sorted({head for sight in sights for head in sight.heads}))
    counts = torch.zeros(len(heads), dtype=torch.long)
    sums, squares = (torch.zeros(len(MEASURES), len(heads), dtype=torch.float64) for _ in range(2))
    shifts = _first_values(sights, heads)
    for sight in sights:
        at = [heads.index(head) for head in sight.heads]
        real = sight.logsumexp != -math.inf  # also what is not a number: it must show in the mean
        counts[at] += real.sum((0, 2))
        for n, name in enumerate(MEASURES):
            # Around some value of the head itself: sums of squares of large numbers would lose the spread.
            apart = (getattr(sight, name).double() - shifts[n, at][:, None]).masked_fill(~real, 0.0)
            sums[n, at] += apart.sum((0, 2))
            squares[n, at] += apart.square().sum((0, 2))
    means = sums / counts
    spreads = (squares / counts - means.square()).clamp(min=0).sqrt()
    spread = [Spread(shift + mean, std) for shift, mean, std in zip(shifts, means, spreads, strict=True)]
    return Statistics(heads, counts, *spread)


def _first_values(sights: Sequence[Sight], heads: tuple[int, ...]) -> Tensor:
    """For each measure and head, what its first query that sees anything has."""
    found = torch.zeros(len(MEASURES), len(heads), dtype=torch.float64)
    known = set()
    for sight in sights:
        for place, head in enumerate(sight.heads):
            real = (sight.logsumexp[:, place] != -math.inf).nonzero()
            if head not in known and len(real):
                known.add(head)
                batch, query = real[0].tolist()
                numbers = [float(getattr(sight, name)[batch, place, query]) for name in MEASURES]
                found[:, heads.index(head)] = torch.tensor(numbers, dtype=torch.float64)
    return found
