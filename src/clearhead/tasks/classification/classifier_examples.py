"""Texts with their labels as tensors: the batches of a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from clearhead.tasks.losses import UNCOUNTED
from clearhead.tasks.processor import Examples
from clearhead.text.batches import Batch, Ragged

if TYPE_CHECKING:
    from clearhead.text import Row


class LabelledTexts(NamedTuple):
    """A batch: texts as tokens, and the index of each one's label, or a multi-hot matrix (texts, labels)."""

    tokens: Tensor
    lengths: Tensor
    labels: Tensor


class TextExamples(Examples[LabelledTexts]):
    """Texts as tokens, each with the index of its label (UNCOUNTED: none), or with a multi-hot row over all labels."""

    def __init__(
        self, texts: list[list[int]], labels: Sequence[int] | Sequence[Sequence[float]], rows: list[Row], pad: int
    ) -> None:
        self.texts, self.labels, self.rows, self.pad = Ragged(texts), torch.tensor(labels), rows, pad
        self.lengths = self.texts.lengths.numpy()[:, None]
        self.counts = np.array([one != UNCOUNTED for one in labels], dtype=np.int64)

    def to(self, device: torch.device) -> TextExamples:
        self.texts.to(device)
        self.labels = self.labels.to(device)
        return self

    def collate(self, batch: Batch) -> LabelledTexts:
        rows = torch.from_numpy(batch.examples).to(self.labels.device, non_blocking=True)
        return LabelledTexts(*self.texts.pad(rows, batch.sizes[0], self.pad), self.labels[rows])

    def fingerprint(self) -> str:
        return f"{self.texts.fingerprint()} {Ragged([self.labels.flatten().int().tolist()]).fingerprint()}"


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
