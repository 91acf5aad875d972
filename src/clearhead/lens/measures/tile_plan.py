"""How a job of the lens is cut into tiles: blocks of queries with all keys that any of them may see."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from clearhead.attention.masks import Mask
from clearhead.attention.tile_scores import TileScorer
from clearhead.attention.visible_runs import VisibleRun, find_visible_runs
from clearhead.lens.measures import top_keys
from clearhead.lens.measures.definition import MeasureJob

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
    turns = -(-batch * kv_heads // (workers * together))
    together = -(-batch * kv_heads // (workers * turns))  # so that all workers have equally many
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
