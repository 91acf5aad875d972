"""Cells: the weights of one head as they are drawn, from a Sight or a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.errors import RecordError, ShapeError
from clearhead.explore.figures import naming
from clearhead.lens import Sight
from clearhead.lens.measures.definition import choose_blocks, sum_blocks

Tokens = Sequence[str | None] | None
MOST = 512  # cells a side: more cannot be told apart in a figure
LABELLED = 80  # tokens whose labels can still be read


@dataclass(frozen=True)
class Axis:
    """The tokens along one side: their positions, how many share a cell, and their texts where they are known."""

    positions: Sequence[int]
    block: int = 1
    texts: Sequence[str | None] | None = None

    @property
    def cells(self) -> int:
        return -(-len(self.positions) // self.block)

    @property
    def labelled(self) -> bool:
        """Whether each token gets its label."""
        return self.block == 1 and len(self.positions) <= LABELLED


@dataclass(frozen=True)
class Cells:
    """Weights to draw: of blocks, what a query there gives to all keys of the block together, on average."""

    values: NDArray[np.float64]
    queries: Axis
    keys: Axis

    @property
    def exact(self) -> bool:
        return self.queries.block == self.keys.block == 1


def cells_of(
    source: Sight | Tensor,
    head: int | None = None,
    *,
    sample: int = 0,
    queries: Tokens = None,
    keys: Tokens = None,
    when: str | None = None,
    most: int = MOST,
) -> Cells:
    """The weights of a head, or without one the mean of all, in at most so many cells a side.

    `queries` and `keys` are the texts of the tokens, where the source does not know them; `when` says which of a
    decoder's name its rows: those "written" there, or those "read".
    """
    naming.check_when(when)
    if isinstance(source, Sight):
        sums, positions, blocks = _of_sight(source, head, sample)
        count = source.keys
        queries = naming.query_texts(source, sample, when=when) if queries is None else queries
        keys = naming.key_texts(source, sample) if keys is None else keys
    else:
        sums = weights_of(source, head, sample)
        positions, count, blocks = list(range(sums.shape[0])), sums.shape[1], (1, 1)
        queries = keys if queries is None and len(positions) == count else queries
    sums, blocks = _smaller(sums, blocks, (len(positions), count), most)
    sides = (
        Axis(positions, blocks[0], _fitting(queries, len(positions), "queries")),
        Axis(range(count), blocks[1], _fitting(keys, count, "keys")),
    )
    return Cells(_shares(sums, len(positions), blocks[0]), *sides)


def heads_of(source: Sight | Tensor) -> list[int]:
    """The numbers of the heads that there are."""
    if isinstance(source, Sight):
        return list(source.heads)
    return list(range(source.shape[-3])) if source.ndim > 2 else [0]


def _of_sight(sight: Sight, head: int | None, sample: int) -> tuple[Tensor, list[int], tuple[int, int]]:
    positions = sight.queries.tolist()
    blocks = sight.blocks
    wanted = sight.heads if head is None else (head,)
    if sight.kept is not None and blocks != (1, 1) and max(len(positions), sight.keys) <= MOST:
        found = torch.stack([sight.weights(sample, one).double() for one in wanted]).mean(0)
        return found, positions, (1, 1)
    if blocks == (0, 0):
        raise RecordError(f"no map of {sight.name!r} was measured; watch(…, pixels=256) measures one")
    if not 0 <= sample < sight.map.shape[0]:
        raise RecordError(f"{sight.name!r} has {sight.map.shape[0]} samples, numbered from 0, not {sample!r}")
    places = [sight.place_of(one) for one in wanted]
    return sight.map[sample, places].double().mean(0), positions, blocks


def weights_of(weights: Tensor, head: int | None, sample: int) -> Tensor:
    """(queries, keys) of one head and sample, or the mean of all heads."""
    if not 2 <= weights.ndim <= 4:
        raise ShapeError(
            "weights must be (queries, keys), (heads, queries, keys) or (batch, heads, queries, keys), "
            f"got {tuple(weights.shape)}"
        )
    if weights.ndim == 4:
        _check_number(sample, weights.shape[0], "samples")
        weights = weights[sample]
    if weights.ndim == 3:
        if head is not None:
            _check_number(head, weights.shape[0], "heads")
        weights = weights.mean(0) if head is None else weights[head]
    return weights.detach().cpu().double()


def _smaller(
    sums: Tensor, blocks: tuple[int, int], counts: tuple[int, int], most: int
) -> tuple[Tensor, tuple[int, int]]:
    """Blocks that are so large that all fit."""
    if not all(counts):
        raise ShapeError(f"there is nothing to draw: {counts[0]} queries, {counts[1]} keys")
    times = choose_blocks(sums.shape[0], sums.shape[1], most)
    return sum_blocks(sum_blocks(sums, times[0], 0), times[1], 1), (blocks[0] * times[0], blocks[1] * times[1])


def _shares(sums: Tensor, queries: int, block: int) -> NDArray[np.float64]:
    """Sums over blocks of queries into means; the last block may be short."""
    starts = torch.arange(0, queries, block)
    sizes = (queries - starts).clamp(max=block)
    shares: NDArray[np.float64] = (sums / sizes[:, None]).numpy()
    return shares


def _fitting(texts: Tokens, count: int, what: str) -> Sequence[str | None] | None:
    if texts is not None and len(texts) < count:
        raise ShapeError(f"{len(texts)} tokens are given for {count} {what}; give one for each")
    return texts if texts is None else texts[:count]


def _check_number(number: int, count: int, what: str) -> None:
    if not 0 <= number < count:
        raise ShapeError(f"there are {count} {what}, numbered from 0, not {number!r}")
