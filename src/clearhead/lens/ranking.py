"""The largest of many scores, in order; of equal ones the first comes first.

Two levels: the n largest of all lie in the n blocks with the largest maxima. So most scores are looked at once, by a
maximum over blocks, and only a few blocks are ranked. That holds for ties too, if blocks with equal maxima are taken
from the left.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 64  # measured at 4,096 keys, top 8: 32 and 64 are alike, 16 and 128 slower


def maxima(scores: Tensor) -> Tensor:
    """The largest score of each block: (…, keys) → (…, blocks). Keys are a multiple of the block."""
    return scores.unflatten(-1, (-1, BLOCK)).amax(-1)


def best(scores: Tensor, blocks: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The so many largest scores, given their maxima, and where they are."""
    few = min(count, blocks.shape[-1])
    chosen = _ranked(blocks, _places(blocks), few)[1]
    inside = scores.unflatten(-1, (-1, BLOCK)).gather(-2, chosen[..., None].expand(*chosen.shape, BLOCK))
    places = chosen[..., None] * BLOCK + torch.arange(BLOCK, device=scores.device)
    return _ranked(inside.flatten(-2), places.flatten(-2), min(count, few * BLOCK))


def first(scores: Tensor, blocks: Tensor) -> Tensor:
    """Where the first score is that is not −inf; 0 if there is none."""
    chosen = (blocks > -torch.inf).byte().argmax(-1, keepdim=True)
    inside = scores.unflatten(-1, (-1, BLOCK)).gather(-2, chosen[..., None].expand(*chosen.shape, BLOCK))
    return chosen * BLOCK + (inside[..., 0, :] > -torch.inf).byte().argmax(-1, keepdim=True)


def _places(x: Tensor) -> Tensor:
    return torch.arange(x.shape[-1], device=x.device).expand(x.shape)


def _ranked(values: Tensor, places: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest values, of equal ones those with the smallest place, and their places."""
    if values.dtype != torch.float32:
        order = places.argsort(dim=-1)  # so that a stable sort by value leaves equal ones in the order of their places
        ordered, where = values.gather(-1, order).sort(dim=-1, descending=True, stable=True)
        return ordered[..., :count], places.gather(-1, order).gather(-1, where[..., :count])
    # A value and its place in one whole number that sorts as they do, for topk is not stable and a stable sort is slow.
    # The bits of a positive float sort as it does; those of a negative one backwards. Adding 0 makes −0 equal to 0.
    bits = (values + 0.0).view(torch.int32)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    found = ((bits.long() << 32) - places).topk(count).values
    places = -found & 0xFFFFFFFF
    bits = ((found + places) >> 32).int()
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).view(torch.float32), places
