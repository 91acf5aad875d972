"""The measures tile by tile: O(n) memory, any device, any mask; on a CPU also by a loop that numba compiles.

A tile holds the scores s of some queries with all keys that any of them may see, so one pass gives every measure.
With m the largest score of a row (its sink included), e = exp(s − m) and z = Σ e (the sink's included), a weight is
e / z, and the entropy Σ w·(m − s) + ln z · Σ w: two sums without cancellation, exact however large the scores are.
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.lens.measures import top_keys
from clearhead.lens.measures.definition import MeasureJob, Measures
from clearhead.lens.measures.tile_job import RowMeasures, Tile, TileJob, TileStack

NARROW_PIXEL = 8  # most columns of a pixel that are added one by one
LOG2 = math.log(2)
MAX_COMPILED_TOP = 64  # keys of each query
# From which on the compiled loop takes threads: for milliseconds those of PyTorch's last operation go on spinning.
COMPILED_THREADS_FROM_SCORES = 2**21
LOG_OF_ZERO = -1e4  # stands for log2(0): exp2 of it is 0 in any precision, and so is their product


def run(job: MeasureJob) -> Measures:
    """The measures of a job, tile by tile."""
    tiled = _TiledJob(job)
    tiled.run(tiled.measure_stack)
    return tiled.to_measures()


class _TiledJob(TileJob):
    """A job whose tiles are measured by PyTorch."""

    def __init__(self, job: MeasureJob) -> None:
        super().__init__(job)
        self.rows.top_weights.fill_(-math.inf)  # until the end, log2 of a weight times the normaliser
        self.shares = torch.zeros_like(self.rows.largest)  # 1 / the normaliser

    def measure_stack(self, stack: TileStack) -> None:
        """Measures all tiles of a stack into the results."""
        for tile in stack:
            self._measure_tile(tile, self.buffers(3))

    def _measure_tile(self, tile: Tile, buffers: Tensor) -> None:
        scores, hiding = self.score_tile(tile, buffers[0])
        blocks = top_keys.find_block_maxima(scores)
        largest, sinks = blocks.amax(-1), None if self.sinks is None else self.sinks[:, tile.heads]
        base = largest if sinks is None else largest.maximum(sinks)
        base = base.masked_fill(base == -math.inf, 0.0)  # of a row that sees nothing
        logs, block_logs = (x.sub_(base[..., None]).mul_(1 / LOG2) for x in (scores, blocks))
        best, keys = top_keys.find_largest(logs, block_logs, max(self.job.top, 1), buffers[1:].view(-1))
        first_key = top_keys.find_first_visible(logs, block_logs) if hiding else None
        if hiding:
            logs.clamp_(min=LOG_OF_ZERO)
        exps = torch.exp2(logs, out=buffers[1, : logs.numel()].view(logs.shape))
        first = exps[..., 0].clone() if first_key is None else exps.gather(-1, first_key)[..., 0]
        log_sum = torch.mul(exps, logs, out=logs).sum(-1)
        distance = torch.mul(exps, self._compute_distances(tile), out=logs).sum(-1)
        total = exps.sum(-1)
        normaliser = total if sinks is None else total + (sinks - base).exp()
        normaliser = normaliser.masked_fill(normaliser == 0, 1.0)  # of a row that sees nothing
        log, share = normaliser.log(), normaliser.reciprocal()
        missing = (best == -math.inf) | normaliser.isnan()[..., None]
        rows = RowMeasures(*(measure[tile.samples, tile.heads, tile.rows] for measure in self.rows))
        rows.largest.copy_(largest)
        rows.logsumexp.copy_((base + log).masked_fill_(largest == -math.inf, -math.inf))
        rows.entropy.copy_(total.mul_(log).sub_(log_sum, alpha=LOG2).mul_(share))
        rows.distance.copy_(distance.mul_(share))
        rows.first.copy_(first.mul_(share))
        rows.top_weights[..., : best.shape[-1]] = best
        rows.top_keys[..., : best.shape[-1]] = keys.add_(tile.run.columns.start).masked_fill_(missing, -1)
        for span, (low, high) in enumerate(self.find_span_edges(tile).tolist()):
            rows.span_mass[..., span] = exps[..., low : max(low, high)].sum(-1).mul_(share)
        self.shares[tile.samples, tile.heads, tile.rows] = share
        self._add_sums(exps, share, tile)

    def to_measures(self) -> Measures:
        # exp2 of all rows at once: its last digit depends on the place in the tensor, so tiles would show in it
        weights = self.rows.top_weights.exp2_().mul_(self.shares[..., None])
        self.rows.peak.copy_(weights[..., 0])
        weights.masked_fill_(self.rows.top_keys < 0, 0.0)
        return super().to_measures()

    def _compute_distances(self, tile: Tile) -> Tensor:
        """|position of query − position of key| for the rows and columns of a tile."""
        rows, first = self.job.rows[tile.rows], tile.run.columns.start - self.job.offset
        queries = torch.arange(rows.start, rows.stop, rows.step, dtype=self.q.dtype, device=self.q.device)
        keys = torch.arange(first, first + tile.shape[3], dtype=self.q.dtype, device=self.q.device)
        return (queries[:, None] - keys).abs_()

    def _add_sums(self, exps: Tensor, share: Tensor, tile: Tile) -> None:
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
            self.received[tile.samples, tile.heads, columns] += by_line.sum(-2)
        if height:
            inset, rest = columns.start % width, -columns.stop % width
            padded = F.pad(by_line, (inset, rest)) if inset or rest else by_line
            top, left, right = tile.rows.start // height, columns.start // width, -(-columns.stop // width)
            pixels = self.map[tile.samples, tile.heads, top : top + lines, left:right]
            pixels += _sum_columns(padded, width)


def _sum_columns(x: Tensor, width: int) -> Tensor:
    """Sums of `width` neighbouring columns; a sum over a short last axis is slow, a sum of slices is not."""
    if width == 1:
        return x
    if width > NARROW_PIXEL:
        whole: Tensor = x.unflatten(-1, (-1, width))
        return whole.sum(-1)
    total = x[..., 0::width] + x[..., 1::width]
    for start in range(2, width):
        total += x[..., start::width]
    return total


def explain_compiled_refusal(job: MeasureJob) -> str | None:
    """The reason why the compiled loop cannot do a job, or None."""
    if job.call.q.device.type != "cpu":
        return f"it runs on CPUs, and q is on {job.call.q.device}"
    if torch.promote_types(job.call.q.dtype, torch.float32) != torch.float32:
        return f"it computes in float32, and q is {job.call.q.dtype}"
    if job.top > MAX_COMPILED_TOP:
        return f"it finds the best {MAX_COMPILED_TOP} keys at most, not {job.top}"
    return _explain_missing_loop()


@functools.cache
def _explain_missing_loop() -> str | None:
    """Why there is no compiled loop, or None; compiles it, if that is not cached."""
    try:
        import numba

        if getattr(numba.config, "DISABLE_JIT", False):
            return "numba compiles nothing while NUMBA_DISABLE_JIT is set"
        import clearhead.lens.measures.compiled_rows  # noqa: F401
    except ImportError as error:
        return f"it needs numba, pip install 'clearhead[cpu]' ({error})"
    except OSError as error:  # such as a full disk
        return f"numba cannot use its cache, set NUMBA_CACHE_DIR to another folder ({error})"
    return None


def run_compiled(job: MeasureJob) -> Measures:
    compiled = _CompiledJob(job)
    if compiled.total < COMPILED_THREADS_FROM_SCORES:
        for stack in compiled.stacks:
            compiled.measure_stack(stack)
    else:
        compiled.run(compiled.measure_stack)
    return compiled.to_measures()


class _CompiledJob(TileJob):
    """A job whose tiles are measured by the compiled loop."""

    def measure_stack(self, stack: TileStack) -> None:
        """Measures all tiles of a stack into the results."""
        from clearhead.lens.measures.compiled_rows import measure_tile

        heads = stack[0][:2]
        sinks = self.q.new_empty(0) if self.sinks is None else self.sinks[0, stack[0].heads, 0].contiguous()
        received, pixels = self.received[heads], self.map[heads]
        for tile in stack:
            scores, _ = self.score_tile(tile, self.buffers(1)[0])
            columns, queries = tile.run.columns, self.job.rows[tile.rows]
            rows = [measure[(*heads, tile.rows)] for measure in self.rows]
            first_row, tile_pixels = tile.rows.start, pixels
            if pixels.dtype != torch.float32:  # the tile lies within one row of pixels
                line, first_row = divmod(first_row, self.job.blocks[0])
                tile_pixels = torch.zeros_like(pixels[:, :, :1], dtype=torch.float32)
            measure_tile(
                *(tensor.numpy() for tensor in (scores, sinks, *rows, self.find_span_edges(tile))),
                received.numpy(),
                tile_pixels.numpy(),
                columns.stop - columns.start,
                columns.start,
                first_row,
                queries[0] + self.job.offset - columns.start,
                queries.step,
                *self.job.blocks,
            )
            if tile_pixels is not pixels:
                pixels[:, :, line] += tile_pixels[:, :, 0]
