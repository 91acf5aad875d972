"""The largest scores of each row, in order; among equal scores the smaller key comes first.

The n largest scores lie in the n blocks with the largest maxima, so most scores are read only once, by a maximum over
blocks; the chosen blocks are reduced once more, across, and the remaining candidates are ranked. Ties for a place,
which are rare, are broken by sorting integers that combine score and key.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

BLOCK = 64


def find_block_maxima(scores: Float[Tensor, "*rows keys"]) -> Float[Tensor, "*rows blocks"]:
    """The largest score of each block: (…, keys) → (…, blocks). Keys are a multiple of the block."""
    return _split_blocks(scores).amax(-1)


def find_largest(
    scores: Float[Tensor, "*rows keys"], blocks: Float[Tensor, "*rows blocks"], count: int
) -> tuple[Float[Tensor, "*rows top"], Int[Tensor, "*rows top"]]:
    """The `count` largest scores and their keys; `blocks` are the block maxima."""
    if count == 1:
        block = blocks.argmax(-1, keepdim=True)
        values, place = _gather_blocks(scores, block)[..., 0, :].max(-1, keepdim=True)
        return values, block * BLOCK + place
    chosen, tie = _find_candidates(blocks, count)
    inside = _gather_blocks(scores, chosen)  # (…, chosen blocks, BLOCK)
    columns, another = _find_candidates(inside.amax(-2), count)
    candidates = inside.gather(-1, columns[..., None, :].expand(*inside.shape[:-1], columns.shape[-1])).flatten(-2)
    few = min(count, candidates.shape[-1])
    values, order = candidates.topk(min(few + 1, candidates.shape[-1]))
    equal = ((values[..., 1:] == values[..., :-1]) & (values[..., 1:] > -torch.inf)).any()
    if bool(tie | another | equal):
        return _rank_with_ties(scores, blocks, count)
    order, width = order[..., :few], columns.shape[-1]
    places = chosen.gather(-1, order // width) * BLOCK + columns.gather(-1, order % width)
    return values[..., :few], places


def find_largest_of_few(
    scores: Float[Tensor, "*rows keys"], count: int
) -> tuple[Float[Tensor, "*rows top"], Int[Tensor, "*rows top"]]:
    """The `count` largest scores of short rows, without blocks."""
    size = scores.shape[-1]
    values, places = scores.topk(min(count + 1, size))
    if bool((values[..., 1:] == values[..., :-1]).any()):
        return _sort_with_ties(scores, torch.arange(size, device=scores.device), min(count, size))
    return values[..., :count], places[..., :count]


def find_first_visible(
    scores: Float[Tensor, "*rows keys"], blocks: Float[Tensor, "*rows blocks"]
) -> Int[Tensor, "*rows 1"]:
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
    largest = values.topk(count + 1)
    last, next_one = largest.values[..., count - 1], largest.values[..., count]
    return largest.indices[..., :count], ((last == next_one) & (last > -torch.inf)).any()


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
    # A stable sort is slow. The bits of positive floats sort like the floats, those of negative ones in reverse; with
    # the place in the lower half no two are equal, and topk can be used. Adding 0 makes −0 equal to 0.
    bits = (values + 0.0).view(torch.int32)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    combined = ((bits.long() << 32) - places).topk(count).values
    places = -combined & 0xFFFFFFFF
    bits = ((combined + places) >> 32).int()
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).view(torch.float32), places
