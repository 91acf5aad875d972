"""The largest scores of each row, in order; among equal scores the smaller key comes first.

The n largest scores lie in the n blocks with the largest maxima, so most scores are read only once, by a maximum over
blocks; these blocks are reduced once more, across, and the remaining candidates are ranked. Numbers are ranked together
with their keys, as integers: no two are equal, and NumPy sorts short rows of them far faster than PyTorch.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

BLOCK = 64
SHORT = 256  # most integers of a row that NumPy sorts faster than PyTorch finds the largest
KEY_BITS = 2**29 - 1  # the bits of a float64 that are 0 if it was a float32


def find_block_maxima(scores: Float[Tensor, "*rows keys"]) -> Float[Tensor, "*rows blocks"]:
    """The largest score of each block: (…, keys) → (…, blocks). Keys are a multiple of the block."""
    return _split_blocks(scores).amax(-1)


def find_largest(
    logs: Float[Tensor, "*rows keys"],
    blocks: Float[Tensor, "*rows blocks"],
    count: int,
    buffer: Float[Tensor, " numbers"],
) -> tuple[Float[Tensor, "*rows top"], Int[Tensor, "*rows top"]]:
    """The `count` largest of numbers that are at most 0, and their keys.

    `blocks` are the block maxima; `buffer` holds two numbers for each of `logs`, and is overwritten.
    """
    if count == 1:
        block = blocks.argmax(-1, keepdim=True)
        values, column = _gather_blocks(logs, block)[..., 0, :].max(-1, keepdim=True)
        return values, block * BLOCK + column
    if logs.dtype != torch.float32:
        return _sort_stably(logs, count)
    size, few = logs.shape[-1], min(count, logs.shape[-1])
    keys = torch.arange(max(size if size <= SHORT else BLOCK, blocks.shape[-1]), device=logs.device)
    if size <= SHORT:
        return _unpack(_find_smallest(_pack(logs, buffer).bitwise_or_(keys), few))
    candidates, numbers = _split_blocks(logs), keys[: blocks.shape[-1]]
    if blocks.shape[-1] > count:
        numbers = _unpack(_find_smallest(_pack(blocks, buffer).bitwise_or_(numbers), count))[1]
        candidates = _gather_blocks(logs, numbers)
    first_keys, columns = numbers[..., None] * BLOCK, keys[:BLOCK]
    if count < BLOCK and (best_columns := _find_best_columns(candidates.amax(-2), count, buffer)) is not None:
        columns = best_columns
        candidates = candidates.gather(-1, columns.expand(*candidates.shape[:-1], count))
    packed = _pack(candidates, buffer).bitwise_or_(first_keys + columns)
    return _unpack(_find_smallest(packed.flatten(-2), few))


def find_largest_of_few(
    scores: Float[Tensor, "*rows keys"], count: int
) -> tuple[Float[Tensor, "*rows top"], Int[Tensor, "*rows top"]]:
    """The `count` largest scores of short rows, without blocks; hidden keys, with −inf, in any order."""
    values, keys = scores.topk(min(count + 1, scores.shape[-1]))
    ties = (values[..., 1:] == values[..., :-1]) & (values[..., 1:] > -torch.inf)
    return _sort_stably(scores, count) if bool(ties.any()) else (values[..., :count], keys[..., :count])


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


def _find_best_columns(maxima: Tensor, count: int, buffer: Tensor) -> Tensor | None:
    """The columns of the `count` largest numbers, (…, 1, count); None if there is a tie for the last place."""
    columns = torch.arange(maxima.shape[-1], device=maxima.device)
    best, order = _unpack(_find_smallest(_pack(maxima, buffer).bitwise_or_(columns), count + 1))
    tie = (best[..., count - 1] == best[..., count]) & (best[..., count] > -torch.inf)
    return None if bool(tie.any()) else order[..., None, :count]


def _sort_stably(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    ordered, order = values.sort(dim=-1, descending=True, stable=True)
    return ordered[..., :count], order[..., :count]


def _pack(values: Tensor, buffer: Tensor) -> Tensor:
    """Integers that increase as numbers (float32, at most 0) decrease; a key below 2²⁹ can be added to each."""
    packed = buffer.view(torch.float64)[: values.numel()].view(values.shape).copy_(values)
    return packed.abs_().view(torch.int64)


def _unpack(packed: Tensor) -> tuple[Tensor, Tensor]:
    keys = packed & KEY_BITS
    return (packed - keys).view(torch.float64).neg_().float(), keys


def _find_smallest(packed: Tensor, count: int) -> Tensor:
    """The `count` smallest integers of each row, in order; may change `packed`."""
    if packed.device.type != "cpu" or packed.shape[-1] > SHORT:
        return packed.topk(count, largest=False).values
    packed.numpy().sort(axis=-1)
    return packed[..., :count]
