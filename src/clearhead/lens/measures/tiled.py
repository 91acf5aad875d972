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
from clearhead.attention.visible_runs import VisibleRun, find_visible_runs
from clearhead.lens.measures import top_keys
from clearhead.lens.measures.definition import MeasureJob, Measures
from clearhead.lens.measures.thread_pool import run_in_threads

ROWS = 128  # queries of a tile, at most: with more, a narrow window would lie in wide tiles
REACH = 512  # and from its first to its last query, where only some are measured
LEAST = 16  # rows of a product, heads that share keys counted: with fewer, reading the keys takes the time
BLOCK = 64  # a mask is asked by blocks of at least so many keys
FEW = 2**14  # so few scores are computed sooner than a mask says which of them it hides
BLOCKS = 2**21  # and by no more of them than this, however long the sequence


class Tile(NamedTuple):
    """Some samples, some key heads with all query heads that share them, some rows, and the keys they may see."""

    samples: slice
    kv_heads: slice
    mask: Mask | None  # of these samples
    rows: slice  # of those that are measured
    columns: slice
    partial: tuple[slice, ...]  # where the mask has to be asked


@dataclass(frozen=True)
class TileStack:
    """The tiles of some heads of some samples, a unit of work for one thread."""

    samples: slice
    kv_heads: slice
    mask: Mask | None
    parts: list[tuple[slice, VisibleRun]]  # rows, and what they may see: the same list for many heads

    def __iter__(self) -> Iterator[Tile]:
        return (Tile(self.samples, self.kv_heads, self.mask, rows, *run) for rows, run in self.parts)


