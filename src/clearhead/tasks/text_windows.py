"""Texts as tokens with start and end, in windows where a text is longer than a model's positions, and their padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxtyping import Int
from torch import Tensor

from clearhead.attention import Mask

if TYPE_CHECKING:
    from clearhead.text import Tokenizer


def split_windows(tokens: Sequence[int], size: int) -> list[list[int]]:
    """All tokens in as few windows as possible; of several, each has `size` tokens, and they overlap evenly.

    >>> split_windows([1, 2, 3], 4), split_windows([1, 2, 3, 4, 5], 3), split_windows([], 3)
    ([[1, 2, 3]], [[1, 2, 3], [3, 4, 5]], [[]])
    """
    count = -(-len(tokens) // size)
    if count <= 1:
        return [list(tokens)]
    last = len(tokens) - size
    starts = [round(number * last / (count - 1)) for number in range(count)]
    return [list(tokens[start : start + size]) for start in starts]


def enclose(parts: Sequence[Sequence[int]], start: int, end: int) -> list[int]:
    """The start, and an end after each part, so that even an empty text has something to look at.

    >>> enclose([[7, 8]], 1, 2), enclose([[7], [8, 9]], 1, 2)
    ([1, 7, 8, 2], [1, 7, 2, 8, 9, 2])
    """
    tokens = [start]
    for part in parts:
        tokens += [*part, end]
    return tokens


def text_windows(parts: Sequence[Sequence[int]], limit: int | None, start: int, end: int) -> list[list[int]]:
    """A text or a pair of texts as tokens, in windows of at most `limit` tokens (None: any number).

    Of a pair, every window of the one meets every window of the other.

    >>> text_windows([[7, 8, 9, 10]], 5, 1, 2)
    [[1, 7, 8, 9, 2], [1, 8, 9, 10, 2]]
    """
    room = None if limit is None else limit - 1 - len(parts)
    if room is None or sum(map(len, parts)) <= room:
        return [enclose(parts, start, end)]
    if len(parts) == 1:
        return [enclose([window], start, end) for window in split_windows(parts[0], room)]
    first, second = parts
    half = max(room // 2, room - len(second))
    return [
        enclose([one, other], start, end)
        for one in split_windows(first, half)
        for other in split_windows(second, room - min(half, len(first)))
    ]


def surface_windows(tokenizer: Tokenizer, texts: Sequence[str], limit: int | None) -> list[tuple[list[int], list[str]]]:
    """The windows of a text or a pair, each as tokens and as the pieces that the texts themselves have."""
    from clearhead.text.surface_forms import surface_forms

    ends = [tokenizer.start, tokenizer.end]
    numbers, surfaces, parts = list(ends), tokenizer.pieces(ends), list[range]()
    for text in texts:
        own, pieces = surface_forms(tokenizer, text)
        parts.append(range(len(numbers), len(numbers) + len(own)))
        numbers, surfaces = numbers + own, surfaces + pieces
    windows = text_windows(parts, limit, 0, 1)  # of places in `numbers`
    return [([numbers[place] for place in one], [surfaces[place] for place in one]) for one in windows]


def mask_padding(tokens: Int[Tensor, "batch tokens"], lengths: Int[Tensor, " batch"]) -> Mask | None:
    """The mask of a padded batch; None on a CPU if there is no padding: attention is faster without one.

    >>> import torch
    >>> mask_padding(torch.ones(2, 3, dtype=torch.long), torch.tensor([3, 3])) is None
    True
    """
    if tokens.is_cpu and bool((lengths == tokens.shape[1]).all()):
        return None
    return Mask.padding(lengths, queries=True)
