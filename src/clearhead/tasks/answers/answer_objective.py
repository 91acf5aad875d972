"""The losses of answers, hard negatives, and the calibration of "I don't know" with the finished weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.errors import CheckpointError
from clearhead.formatting import format_count
from clearhead.model import PooledEncoder
from clearhead.tasks.answers.answer_index import Entry, open_index
from clearhead.tasks.answers.answer_processor import (
    OUT_OF_SCOPE,
    AnswerExamples,
    AnswerPairs,
    AnswerProcessor,
    clean_pair,
    normalize,
    pool_tokens,
)
from clearhead.tasks.answers.answer_settings import AnswersRecipe
from clearhead.tasks.objective import Objective
from clearhead.tasks.processor import Examples, LabelledTexts
from clearhead.text import Row

HELD_OUT_EVERY = 10  # without dev, every tenth training question stands in for it
FEWEST_REJECTED = 5  # questions of dev below the threshold: with fewer it is a matter of chance
MARGIN = 0.95  # of the right answer's similarity: what is more similar than that may be right, too
SPARE_CANDIDATES = 16  # that may turn out to be right
MINED_TOGETHER = 1024  # questions


class AnswerObjective(Objective[AnswerProcessor, AnswersRecipe, PooledEncoder, Any]):
    splits_batches = False  # negatives come from the same batch

    def loss(self, model: PooledEncoder, batch: Any) -> Float[Tensor, ""]:
        return self._pair_loss(model, batch) if self.processor.kind == "pairs" else self._intent_loss(model, batch)

    def _intent_loss(self, model: PooledEncoder, batch: LabelledTexts) -> Tensor:
        settings, learning = self.processor.stored.loss, model.training
        vectors = pool_tokens(model, batch.tokens, batch.lengths)
        smoothing, outliers = (settings.label_smoothing, settings.outliers) if learning else (0.0, 0.0)
        scores = model.label_scores(vectors).float()
        loss = intent_loss(scores, batch.labels, smoothing=smoothing, outliers=outliers)
        if learning and settings.contrast:
            contrast = question_contrast(normalize(vectors), batch.labels, settings.temperature)
            loss = loss + settings.contrast * contrast
        return loss

    def _pair_loss(self, model: PooledEncoder, batch: AnswerPairs) -> Tensor:
        settings, learning = self.processor.stored.loss, model.training
        parts = [(batch.tokens, batch.lengths), (batch.answer_tokens, batch.answer_lengths)]
        if learning:
            parts.append((batch.negative_tokens, batch.negative_lengths))
        # One pass over all texts: what watches a model, and DDP, want one.
        size = max(tokens.shape[1] for tokens, _ in parts)
        pad = self.processor.tokenizer.pad
        tokens = torch.cat([F.pad(tokens, (0, size - tokens.shape[1]), value=pad) for tokens, _ in parts])
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
        if not isinstance(examples, AnswerExamples) or examples.negatives.shape[1] == 0:
            return
        texts = [clean_pair(row)[0] for row in examples.rows], examples.distinct
        questions, answers = (normalize(self.processor.pool_texts(model, side)) for side in texts)
        count = examples.negatives.shape[1]
        examples.negatives = mine_negatives(questions, answers, examples.answers.to(answers.device), count).cpu()

    @torch.no_grad()
    def calibrate(
        self, model: PooledEncoder, train: Sequence[Row], dev: Sequence[Row], unlabelled: Sequence[Row] = ()
    ) -> str | None:
        """Builds the index, and chooses detector and threshold on dev.

        Without dev every tenth training question is used for that: the threshold is then too strict for new questions.
        """
        rest, dev = list(train), [row for row in dev if not self.processor.check_row(row).flaws]
        if not dev:
            dev, rest = rest[::HELD_OUT_EVERY], [row for number, row in enumerate(rest) if number % HELD_OUT_EVERY]
        self._fill_index(model, rest, dev)
        pairs = [clean_pair(row) for row in dev]
        vectors, scores = self.processor.encode_questions(model, [question for question, _ in pairs])
        self.processor.finder.fit(vectors, scores, [answer for _, answer in pairs])
        if len(rest) < len(train):
            self._fill_index(model, train, dev)
        if self.processor.stored.answers.detector == "auto" and (calibration := self.processor.finder.calibration):
            detector = {"answers.detector": calibration.detector}
            self.processor.chosen_settings = {**self.processor.chosen_settings, **detector}
        asked, reject = sum(bool(answer) for _, answer in pairs), self.processor.stored.answers.reject
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
        """Adds to the index what was added to the earlier one, and removes what was removed there.

        Both come from the same training data: answers have the same ids.
        """
        index = self.processor.finder.index
        try:
            earlier = open_index(folder)
        except CheckpointError as error:
            return f"answers that were changed after training, if any, are lost: {error}"
        removed = [number for number in index.answers if number not in earlier.answers]
        added = [entry for entry in earlier.entries if entry.added]
        index = replace(index.remove(removed), reject=earlier.reject)
        self.processor.finder.index = index
        if not removed and not added:
            return None
        if added:
            vectors = self.processor.encode_entries(model, [entry.text for entry in added])
            index = index.extend(added, vectors.numpy())
        self.processor.finder.index = replace(index, next_id=max(index.next_id, earlier.next_id))
        questions = format_count(sum(entry.question is not None for entry in added), "question")
        return f"changes of the index are kept: {questions} added, {format_count(len(removed), 'answer')} removed"


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
    mined = []
    wanted = min(count + SPARE_CANDIDATES, len(answers))
    for part, right in zip(questions.split(MINED_TOGETHER), numbers[:, None].split(MINED_TOGETHER), strict=True):
        scores = part @ answers.T
        best = scores.topk(wanted)
        limit = torch.where(right >= 0, MARGIN * scores.gather(1, right.clamp(min=0)), torch.inf)
        # First what is wrong for sure, most similar first; then what may be right; the right answer last.
        maybe_right, is_right = best.values > limit, best.indices == right
        rank = torch.arange(wanted, device=scores.device) + wanted * maybe_right + 2 * wanted * is_right
        mined.append(best.indices.gather(1, rank.argsort(-1)[:, :count]))
    return torch.cat(mined)


def intent_loss(
    scores: Float[Tensor, "batch answers"], answers: Int[Tensor, " batch"], *, smoothing: float, outliers: float
) -> Float[Tensor, ""]:
    """Cross-entropy of the right answers; out-of-scope questions should find all answers equally likely.

    The latter is outlier exposure (Hendrycks et al. 2019), with the weight `outliers`.
    """
    loss = F.cross_entropy(scores, answers, ignore_index=OUT_OF_SCOPE, reduction="sum", label_smoothing=smoothing)
    # The divergence of the uniform distribution from the softmax; 0 where all scores are equal.
    divergence = -scores.log_softmax(-1).mean(-1) - math.log(scores.shape[-1])
    return loss + outliers * divergence.masked_fill(answers != OUT_OF_SCOPE, 0.0).sum()


def question_contrast(
    vectors: Float[Tensor, "batch width"], answers: Int[Tensor, " batch"], temperature: float
) -> Float[Tensor, ""]:
    """Supervised contrastive loss (Khosla et al. 2020) between unit vectors: questions of one answer lie together.

    Questions whose answer nobody shares in this batch, and those out of scope, only push others away.
    """
    scores = vectors @ vectors.T / temperature
    itself = torch.eye(len(vectors), dtype=torch.bool, device=vectors.device)
    same = (answers[:, None] == answers) & ~itself & (answers != OUT_OF_SCOPE)[:, None]
    # finfo.min, not -inf: 0 · -inf would be NaN below
    logs = scores.masked_fill(itself, torch.finfo(scores.dtype).min).log_softmax(-1)
    count = same.sum(-1)
    return -(logs.masked_fill(~same, 0.0).sum(-1) / count.clamp(min=1)).sum()


def pair_loss(
    questions: Float[Tensor, "batch width"],
    answers: Float[Tensor, "batch width"],
    negatives: Float[Tensor, "hard width"],
    numbers: Int[Tensor, " batch"],
    negative_numbers: Int[Tensor, " hard"],
    *,
    temperature: float,
    outliers: float,
) -> Float[Tensor, ""]:
    """Symmetric InfoNCE between unit vectors: a question finds its answer, and an answer its question.

    Candidates are the answers of the batch and all hard negatives; those equal to the right answer are left out.
    An out-of-scope question should find all of them equally similar, and is itself a negative for every answer.
    """
    inside = numbers != OUT_OF_SCOPE
    candidates, theirs = torch.cat([answers, negatives]), torch.cat([numbers, negative_numbers])
    scores = questions @ candidates.T / temperature
    usable = (theirs != OUT_OF_SCOPE).expand(len(numbers), -1)
    to_answers = _diagonal_loss(scores, usable & ~_repeats(numbers, theirs), inside)
    to_questions = _diagonal_loss(scores[:, : len(questions)].T, ~_repeats(numbers, numbers), inside)
    loss = (to_answers + to_questions) / 2
    if outliers:
        lowest = torch.finfo(scores.dtype).min
        shares = scores.masked_fill(~usable, lowest).log_softmax(-1).masked_fill(~usable, 0.0)
        count = usable.sum(-1).clamp(min=1)
        divergence = -shares.sum(-1) / count - count.log()  # 0 where nothing is usable
        loss = loss + outliers * divergence.masked_fill(inside, 0.0).sum()
    return loss


def _repeats(numbers: Int[Tensor, " rows"], theirs: Int[Tensor, " columns"]) -> Bool[Tensor, "rows columns"]:
    """Where a column off the diagonal has the number of the row."""
    return (numbers[:, None] == theirs).fill_diagonal_(False)


def _diagonal_loss(
    scores: Float[Tensor, "rows columns"], visible: Bool[Tensor, "rows columns"], counted: Bool[Tensor, " rows"]
) -> Float[Tensor, ""]:
    """Summed cross-entropy of the diagonal among the visible columns, over the counted rows."""
    diagonal = torch.arange(len(scores), device=scores.device)
    hidden = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    losses = F.cross_entropy(hidden, diagonal, reduction="none")
    return losses.masked_fill(~counted, 0.0).sum()
