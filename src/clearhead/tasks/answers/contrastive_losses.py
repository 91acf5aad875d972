"""Losses of answers: intents by classification, pairs by in-batch and hard negatives."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

OUT_OF_SCOPE = -1  # the answer's number of a question that has none
MIXED = (0.3, 0.7)  # the share of the second question in a mixture, at least and at most


def intent_loss(
    scores: Float[Tensor, "batch answers"], answers: Int[Tensor, " batch"], *, smoothing: float, outliers: float
) -> Float[Tensor, ""]:
    """Cross-entropy of the right answers; out-of-scope questions should find all answers equally likely.

    The latter is outlier exposure (Hendrycks et al. 2019), with the weight `outliers`.
    """
    loss = F.cross_entropy(scores, answers, ignore_index=OUT_OF_SCOPE, reduction="sum", label_smoothing=smoothing)
    return loss + outliers * uniform_loss(scores).masked_fill(answers != OUT_OF_SCOPE, 0.0).sum()


def uniform_loss(scores: Float[Tensor, "batch answers"]) -> Float[Tensor, " batch"]:
    """The divergence of the uniform distribution from the softmax of scores; 0 where all scores are equal."""
    return -scores.log_softmax(-1).mean(-1) - math.log(scores.shape[-1])


def mix_questions(
    vectors: Float[Tensor, "batch width"], answers: Int[Tensor, " batch"]
) -> tuple[Float[Tensor, "batch width"], Bool[Tensor, " batch"]]:
    """Vectors between those of two neighbours in a batch, and whether these have different answers.

    A mixture of questions with different answers should fit neither: it stands in for questions that are out of scope
    (Zhan et al. 2021).
    """
    share = MIXED[0] + (MIXED[1] - MIXED[0]) * torch.rand(len(vectors), 1, device=vectors.device)
    mixed = torch.lerp(vectors, vectors.roll(1, 0), share.to(vectors.dtype))
    return mixed, answers != answers.roll(1, 0)


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
    own = torch.arange(len(questions), device=questions.device)
    scores = questions @ candidates.T / temperature
    usable = (theirs != OUT_OF_SCOPE).expand(len(numbers), -1)
    to_answers = _diagonal_loss(scores, usable & ~_repeats(numbers, theirs, own), inside)
    to_questions = _diagonal_loss(scores[:, : len(own)].T, ~_repeats(numbers, numbers, own), inside)
    loss = (to_answers + to_questions) / 2
    if outliers:
        lowest = torch.finfo(scores.dtype).min
        shares = scores.masked_fill(~usable, lowest).log_softmax(-1).masked_fill(~usable, 0.0)
        count = usable.sum(-1).clamp(min=1)
        divergence = -shares.sum(-1) / count - count.log()  # 0 where nothing is usable
        loss = loss + outliers * divergence.masked_fill(inside, 0.0).sum()
    return loss


def _repeats(
    numbers: Int[Tensor, " rows"], theirs: Int[Tensor, " columns"], own: Int[Tensor, " rows"]
) -> Bool[Tensor, "rows columns"]:
    """Where a column has the number of the row without being its own place."""
    places = torch.arange(len(theirs), device=theirs.device)
    return (numbers[:, None] == theirs) & (own[:, None] != places)


def _diagonal_loss(
    scores: Float[Tensor, "rows columns"], visible: Bool[Tensor, "rows columns"], counted: Bool[Tensor, " rows"]
) -> Float[Tensor, ""]:
    """Summed cross-entropy of the diagonal among the visible columns, over the counted rows."""
    diagonal = torch.arange(len(scores), device=scores.device)
    hidden = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    losses = F.cross_entropy(hidden, diagonal, reduction="none")
    return losses.masked_fill(~counted, 0.0).sum()
