"""The losses of answers, hard negatives, and the calibration of "I don't know" with the finished weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.formatting import format_count
from clearhead.model import PooledEncoder
from clearhead.tasks.answers.answer_index import Entry, Vectors
from clearhead.tasks.answers.answer_processor import AnswerProcessor, clean_pair, normalize
from clearhead.tasks.answers.answer_settings import AnswersRecipe
from clearhead.tasks.answers.contrastive_losses import (
    intent_loss,
    mix_questions,
    pair_loss,
    question_contrast,
    uniform_loss,
)
from clearhead.tasks.answers.index_actions import carry_changes
from clearhead.tasks.answers.question_examples import PairExamples, Pairs, Questions
from clearhead.tasks.answers.text_vectors import pool_tokens
from clearhead.tasks.losses import consistency_loss
from clearhead.tasks.objective import Objective
from clearhead.tasks.processor import Examples

if TYPE_CHECKING:
    from clearhead.text import Row

HELD_OUT = 10  # without dev, one in so many training questions stands in for it
FEWEST_REJECTED = 5  # questions of dev below the threshold: with fewer it is a matter of chance
MARGIN = 0.95  # of the right answer's similarity: what is more similar than that may be right, too
SPARE = 16  # candidates that may turn out to be right
MINED_TOGETHER = 1024  # questions


class AnswerObjective(Objective[AnswerProcessor, AnswersRecipe, PooledEncoder, Any]):
    splits_batches = False  # negatives come from the same batch

    def loss(self, model: PooledEncoder, batch: Any) -> Float[Tensor, ""]:
        return self._pair_loss(model, batch) if self.processor.kind == "pairs" else self._intent_loss(model, batch)

    def _intent_loss(self, model: PooledEncoder, batch: Questions) -> Tensor:
        settings, learning = self.processor.losses, model.training
        twice = learning and settings.r_drop > 0
        tokens, lengths = (part.repeat(2, *[1] * (part.ndim - 1)) if twice else part for part in batch[:2])
        vectors = pool_tokens(model, tokens, lengths)
        scores = self.processor.score_labels(model, vectors).float()
        answers = batch.answers.repeat(2) if twice else batch.answers
        smoothing, outliers = (settings.label_smoothing, settings.outliers) if learning else (0.0, 0.0)
        loss = intent_loss(scores, answers, smoothing=smoothing, outliers=outliers)
        if learning and settings.mixtures:
            mixed, different = mix_questions(vectors, answers)
            spread = uniform_loss(self.processor.score_labels(model, mixed).float())
            loss = loss + settings.mixtures * spread.masked_fill(~different, 0.0).sum()
        if learning and settings.contrast:
            contrast = question_contrast(normalize(vectors), answers, settings.temperature)
            loss = loss + settings.contrast * contrast
        if not twice:
            return loss
        one, other = scores.chunk(2)
        return loss / 2 + settings.r_drop * consistency_loss(one, other)

    def _pair_loss(self, model: PooledEncoder, batch: Pairs) -> Tensor:
        settings, learning = self.processor.losses, model.training
        parts = [(batch.tokens, batch.lengths), (batch.answer_tokens, batch.answer_lengths)]
        if learning:
            parts.append((batch.negative_tokens, batch.negative_lengths))
        # One pass over all texts: what watches a model, and DDP, want one.
        size = max(tokens.shape[1] for tokens, _ in parts)
        tokens = torch.cat(
            [F.pad(one, (0, size - one.shape[1]), value=self.processor.tokenizer.pad) for one, _ in parts]
        )
        vectors = normalize(pool_tokens(model, tokens, torch.cat([lengths for _, lengths in parts])))
        count = len(batch.tokens)
        questions, answers, negatives = vectors[:count], vectors[count : 2 * count], vectors[2 * count :]
        numbers = batch.negatives[: len(negatives)]
        loss = pair_loss(
            questions,
            answers,
            negatives,
            batch.answers,
            numbers,
            temperature=settings.temperature,
            outliers=settings.outliers if learning else 0.0,
        )
        if learning and settings.contrast:
            loss = loss + settings.contrast * question_contrast(questions, batch.answers, settings.temperature)
        return loss

    @torch.no_grad()
    def refresh(self, model: PooledEncoder, examples: Examples[Any], epoch: int) -> None:
        """Mines hard negatives for pairs with the weights at the beginning of an epoch."""
        if not isinstance(examples, PairExamples) or examples.negatives.shape[1] == 0:
            return
        if epoch % self.processor.section.mine_every:
            return
        texts = [clean_pair(row)[0] for row in examples.rows], examples.distinct
        questions, answers = (normalize(self.processor.pool_texts(model, side)) for side in texts)
        count = examples.negatives.shape[1]
        examples.negatives = mine_negatives(questions, answers, examples.answers.to(answers.device), count).cpu()

    @torch.no_grad()
    def calibrate(self, model: PooledEncoder, train: Sequence[Row], dev: Sequence[Row]) -> str | None:
        """Builds the index, and chooses detector and threshold on dev.

        Without dev every tenth training question is used for that: the threshold is then too strict for new questions.
        """
        rest, dev = list(train), [row for row in dev if not self.processor.find_flaws(row)]
        if not dev:
            dev, rest = rest[::HELD_OUT], [row for place, row in enumerate(rest) if place % HELD_OUT]
        self._fill_index(model, rest, dev)
        pairs = [clean_pair(row) for row in dev]
        vectors, scores = self.processor.encode_questions(model, [question for question, _ in pairs])
        self.processor.finder.fit(vectors, scores, [answer for _, answer in pairs])
        if len(rest) < len(train):
            self._fill_index(model, train, dev)
        if self.processor.section.detector == "auto" and (calibration := self.processor.finder.calibration):
            detector = {"answers.detector": calibration.detector}
            self.processor.chosen_settings = {**self.processor.chosen_settings, **detector}
        asked, reject = sum(bool(answer) for _, answer in pairs), self.processor.section.reject
        if not reject or asked * reject >= FEWEST_REJECTED:
            return None
        return (
            f'the threshold of "I don\'t know" rests on {format_count(asked, "answerable question")}: too few for '
            f"reject = {reject:g}; give at least {math.ceil(FEWEST_REJECTED / reject):,} in dev, or set reject = 0"
        )

    def _fill_index(self, model: PooledEncoder, train: Sequence[Row], dev: Sequence[Row]) -> None:
        """Makes training questions known, and of pairs all answers, those of dev included, but not dev's questions."""
        pairs = list(dict.fromkeys(pair for pair in map(clean_pair, train) if all(pair)))
        answers = self.processor.labels
        if self.processor.kind == "pairs":
            answers = list(dict.fromkeys(answer for _, answer in [*pairs, *map(clean_pair, dev)] if answer))
        numbers = {text: number for number, text in enumerate(answers)}
        entries = [Entry(numbers[answer], answer, question) for question, answer in pairs]
        if self.processor.kind == "pairs":
            entries += [Entry(number, text, None) for text, number in numbers.items()]
        self.processor.finder.fill(entries, self.processor.encode_entries(model, [entry.text for entry in entries]))

    @torch.no_grad()
    def carry_over(self, model: PooledEncoder, folder: Path) -> str | None:
        processor, finder = self.processor, self.processor.finder

        def encode(texts: Sequence[str]) -> Vectors:
            return processor.encode_entries(model, texts).numpy()

        finder.index, message = carry_changes(folder, finder.index, encode)
        return message


def mine_negatives(
    questions: Float[Tensor, "questions width"],
    answers: Float[Tensor, "answers width"],
    numbers: Int[Tensor, " questions"],
    count: int,
) -> Int[Tensor, "questions count"]:
    """For each question the `count` most similar wrong answers, from unit vectors; `numbers` are the right ones.

    Answers within MARGIN of the right one's similarity are passed over as long as there are others. A question
    without a right answer (a negative number) gets the most similar answers.
    """
    found = []
    wanted = min(count + SPARE, len(answers))
    for begin in range(0, len(questions), MINED_TOGETHER):
        own = numbers[begin : begin + MINED_TOGETHER]
        scores = questions[begin : begin + MINED_TOGETHER] @ answers.T
        right = scores.gather(1, own.clamp(min=0)[:, None])
        best = scores.topk(wanted)
        wrong = best.indices != own[:, None]
        limit = torch.where(own[:, None] >= 0, MARGIN * right, torch.inf)
        # First what is wrong for sure, most similar first; then what may be right; the right answer last.
        rank = torch.arange(wanted, device=scores.device) + wanted * (best.values > limit) + 2 * wanted * ~wrong
        found.append(best.indices.gather(1, rank.argsort(-1)[:, :count]))
    return torch.cat(found)
