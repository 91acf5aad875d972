"""The measures tile by tile: O(n) memory, any device, any mask; on CPUs with numba by one compiled loop.

A tile holds the scores s of some queries with all keys that any of them may see, so one pass gives every measure.
With m the largest score of a row (its sink included), e = exp(s − m) and z = Σ e (the sink's included), a weight is
e / z, and the entropy Σ w·(m − s) + ln z · Σ w: two sums without cancellation, exact however large the scores are.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import threading
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.attention.tile_scores import multiply_heads, scale_queries
from clearhead.lens.measures import top_keys
from clearhead.lens.measures.definition import MeasureJob, Measures, stack_spans
from clearhead.lens.measures.thread_pool import run_in_threads
from clearhead.lens.measures.tile_plan import Tile, TileStack, plan_stacks

TILE = 2**19  # scores held at once
GPU_TILE = 2**25  # the same on a GPU, which is idle between small ones
MOST_TOP = 64  # top keys that the compiled loop finds one by one
SPLIT = 2**15  # elements from which on PyTorch splits an operation among its threads
MANY = 2**18  # scores from which on several threads pay off
NARROW = 8  # most columns of a pixel that are added one by one
LOG2 = math.log(2)
LOG_OF_ZERO = -1e4  # stands for log2(0): exp2 of it is 0 in any precision, and so is their product


def run(job: MeasureJob) -> Measures:
    """The measures of a job, tile by tile."""
    return _run(_TiledJob(job))


def run_compiled(job: MeasureJob) -> Measures:
    """The same on a CPU, each tile by one compiled loop."""
    return _run(_TiledJob(job, compiled=True))


def explain_compiled_refusal(job: MeasureJob) -> str | None:
    """The reason why the compiled loop cannot do a job, or None."""
    if job.call.q.device.type != "cpu":
        return f"it runs on CPUs, and q is on {job.call.q.device}"
    if torch.promote_types(job.call.q.dtype, torch.float32) != torch.float32:
        return f"it computes in float32, and q is {job.call.q.dtype}"
    if job.top > MOST_TOP:
        return f"it finds the best {MOST_TOP} keys at most, not {job.top}"
    return _explain_missing_loop()


@functools.cache
def _explain_missing_loop() -> str | None:
    """Why there is no compiled loop, or None; compiles it, if that is not cached."""
    try:
        import clearhead.lens.measures.compiled_rows  # noqa: F401
    except ImportError as error:
        return f"it needs numba, pip install 'clearhead[cpu]' ({error})"
    return None


def _run(tiled: _TiledJob) -> Measures:
    job = tiled.job
    if job.call.q.is_cuda or tiled.largest_tile < SPLIT:
        for stack in tiled.stacks:
            tiled.measure_stack(stack)
    elif tiled.total < MANY:
        run_in_threads(tiled.measure_stack, tiled.stacks, workers=1, threads=1)
    else:
        run_in_threads(tiled.measure_stack, tiled.stacks)
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

    def __init__(self, job: MeasureJob, q: Tensor) -> None:
        (batch, heads, count), keys, top = q.shape[:3], job.call.k.shape[2], max(job.top, 1)
        shape = (batch, heads, count)
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
        self.received = q.new_zeros(batch, heads, keys if job.received else 0, dtype=torch.float64)
        pixels = (-(-n // block) if block else 0 for n, block in zip((count, keys), job.blocks, strict=True))
        self.map = q.new_zeros(batch, heads, *pixels)

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
            received=self.received.to(self.map.dtype) if job.received else None,
            map=self.map,
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


class _TiledJob:
    """A job with its tensors in float32 or better, its tiles and its results."""

    def __init__(self, job: MeasureJob, *, compiled: bool = False) -> None:
        call, rows = job.call, job.rows
        self.job, self.compiled = job, compiled
        self.q = scale_queries(call.q[:, :, rows.start : rows.stop : rows.step], call.scale)
        missing = -call.k.shape[2] % top_keys.BLOCK if call.mask is None else top_keys.BLOCK
        k = call.k.to(self.q.dtype)
        self.k = F.pad(k, (0, 0, 0, missing)) if missing else k  # tiles are whole blocks wide
        self.sinks = None if call.sinks is None else call.sinks.to(self.q.dtype).view(1, -1, 1)
        held, workers = (GPU_TILE, 1) if self.q.is_cuda else (TILE, torch.get_num_threads())
        self.stacks = plan_stacks(job, held, workers)
        first_of = {id(stack.blocks): stack for stack in reversed(self.stacks)}.values()  # no later one has more heads
        tiles = [tile for stack in first_of for tile in stack]
        self.largest_tile = max((math.prod(tile.shape) for tile in tiles), default=0)
        self.total = self.largest_tile * sum(len(stack.blocks) for stack in self.stacks)  # at most twice the true one
        self.distances, self.nearest = self._compute_distances([] if compiled else tiles)
        self.results = _Results(job, self.q)
        self.buffers = threading.local()

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
        if not hasattr(self.buffers, "three"):
            self.buffers.three = self.q.new_empty(1 if self.compiled else 3, self.largest_tile)
        if self.compiled:
            for tile in stack:
                self._measure_compiled(tile, self.buffers.three[0])
            return
        place = (stack.samples, stack.heads)
        sums = (self.results.received[place], self.results.map[place])
        found = [self._measure_tile(tile, self.buffers.three, *sums) for tile in stack]
        for rows, rows_sums in _join_rows([rows for rows, _ in stack.blocks], found):
            self.results.fill((*place, rows), rows_sums)

    def _measure_compiled(self, tile: Tile, buffer: Tensor) -> None:
        """Measures a tile into the results by one compiled loop."""
        from clearhead.lens.measures.compiled_rows import sum_tile

        scores, _ = self._scores(tile, buffer)
        columns, queries = tile.run.columns, self.job.rows[tile.rows]
        place, sums = (tile.samples, tile.heads), self.results
        none = self.q.new_empty(0)
        rows = [none.view(0, 0, 0, 0) if one is None else one[(*place, tile.rows)] for one in sums.rows]
        sinks = none if self.sinks is None else self.sinks[0, tile.heads, 0].contiguous()
        sum_tile(
            *(one.numpy() for one in (scores, sinks, *rows, self._find_span_edges(tile))),
            *(one[place].numpy() for one in (sums.received, sums.map)),
            columns.stop - columns.start,
            columns.start,
            tile.rows.start,
            queries[0] + self.job.offset - columns.start,
            queries.step,
            *self.job.blocks,
        )

    def _measure_tile(self, tile: Tile, buffers: Tensor, received: Tensor, pixels: Tensor) -> _RowSums:
        """The sums of each row of a tile, which is also added to `received` and `pixels` of its heads."""
        scores, hiding = self._scores(tile, buffers[0])
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

    def _scores(self, tile: Tile, buffer: Tensor) -> tuple[Tensor, bool]:
        """The scores of a tile, −inf where hidden and beyond its last key, and whether there can be any such."""
        columns, shape = tile.run.columns, tile.shape
        k = self.k[tile.samples, tile.kv_heads, columns.start : columns.start + shape[3]]
        products = multiply_heads(self.q[tile.samples, tile.heads, tile.rows], k, out=buffer[: math.prod(shape)])
        rows = self.job.rows[tile.rows]
        scores = tile.scorer.score_tile_(products, slice(rows.start, rows.stop, rows.step), tile.run, tile.heads)
        padded = columns.stop - columns.start < shape[3]
        return scores, bool(tile.run.partial) or self.job.call.bias is not None or padded

    def _find_distances(self, tile: Tile) -> Tensor:
        """|position of query − position of key| for the rows and columns of a tile, as a view."""
        rows, first = self.job.rows[tile.rows], tile.run.columns.start
        start = first - rows[0] - self.nearest
        return self.distances[: len(rows), start : start + tile.shape[3]]

    def _find_span_edges(self, tile: Tile) -> Tensor:
        """The first column of each span, and the one after its last; a tile holds all keys that its queries see."""
        edges = torch.tensor([(span.start, span.stop) for span in self.job.spans.values()], dtype=torch.long)
        columns = tile.run.columns
        return edges.view(-1, 2).clamp(columns.start, columns.stop).sub(columns.start)

    def _sum_spans(self, exps: Tensor, tile: Tile) -> Tensor | None:
        """The sum over each span."""
        edges = self._find_span_edges(tile).tolist()
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
