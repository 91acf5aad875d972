"""Window sums: exact weights between some queries and some keys, summed in blocks, tile by tile.

With the measured logsumexp a weight is exp(score − logsumexp), so a window costs time for its own size, however long
the text is. Of 8,000 × 8,000 weights only a tile is in memory at a time.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from clearhead.lens.measures.definition import sum_blocks
from clearhead.lens.measures.thread_pool import run_in_threads
from clearhead.lens.record.attention_views import Sight
from clearhead.lens.record.exact_windows import KeptInputs

TILE = 2**19  # scores held at once, so that they stay in the processor's cache
GRAIN = 128  # queries and keys in a block of the mask's summary
LOG2E = math.log2(math.e)


class HeadWindows:
    """Windows of the weights of one head in one sample, by document position; q and k are converted once."""

    def __init__(self, sight: Sight, sample: int, head: int) -> None:
        self.sight, self.sample, self.head, self.place = sight, sample, head, sight.place_of(head)
        self.kept = sight.kept
        self.tiled = self.kept is not None and len(self.kept.parts) == 1 and self.kept.logsumexp is not None
        if self.kept is not None and self.tiled:
            self._prepare(self.kept)

    def _prepare(self, kept: KeptInputs) -> None:
        dtype = torch.promote_types(kept.q.dtype, torch.float32)
        group = kept.q.shape[1] // kept.k.shape[1]
        self.q = kept.q[self.sample, self.place].to(dtype)
        self.k = kept.k[self.sample, self.place // group].to(dtype)
        assert kept.logsumexp is not None
        self.logsumexp = kept.logsumexp[self.sample, self.place].to(dtype)
        scale = kept.scale.flatten() if isinstance(kept.scale, Tensor) else torch.tensor([kept.scale])
        self.scale = float(scale[self.place if len(scale) > 1 else 0])
        self.part = kept.parts[0]
        if self.part.mask is not None:
            blocks = self.part.mask.blocks(self.part.queries, self.part.keys, GRAIN, GRAIN)
            self.some, self.every = (self._select(some) for some in blocks)

    def sums(self, queries: range, keys: range, blocks: tuple[int, int] = (1, 1)) -> Float[Tensor, "rows columns"]:
        """Sums of the weights in blocks that begin with the first query and the first key; the last may be short."""
        height, width = blocks
        found = torch.zeros(-(-len(queries) // height), -(-len(keys) // width))
        if not self.tiled:
            return self._sum_untiled(found, queries, keys, blocks)
        step = max(1, min(2048, TILE // max(1, len(keys))) // height) * height

        def sum_band(start: int) -> None:
            """Sums the weights of some queries into `found`."""
            columns, weights = self._compute_tile(queries[start : start + step], keys)
            if columns:
                inset = columns.start - keys.start
                down = sum_blocks(weights, height, 0) if height > 1 else weights
                if width > 1:
                    down = F.pad(down, (inset % width, 0))
                    down = F.pad(down, (0, -down.shape[1] % width)).unflatten(1, (-1, width)).sum(2)
                first, left = start // height, inset // width
                found[first : first + len(down), left : left + down.shape[1]] = down

        run_in_threads(sum_band, range(0, len(queries), step))
        return found

    def _sum_untiled(
        self, found: Tensor, queries: range, keys: range, blocks: tuple[int, int]
    ) -> Float[Tensor, "rows columns"]:
        """The same by `Sight.weights`: for steps with masks of their own, or if only some queries were measured."""
        step = max(1, TILE // max(1, len(keys)) // blocks[0]) * blocks[0]
        for start in range(0, len(queries), step):
            rows = queries[start : start + step]
            across = slice(keys.start, keys.stop)
            weights = self.sight.weights(self.sample, self.head, slice(rows.start, rows.stop), across)
            some = sum_blocks(sum_blocks(weights, blocks[0], 0), blocks[1], 1)
            found[start // blocks[0] : start // blocks[0] + len(some)] = some
        return found

    def _compute_tile(self, rows: range, keys: range) -> tuple[range, Tensor]:
        """The range of these keys that any of these queries sees, and the weights on it."""
        kept, part = self.kept, self.part
        assert kept is not None
        mine = slice(rows.start - part.first_query, rows.stop - part.first_query)
        columns, unsure = self._find_visible(mine, range(keys.start - part.first_key, keys.stop - part.first_key))
        if not columns:
            return range(0), self.q[:0]
        theirs = slice(columns.start, columns.stop)
        lse = self.logsumexp[mine]
        q = self.q[mine] * self.scale
        k = self.k[columns.start + part.first_key : columns.stop + part.first_key]
        if kept.softcap is None and part.bias is None:
            scores = torch.addmm(lse[:, None] * -LOG2E, q * LOG2E, k.T)
        else:
            scores = q @ k.T
            if kept.softcap is not None:
                scores = scores.div_(kept.softcap).tanh_().mul_(kept.softcap)
            if part.bias is not None:
                tile = part.bias.of_heads(slice(self.place, self.place + 1)).tile(mine, theirs, part.queries, part.keys)
                scores += self._select(tile)
            scores = scores.sub_(lse[:, None]).mul_(LOG2E)
        weights = scores.exp2_()
        for some in unsure:
            assert part.mask is not None
            seen = self._select(part.mask.tile(mine, some, part.queries, part.keys))
            weights[:, some.start - columns.start : some.stop - columns.start].masked_fill_(~seen, 0.0)
        real = int(kept.lengths[self.sample])
        empty = (lse == -math.inf) | (torch.arange(mine.start, mine.stop) >= real)
        if bool(empty.any()):
            weights[empty] = 0.0
        return range(columns.start + part.first_key, columns.stop + part.first_key), weights

    def _find_visible(self, rows: slice, keys: range) -> tuple[range, list[slice]]:
        """The range of keys that any of these queries sees, and the parts of it where the mask must be evaluated."""
        keys = range(max(keys.start, 0), min(keys.stop, self.part.keys))
        if self.part.mask is None or not keys:
            return keys, []
        tall, wide = (range(r.start // GRAIN, -(-r.stop // GRAIN)) for r in (rows, keys))
        some, every = (
            _select_blocks(self.some, tall, wide).any(0).tolist(),
            _select_blocks(self.every, tall, wide).all(0).tolist(),
        )
        seen = [place for place, one in enumerate(some) if one]
        if not seen:
            return range(0), []
        edges = [max(keys.start, min(keys.stop, (wide.start + place) * GRAIN)) for place in range(len(wide) + 1)]
        doubtful = [place for place in range(seen[0], seen[-1] + 1) if not every[place]]
        unsure: list[slice] = []
        for place in doubtful:
            if unsure and unsure[-1].stop == edges[place]:
                unsure[-1] = slice(unsure[-1].start, edges[place + 1])
            else:
                unsure.append(slice(edges[place], edges[place + 1]))
        return range(edges[seen[0]], edges[seen[-1] + 1]), unsure

    def _select(self, tensor: Tensor) -> Tensor:
        """The part of a mask or bias (batch, heads, …) for this sample and head."""
        samples, heads = tensor.shape[:2]
        own: Tensor = tensor[self.sample if samples > 1 else 0, self.place if heads > 1 else 0]
        return own


def _select_blocks(blocks: Tensor, rows: range, columns: range) -> Tensor:
    """Some rows and columns of a summary; a size of one is broadcast."""
    blocks = blocks[rows.start : rows.stop] if len(blocks) > 1 else blocks
    blocks = blocks[:, columns.start : columns.stop] if blocks.shape[1] > 1 else blocks
    return blocks.expand(-1, len(columns))
