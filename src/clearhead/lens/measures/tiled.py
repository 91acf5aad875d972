"""The measures tile by tile: O(n) memory, any device, any mask.

A tile holds the scores s of some queries with all keys that any of them may see, so one pass gives every measure.
With m the largest score of a row (its sink included), e = exp(s − m) and z = Σ e (the sink's included), a weight is
e / z, and the entropy Σ w·(m − s) + ln z · Σ w: two sums without cancellation, exact however large the scores are.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.attention.masks import Mask
from clearhead.attention.tile_scores import TileScorer, multiply_heads, scale_queries
from clearhead.attention.visible_runs import VisibleRun, find_visible_runs
from clearhead.lens.measures import top_keys
from clearhead.lens.measures.definition import MeasureJob, Measures
from clearhead.lens.measures.thread_pool import run_in_threads

ROWS = 128  # most queries of a tile: with more, a narrow window would lie in wide tiles
REACH = 512  # most queries from a tile's first to its last, where only every n-th is measured
LEAST = 16  # fewest rows of a product, over heads that share keys: with fewer, reading the keys takes the time
BLOCK = 64  # fewest keys of a block for which the mask is asked whether all or none are visible
BLOCKS = 2**21  # most such blocks, however long the sequence
FEW = 2**14  # up to so many scores it is faster to compute all than to ask the mask which are hidden


class Tile(NamedTuple):
    """A block of scores: some measured queries × the keys they may see, for some heads of some samples."""

    samples: slice
    heads: slice
    kv_heads: slice  # that these heads share
    scorer: TileScorer  # of these samples
    rows: slice  # of the measured queries
    run: VisibleRun

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(samples, heads, rows, columns), the columns rounded up to whole blocks of `top_keys`"""
        sizes = (part.stop - part.start for part in (self.samples, self.heads, self.rows, self.run.columns))
        samples, heads, rows, columns = sizes
        return samples, heads, rows, -(-columns // top_keys.BLOCK) * top_keys.BLOCK


@dataclass(frozen=True)
class TileStack:
    """The tiles of some heads of some samples, a unit of work for one thread."""

    samples: slice
    heads: slice
    kv_heads: slice
    scorer: TileScorer
    blocks: list[tuple[slice, VisibleRun]]  # rows, and what they may see: one list for many heads

    def __iter__(self) -> Iterator[Tile]:
        return (Tile(self.samples, self.heads, self.kv_heads, self.scorer, *block) for block in self.blocks)


def plan_stacks(job: MeasureJob, held: int, workers: int = 1) -> list[TileStack]:
    """Cuts a job into tiles of about `held` scores, in stacks that share no head, at least one for each worker.

    A tile covers whole rows of the map's pixels, or lies within one.
    """
    (batch, heads, _, keys), count, kv_heads = job.call.sizes, len(job.rows), job.call.k.shape[1]
    if not (batch and heads and count and keys):
        return []
    group = heads // kv_heads
    rows = max(1, min(ROWS, REACH // job.rows.step, count))
    runs = _find_runs(job, job.call.mask, rows)
    longest = max(1, *(run.columns.stop - run.columns.start for run in runs))
    height = min(rows, max(-(-LEAST // group), held // (group * longest)))
    height -= height % job.blocks[0] if 0 < job.blocks[0] <= height else 0
    together = max(1, min(held // (group * height * longest), -(-batch * kv_heads // workers)))  # key heads
    by_sample = job.call.mask is not None and job.call.mask.batch is not None and together // kv_heads < batch
    if height != rows and not by_sample:
        runs = _find_runs(job, job.call.mask, height)
    stacks, scorer = [], TileScorer.of_call(job.call)
    for samples in _split_range(batch, together // kv_heads):
        own = scorer if samples == slice(0, batch) else scorer.select_samples(samples)
        if by_sample:
            runs = _find_runs(job, own.mask, height)
        merged = [(part, _merge_runs(runs, part, job.rows, height)) for part in _cut_rows(count, height, job.blocks[0])]
        blocks = [(part, run) for part, run in merged if run.columns.stop]
        for kv in _split_range(kv_heads, together) if blocks else ():
            stacks.append(TileStack(samples, slice(kv.start * group, kv.stop * group), kv, own, blocks))
    return stacks


def _find_runs(job: MeasureJob, mask: Mask | None, rows: int) -> list[VisibleRun]:
    """The visible run of each block of `rows` measured queries."""
    queries, keys = job.call.sizes[2:]
    height = rows * job.rows.step
    count = -(-queries // height)
    if mask is None or queries * keys <= FEW:
        whole = slice(0, keys)
        return [VisibleRun(whole, () if mask is None else (whole,))] * count
    return find_visible_runs(mask, queries, keys, height, max(BLOCK, count * keys // BLOCKS), job.call.q.device)


def _merge_runs(runs: list[VisibleRun], part: slice, measured: range, rows: int) -> VisibleRun:
    """The visible run of these rows; if they span several blocks, the mask is evaluated everywhere."""
    height = rows * measured.step
    own = runs[measured[part.start] // height : measured[part.stop - 1] // height + 1]
    if len(own) == 1:
        return own[0]
    columns = [run.columns for run in own if run.columns.stop]
    union = slice(min(one.start for one in columns), max(one.stop for one in columns)) if columns else slice(0, 0)
    return VisibleRun(union, (union,) if columns else ())


def _cut_rows(count: int, rows: int, block: int) -> Iterator[slice]:
    """Cuts rows at tile edges and at edges of the map's pixels."""
    edges = {*range(0, count, rows), count}
    if block:
        edges |= {*range(0, count, block)} if block > rows else {count // block * block}
    ordered = sorted(edges)
    return (slice(start, stop) for start, stop in itertools.pairwise(ordered))


def _split_range(size: int, step: int) -> Iterator[slice]:
    step = max(1, step)
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


TILE = 2**20  # scores held at once
SPLIT = 2**15  # elements from which on PyTorch splits an operation among its threads
MANY = 2**18  # scores from which on several threads pay off
GPU_TILES = 32  # how many times larger tiles are on a GPU, which is idle between small ones
LOG2 = math.log(2)
LOG_OF_ZERO = -1e4  # stands for log2(0): exp2 of it is 0 in any precision, and so is their product


def run(job: MeasureJob) -> Measures:
    """The measures of a job, tile by tile."""
    tiled = _TiledJob(job)
    if job.call.q.is_cuda or tiled.largest_tile < SPLIT:
        for stack in tiled.stacks:
            tiled.measure_stack(stack)
    elif tiled.total < MANY:
        run_in_threads(tiled.measure_stack, tiled.stacks, workers=1, threads=1)
    else:
        run_in_threads(tiled.measure_stack, tiled.stacks)
    return tiled.results.to_measures(job)


class _Results:
    """The output tensors, initialised to the measures of a query without visible keys; tiles fill them in."""

    def __init__(self, job: MeasureJob, q: Tensor) -> None:
        (batch, heads, count), keys, top = q.shape[:3], job.call.k.shape[2], max(job.top, 1)
        shape = (batch, heads, count)
        self.logsumexp = q.new_full(shape, -math.inf)
        self.entropy, self.peak, self.distance, self.first = (q.new_zeros(shape) for _ in range(4))
        self.top_keys = torch.full((*shape, top), -1, device=q.device)
        self.top_weights = q.new_zeros(*shape, top)
        # float64, because thousands of tiles add to it, and their float32 rounding errors would add up
        self.received = q.new_zeros(batch, heads, keys if job.received else 0, dtype=torch.float64)
        pixels = (-(-n // block) if block else 0 for n, block in zip((count, keys), job.blocks, strict=True))
        self.map = q.new_zeros(batch, heads, *pixels)
        self.max_score = q.new_full(shape[:2], -math.inf)
        self.span_mass = q.new_zeros(*shape, len(job.spans)) if job.spans else None

    def to_measures(self, job: MeasureJob) -> Measures:
        return Measures(
            logsumexp=self.logsumexp,
            entropy=self.entropy,
            peak=self.peak,
            peak_key=self.top_keys[..., 0].clone(),
            distance=self.distance,
            first=self.first,
            top_keys=self.top_keys[..., : job.top],
            top_weights=self.top_weights[..., : job.top],
            received=self.received.to(self.map.dtype) if job.received else None,
            map=self.map,
            max_score=self.max_score,
            span_mass=self.span_mass,
            span_names=tuple(job.spans),
        )


class _TiledJob:
    """A job with its tensors in float32 or better, its tiles and its results."""

    def __init__(self, job: MeasureJob) -> None:
        call, rows = job.call, job.rows
        self.job = job
        self.q = scale_queries(call.q[:, :, rows.start : rows.stop : rows.step], call.scale)
        self.k = F.pad(call.k.to(self.q.dtype), (0, 0, 0, top_keys.BLOCK))  # tiles are whole blocks wide
        self.sinks = None if call.sinks is None else call.sinks.to(self.q.dtype).view(1, -1, 1)
        held, workers = (TILE * GPU_TILES, 1) if self.q.is_cuda else (TILE, torch.get_num_threads())
        self.stacks = plan_stacks(job, held, workers)
        first_of = {id(stack.blocks): stack for stack in reversed(self.stacks)}.values()  # no later one has more heads
        self.largest_tile = max((math.prod(tile.shape) for stack in first_of for tile in stack), default=0)
        self.total = self.largest_tile * sum(len(stack.blocks) for stack in self.stacks)  # at most twice the true one
        self.results = _Results(job, self.q)
        self.buffers = threading.local()

    def measure_stack(self, stack: TileStack) -> None:
        """Measures all tiles of a stack into the results."""
        if not hasattr(self.buffers, "pair"):
            self.buffers.pair = self.q.new_empty(2, self.largest_tile)
        for tile in stack:
            self._measure_tile(tile, self.buffers.pair)

    def _measure_tile(self, tile: Tile, buffers: Tensor) -> None:
        scores, hiding = self._scores(tile, buffers[0])
        blocks = top_keys.find_block_maxima(scores)
        best, keys = top_keys.find_largest(scores, blocks, max(self.job.top, 1))
        first_key = top_keys.find_first_visible(scores, blocks) if hiding else torch.zeros_like(keys[..., :1])
        largest, sinks = best[..., 0], None if self.sinks is None else self.sinks[:, tile.heads]
        base = largest if sinks is None else largest.maximum(sinks)
        base = base.masked_fill(base == -math.inf, 0.0)
        logs = scores.sub_(base[..., None]).mul_(1 / LOG2)
        if hiding:
            logs.clamp_(min=LOG_OF_ZERO)
        exps = torch.exp2(logs, out=buffers[1, : logs.numel()].view(logs.shape))
        log_sum = torch.mul(exps, logs, out=logs).sum(-1)
        total, distance = self._sum_distances(exps, logs, tile)
        normaliser = total if sinks is None else total + (sinks - base).exp()
        normaliser = normaliser.masked_fill(normaliser == 0, 1.0)
        share = normaliser.reciprocal()
        out, place, top = self.results, (tile.samples, tile.heads, tile.rows), slice(0, best.shape[-1])
        out.logsumexp[place] = (base + normaliser.log()).masked_fill(largest == -math.inf, -math.inf)
        out.entropy[place] = (total * normaliser.log() - LOG2 * log_sum) * share
        out.distance[place] = distance * share
        out.first[place] = exps.gather(-1, first_key)[..., 0] * share
        missing = (best == -math.inf) | normaliser.isnan()[..., None]
        out.top_keys[place][..., top] = (keys + tile.run.columns.start).masked_fill_(missing, -1)
        weights = (best - base[..., None]).exp() * share[..., None]
        out.top_weights[place][..., top] = weights.masked_fill(missing, 0.0)
        out.peak[place] = weights[..., 0]
        own = out.max_score[place[:2]]
        torch.maximum(own, largest.amax(-1), out=own)
        self._sum_spans(exps, share, tile)
        self._add_sums(exps, share, tile)

    def _scores(self, tile: Tile, buffer: Tensor) -> tuple[Tensor, bool]:
        """The scores of a tile, −inf where hidden and beyond its last key, and whether there can be any such."""
        columns, shape = tile.run.columns, tile.shape
        k = self.k[tile.samples, tile.kv_heads, columns.start : columns.start + shape[3]]
        products = multiply_heads(self.q[tile.samples, tile.heads, tile.rows], k, out=buffer[: math.prod(shape)])
        rows = self.job.rows[tile.rows]
        scores = tile.scorer.score_tile_(products, slice(rows.start, rows.stop, rows.step), tile.run, tile.heads)
        padded = columns.stop - columns.start < shape[3]
        return scores, bool(tile.run.partial) or self.job.call.bias is not None or padded

    def _sum_distances(self, exps: Tensor, buffer: Tensor, tile: Tile) -> tuple[Tensor, Tensor]:
        """Σ e and Σ e·|position of query − position of key|, for each row.

        The distance from a query to a key before the tile's first query is the key's distance to that first query
        plus the query's: two sums without cancellation, and no square of distances. Likewise for keys after the last
        query; for the few keys in between distances are computed one by one.
        """
        rows, columns = self.job.rows[tile.rows], tile.run.columns
        start, length = columns.start, columns.stop - columns.start
        low, high = self.job.offset + rows[0], self.job.offset + rows[-1]
        left = min(max(low + 1 - start, 0), length)
        right = min(max(high - start, left), length)
        place = torch.arange(low, high + 1, rows.step, device=exps.device)
        keys = torch.arange(start, start + exps.shape[3], device=exps.device)
        gap = ((low - keys).clamp(min=0) + (keys - high).clamp(min=0)).to(exps.dtype)
        before, between, after = (exps[..., p] for p in (slice(0, left), slice(left, right), slice(right, length)))
        apart = (place[:, None] - keys[left:right]).abs()
        earlier, later = before.sum(-1), after.sum(-1)
        distance = torch.mul(exps, gap, out=buffer).sum(-1) + earlier * (place - low) + later * (high - place)
        return earlier + between.sum(-1) + later, distance + (between * apart).sum(-1)

    def _sum_spans(self, exps: Tensor, share: Tensor, tile: Tile) -> None:
        """The mass on each span; a tile holds all keys that its queries see."""
        columns, out = tile.run.columns, self.results.span_mass
        for number, span in enumerate(self.job.spans.values()):
            low, high = (
                min(max(edge, columns.start), columns.stop) - columns.start for edge in (span.start, span.stop)
            )
            if out is not None and low < high:
                out[tile.samples, tile.heads, tile.rows, number] = exps[..., low:high].sum(-1) * share

    def _add_sums(self, exps: Tensor, share: Tensor, tile: Tile) -> None:
        """Adds a tile to `received` and `map`."""
        (height, width), columns, place = self.job.blocks, tile.run.columns, (tile.samples, tile.heads)
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
            self.results.received[place][..., columns] += by_line.sum(-2)
        if height:
            padded = F.pad(by_line, (columns.start % width, -columns.stop % width))
            pixels = padded.unflatten(-1, (-1, width)).sum(-1)
            top, left = tile.rows.start // height, columns.start // width
            self.results.map[place][..., top : top + lines, left : left + pixels.shape[-1]] += pixels
