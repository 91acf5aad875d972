"""The largest scores of each row, in order; among equal scores the smaller key comes first.

The n largest of all lie in the n groups with the largest maxima, so most scores are looked at only once, by a maximum
over blocks; then those blocks are sifted once more, across, and what is left is ranked. Where equal scores compete
for a place, which is rare, whole numbers that hold score and place together decide.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 64


def find_block_maxima(scores: Tensor) -> Tensor:
    """The largest score of each block: (…, keys) → (…, blocks). Keys are a multiple of the block."""
    return _split_blocks(scores).amax(-1)


def find_largest(scores: Tensor, blocks: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest scores and their keys; `blocks` are the block maxima."""
    if count == 1:
        block = blocks.argmax(-1, keepdim=True)
        values, place = _gather_blocks(scores, block)[..., 0, :].max(-1, keepdim=True)
        return values, block * BLOCK + place
    chosen, tie = _find_candidates(blocks, count)
    inside = _gather_blocks(scores, chosen)  # (…, chosen blocks, BLOCK)
    columns, another = _find_candidates(inside.amax(-2), count)
    sifted = inside.gather(-1, columns[..., None, :].expand(*inside.shape[:-1], columns.shape[-1])).flatten(-2)
    few = min(count, sifted.shape[-1])
    values, order = sifted.topk(min(few + 1, sifted.shape[-1]))
    equal = ((values[..., 1:] == values[..., :-1]) & (values[..., 1:] > -torch.inf)).any()
    if bool(tie | another | equal):
        return _rank_with_ties(scores, blocks, count)
    order, width = order[..., :few], columns.shape[-1]
    places = chosen.gather(-1, order // width) * BLOCK + columns.gather(-1, order % width)
    return values[..., :few], places


def find_largest_of_few(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest scores of short rows, without blocks."""
    size = scores.shape[-1]
    values, places = scores.topk(min(count + 1, size))
    if bool((values[..., 1:] == values[..., :-1]).any()):
        return _sort_with_ties(scores, torch.arange(size, device=scores.device), min(count, size))
    return values[..., :count], places[..., :count]


def find_first_visible(scores: Tensor, blocks: Tensor) -> Tensor:
    """The first key with a score above −inf; 0 if there is none."""
    block = (blocks > -torch.inf).byte().argmax(-1, keepdim=True)
    inside = _gather_blocks(scores, block)[..., 0, :]
    return block * BLOCK + (inside > -torch.inf).byte().argmax(-1, keepdim=True)


def _split_blocks(scores: Tensor) -> Tensor:
    return scores.view(*scores.shape[:-1], scores.shape[-1] // BLOCK, BLOCK)


def _gather_blocks(scores: Tensor, blocks: Tensor) -> Tensor:
    """Some blocks of each row: (…, keys), (…, few) → (…, few, BLOCK)"""
    each = scores.shape[-1] // BLOCK
    before = torch.arange(0, scores[..., 0].numel() * each, each, device=scores.device)
    flat = scores.view(-1, BLOCK).index_select(0, (blocks + before.view(*blocks.shape[:-1], 1)).flatten())
    return flat.view(*blocks.shape, BLOCK)


def _find_candidates(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Indices of the `count` largest values in any order, and whether there is a tie for the last place."""
    if values.shape[-1] <= count:
        places = torch.arange(values.shape[-1], device=values.device)
        return places.expand(values.shape), torch.zeros((), dtype=torch.bool, device=values.device)
    found = values.topk(count + 1)
    last, next_one = found.values[..., count - 1], found.values[..., count]
    return found.indices[..., :count], ((last == next_one) & (last > -torch.inf)).any()


def _rank_with_ties(scores: Tensor, blocks: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest scores and their keys, with ties broken by key."""
    chosen = _sort_with_ties(
        blocks, torch.arange(blocks.shape[-1], device=blocks.device), min(count, blocks.shape[-1])
    )[1]
    chosen = chosen.sort(dim=-1).values
    places = chosen[..., None] * BLOCK + torch.arange(BLOCK, device=scores.device)
    return _sort_with_ties(
        _gather_blocks(scores, chosen).flatten(-2), places.flatten(-2), min(count, places.shape[-2] * BLOCK)
    )


def _sort_with_ties(values: Tensor, places: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest values with their places, ties broken by the smaller place."""
    if values.dtype != torch.float32:
        ordered, order = values.sort(dim=-1, descending=True, stable=True)
        return ordered[..., :count], places.expand(values.shape).gather(-1, order[..., :count])
    # A stable sort is slow. The bits of a positive float sort as it does, those of a negative one the other way round;
    # with the place in the lower half no two are equal, and topk can do it. Adding 0 makes −0 equal to 0.
    bits = (values + 0.0).view(torch.int32)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    found = ((bits.long() << 32) - places).topk(count).values
    places = -found & 0xFFFFFFFF
    bits = ((found + places) >> 32).int()
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).view(torch.float32), places
