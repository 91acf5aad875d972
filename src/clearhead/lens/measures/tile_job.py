"""TileJob: a job cut into tiles, some queries with all keys that any of them may see; their scores, and the results."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.attention.masks import Mask
from clearhead.attention.tile_scores import TileScorer, VisibleRun, find_visible_runs, multiply_heads, scale_queries
from clearhead.lens.measures import top_keys
from clearhead.lens.measures.definition import MeasureJob, Measures
from clearhead.lens.measures.thread_pool import run_in_threads

CPU_TILE_SCORES = 2**19  # scores of all tiles that are held at once
GPU_TILE_SCORES = 2**25  # scores of all tiles on a GPU, which is idle between small tiles
SPLIT_FROM = 2**15  # elements from which on PyTorch splits an operation among its threads
THREADS_FROM_SCORES = 2**18  # from which on several threads pay off
MAX_TILE_QUERIES = 128  # with more, a narrow window would lie in wide tiles
MAX_TILE_REACH = 512  # queries from a tile's first to its last, where only every n-th is measured
MIN_PRODUCT_ROWS = 16  # of heads that share keys: with fewer, reading the keys takes the time
MIN_MASK_BLOCK_KEYS = 64  # for which the mask is asked whether all or none are visible
MAX_MASK_BLOCKS = 2**21  # however long the sequence
MASK_FROM_SCORES = 2**14  # of fewer it is faster to compute all than to ask the mask which are hidden


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


TileStack = list[Tile]  # all tiles of some heads of some samples: a unit of work for one thread


class RowMeasures(NamedTuple):
    """The measures of each query."""

    largest: Tensor  # score
    logsumexp: Tensor
    entropy: Tensor
    peak: Tensor
    distance: Tensor
    first: Tensor
    top_weights: Tensor
    top_keys: Tensor
    span_mass: Tensor


class TileJob:
    """A job with its tensors in float32 or better, its tiles, and its results, which tiles fill in."""

    def __init__(self, job: MeasureJob) -> None:
        call, rows = job.call, job.rows
        self.job = job
        self.q = scale_queries(call.q[:, :, rows.start : rows.stop : rows.step], call.scale)
        missing = -call.k.shape[2] % top_keys.BLOCK if call.mask is None else top_keys.BLOCK
        k = call.k.to(self.q.dtype)
        self.k = F.pad(k, (0, 0, 0, missing)) if missing else k  # tiles are whole blocks wide
        self.sinks = None if call.sinks is None else call.sinks.to(self.q.dtype).view(1, -1, 1)
        tile_scores, workers = (GPU_TILE_SCORES, 1) if self.q.is_cuda else (CPU_TILE_SCORES, torch.get_num_threads())
        self.stacks = plan_stacks(job, tile_scores, workers)
        self.largest_tile = max((math.prod(tile.shape) for stack in self.stacks for tile in stack), default=0)
        self.total = self.largest_tile * sum(map(len, self.stacks))  # at most twice the true one
        self._thread = threading.local()
        shape, keys, top = self.q.shape[:3], call.k.shape[2], max(job.top, 1)
        self.rows = RowMeasures(  # as for queries that see nothing
            largest=self.q.new_full(shape, -math.inf),
            logsumexp=self.q.new_full(shape, -math.inf),
            entropy=self.q.new_zeros(shape),
            peak=self.q.new_zeros(shape),
            distance=self.q.new_zeros(shape),
            first=self.q.new_zeros(shape),
            top_weights=self.q.new_zeros(*shape, top),
            top_keys=self.q.new_full((*shape, top), -1, dtype=torch.long),
            span_mass=self.q.new_zeros(*shape, len(job.spans)),
        )
        # float64, because thousands of tiles add to it, and their float32 rounding errors would add up
        self.received = self.q.new_zeros(*shape[:2], keys if job.received else 0, dtype=torch.float64)
        sizes = zip((shape[2], keys), job.blocks, strict=True)
        pixels = [-(-size // block) if block else 0 for size, block in sizes]
        exact = torch.float64 if job.blocks[0] > MAX_TILE_QUERIES else self.q.dtype  # where many tiles add to a pixel
        self.map = self.q.new_zeros(*shape[:2], *pixels, dtype=exact)

    def run(self, measure_stack: Callable[[TileStack], None]) -> None:
        """Calls a function for every stack of tiles, on several threads where that pays off."""
        if self.q.is_cuda or self.largest_tile < SPLIT_FROM:
            for stack in self.stacks:
                measure_stack(stack)
        elif self.total < THREADS_FROM_SCORES:
            run_in_threads(measure_stack, self.stacks, workers=1, threads=1)
        else:
            run_in_threads(measure_stack, self.stacks)

    def buffers(self, count: int) -> Float[Tensor, "count cells"]:
        """Memory for `count` tensors as large as the largest tile, of each thread."""
        if not hasattr(self._thread, "buffers"):
            self._thread.buffers = self.q.new_empty(count, self.largest_tile)
        buffers: Tensor = self._thread.buffers
        return buffers

    def score_tile(
        self, tile: Tile, buffer: Float[Tensor, " cells"]
    ) -> tuple[Float[Tensor, "samples heads rows columns"], bool]:
        """The scores of a tile, −inf where hidden and beyond its last key, and whether there can be any such."""
        columns, shape = tile.run.columns, tile.shape
        k = self.k[tile.samples, tile.kv_heads, columns.start : columns.start + shape[3]]
        products = multiply_heads(self.q[tile.samples, tile.heads, tile.rows], k, out=buffer[: math.prod(shape)])
        rows = self.job.rows[tile.rows]
        scores = tile.scorer.score_tile_(products, slice(rows.start, rows.stop, rows.step), tile.run, tile.heads)
        padded = columns.stop - columns.start < shape[3]
        return scores, bool(tile.run.partial) or self.job.call.bias is not None or padded

    def find_span_edges(self, tile: Tile) -> Int[Tensor, "spans 2"]:
        """The first column of each span, and the one after its last; a tile holds all keys that its queries see."""
        spans = [(span.start, span.stop) for span in self.job.spans.values()]
        edges = torch.tensor(spans, dtype=torch.long, device="cpu")
        columns = tile.run.columns
        return edges.view(-1, 2).clamp(columns.start, columns.stop).sub(columns.start)

    def to_measures(self) -> Measures:
        rows, job = self.rows, self.job
        return Measures(
            logsumexp=rows.logsumexp,
            entropy=rows.entropy,
            peak=rows.peak,
            peak_key=rows.top_keys[..., 0].clone(),
            distance=rows.distance,
            first=rows.first,
            top_keys=rows.top_keys[..., : job.top],
            top_weights=rows.top_weights[..., : job.top],
            received=self.received.to(self.q.dtype) if job.received else None,
            map=self.map.to(self.q.dtype),
            max_score=F.pad(rows.largest, (0, 1), value=-math.inf).amax(-1),
            span_mass=rows.span_mass if job.spans else None,
            span_names=tuple(job.spans),
        )


def plan_stacks(job: MeasureJob, tile_scores: int, workers: int = 1) -> list[TileStack]:
    """Cuts a job into tiles of about `tile_scores` scores, in stacks that share no head, at least one for each worker.

    A tile covers whole rows of the map's pixels, or lies within one.
    """
    (batch, heads, _, keys), count, kv_heads = job.call.sizes, len(job.rows), job.call.k.shape[1]
    if not (batch and heads and count and keys):
        return []
    group = heads // kv_heads
    rows = max(1, min(MAX_TILE_QUERIES, MAX_TILE_REACH // job.rows.step, count))
    runs = _find_runs(job, job.call.mask, rows)
    longest = max(1, *(run.columns.stop - run.columns.start for run in runs))
    height = min(rows, max(-(-MIN_PRODUCT_ROWS // group), tile_scores // (group * longest)))
    height -= height % job.blocks[0] if 0 < job.blocks[0] <= height else 0
    together = max(1, min(tile_scores // (group * height * longest), -(-batch * kv_heads // workers)))  # key heads
    turns = -(-batch * kv_heads // (workers * together))
    together = -(-batch * kv_heads // (workers * turns))  # so that all workers have equally many
    by_sample = job.call.mask is not None and job.call.mask.batch is not None and together // kv_heads < batch
    if height != rows and not by_sample:
        runs = _find_runs(job, job.call.mask, height)
    stacks, scorer = [], TileScorer.of_call(job.call)
    for samples in _cut_range(batch, together // kv_heads):
        part_scorer = scorer if samples == slice(0, batch) else scorer.select_samples(samples)
        if by_sample:
            runs = _find_runs(job, part_scorer.mask, height)
        merged = [
            (part, _merge_runs(runs, part, job.rows, height)) for part in _cut_range(count, height, job.blocks[0])
        ]
        blocks = [(part, run) for part, run in merged if run.columns.stop]
        for kv in _cut_range(kv_heads, together) if blocks else ():
            shared = (samples, slice(kv.start * group, kv.stop * group), kv, part_scorer)
            stacks.append([Tile(*shared, *block) for block in blocks])
    return stacks


def _find_runs(job: MeasureJob, mask: Mask | None, rows: int) -> list[VisibleRun]:
    """The visible run of each block of `rows` measured queries."""
    queries, keys = job.call.sizes[2:]
    height = rows * job.rows.step
    count = -(-queries // height)
    if mask is None or queries * keys <= MASK_FROM_SCORES:
        whole = slice(0, keys)
        return [VisibleRun(whole, () if mask is None else (whole,))] * count
    return find_visible_runs(
        mask, queries, keys, height, max(MIN_MASK_BLOCK_KEYS, count * keys // MAX_MASK_BLOCKS), job.call.q.device
    )


def _merge_runs(runs: list[VisibleRun], part: slice, measured: range, rows: int) -> VisibleRun:
    """The visible run of these rows; if they span several blocks, the mask is evaluated everywhere."""
    height = rows * measured.step
    touched = runs[measured[part.start] // height : measured[part.stop - 1] // height + 1]
    if len(touched) == 1:
        return touched[0]
    columns = [run.columns for run in touched if run.columns.stop]
    union = slice(min(run.start for run in columns), max(run.stop for run in columns)) if columns else slice(0, 0)
    return VisibleRun(union, (union,) if columns else ())


def _cut_range(count: int, step: int, block: int = 0) -> Iterator[slice]:
    """Cuts a range at every step; and, if pixels of the map are `block` wide, at their edges."""
    step = max(1, step)
    edges = {*range(0, count, step), count}
    if block:
        edges |= {*range(0, count, block)} if block > step else {count // block * block}
    ordered = sorted(edges)
    return (slice(start, stop) for start, stop in itertools.pairwise(ordered))
