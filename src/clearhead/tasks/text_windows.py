"""Texts as tokens with start and end, in windows where a text is longer than a model's positions, and their padding."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from clearhead.attention import Mask
from clearhead.model import ModelConfig
from clearhead.text import Tokenizer
from clearhead.text.batches import pad_sequences, token_batches
from clearhead.text.pieces import surface_forms

READ_AT_ONCE = 4096  # tokens, where positions have no limit: attention takes time by the square of their number
MAX_CHARACTERS = 100_000  # of a text that are read
PAIR_WINDOWS = 8  # of each text of a pair, for every window of the one meets every window of the other


def window_size(config: ModelConfig, longest: int = 0) -> int:
    """The most tokens that a model reads at once, start and ends included: its learned positions, or READ_AT_ONCE.

    It is more if texts of training had up to `longest` tokens, and any number if each token sees its neighbours only.
    """
    if config.positions == "learned":
        return config.max_length
    near = config.window is not None or config.encoder_window is not None
    return sys.maxsize if near else max(READ_AT_ONCE, longest)


def cut_text(text: str) -> tuple[str, list[str]]:
    """The beginning of a text that is read, and a note if that is not all of it."""
    if len(text) <= MAX_CHARACTERS:
        return text, []
    note = f"the text has {len(text):,} characters: only the first {MAX_CHARACTERS:,} were read"
    return text[:MAX_CHARACTERS], [note]


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


def text_windows(parts: Sequence[Sequence[int]], limit: int, start: int, end: int) -> list[list[int]]:
    """A text or a pair of texts as tokens, in windows of at most `limit` tokens.

    Of a pair, every window of the one meets every window of the other, and `pair_size` tokens of each are read.

    >>> text_windows([[7, 8, 9, 10]], 5, 1, 2)
    [[1, 7, 8, 9, 2], [1, 8, 9, 10, 2]]
    """
    room = limit - 1 - len(parts)
    if sum(map(len, parts)) <= room:
        return [enclose(parts, start, end)]
    if len(parts) == 1:
        return [enclose([window], start, end) for window in split_windows(parts[0], room)]
    first, second = (part[: pair_size(room)] for part in parts)
    half = max(room // 2, room - len(second))
    return [
        enclose([text, other], start, end)
        for text in split_windows(first, half)
        for other in split_windows(second, room - min(half, len(first)))
    ]


def pair_size(room: int) -> int:
    """The most tokens of each text of a long pair that are read, in windows with `room` tokens for both."""
    return PAIR_WINDOWS * (room // 2)


class EncodedInput(NamedTuple):
    """The tokens of a text, or of both texts of a pair, and notes on what of it is not read."""

    parts: list[list[int]]
    notes: list[str]


def encode_inputs(tokenizer: Tokenizer, inputs: Sequence[Sequence[str]], limit: int) -> list[EncodedInput]:
    """The tokens of inputs, each a text or a pair of texts, for windows of at most `limit` tokens."""
    cut = [cut_text(text) for texts in inputs for text in texts]
    tokens = iter(tokenizer.encode_all([text for text, _ in cut]))
    notes = iter([note for _, note in cut])
    encoded = []
    for texts in inputs:
        parts, said = [next(tokens) for _ in texts], [note for _ in texts for note in next(notes)]
        room = limit - 1 - len(texts)
        if len(texts) > 1 and sum(map(len, parts)) > room and max(map(len, parts)) > pair_size(room):
            said.append(f"only the first {pair_size(room):,} tokens of each text of the pair were read")
        encoded.append(EncodedInput(parts, said))
    return encoded


def surface_windows(tokenizer: Tokenizer, texts: Sequence[str], limit: int) -> list[tuple[list[int], list[str]]]:
    """The windows of a text or a pair, each as tokens and as the pieces that the texts themselves have."""
    ends = [tokenizer.start, tokenizer.end]
    numbers, surfaces, parts = list(ends), tokenizer.pieces(ends), list[range]()
    for text in texts:
        tokens, pieces = surface_forms(tokenizer, text)
        parts.append(range(len(numbers), len(numbers) + len(tokens)))
        numbers, surfaces = numbers + tokens, surfaces + pieces
    windows = text_windows(parts, limit, 0, 1)  # of positions in `numbers`
    return [([numbers[at] for at in window], [surfaces[at] for at in window]) for window in windows]


def padded_batches(
    sequences: Sequence[Sequence[int]], pad: int, device: torch.device, *, tokens: int, most: int
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Batches for prediction: the numbers of their sequences, the padded tokens, and the lengths.

    A batch has at most `most` sequences, and at most `tokens` tokens, pads included.
    """
    for numbers in token_batches(list(map(len, sequences)), tokens, most):
        yield numbers, *pad_sequences([sequences[number] for number in numbers], pad, device)


def mask_padding(tokens: Int[Tensor, "batch tokens"], lengths: Int[Tensor, " batch"]) -> Mask | None:
    """The mask of a padded batch; None on a CPU if there is no padding: attention is faster without one.

    >>> import torch
    >>> mask_padding(torch.ones(2, 3, dtype=torch.long), torch.tensor([3, 3])) is None
    True
    """
    if tokens.is_cpu and bool((lengths == tokens.shape[1]).all()):
        return None
    return Mask.padding(lengths, queries=True)
