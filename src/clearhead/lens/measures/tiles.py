"""Tiles: a job cut into pieces that fit a budget, without what the mask hides."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from clearhead.attention.masks import Mask
from clearhead.attention.visible_runs import Run, runs
from clearhead.lens.measures.definition import Job

ROWS = 128  # queries of a tile, at most: with more, a narrow window would lie in wide tiles
REACH = 512  # and from its first to its last query, where only some are measured
LEAST = 16  # rows of a product, heads that share keys counted: with fewer, reading the keys takes the time
BLOCK = 64  # a mask is asked by blocks of at least so many keys
FEW = 2**14  # so few scores are computed sooner than a mask says which of them it hides
BLOCKS = 2**21  # and by no more of them than this, however long the sequence


class Tile(NamedTuple):
    """Some samples, some key heads with all query heads that share them, some rows, and the keys those may see."""

    samples: slice
    kv_heads: slice
    mask: Mask | None  # of these samples
    rows: slice  # of those that are measured
    columns: slice
    unsure: tuple[slice, ...]  # where the mask has to be asked


@dataclass(frozen=True)
class Stack:
    """All tiles of some heads of some samples."""

    samples: slice
    kv_heads: slice
    mask: Mask | None
    parts: list[tuple[slice, Run]]  # rows, and what they may see: the same list for many heads

    def __iter__(self) -> Iterator[Tile]:
        return (Tile(self.samples, self.kv_heads, self.mask, rows, *run) for rows, run in self.parts)


def stacks(job: Job, held: int, crew: int = 1) -> list[Stack]:
    """The job in tiles of about `held` scores, stacked so that no two stacks share a head: one for each of a crew.

    Each tile lies within one row of the map's pixels, or is some whole ones.
    """
    (batch, heads, _, keys), count, kv_heads = job.call.sizes, len(job.rows), job.call.k.shape[1]
    if not (batch and heads and count and keys):
        return []
    shared = heads // kv_heads
    rows = max(1, min(ROWS, REACH // job.rows.step, count))
    common = _runs(job, job.call.mask, rows)
    longest = max(1, *(run.columns.stop - run.columns.start for run in common))
    fitting = min(rows, max(-(-LEAST // shared), held // (shared * longest)))
    fitting -= fitting % job.blocks[0] if 0 < job.blocks[0] <= fitting else 0
    together = max(1, min(held // (shared * fitting * longest), -(-batch * kv_heads // crew)))  # key heads
    each = job.call.mask is not None and job.call.mask.batch is not None and together // kv_heads < batch
    if fitting != rows and not each:
        common = _runs(job, job.call.mask, fitting)
    found = []
    for samples in _slices(batch, together // kv_heads):
        mask = _of_samples(job.call.mask, samples) if each else job.call.mask
        seen = _runs(job, mask, fitting) if each else common
        parts = [(part, _joined(seen, part, job.rows, fitting)) for part in _cuts(count, fitting, job.blocks[0])]
        parts = [(part, run) for part, run in parts if run.columns.stop]
        found += [Stack(samples, kv, mask, parts) for kv in _slices(kv_heads, together) if parts]
    return found


def _runs(job: Job, mask: Mask | None, rows: int) -> list[Run]:
    """What each block of so many measured queries may see; a block begins at a multiple of as many queries."""
    queries, keys = job.call.sizes[2:]
    height = rows * job.rows.step
    count = -(-queries // height)
    if mask is None or queries * keys <= FEW:
        whole = slice(0, keys)
        return [Run(whole, () if mask is None else (whole,))] * count
    return runs(mask, queries, keys, height, max(BLOCK, count * keys // BLOCKS), job.call.q.device)


def _joined(found: list[Run], part: slice, measured: range, rows: int) -> Run:
    """What these rows may see; where they lie in several blocks, what is not the same for all is unsure."""
    height = rows * measured.step
    own = found[measured[part.start] // height : measured[part.stop - 1] // height + 1]
    if len(own) == 1:
        return own[0]
    some = [run.columns for run in own if run.columns.stop]
    whole = slice(min(run.start for run in some), max(run.stop for run in some)) if some else slice(0, 0)
    return Run(whole, (whole,) if some else ())


def _cuts(count: int, rows: int, block: int) -> Iterator[slice]:
    """Rows cut where tiles end, and where a row of pixels would not be whole."""
    edges = {*range(0, count, rows), count}
    if block:
        edges |= {*range(0, count, block)} if block > rows else {count // block * block}
    ordered = sorted(edges)
    return (slice(start, stop) for start, stop in itertools.pairwise(ordered))


def _of_samples(mask: Mask | None, samples: slice) -> Mask | None:
    """The first axis of whatever a mask holds is that of the samples, or 1."""
    if mask is None or not mask.batch:
        return mask
    return mask.map(lambda tensor: tensor[samples] if len(tensor) > 1 else tensor)


def _slices(size: int, step: int) -> Iterator[slice]:
    step = max(1, step)
    return (slice(start, min(start + step, size)) for start in range(0, size, step))
