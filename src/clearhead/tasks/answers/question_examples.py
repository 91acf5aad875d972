"""Questions with their answers as numbers, and the batches made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from clearhead.tasks.answers.contrastive_losses import OUT_OF_SCOPE
from clearhead.tasks.processor import Examples
from clearhead.text import Row
from clearhead.text.batches import Batch, Ragged


class Questions(NamedTuple):
    """A batch of intents: questions as tokens, and the number of each one's answer."""

    tokens: Tensor
    lengths: Tensor
    answers: Tensor


class QuestionExamples(Examples[Questions]):
    """Questions with the number of an answer each."""

    def __init__(self, questions: Sequence[Sequence[int]], answers: Sequence[int], rows: list[Row], pad: int) -> None:
        self.questions, self.answers, self.rows, self.pad = Ragged(questions), torch.tensor(answers), rows, pad
        self.lengths = self.questions.lengths.numpy()[:, None]
        self.counts = np.ones(len(answers), dtype=np.int64)

    def to(self, device: torch.device) -> QuestionExamples:
        self.questions.to(device)
        self.answers = self.answers.to(device)
        return self

    def collate(self, batch: Batch) -> Questions:
        places = torch.from_numpy(batch.examples).to(self.answers.device, non_blocking=True)
        return Questions(*self.questions.pad(places, batch.sizes[0], self.pad), self.answers[places])

    def fingerprint(self) -> str:
        return f"{self.questions.fingerprint()} {Ragged([(self.answers + 1).tolist()]).fingerprint()}"


class Pairs(NamedTuple):
    """A batch of pairs: questions, their answers, and hard negatives: wrong answers that are similar."""

    tokens: Tensor
    lengths: Tensor
    answer_tokens: Tensor
    answer_lengths: Tensor
    answers: Tensor  # number of each question's answer
    negative_tokens: Tensor
    negative_lengths: Tensor
    negatives: Tensor  # number of each negative


class PairExamples(Examples[Pairs]):
    """Questions and distinct answers as tokens; `negatives` has the numbers of wrong answers for each question.

    The number of an answer is its place in `distinct`, and -1 for a question out of scope.

    The negatives change during training and are stored in checkpoints: they are the `state` of the examples.
    """

    def __init__(
        self,
        questions: Sequence[Sequence[int]],
        answers: Sequence[int],
        texts: Mapping[str, Sequence[int]],
        rows: list[Row],
        *,
        pad: int,
        negatives: int,
    ) -> None:
        self.questions, self.answers, self.rows, self.pad = Ragged(questions), torch.tensor(answers), rows, pad
        # The last text stands for the answer of a question that has none.
        self.distinct = list(texts)
        self.texts, self.none = Ragged([*texts.values(), [pad]]), len(texts)
        self._places = np.where(np.array(answers) == OUT_OF_SCOPE, self.none, np.array(answers))
        self._sizes = self.texts.lengths.numpy().copy()
        self.lengths = np.stack([self.questions.lengths.numpy(), self._sizes[self._places]], axis=1)
        self.counts = np.ones(len(answers), dtype=np.int64)
        self.negatives = _first_negatives(np.array(answers), len(texts), negatives)

    def to(self, device: torch.device) -> PairExamples:
        self.questions.to(device)
        self.texts.to(device)
        self.answers = self.answers.to(device)
        return self

    def collate(self, batch: Batch) -> Pairs:
        device = self.answers.device
        places = torch.from_numpy(batch.examples).to(device, non_blocking=True)
        questions = self.questions.pad(places, batch.sizes[0], self.pad)
        own = torch.from_numpy(self._places[batch.examples]).to(device, non_blocking=True)
        answers = self.texts.pad(own, batch.sizes[1], self.pad)
        numbers = self.negatives[batch.examples].flatten()
        # Rounded up, so that there are few shapes.
        size = -(-int(self._sizes[numbers.numpy()].max(initial=1)) // 16) * 16
        hard = numbers.to(device, non_blocking=True)
        return Pairs(*questions, *answers, self.answers[places], *self.texts.pad(hard, size, self.pad), hard)

    def fingerprint(self) -> str:
        parts = (self.questions, Ragged([(self.answers + 1).tolist()]), self.texts)
        return " ".join(part.fingerprint() for part in parts)

    def state(self) -> dict[str, Tensor]:
        return {"negatives": self.negatives}

    def restore(self, state: dict[str, Tensor]) -> None:
        self.negatives = state["negatives"].cpu()


def _first_negatives(answers: np.ndarray, texts: int, count: int) -> Tensor:
    """Any wrong answers, until similar ones are mined; none where all questions have the same answer."""
    if texts < 2:
        count = 0
    offsets = 1 + np.arange(count) % max(texts - 1, 1)
    return torch.from_numpy((answers[:, None] + offsets) % max(texts, 1)).long()
