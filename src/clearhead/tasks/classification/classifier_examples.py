"""Texts with their labels as tensors, and how a text becomes tokens: whole, or in windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from clearhead.tasks.base import Examples
from clearhead.text.batches import Batch, Ragged

if TYPE_CHECKING:
    from clearhead.text import Row


class LabelledTexts(NamedTuple):
    """A batch: texts as tokens, and the index of each one's label, or a multi-hot matrix (texts, labels)."""

    tokens: Tensor
    lengths: Tensor
    labels: Tensor


class TextExamples(Examples[LabelledTexts]):
    """Texts as tokens, each with the index of its label, or with a multi-hot row over all labels."""

    def __init__(
        self, texts: list[list[int]], labels: Sequence[int] | Sequence[Sequence[float]], rows: list[Row], pad: int
    ) -> None:
        self.texts, self.labels, self.rows, self.pad = Ragged(texts), torch.tensor(labels), rows, pad
        self.lengths = self.texts.lengths.numpy()[:, None]
        self.counts = np.ones(len(labels), dtype=np.int64)

    def to(self, device: torch.device) -> TextExamples:
        self.texts.to(device)
        self.labels = self.labels.to(device)
        return self

    def collate(self, batch: Batch) -> LabelledTexts:
        rows = torch.from_numpy(batch.examples).to(self.labels.device, non_blocking=True)
        return LabelledTexts(*self.texts.pad(rows, batch.sizes[0], self.pad), self.labels[rows])

    def fingerprint(self) -> str:
        return f"{self.texts.fingerprint()} {Ragged([self.labels.flatten().int().tolist()]).fingerprint()}"


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


def mark_segments(tokens: Int[Tensor, "texts tokens"], end: int) -> Int[Tensor, "texts tokens"]:
    """0 up to the first end and 1 after it, as BERT marks the texts of a pair.

    >>> mark_segments(torch.tensor([[1, 7, 2, 8, 9, 2]]), 2)
    tensor([[0, 0, 0, 1, 1, 1]])
    """
    ends = (tokens == end).long()
    return (ends.cumsum(1) - ends).clamp(max=1)


def hide_tokens(
    tokens: Int[Tensor, "texts tokens"], share: float, hidden: int, kept: Sequence[int]
) -> Int[Tensor, "texts tokens"]:
    """A random share of the tokens becomes `hidden`, except those in `kept`, such as start and end."""
    chosen = torch.rand(tokens.shape, device=tokens.device) < share
    for token in kept:
        chosen &= tokens != token
    return tokens.masked_fill(chosen, hidden)
