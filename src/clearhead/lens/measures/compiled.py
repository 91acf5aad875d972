"""The measures on a CPU, each tile by one compiled loop: as `tiled`, but with numba instead of a dozen passes."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.lens.measures.definition import MeasureJob, Measures
from clearhead.lens.measures.tile_job import TileJob
from clearhead.lens.measures.tile_plan import TileStack

MAX_TOP = 64  # top keys of each query
MANY = 2**21  # scores from which on threads pay off: for milliseconds those of PyTorch's last operation go on spinning


def explain_refusal(job: MeasureJob) -> str | None:
    """The reason why the compiled loop cannot do a job, or None."""
    if job.call.q.device.type != "cpu":
        return f"it runs on CPUs, and q is on {job.call.q.device}"
    if torch.promote_types(job.call.q.dtype, torch.float32) != torch.float32:
        return f"it computes in float32, and q is {job.call.q.dtype}"
    if job.top > MAX_TOP:
        return f"it finds the best {MAX_TOP} keys at most, not {job.top}"
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


def run(job: MeasureJob) -> Measures:
    """The measures of a job, tile by tile."""
    compiled = _CompiledJob(job)
    if compiled.total < MANY:
        for stack in compiled.stacks:
            compiled.measure_stack(stack)
    else:
        compiled.run(compiled.measure_stack)
    return compiled.to_measures()


class _RowMeasures(NamedTuple):
    """The measures of each query, in the order in which `measure_tile` takes them; `largest` is a score."""

    largest: Tensor
    logsumexp: Tensor
    entropy: Tensor
    peak: Tensor
    distance: Tensor
    first: Tensor
    top_weights: Tensor
    top_keys: Tensor
    span_mass: Tensor


class _CompiledJob(TileJob):
    """A job with its results, initialised for queries that see nothing; tiles fill them in."""

    def __init__(self, job: MeasureJob) -> None:
        super().__init__(job)
        shape, keys, top = self.q.shape[:3], job.call.k.shape[2], max(job.top, 1)
        self.rows = _RowMeasures(
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
        self.map = self.make_map()

    def measure_stack(self, stack: TileStack) -> None:
        """Measures all tiles of a stack into the results."""
        from clearhead.lens.measures.compiled_rows import measure_tile

        heads = (stack.samples, stack.heads)
        sinks = self.q.new_empty(0) if self.sinks is None else self.sinks[0, stack.heads, 0].contiguous()
        received, pixels = (one[heads] for one in (self.received, self.map))
        for tile in stack:
            scores, _ = self.score_tile(tile, self.buffers(1)[0])
            columns, queries = tile.run.columns, self.job.rows[tile.rows]
            rows = [one[(*heads, tile.rows)] for one in self.rows]
            first_row, own_pixels = tile.rows.start, pixels
            if pixels.dtype != torch.float32:  # the tile lies within one row of pixels
                line, first_row = divmod(first_row, self.job.blocks[0])
                own_pixels = torch.zeros_like(pixels[:, :, :1], dtype=torch.float32)
            measure_tile(
                *(one.numpy() for one in (scores, sinks, *rows, self.find_span_edges(tile))),
                received.numpy(),
                own_pixels.numpy(),
                columns.stop - columns.start,
                columns.start,
                first_row,
                queries[0] + self.job.offset - columns.start,
                queries.step,
                *self.job.blocks,
            )
            if own_pixels is not pixels:
                pixels[:, :, line] += own_pixels[:, :, 0]

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
            received=self.received.float() if job.received else None,
            map=self.map.float(),
            max_score=F.pad(rows.largest, (0, 1), value=-math.inf).amax(-1),
            span_mass=rows.span_mass if job.spans else None,
            span_names=tuple(job.spans),
        )
