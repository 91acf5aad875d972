"""Panorama: one attention of one sample from afar and from near: its map, windows, rows, columns, thumbnails."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from clearhead.lens.measures.definition import choose_blocks, sum_blocks
from clearhead.lens.record.attention_views import Sight

OVERVIEW = 512  # pixels of the map that a page gets at once
NEAR = 8192  # tokens: windows of at most so many are exact
MUCH = 2**20  # weights
TOP = 24  # of a row or a column, those with the largest weights
THUMB = 24  # pixels


class Grid(NamedTuple):
    """Sums of weights in blocks; `exact` unless they are spread evenly over the pixels of a coarser map."""

    sums: Float[Tensor, "rows columns"]
    blocks: tuple[int, int]
    exact: bool


class Line(NamedTuple):
    """What one query looks at, or who looks at one key: all weights if they can be had, and the largest."""

    weights: Float[Tensor, " tokens"] | None
    top: list[tuple[int, float]]


class Panorama:
    """`counts` are how many queries and keys there are, from the positions `first` on.

    Where only every n-th query was measured, each stands for n: sums are multiplied, and rows are exact only if q and k
    were kept.
    """

    def __init__(self, sight: Sight, sample: int) -> None:
        self.sight, self.sample = sight, sample
        positions = sight.queries
        self.step = int(positions[1] - positions[0]) if len(positions) > 1 else 1
        if sight.kept is not None:
            start, count = sight.kept.first_query, sight.kept.q.shape[2]
        else:
            start = int(positions[0]) - (self.step - 1) if len(positions) else 0
            count = len(positions) * self.step
        self.first, self.counts = (max(start, 0), 0), (count, sight.keys)
        self.blocks = (max(1, sight.blocks[0]) * self.step, max(1, sight.blocks[1]))
        self.weights = lru_cache(maxsize=8)(lambda head: sight.windows(sample, head))

    @property
    def exact(self) -> bool:
        """Whether any weight can be had."""
        return self.sight.kept is not None or (self.blocks == (1, 1) and self.sight.map.numel() > 0)

    def overview(self, pixels: int = OVERVIEW) -> tuple[int, int]:
        """The blocks of the map that `map` gives."""
        height, width = (max(1, block) for block in choose_blocks(*self.counts, pixels))
        if self.sight.blocks[0]:  # whole pixels of the map that there is
            height, width = (-(-n // block) * block for n, block in zip((height, width), self.blocks, strict=True))
        return height, width

    def map(self, head: int, pixels: int = OVERVIEW) -> Grid:
        """The whole attention, at most so many pixels a side."""
        if not self.sight.blocks[0]:
            return self.window(head, *self._whole(), pixels, pixels)
        base, (height, width) = self._base(head), self.overview(pixels)
        sums = sum_blocks(sum_blocks(base, height // self.blocks[0], 0), width // self.blocks[1], 1)
        return Grid(sums, (height, width), self.step == 1)

    def is_much(self, queries: range, keys: range) -> bool:
        """Whether a window is worth several threads: where it is exact, and large."""
        sizes = [len(part) for part in self._clipped(queries, keys)]
        return self.sight.kept is not None and max(sizes) <= NEAR and sizes[0] * sizes[1] > MUCH

    def window(self, head: int, queries: range, keys: range, rows: int, columns: int) -> Grid:
        """These queries and keys in at most rows × columns blocks: exact if there are at most 8,192 of each."""
        queries, keys = self._clipped(queries, keys)
        height, width = max(1, -(-len(queries) // max(rows, 1))), max(1, -(-len(keys) // max(columns, 1)))
        near = max(len(queries), len(keys)) <= NEAR
        if self.sight.kept is not None and near:
            return Grid(self.weights(head).sums(queries, keys, (height, width)), (height, width), True)
        if not self.sight.blocks[0]:
            return Grid(torch.zeros(0, 0), (height, width), False)
        sums = _spread(
            self._base(head),
            _edges(queries, height, self.first[0], self.counts[0], self.blocks[0]),
            _edges(keys, width, 0, self.counts[1], self.blocks[1]),
        )
        return Grid(sums, (height, width), self.blocks == (1, 1))

    def everything(self, head: int) -> Float[Tensor, "queries keys"]:
        """Every weight, of a text that is not long."""
        if self.sight.kept is None:
            return self._base(head)
        return self.weights(head).sums(*self._whole())

    def row(self, head: int, query: int) -> Line:
        """What the query at this position looks at."""
        if self.sight.kept is not None:  # of any length
            weights = self.weights(head).sums(range(query, query + 1), range(self.counts[1]))[0]
            return Line(weights, _largest(weights, 0))
        if self.exact:
            weights = self._base(head)[query - self.first[0]]
            return Line(weights, _largest(weights, 0))
        place, found = self.sight.place_of(head), (self.sight.queries == query).nonzero()
        if not len(found):
            return Line(None, [])
        keys, values = (t[self.sample, place, int(found[0])] for t in (self.sight.top_keys, self.sight.top_weights))
        return Line(None, [(int(key), float(value)) for key, value in zip(keys, values, strict=True) if key >= 0])

    def column(self, head: int, key: int) -> Line:
        """Who looks at the key at this position."""
        first, count = self.first[0], self.counts[0]
        if self.sight.kept is not None:
            weights = self.weights(head).sums(range(first, first + count), range(key, key + 1))[:, 0]
        elif self.exact:
            weights = self._base(head)[:, key]
        else:
            return Line(None, [])
        return Line(weights, _largest(weights, first))

    def received(self, head: int) -> Float[Tensor, " keys"]:
        """What every key gets from all queries."""
        if self.sight.received is None:
            return torch.zeros(self.counts[1])
        return self.sight.received[self.sample, self.sight.place_of(head)].float() * self.step

    def thumbs(self) -> NDArray[np.uint8]:
        """Of every head a small picture: the square root of the weights, 255 for the largest.

        Where weights are nearly even it stays pale: 255 is at least four times what each would get from an even head.
        """
        heads = []
        for head in self.sight.heads:
            sums = self._base(head) if self.sight.blocks[0] else self.map(head).sums
            rows, columns = (torch.linspace(0, n, THUMB + 1, dtype=torch.double) for n in sums.shape)
            small = _spread(sums, rows, columns).sqrt() if sums.numel() else torch.zeros(THUMB, THUMB)
            full = max(float(small.max()), 2 * float(sums.sum()) ** 0.5 / THUMB, 1e-12)
            heads.append((small * (255 / full)).round().byte())
        return torch.stack(heads).numpy() if heads else np.zeros((0, THUMB, THUMB), np.uint8)

    def _whole(self) -> tuple[range, range]:
        return range(self.first[0], self.first[0] + self.counts[0]), range(self.counts[1])

    def _clipped(self, queries: range, keys: range) -> tuple[range, range]:
        return tuple(  # type: ignore[return-value]
            range(max(part.start, whole.start), max(max(part.start, whole.start), min(part.stop, whole.stop)))
            for part, whole in zip((queries, keys), self._whole(), strict=True)
        )

    def _base(self, head: int) -> Tensor:
        base = self.sight.map[self.sample, self.sight.place_of(head)]
        return base if self.step == 1 else base * self.step


def _edges(positions: range, block: int, first: int, count: int, pixel: int) -> Tensor:
    """Where blocks of positions begin and end, in pixels of a map; its last pixel may stand for fewer positions.

    >>> _edges(range(4, 9), 2, 0, 9, 4).tolist()
    [1.0, 1.5, 2.0, 3.0]
    """
    edges = torch.arange(positions.start, positions.stop + block, block, dtype=torch.double)
    edges = edges[: -(-len(positions) // block) + 1].clamp(max=positions.stop) - first
    last = max(count - 1, 0) // pixel
    return torch.where(edges <= last * pixel, edges / pixel, last + (edges - last * pixel) / (count - last * pixel))


def _spread(base: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Sums over any cells of a map whose pixels are even inside: `rows` and `columns` are the cells' edges, in pixels.

    >>> base = torch.tensor([[1.0, 3.0], [5.0, 7.0]])
    >>> _spread(base, torch.tensor([0.0, 0.5, 2.0]), torch.tensor([0.0, 2.0]))
    tensor([[ 2.],
            [14.]])
    """
    for axis, edges in ((0, rows), (1, columns)):
        first = min(math.floor(edges[0]), base.shape[axis])
        base = base.narrow(axis, first, min(math.ceil(edges[-1]), base.shape[axis]) - first)
    for axis, edges in ((0, rows - math.floor(rows[0])), (1, columns - math.floor(columns[0]))):
        # Between all edges, of cells and of pixels, lie pieces of which each is in one cell and in one pixel.
        inside = torch.arange(math.floor(edges[0]) + 1, math.ceil(edges[-1]), dtype=torch.double)
        cuts = torch.cat([edges.double(), inside]).unique()
        middles, lengths = (cuts[1:] + cuts[:-1]) / 2, cuts.diff()
        pixels = middles.floor().long().clamp(max=base.shape[axis] - 1)
        cells = torch.searchsorted(edges.double(), middles, right=True) - 1
        shares = lengths.float().view((-1, 1) if axis == 0 else (1, -1))
        pieces = base.index_select(axis, pixels).float() * shares
        shape = [len(edges) - 1 if n == axis else size for n, size in enumerate(base.shape)]
        base = torch.zeros(shape).index_add_(axis, cells, pieces)
    return base


def _largest(weights: Tensor, first: int) -> list[tuple[int, float]]:
    values, places = weights.topk(min(TOP, len(weights)))
    pairs = zip(places.tolist(), values.tolist(), strict=True)
    return [(place + first, value) for place, value in pairs if value > 0]
