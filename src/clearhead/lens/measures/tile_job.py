"""TileJob: a job cut into tiles, with the scores of each tile, and the threads that process them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.attention.tile_scores import multiply_heads, scale_queries
from clearhead.lens.measures import top_keys
from clearhead.lens.measures.definition import MeasureJob
from clearhead.lens.measures.thread_pool import run_in_threads
from clearhead.lens.measures.tile_plan import ROWS, Tile, TileStack, plan_stacks

TILE = 2**19  # scores held at once
GPU_TILE = 2**25  # the same on a GPU, which is idle between small ones
SPLIT = 2**15  # elements from which on PyTorch splits an operation among its threads
MANY = 2**18  # scores from which on several threads pay off


class TileJob:
    """A job with its tensors in float32 or better, and its tiles."""

    def __init__(self, job: MeasureJob) -> None:
        call, rows = job.call, job.rows
        self.job = job
        self.q = scale_queries(call.q[:, :, rows.start : rows.stop : rows.step], call.scale)
        missing = -call.k.shape[2] % top_keys.BLOCK if call.mask is None else top_keys.BLOCK
        k = call.k.to(self.q.dtype)
        self.k = F.pad(k, (0, 0, 0, missing)) if missing else k  # tiles are whole blocks wide
        self.sinks = None if call.sinks is None else call.sinks.to(self.q.dtype).view(1, -1, 1)
        held, workers = (GPU_TILE, 1) if self.q.is_cuda else (TILE, torch.get_num_threads())
        self.stacks = plan_stacks(job, held, workers)
        first_of = {id(stack.blocks): stack for stack in reversed(self.stacks)}.values()  # no later one has more heads
        self.tiles = [tile for stack in first_of for tile in stack]  # those of the other stacks are alike
        self.largest_tile = max((math.prod(tile.shape) for tile in self.tiles), default=0)
        self.total = self.largest_tile * sum(len(stack.blocks) for stack in self.stacks)  # at most twice the true one
        self._own = threading.local()

    def run(self, measure_stack: Callable[[TileStack], None]) -> None:
        """Calls a function for every stack of tiles, on several threads where that pays off."""
        if self.q.is_cuda or self.largest_tile < SPLIT:
            for stack in self.stacks:
                measure_stack(stack)
        elif self.total < MANY:
            run_in_threads(measure_stack, self.stacks, workers=1, threads=1)
        else:
            run_in_threads(measure_stack, self.stacks)

    def buffers(self, count: int) -> Float[Tensor, "count cells"]:
        """Memory for so many of the largest tile, one for each thread."""
        if not hasattr(self._own, "buffers"):
            self._own.buffers = self.q.new_empty(count, self.largest_tile)
        found: Tensor = self._own.buffers
        return found

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

    def make_map(self) -> Float[Tensor, "batch heads rows columns"]:
        """The map, all 0; float64 where many tiles add to a pixel, since their float32 rounding errors would add up."""
        sizes = zip((self.q.shape[2], self.job.call.k.shape[2]), self.job.blocks, strict=True)
        rows, columns = (-(-size // block) if block else 0 for size, block in sizes)
        dtype = torch.float64 if self.job.blocks[0] > ROWS else self.q.dtype
        return self.q.new_zeros(*self.q.shape[:2], rows, columns, dtype=dtype)
