"""Blockwise: FlexAttention's BlockMask as a Mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from clearhead.attention.masks import Blocks, Mask


class Blockwise(Mask):
    """What a BlockMask shows of the first `keys` keys: its function of four indices, asked as often as needed.

    Moved to another device, or with its samples changed, it becomes a square of booleans: the function cannot move.
    """

    def __init__(self, block_mask: Any, keys: int) -> None:
        self.block_mask, self.keys = block_mask, keys
        batch, heads, self.queries, _ = block_mask.shape
        self.batch, self.heads = (n if n > 1 else None for n in (batch, heads))

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, queries: int, keys: int) -> Tensor:
        seen: Tensor = self.block_mask.mask_mod(b, h, i, j)
        return seen.expand(torch.broadcast_shapes(b.shape, h.shape, i.shape, j.shape))

    def blocks(self, queries: int, keys: int, rows: int, columns: int, device: Any = None) -> Blocks:
        """From the blocks that it has itself: one of ours may show something if one of those that it meets does."""
        own: Tensor = self.block_mask.to_dense().bool()
        height, width = self.block_mask.BLOCK_SIZE
        some = _met(_met(own, queries, rows, height, 2), keys, columns, width, 3)
        return some, torch.zeros_like(some)

    def tensors(self) -> list[Tensor]:
        return [self.block_mask.kv_num_blocks]

    def map(self, change: Callable[[Tensor], Tensor]) -> Mask:
        own, (queries, keys) = self.block_mask.kv_num_blocks, (self.queries or 0, self.keys or 0)
        changed = change(own)
        if changed.shape == own.shape and changed.device == own.device:
            return self
        return Mask.visible(change(self.dense(queries, keys)))

    def __repr__(self) -> str:
        return f"a BlockMask of {'×'.join(map(str, self.block_mask.shape))}"


def _met(own: Tensor, size: int, block: int, of_theirs: int, axis: int) -> Tensor:
    """Whether any of their blocks that one of ours meets is set."""
    first = torch.arange(0, size, block, device=own.device)
    last = (first + block).clamp(max=size) - 1
    sums = torch.nn.functional.pad(own.int().movedim(axis, -1).cumsum(-1), (1, 0))
    count = sums[..., last // of_theirs + 1] - sums[..., first // of_theirs]
    return (count > 0).movedim(-1, axis)
