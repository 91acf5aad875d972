"""AttentionMap: the weights of one attention in one sample as overview, window, row, column or thumbnail."""

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

OVERVIEW = 512  # pixels a side of the map that a page gets first
MAX_EXACT = 8192  # queries or keys of a window that is computed exactly; larger ones come from the map
LARGE = 2**20  # weights from which on several threads pay
TOP = 24  # largest weights of a row or a column
THUMBNAIL = 24  # pixels a side


class Grid(NamedTuple):
    """Sums of weights in blocks; `exact` unless they were interpolated from a coarser map."""

    sums: Float[Tensor, "rows columns"]
    blocks: tuple[int, int]
    exact: bool


class WeightLine(NamedTuple):
    """One row or column: all weights, or None if they were not kept, and the largest as (position, weight)."""

    weights: Float[Tensor, " tokens"] | None
    top: list[tuple[int, float]]


class AttentionMap:
    """One attention of one sample. `counts` and `first` are pairs (queries, keys): how many, and the first position.

    If only every n-th query was measured, sums are multiplied by n. Weights are exact if q and k were kept, or if the
    map has one pixel for each of them.
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
        self.windows = lru_cache(maxsize=8)(lambda head: sight.windows(sample, head))

    @property
    def ends(self) -> tuple[int, int]:
        """The position after the last query, and after the last key."""
        return self.first[0] + self.counts[0], self.counts[1]

    @property
    def exact(self) -> bool:
        """Whether every single weight is available."""
        return self.sight.kept is not None or (self.blocks == (1, 1) and self.sight.map.numel() > 0)

    def overview_blocks(self, pixels: int = OVERVIEW) -> tuple[int, int]:
        """How many queries and keys a pixel of `sum_overview` covers."""
        height, width = (max(1, block) for block in choose_blocks(*self.counts, pixels))
        if self.sight.blocks[0]:  # multiples of the pixels of the recorded map
            height, width = (-(-n // block) * block for n, block in zip((height, width), self.blocks, strict=True))
        return height, width

    def sum_overview(self, head: int, pixels: int = OVERVIEW) -> Grid:
        """The whole attention in at most so many pixels a side."""
        if not self.sight.blocks[0]:
            return self.sum_window(head, *self._all_positions(), pixels, pixels)
        base, (height, width) = self._read_map(head), self.overview_blocks(pixels)
        sums = sum_blocks(sum_blocks(base, height // self.blocks[0], 0), width // self.blocks[1], 1)
        return Grid(sums, (height, width), self.step == 1)

    def is_large_window(self, queries: range, keys: range) -> bool:
        """Whether a window is exact and so large that several threads pay."""
        sizes = [len(part) for part in self._clip(queries, keys)]
        return self.sight.kept is not None and max(sizes) <= MAX_EXACT and sizes[0] * sizes[1] > LARGE

    def sum_window(self, head: int, queries: range, keys: range, rows: int, columns: int) -> Grid:
        """These queries and keys in at most rows × columns blocks; exact up to 8,192 of each if q and k were kept."""
        queries, keys = self._clip(queries, keys)
        height, width = max(1, -(-len(queries) // max(rows, 1))), max(1, -(-len(keys) // max(columns, 1)))
        near = max(len(queries), len(keys)) <= MAX_EXACT
        if self.sight.kept is not None and near:
            return Grid(self.windows(head).sums(queries, keys, (height, width)), (height, width), True)
        if not self.sight.blocks[0]:
            return Grid(torch.zeros(0, 0), (height, width), False)
        sums = _resample(
            self._read_map(head),
            _block_edges(queries, height, self.first[0], self.counts[0], self.blocks[0]),
            _block_edges(keys, width, 0, self.counts[1], self.blocks[1]),
        )
        return Grid(sums, (height, width), self.blocks == (1, 1))

    def compute_weights(self, head: int) -> Float[Tensor, "queries keys"]:
        """All weights at once, for short texts."""
        if self.sight.kept is None:
            return self._read_map(head)
        return self.windows(head).sums(*self._all_positions())

    def compute_row(self, head: int, query: int) -> WeightLine:
        """The weights of the query at this position; if they were not kept, its top keys alone."""
        if self.sight.kept is not None:  # fast at any length
            weights = self.windows(head).sums(range(query, query + 1), range(self.counts[1]))[0]
            return WeightLine(weights, _find_largest(weights, 0))
        if self.exact:
            weights = self._read_map(head)[query - self.first[0]]
            return WeightLine(weights, _find_largest(weights, 0))
        place, found = self.sight.place_of(head), (self.sight.queries == query).nonzero()
        if not len(found):
            return WeightLine(None, [])
        keys, values = (t[self.sample, place, int(found[0])] for t in (self.sight.top_keys, self.sight.top_weights))
        return WeightLine(None, [(int(key), float(value)) for key, value in zip(keys, values, strict=True) if key >= 0])

    def compute_column(self, head: int, key: int) -> WeightLine:
        """The weights that all queries give to the key at this position."""
        first, count = self.first[0], self.counts[0]
        if self.sight.kept is not None:
            weights = self.windows(head).sums(range(first, first + count), range(key, key + 1))[:, 0]
        elif self.exact:
            weights = self._read_map(head)[:, key]
        else:
            return WeightLine(None, [])
        return WeightLine(weights, _find_largest(weights, first))

    def compute_received(self, head: int) -> Float[Tensor, " keys"]:
        """The sum over all queries of the weight on each key."""
        if self.sight.received is None:
            return torch.zeros(self.counts[1])
        return self.sight.received[self.sample, self.sight.place_of(head)].float() * self.step

    def draw_thumbnails(self) -> NDArray[np.uint8]:
        """A picture of every head, (heads, 24, 24): the square root of the weights, scaled to 255.

        Heads whose weights are nearly even stay pale: 255 is at least four times the even weight.
        """
        heads = []
        for head in self.sight.heads:
            sums = self._read_map(head) if self.sight.blocks[0] else self.sum_overview(head).sums
            rows, columns = (torch.linspace(0, n, THUMBNAIL + 1, dtype=torch.double) for n in sums.shape)
            small = _resample(sums, rows, columns).sqrt() if sums.numel() else torch.zeros(THUMBNAIL, THUMBNAIL)
            full = max(float(small.max()), 2 * float(sums.sum()) ** 0.5 / THUMBNAIL, 1e-12)
            heads.append((small * (255 / full)).round().byte())
        return torch.stack(heads).numpy() if heads else np.zeros((0, THUMBNAIL, THUMBNAIL), np.uint8)

    def _all_positions(self) -> tuple[range, range]:
        return range(self.first[0], self.first[0] + self.counts[0]), range(self.counts[1])

    def _clip(self, queries: range, keys: range) -> tuple[range, range]:
        return tuple(  # type: ignore[return-value]
            range(max(part.start, whole.start), max(max(part.start, whole.start), min(part.stop, whole.stop)))
            for part, whole in zip((queries, keys), self._all_positions(), strict=True)
        )

    def _read_map(self, head: int) -> Float[Tensor, "rows columns"]:
        """The recorded map; multiplied if only every n-th query was measured."""
        base = self.sight.map[self.sample, self.sight.place_of(head)]
        return base if self.step == 1 else base * self.step


def _block_edges(positions: range, block: int, first: int, count: int, pixel: int) -> Float[Tensor, " edges"]:
    """The borders of blocks of positions, in pixels of a map whose last pixel may cover fewer positions.

    >>> _block_edges(range(4, 9), 2, 0, 9, 4).tolist()
    [1.0, 1.5, 2.0, 3.0]
    """
    edges = torch.arange(positions.start, positions.stop + block, block, dtype=torch.double)
    edges = edges[: -(-len(positions) // block) + 1].clamp(max=positions.stop) - first
    last = max(count - 1, 0) // pixel
    return torch.where(edges <= last * pixel, edges / pixel, last + (edges - last * pixel) / (count - last * pixel))


def _resample(
    base: Float[Tensor, "rows columns"], rows: Float[Tensor, " row_edges"], columns: Float[Tensor, " column_edges"]
) -> Float[Tensor, "new_rows new_columns"]:
    """Sums over cells with the given edges, in pixels, if the weight of a pixel is spread evenly inside it.

    >>> base = torch.tensor([[1.0, 3.0], [5.0, 7.0]])
    >>> _resample(base, torch.tensor([0.0, 0.5, 2.0]), torch.tensor([0.0, 2.0]))
    tensor([[ 2.],
            [14.]])
    """
    for axis, edges in ((0, rows), (1, columns)):
        first = min(math.floor(edges[0]), base.shape[axis])
        base = base.narrow(axis, first, min(math.ceil(edges[-1]), base.shape[axis]) - first)
    for axis, edges in ((0, rows - math.floor(rows[0])), (1, columns - math.floor(columns[0]))):
        # The edges of cells and of pixels together cut pieces that each lie in one cell and in one pixel.
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


def _find_largest(weights: Float[Tensor, " tokens"], first: int) -> list[tuple[int, float]]:
    values, places = weights.topk(min(TOP, len(weights)))
    pairs = zip(places.tolist(), values.tolist(), strict=True)
    return [(place + first, value) for place, value in pairs if value > 0]
