"""The measures tile by tile: O(n) memory, any device, any mask.

A tile holds the scores s of some queries with all keys that any of them may see, so one pass gives every measure.
With m the largest score of a row (its sink included), e = exp(s − m) and z = Σ e (the sink's included), a weight is
e / z, and the entropy Σ w·(m − s) + ln z · Σ w: two sums without cancellation, exact however large the scores are.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.lens.measures import top_keys
from clearhead.lens.measures.definition import MeasureJob, Measures, stack_spans
from clearhead.lens.measures.tile_job import TileJob
from clearhead.lens.measures.tile_plan import Tile, TileStack

NARROW = 8  # most columns of a pixel that are added one by one
LOG2 = math.log(2)
LOG_OF_ZERO = -1e4  # stands for log2(0): exp2 of it is 0 in any precision, and so is their product


def run(job: MeasureJob) -> Measures:
    """The measures of a job, tile by tile."""
    tiled = _TiledJob(job)
    tiled.run(tiled.measure_stack)
    return tiled.results.to_measures(job, tiled.sinks)


class _RowSums(NamedTuple):
    """Sums over the visible keys of each query, relative to its largest score."""

    largest: Tensor  # score
    total: Tensor  # Σ e
    log_sum: Tensor  # Σ e log2 e
    distance: Tensor
    first: Tensor
    top_logs: Tensor
    top_keys: Tensor
    spans: Tensor | None


def _join_rows(rows: list[slice], found: list[_RowSums]) -> Iterable[tuple[slice, _RowSums]]:
    """The sums of several blocks of rows as those of one, if they lie side by side and have as many top keys."""
    gaps = any(one.stop != following.start for one, following in itertools.pairwise(rows))
    if gaps or len(found) == 1 or len({one.top_keys.shape[-1] for one in found}) > 1:
        return zip(rows, found, strict=True)
    parts = zip(_RowSums._fields, zip(*found, strict=True), strict=True)
    joined: Any = {name: None if own[0] is None else torch.cat(own, 2) for name, own in parts}
    return [(slice(rows[0].start, rows[-1].stop), _RowSums(**joined))]


class _Results:
    """The sums of all queries, initialised for those that see nothing; tiles fill them in."""

    def __init__(self, job: MeasureJob, q: Tensor, pixels: Tensor) -> None:
        shape, keys, top = q.shape[:3], job.call.k.shape[2], max(job.top, 1)
        self.rows = _RowSums(
            largest=q.new_full(shape, -math.inf),
            total=q.new_zeros(shape),
            log_sum=q.new_zeros(shape),
            distance=q.new_zeros(shape),
            first=q.new_zeros(shape),
            top_logs=q.new_full((*shape, top), -math.inf),
            top_keys=torch.full((*shape, top), -1, device=q.device),
            spans=q.new_zeros(*shape, len(job.spans)) if job.spans else None,
        )
        # float64, because thousands of tiles add to it, and their float32 rounding errors would add up
        self.received = q.new_zeros(*shape[:2], keys if job.received else 0, dtype=torch.float64)
        self.map = pixels

    def fill(self, place: tuple[slice, slice, slice], sums: _RowSums) -> None:
        """Puts in the sums of some rows."""
        for own, found in zip(self.rows, sums, strict=True):
            if own is not None and found is not None:
                target = own[place]
                (target[..., : found.shape[3]] if found.ndim == 4 else target).copy_(found)

    def to_measures(self, job: MeasureJob, sinks: Tensor | None) -> Measures:
        """The sums, divided by those of all weights."""
        largest, total, log_sum, distance, first, top_weights, top_keys, spans = self.rows
        base = _choose_base(largest, sinks)
        normaliser = _compute_normaliser(total, base, sinks)
        log, share = normaliser.log(), normaliser.reciprocal()
        missing = (top_weights == -math.inf) | normaliser.isnan()[..., None]
        top_keys.masked_fill_(missing, -1)
        top_weights.exp2_().mul_(share[..., None])
        peak = top_weights[..., 0].clone()
        top_weights.masked_fill_(missing, 0.0)
        return Measures(
            logsumexp=(base + log).masked_fill_(largest == -math.inf, -math.inf),
            entropy=total.mul_(log).sub_(log_sum, alpha=LOG2).mul_(share),
            peak=peak,
            peak_key=top_keys[..., 0].clone(),
            distance=distance.mul_(share),
            first=first.mul_(share),
            top_keys=top_keys[..., : job.top],
            top_weights=top_weights[..., : job.top],
            received=self.received.to(largest.dtype) if job.received else None,
            map=self.map.to(largest.dtype),
            max_score=F.pad(largest, (0, 1), value=-math.inf).amax(-1),
            span_mass=None if spans is None else spans.mul_(share[..., None]),
            span_names=tuple(job.spans),
        )


def _choose_base(largest: Tensor, sinks: Tensor | None) -> Tensor:
    """What is subtracted from the scores of each row: the largest of them and its sink; 0 if it sees nothing."""
    base = largest if sinks is None else largest.maximum(sinks)
    return base.masked_fill(base == -math.inf, 0.0)


def _compute_normaliser(total: Tensor, base: Tensor, sinks: Tensor | None) -> Tensor:
    """The sum by which weights are divided, the sink's included; 1 for a row that sees nothing."""
    normaliser = total if sinks is None else total + (sinks - base).exp()
    return normaliser.masked_fill(normaliser == 0, 1.0)