def plan_stacks(job: MeasureJob, held: int, crew: int = 1) -> list[TileStack]:
    """Cuts a job into tiles of about `held` scores, grouped into stacks that share no head, one or more a worker.

    Each tile lies within one row of the map's pixels, or is some whole ones.
    """
    (batch, heads, _, keys), count, kv_heads = job.call.sizes, len(job.rows), job.call.k.shape[1]
    if not (batch and heads and count and keys):
        return []
    shared = heads // kv_heads
    rows = max(1, min(ROWS, REACH // job.rows.step, count))
    common = _find_runs(job, job.call.mask, rows)
    longest = max(1, *(run.columns.stop - run.columns.start for run in common))
    fitting = min(rows, max(-(-LEAST // shared), held // (shared * longest)))
    fitting -= fitting % job.blocks[0] if 0 < job.blocks[0] <= fitting else 0
    together = max(1, min(held // (shared * fitting * longest), -(-batch * kv_heads // crew)))  # key heads
    each = job.call.mask is not None and job.call.mask.batch is not None and together // kv_heads < batch
    if fitting != rows and not each:
        common = _find_runs(job, job.call.mask, fitting)
    found = []
    for samples in _split_range(batch, together // kv_heads):
        mask = _select_samples(job.call.mask, samples) if each else job.call.mask
        seen = _find_runs(job, mask, fitting) if each else common
        parts = [
            (part, _merge_runs(seen, part, job.rows, fitting)) for part in _cut_rows(count, fitting, job.blocks[0])
        ]
        parts = [(part, run) for part, run in parts if run.columns.stop]
        found += [TileStack(samples, kv, mask, parts) for kv in _split_range(kv_heads, together) if parts]
    return found


def _find_runs(job: MeasureJob, mask: Mask | None, rows: int) -> list[VisibleRun]:
    """The visible run of each block of `rows` measured queries."""
    queries, keys = job.call.sizes[2:]
    height = rows * job.rows.step
    count = -(-queries // height)
    if mask is None or queries * keys <= FEW:
        whole = slice(0, keys)
        return [VisibleRun(whole, () if mask is None else (whole,))] * count
    return find_visible_runs(mask, queries, keys, height, max(BLOCK, count * keys // BLOCKS), job.call.q.device)


def _merge_runs(found: list[VisibleRun], part: slice, measured: range, rows: int) -> VisibleRun:
    """The visible run of these rows; if they span several blocks, the mask is evaluated everywhere."""
    height = rows * measured.step
    own = found[measured[part.start] // height : measured[part.stop - 1] // height + 1]
    if len(own) == 1:
        return own[0]
    some = [run.columns for run in own if run.columns.stop]
    whole = slice(min(run.start for run in some), max(run.stop for run in some)) if some else slice(0, 0)
    return VisibleRun(whole, (whole,) if some else ())


def _cut_rows(count: int, rows: int, block: int) -> Iterator[slice]:
    """Cuts rows at tile edges and at edges of the map's pixels."""
    edges = {*range(0, count, rows), count}
    if block:
        edges |= {*range(0, count, block)} if block > rows else {count // block * block}
    ordered = sorted(edges)
    return (slice(start, stop) for start, stop in itertools.pairwise(ordered))


def _select_samples(mask: Mask | None, samples: slice) -> Mask | None:
    """The mask of some samples."""
    if mask is None or not mask.batch:
        return mask
    return mask.map(lambda tensor: tensor[samples] if len(tensor) > 1 else tensor)


def _split_range(size: int, step: int) -> Iterator[slice]:
    step = max(1, step)
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


TILE = 2**20  # scores held at once
SPLIT = 2**15  # numbers from which on PyTorch splits an operation among its threads
MANY = 2**18  # scores from which on several threads are worth their while
GPU_TILES = 32  # how many times as many on a GPU, which is idle between small ones
LOG2 = math.log(2)
NOTHING = -1e4  # stands for a logarithm of 0: exp2 of it is 0 in any precision, and so is their product


def run(job: MeasureJob) -> Measures:
    work = _TiledJob(job)
    if job.call.q.is_cuda or work.largest < SPLIT:
        for stack in work.plan:
            work.measure(stack)
    elif work.total < MANY:
        run_in_threads(work.measure, work.plan, workers=1, threads=1)
    else:
        run_in_threads(work.measure, work.plan)
    return work.result()


class _TiledJob:
    """The tensors of one job, and its accumulating results."""

    def __init__(self, job: MeasureJob) -> None:
        call, rows = job.call, job.rows
        self.job, self.dtype = job, torch.promote_types(call.q.dtype, torch.float32)
        self.heads_a_key = call.q.shape[1] // call.k.shape[1]
        # The scale goes to the queries, in float32 or better: so the tiles need not know of it.
        scale = call.scale.to(self.dtype) if isinstance(call.scale, Tensor) else call.scale
        self.q = call.q[:, :, rows.start : rows.stop : rows.step].to(self.dtype) * scale
        self.k = F.pad(call.k.to(self.dtype), (0, 0, 0, top_keys.BLOCK))  # tiles are whole blocks wide
        self.sinks = None if call.sinks is None else call.sinks.to(self.dtype).view(1, -1, 1)
        held, crew = (TILE * GPU_TILES, 1) if self.q.is_cuda else (TILE, torch.get_num_threads())
        self.plan = plan_stacks(job, held, crew)
        first_of = {id(stack.parts): stack for stack in reversed(self.plan)}.values()  # no later one has more heads
        self.largest = max((math.prod(self._shape(tile)) for stack in first_of for tile in stack), default=0)
        self.total = self.largest * sum(len(stack.parts) for stack in self.plan)  # at most twice as many as there are
        self.rooms = threading.local()
        self._begin(len(rows), call.k.shape[2])

    def _begin(self, count: int, keys: int) -> None:
        """Results of queries that see nothing, and sums of nothing."""
        job, (batch, heads) = self.job, self.q.shape[:2]
        shape = (batch, heads, count)
        self.logsumexp = self.q.new_full(shape, -math.inf)
        self.entropy, self.peak, self.distance, self.first = (self.q.new_zeros(shape) for _ in range(4))
        self.top_keys = torch.full((*shape, max(job.top, 1)), -1, device=self.q.device)
        self.top_weights = self.q.new_zeros(*shape, max(job.top, 1))
        # In float64, because thousands of tiles add to it: in float32 their roundings would be seen.
        self.received = self.q.new_zeros(batch, heads, keys if job.received else 0, dtype=torch.float64)
        pixels = (-(-n // block) if block else 0 for n, block in zip((count, keys), job.blocks, strict=True))
        self.map = self.q.new_zeros(batch, heads, *pixels)

    def measure(self, stack: TileStack) -> None:
        """Measures all tiles of a stack into the result tensors."""
        if not hasattr(self.rooms, "room"):
            self.rooms.room = self.q.new_empty(2, self.largest)
        for tile in stack:
            self._measure(tile, self.rooms.room)

    def _measure(self, tile: Tile, room: Tensor) -> None:
        scores, hiding = self._scores(tile, room[0])
        heads = self._heads(tile)
        place = (tile.samples, heads, tile.rows)
        blocks = top_keys.find_block_maxima(scores)
        best, keys = top_keys.find_largest(scores, blocks, max(self.job.top, 1))
        beginning = top_keys.find_first_visible(scores, blocks) if hiding else torch.zeros_like(keys[..., :1])
        largest, sinks = best[..., 0], None if self.sinks is None else self.sinks[:, heads]
        base = largest if sinks is None else largest.maximum(sinks)
        base = base.masked_fill(base == -math.inf, 0.0)
        logs = scores.sub_(base[..., None]).mul_(1 / LOG2)
        if hiding:
            logs.clamp_(min=NOTHING)
        parts = torch.exp2(logs, out=room[1, : logs.numel()].view(logs.shape))
        below = torch.mul(parts, logs, out=logs).sum(-1)
        total, away = self._spread(parts, logs, tile)
        whole = total if sinks is None else total + (sinks - base).exp()
        whole = whole.masked_fill(whole == 0, 1.0)
        share = whole.reciprocal()
        self.logsumexp[place] = (base + whole.log()).masked_fill(largest == -math.inf, -math.inf)
        self.entropy[place] = (total * whole.log() - LOG2 * below) * share
        self.distance[place] = away * share
        self.first[place] = parts.gather(-1, beginning)[..., 0] * share
        found = slice(0, best.shape[-1])
        lost = (best == -math.inf) | whole.isnan()[..., None]
        self.top_keys[place][..., found] = (keys + tile.columns.start).masked_fill_(lost, -1)
        weights = (best - base[..., None]).exp() * share[..., None]
        self.top_weights[place][..., found] = weights.masked_fill(lost, 0.0)
        self.peak[place] = weights[..., 0]
        self._collect(parts, share, tile)

    def _scores(self, tile: Tile, room: Tensor) -> tuple[Tensor, bool]:
        """The scores of a tile, −inf where hidden and beyond its last key, and whether there can be any such."""
        call, columns, shape = self.job.call, tile.columns, self._shape(tile)
        (queries, keys), heads = call.sizes[2:], self._heads(tile)
        length = columns.stop - columns.start
        k = self.k[tile.samples, tile.kv_heads, columns.start : columns.start + shape[3]].flatten(0, 1)
        q = self.q[tile.samples, heads, tile.rows].reshape(len(k), -1, k.shape[2])
        flat = room[: math.prod(shape)]
        scores = torch.bmm(q, k.mT, out=flat.view(len(k), -1, shape[3])).view(shape)
        if call.softcap is not None:
            scores.div_(call.softcap).tanh_().mul_(call.softcap)
        rows = self.job.rows[tile.rows]
        where = slice(rows.start, rows.stop, rows.step)
        if call.bias is not None:
            bias = call.bias.of_heads(heads).tile(where, columns, queries, keys)
            scores[..., :length] += bias[tile.samples] if bias.shape[0] > 1 else bias
        for piece in tile.partial:
            assert tile.mask is not None
            seen = tile.mask.tile(where, piece, queries, keys, scores.device)
            seen = seen[:, heads] if seen.shape[1] > 1 else seen
            scores[..., piece.start - columns.start : piece.stop - columns.start].masked_fill_(~seen, -math.inf)
        scores[..., length:] = -math.inf
        return scores, bool(tile.partial) or call.bias is not None or length < shape[3]

    def _spread(self, parts: Tensor, room: Tensor, tile: Tile) -> tuple[Tensor, Tensor]:
        """Σ e and Σ e·|position of query − position of key|, for each row.

        A key before the tile's first query is as far from it as from that first one, and that from the query: two
        sums without a minus, of which one needs no square of distances. Likewise behind the last; the few keys in
        between have theirs worked out one by one.
        """
        rows, start, length = self.job.rows[tile.rows], tile.columns.start, tile.columns.stop - tile.columns.start
        low, high = self.job.offset + rows[0], self.job.offset + rows[-1]
        left = min(max(low + 1 - start, 0), length)
        right = min(max(high - start, left), length)
        place = torch.arange(low, high + 1, rows.step, device=parts.device)
        keys = torch.arange(start, start + parts.shape[3], device=parts.device)
        gap = ((low - keys).clamp(min=0) + (keys - high).clamp(min=0)).to(self.dtype)
        before, between, after = (parts[..., p] for p in (slice(0, left), slice(left, right), slice(right, length)))
        apart = (place[:, None] - keys[left:right]).abs()
        earlier, later = before.sum(-1), after.sum(-1)
        away = torch.mul(parts, gap, out=room).sum(-1) + earlier * (place - low) + later * (high - place)
        return earlier + between.sum(-1) + later, away + (between * apart).sum(-1)

    def _collect(self, parts: Tensor, share: Tensor, tile: Tile) -> None:
        """Adds a tile to `received` and `map`."""
        (high, wide), columns, place = self.job.blocks, tile.columns, (tile.samples, self._heads(tile))
        if not self.job.received and not high:
            return
        count = tile.rows.stop - tile.rows.start
        lines = count // high if high and count >= high else 1
        if lines == count:  # then a product of matrices is slow
            by_line = parts.mul_(share[..., None])
        else:
            by_line = (share.unflatten(-1, (lines, 1, -1)) @ parts.unflatten(-2, (lines, -1)))[..., 0, :]
        by_line = by_line[..., : columns.stop - columns.start]
        if self.job.received:
            self.received[place][..., columns] += by_line.sum(-2)
        if high:
            inset = columns.start % wide
            filled = F.pad(by_line, (inset, -columns.stop % wide))
            pixels = filled.unflatten(-1, (-1, wide)).sum(-1)
            top, left = tile.rows.start // high, columns.start // wide
            self.map[place][..., top : top + lines, left : left + pixels.shape[-1]] += pixels

    def _heads(self, tile: Tile) -> slice:
        return slice(tile.kv_heads.start * self.heads_a_key, tile.kv_heads.stop * self.heads_a_key)

    def _shape(self, tile: Tile) -> tuple[int, int, int, int]:
        """(samples, heads, rows, columns), these in whole blocks"""
        heads, samples, rows, columns = self._heads(tile), tile.samples, tile.rows, tile.columns
        width = -(-(columns.stop - columns.start) // top_keys.BLOCK) * top_keys.BLOCK
        return (samples.stop - samples.start, heads.stop - heads.start, rows.stop - rows.start, width)

    def result(self) -> Measures:
        top = self.job.top
        return Measures(
            logsumexp=self.logsumexp,
            entropy=self.entropy,
            peak=self.peak,
            peak_key=self.top_keys[..., 0].clone(),
            distance=self.distance,
            first=self.first,
            top_keys=self.top_keys[..., :top],
            top_weights=self.top_weights[..., :top],
            received=self.received.to(self.dtype) if self.job.received else None,
            map=self.map,
        )
