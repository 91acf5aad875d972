"""The measures on a CPU, each tile by one compiled loop: as `tiled`, but with numba instead of a dozen passes."""

from __future__ import annotations

import functools

import torch

from clearhead.lens.measures.definition import MeasureJob, Measures
from clearhead.lens.measures.tile_job import TileJob, TileStack

MAX_TOP = 64  # keys of each query
# From which on threads pay off: for milliseconds those of PyTorch's last operation go on spinning.
THREADS_FROM_SCORES = 2**21


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
    if compiled.total < THREADS_FROM_SCORES:
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
