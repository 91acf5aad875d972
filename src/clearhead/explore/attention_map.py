"""AttentionMap: the weights of one attention in one sample as overview, window, row, column or thumbnail."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from clearhead.errors import RecordError
from clearhead.lens.measures.definition import choose_blocks, sum_blocks
from clearhead.lens.record.attention_views import Sight

OVERVIEW = 512  # pixels a side of the map that a page gets first
MAX_EXACT = 8192  # a window of at most MAX_EXACT² weights is computed exactly; larger ones come from the map
MAX_UNMAPPED = 2**30  # weights up to which the overview is computed if the record has no map
LARGE = 2**20  # weights from which on several threads pay
TOP = 24  # largest weights of a row or a column
THUMBNAIL = 24  # pixels a side


class Grid(NamedTuple):
    """Sums of weights in blocks from the first query and key of `area` on; the last block of a side may be short.

    `exact` unless only every n-th query was measured. A block in which the mask hides everything is −0.0.
    """

    sums: Float[Tensor, "rows columns"]
    blocks: tuple[int, int]
    exact: bool
    area: tuple[range, range]


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
        """The whole attention in at most `pixels` pixels a side."""
        blocks, (queries, keys) = self.overview_blocks(pixels), self._all_positions()
        if self.sight.blocks[0]:
            return self._sum_map(head, queries, keys, blocks)
        if self.counts[0] * self.counts[1] > MAX_UNMAPPED:
            size = f"{self.counts[0]:,} × {self.counts[1]:,} weights"
            raise RecordError(f"{self.sight.name} has {size} and no map; watch with pixels=256")
        return self._sum_exact(head, queries, keys, blocks)

    def is_large_window(self, queries: range, keys: range) -> bool:
        """Whether a window is exact and so large that several threads pay."""
        size = math.prod(len(part) for part in self._clip(queries, keys))
        return self.sight.kept is not None and LARGE < size <= MAX_EXACT**2

    def sum_window(self, head: int, queries: range, keys: range, blocks: tuple[int, int]) -> Grid:
        """These queries and keys in `blocks` of queries and keys.

        From q and k if they were kept, for at most 8,192 × 8,192 weights. Otherwise in whole pixels of the recorded
        map: area and blocks then grow to the next multiples of its pixels. Many weights in blocks that are such
        multiples come from the map at once.
        """
        queries, keys = self._clip(queries, keys)
        size = len(queries) * len(keys)
        summed = size > LARGE and self._is_aligned(queries, keys, blocks)
        if self.sight.kept is not None and size <= MAX_EXACT**2 and not summed:
            return self._sum_exact(head, queries, keys, blocks)
        if not self.sight.blocks[0]:
            raise RecordError(f"{self.sight.name} has no map, so a window has at most {MAX_EXACT:,}² weights")
        return self._sum_map(head, queries, keys, blocks)

    def _is_aligned(self, queries: range, keys: range, blocks: tuple[int, int]) -> bool:
        """Whether these blocks consist of whole pixels of the recorded map, in which every query was measured."""
        if not self.sight.blocks[0] or self.step > 1:
            return False
        sides = zip((queries, keys), blocks, self.first, self.ends, self.blocks, strict=True)
        return all(
            block % pixel == 0 and part == _widen_to_pixels(part, first, end, pixel)
            for part, block, first, end, pixel in sides
        )

    def _sum_exact(self, head: int, queries: range, keys: range, blocks: tuple[int, int]) -> Grid:
        windows = self.windows(head)
        sums, hidden = windows.sums(queries, keys, blocks), windows.find_hidden_blocks(queries, keys, blocks)
        return Grid(_mark_hidden(sums, hidden), blocks, True, (queries, keys))

    def _sum_map(self, head: int, queries: range, keys: range, blocks: tuple[int, int]) -> Grid:
        sides = zip((queries, keys), self.first, self.ends, self.blocks, strict=True)
        area = [_widen_to_pixels(*side) for side in sides]
        rows, columns = (
            slice((part.start - first) // pixel, -(-(part.stop - first) // pixel))
            for part, first, pixel in zip(area, self.first, self.blocks, strict=True)
        )
        together = [max(1, -(-block // pixel)) for block, pixel in zip(blocks, self.blocks, strict=True)]
        weights = self._read_map(head)[rows, columns]
        both = torch.stack([weights, (~is_hidden(weights)).to(weights)])
        sums, seen = sum_blocks(sum_blocks(both, together[0], 1), together[1], 2)
        height, width = (count * pixel for count, pixel in zip(together, self.blocks, strict=True))
        hidden: Tensor | None = seen == 0
        if self.sight.kept is not None:
            hidden = self.windows(head).find_hidden_blocks(area[0], area[1], (height, width))
        return Grid(_mark_hidden(sums, hidden), (height, width), self.step == 1, (area[0], area[1]))

    def compute_weights(
        self, head: int, queries: range | None = None, keys: range | None = None
    ) -> Float[Tensor, "queries keys"]:
        """The weights of these queries and keys, by default of all; −0.0 where the mask hides the key.

        Every single weight must be available; one row or column is fast at any length.
        """
        all_queries, all_keys = self._all_positions()
        queries, keys = queries or all_queries, keys or all_keys
        if self.sight.kept is not None:
            return self._sum_exact(head, queries, keys, (1, 1)).sums
        first = self.first[0]
        return self._read_map(head)[queries.start - first : queries.stop - first, keys.start : keys.stop]

    def compute_row(self, head: int, query: int) -> WeightLine:
        """The weights of the query at this position; if they were not kept, its top keys alone."""
        if self.exact:
            weights = self.compute_weights(head, queries=range(query, query + 1))[0]
            return WeightLine(weights, _find_largest(weights, 0))
        measured = (self.sight.queries == query).nonzero()
        if not len(measured):
            return WeightLine(None, [])
        row = (self.sample, self.sight.place_of(head), int(measured[0]))
        pairs = zip(self.sight.top_keys[row].tolist(), self.sight.top_weights[row].tolist(), strict=True)
        return WeightLine(None, [(key, weight) for key, weight in pairs if key >= 0])

    def compute_column(self, head: int, key: int) -> WeightLine:
        """The weights that all queries give to the key at this position."""
        if not self.exact:
            return WeightLine(None, [])
        weights = self.compute_weights(head, keys=range(key, key + 1))[:, 0]
        return WeightLine(weights, _find_largest(weights, self.first[0]))

    def compute_received(self, head: int) -> Float[Tensor, " keys"]:
        """The sum over all queries of the weight on each key."""
        return self.sight.received[self.sample, self.sight.place_of(head)].float() * self.step

    def count_visible_keys(self) -> Int[Tensor, "heads queries"] | None:
        """How many keys each query sees, one row for all heads if they agree; None where no query was measured.

        A query that was not measured counts as the next one that was.
        """
        if not len(self.sight.queries):
            return None
        positions = torch.arange(self.first[0], self.ends[0])
        measured = torch.searchsorted(self.sight.queries, positions).clamp(max=len(self.sight.queries) - 1)
        return _select_sample(self.sight.visible, self.sample)[:, measured]

    def count_seeing_queries(self) -> Int[Tensor, "heads keys"]:
        """How many queries see each key, one row for all heads if they agree.

        If only every n-th query was measured, the number is estimated from those.
        """
        return (_select_sample(self.sight.seen_by, self.sample) * self.step).clamp(max=self.counts[0])

    def draw_thumbnails(self) -> NDArray[np.uint8]:
        """A picture of every head, (heads, 24, 24): the square root of the weights, scaled to 255.

        Heads whose weights are nearly even stay pale: 255 is at least four times the even weight of the visible keys.
        """
        if not self.sight.heads:
            return np.zeros((0, THUMBNAIL, THUMBNAIL), np.uint8)
        recorded = bool(self.sight.blocks[0])
        maps = [self._read_map(head) if recorded else self.sum_overview(head).sums for head in self.sight.heads]
        sums = torch.stack(maps).float().nan_to_num(0.0, 0.0, 0.0)  # the map itself says where weights are not finite
        rows, columns = (_share_cells(count, THUMBNAIL) for count in sums.shape[1:])
        small = (rows @ sums @ columns.T).clamp(min=0).sqrt()
        total, visible = sums.sum((1, 2)), self.count_visible_keys()
        shown = torch.ones(1) if visible is None else visible.float().mean(-1) / self.counts[1]  # the part of the map
        even = 4 * total / (THUMBNAIL * shown.clamp(min=1e-9))  # of a row of cells
        even = even.minimum(total) / THUMBNAIL  # no cell has more than its row
        full = torch.maximum(small.amax((1, 2)), even.sqrt()).clamp(min=1e-12)
        pictures: NDArray[np.uint8] = (small * (255 / full)[:, None, None]).round().byte().numpy()
        return pictures

    def _all_positions(self) -> tuple[range, range]:
        return range(self.first[0], self.ends[0]), range(self.counts[1])

    def _clip(self, queries: range, keys: range) -> tuple[range, range]:
        return tuple(  # type: ignore[return-value]
            range(max(part.start, whole.start), max(max(part.start, whole.start), min(part.stop, whole.stop)))
            for part, whole in zip((queries, keys), self._all_positions(), strict=True)
        )

    def _read_map(self, head: int) -> Float[Tensor, "rows columns"]:
        """The recorded map; multiplied if only every n-th query was measured."""
        index = self.sight.place_of(head)
        base = self.sight.map[self.sample, index]
        if self.step > 1:
            return base * self.step
        if self.blocks != (1, 1):
            return base
        counts = _select_sample(self.sight.visible, self.sample)
        seen = counts[index if len(counts) > 1 else 0]
        empty = base == 0  # the hidden keys, if there are as many as the mask hides
        hidden = empty & (empty.sum(-1) == self.counts[1] - seen)[:, None]
        later = torch.ones_like(empty).triu(1)
        if empty.shape[0] == empty.shape[1] and bool((seen == (~later).sum(-1)).all() and empty[later].all()):
            hidden = later  # a causal mask, whatever else is zero
        return _mark_hidden(base, hidden)


def _widen_to_pixels(part: range, first: int, end: int, pixel: int) -> range:
    """The pixels that contain these positions, if pixels of this size begin at `first` and the last ends at `end`.

    >>> _widen_to_pixels(range(5, 9), 0, 11, 4)
    range(4, 11)
    """
    stop = first + -(-(part.stop - first) // pixel) * pixel
    return range(part.start - (part.start - first) % pixel, min(end, stop))


def _select_sample(counts: Int[Tensor, "batch heads tokens"], sample: int) -> Int[Tensor, "heads tokens"]:
    """The counts of a sample, one row for all heads if they agree."""
    counts = counts[sample if len(counts) > 1 else 0]
    return counts[:1] if bool((counts == counts[:1]).all()) else counts


def is_hidden(weights: Float[Tensor, "..."]) -> Bool[Tensor, "..."]:
    """Which weights are −0.0: those of keys that the mask hides."""
    return weights.signbit() & (weights == 0)


def _mark_hidden(
    sums: Float[Tensor, "rows columns"], hidden: Bool[Tensor, "rows columns"] | None
) -> Float[Tensor, "rows columns"]:
    """The sums with −0.0 where everything is hidden."""
    return sums if hidden is None else sums.masked_fill(hidden, -0.0)


def _share_cells(count: int, cells: int) -> Float[Tensor, "cells pixels"]:
    """Which share of each of `count` pixels lies in each of `cells` cells of equal size."""
    edges, pixels = torch.linspace(0, count, cells + 1, dtype=torch.double), torch.arange(count)
    ends = torch.minimum(edges[1:, None], pixels + 1)
    return (ends - torch.maximum(edges[:-1, None], pixels)).clamp(min=0).float()


def _find_largest(weights: Float[Tensor, " tokens"], first: int) -> list[tuple[int, float]]:
    values, tokens = weights.nan_to_num(-1.0, -1.0, -1.0).topk(min(TOP, len(weights)))
    pairs = zip(tokens.tolist(), values.tolist(), strict=True)
    return [(token + first, value) for token, value in pairs if value > 0]