class _TiledJob(TileJob):
    """A job with its results."""

    def __init__(self, job: MeasureJob) -> None:
        super().__init__(job)
        self.distances, self.nearest = self._compute_distances(self.tiles)
        self.results = _Results(job, self.q, self.make_map())

    def _compute_distances(self, tiles: list[Tile]) -> tuple[Tensor, int]:
        """Distances between queries and keys, of which every tile needs some columns; see `_find_distances`."""
        offset, measured = self.job.offset, self.job.rows
        starts = [tile.run.columns.start - measured[tile.rows.start] for tile in tiles] or [0]
        nearest, furthest = min(starts), max(map(operator.add, starts, [tile.shape[3] for tile in tiles]), default=0)
        height = max((tile.shape[2] for tile in tiles), default=0)
        place, columns = (
            torch.arange(size, dtype=self.q.dtype, device=self.q.device) for size in (height, furthest - nearest)
        )
        return (place.mul_(measured.step).add_(offset - nearest)[:, None] - columns).abs_(), nearest

    def measure_stack(self, stack: TileStack) -> None:
        """Measures all tiles of a stack into the results."""
        place = (stack.samples, stack.heads)
        sums = (self.results.received[place], self.results.map[place])
        found = [self._measure_tile(tile, self.buffers(3), *sums) for tile in stack]
        for rows, rows_sums in _join_rows([rows for rows, _ in stack.blocks], found):
            self.results.fill((*place, rows), rows_sums)

    def _measure_tile(self, tile: Tile, buffers: Tensor, received: Tensor, pixels: Tensor) -> _RowSums:
        """The sums of each row of a tile, which is also added to `received` and `pixels` of its heads."""
        scores, hiding = self.score_tile(tile, buffers[0])
        blocks = top_keys.find_block_maxima(scores)
        largest, sinks = blocks.amax(-1), None if self.sinks is None else self.sinks[:, tile.heads]
        base = _choose_base(largest, sinks)[..., None]
        logs, block_logs = scores.sub_(base).mul_(1 / LOG2), blocks.sub_(base).mul_(1 / LOG2)
        best, keys = top_keys.find_largest(logs, block_logs, max(self.job.top, 1), buffers[1:].view(-1))
        first_key = top_keys.find_first_visible(logs, block_logs) if hiding else None
        if hiding:
            logs.clamp_(min=LOG_OF_ZERO)
        exps = torch.exp2(logs, out=buffers[1, : logs.numel()].view(logs.shape))
        first = exps[..., 0].clone() if first_key is None else exps.gather(-1, first_key)[..., 0]
        log_sum = torch.mul(exps, logs, out=logs).sum(-1)
        distance = torch.mul(exps, self._find_distances(tile), out=logs).sum(-1)
        total = exps.sum(-1)
        spans = self._sum_spans(exps, tile)
        share = _compute_normaliser(total, base[..., 0], sinks).reciprocal_()
        self._add_sums(exps, share, tile, received, pixels)
        return _RowSums(largest, total, log_sum, distance, first, best, keys.add_(tile.run.columns.start), spans)

    def _find_distances(self, tile: Tile) -> Tensor:
        """|position of query − position of key| for the rows and columns of a tile, as a view."""
        rows, first = self.job.rows[tile.rows], tile.run.columns.start
        start = first - rows[0] - self.nearest
        return self.distances[: len(rows), start : start + tile.shape[3]]

    def _sum_spans(self, exps: Tensor, tile: Tile) -> Tensor | None:
        """The sum over each span."""
        edges = self.find_span_edges(tile).tolist()
        return stack_spans(exps[..., low : max(low, high)].sum(-1) for low, high in edges)

    def _add_sums(self, exps: Tensor, share: Tensor, tile: Tile, received: Tensor, pixels: Tensor) -> None:
        """Adds a tile to `received` and to the map."""
        (height, width), columns = self.job.blocks, tile.run.columns
        if not self.job.received and not height:
            return
        count = tile.rows.stop - tile.rows.start
        lines = count // height if height and count >= height else 1  # rows of pixels
        if lines == count:  # then a product of matrices is slow
            by_line = exps.mul_(share[..., None])
        else:
            by_line = (share.unflatten(-1, (lines, 1, -1)) @ exps.unflatten(-2, (lines, -1)))[..., 0, :]
        by_line = by_line[..., : columns.stop - columns.start]
        if self.job.received:
            received[..., columns] += by_line.sum(-2)
        if height:
            inset, rest = columns.start % width, -columns.stop % width
            padded = F.pad(by_line, (inset, rest)) if inset or rest else by_line
            top, left, right = tile.rows.start // height, columns.start // width, -(-columns.stop // width)
            pixels[..., top : top + lines, left:right] += _sum_columns(padded, width)


def _sum_columns(x: Tensor, width: int) -> Tensor:
    """Sums of `width` neighbouring columns; a sum over a short last axis is slow, a sum of slices is not."""
    if width == 1:
        return x
    if width > NARROW:
        whole: Tensor = x.unflatten(-1, (-1, width))
        return whole.sum(-1)
    total = x[..., 0::width] + x[..., 1::width]
    for start in range(2, width):
        total += x[..., start::width]
    return total
