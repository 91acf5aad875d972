"""Ranks answers to questions from label scores and the index, and computes features for out-of-scope detection."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from clearhead.tasks.answers.answer_index import AnswerIndex
from clearhead.tasks.answers.out_of_scope import Gaussians, Scores1d

NOBODY = -1  # the id in a place of a ranking that no answer has
VOTE = 0.05  # similarities are divided by it where added questions compete with trained ones
ROWS = 8  # vectors that are searched for each answer that is wanted: an answer may have several


class Ranking(NamedTuple):
    """The best answers to each question, and the features for out-of-scope detection."""

    ids: NDArray[np.int64]  # (questions, best), best first
    scores: NDArray[np.float64]
    evidence: dict[str, Scores1d]
    nearest: Scores1d  # similarity of the nearest vector
    added: NDArray[np.bool_]  # whether that was added after training


def rank_intents(
    scores: Float[Tensor, "questions labels"],
    vectors: Float[Tensor, "questions width"],
    index: AnswerIndex,
    gaussians: Gaussians | None,
    *,
    temperature: float,
    neighbours: int,
    best: int,
) -> Ranking:
    """Answers by the probabilities of the classifier, in which questions added after training have a vote.

    Label i is the answer with the id i; labels that the index no longer has are left out. Before the index is built
    all labels count.
    """
    labels, built = scores.shape[1], index.next_id > 0
    present = torch.tensor(sorted({*index.owners.tolist()} & {*range(labels)}) if built else range(labels))
    inside = scores[:, present.long()]
    shares = torch.zeros(len(scores), max(labels, index.next_id), dtype=torch.float64)
    shares[:, present.long()] = (inside / temperature).softmax(-1).double()
    evidence = {
        "probability": shares.amax(-1).numpy() if shares.shape[1] else np.zeros(len(scores)),
        "energy": inside.logsumexp(-1).double().clamp(min=-1e3).numpy(),
    }
    nearest, added = np.ones(len(scores)), np.zeros(len(scores), np.bool_)
    if index.entries:
        similar, places = index.search(vectors.numpy(), neighbours)
        evidence["neighbours"] = similar.mean(-1)
        nearest, added = similar[:, 0], index.added[places[:, 0]]
        _add_votes(shares.numpy(), similar, places, index)
    elif built:
        evidence["neighbours"] = np.full(len(scores), -1.0)
    if gaussians is not None:
        evidence["mahalanobis"] = gaussians.nearness(vectors, present.long()).double().numpy()
    top = shares.topk(min(best, shares.shape[1]))
    ids = torch.where(top.values > 0, top.indices, NOBODY)
    return Ranking(ids.numpy(), top.values.numpy(), evidence, nearest, added)


def _add_votes(
    shares: NDArray[np.float64], similar: NDArray[np.float64], places: NDArray[np.int64], index: AnswerIndex
) -> None:
    """Shifts probability to the answers of added questions, as far as they are nearer than trained ones.

    Among a question's neighbours every answer has one vote for its nearest trained question and one for its nearest
    added question, with a weight that grows with similarity. The share of the votes of added questions goes to their
    answers, the rest stays with the classifier.
    """
    for row in np.flatnonzero(index.added[places].any(-1)):
        votes: dict[tuple[int, bool], float] = {}
        for similarity, place in zip(similar[row], places[row], strict=True):  # nearest first
            votes.setdefault((int(index.owners[place]), bool(index.added[place])), similarity)
        weights = np.exp((np.array(list(votes.values())) - similar[row, 0]) / VOTE)
        weights /= weights.sum()
        trained = shares[row].any()
        gain = sum(weight for (_, added), weight in zip(votes, weights, strict=True) if added)
        shares[row] *= 1 - gain
        for (number, added), weight in zip(votes, weights, strict=True):
            if added:
                shares[row, number] += weight if trained else weight / gain


def rank_pairs(
    vectors: Float[Tensor, "questions width"],
    index: AnswerIndex,
    gaussians: Gaussians | None,
    *,
    temperature: float,
    best: int,
) -> Ranking:
    """Answers by similarity: that of the answer's own text, or of one of its known questions, whichever is larger."""
    similar, places = index.search(vectors.numpy(), ROWS * best)
    ids = np.full((len(vectors), best), NOBODY, dtype=np.int64)
    scores = np.full((len(vectors), best), -1.0)
    for row, owners in enumerate(index.owners[places] if places.size else []):
        found, first = np.unique(owners, return_index=True)
        order = np.argsort(first)[:best]  # nearest first
        ids[row, : len(order)], scores[row, : len(order)] = found[order], similar[row, first[order]]
    logits = torch.from_numpy(scores) / temperature
    nearest = scores[:, 0].copy()
    evidence = {
        "probability": logits.softmax(-1).amax(-1).numpy(),
        "energy": logits.logsumexp(-1).numpy(),
        "neighbours": nearest,  # the nearest alone: an answer may have no more than one question
    }
    if gaussians is not None:
        evidence["mahalanobis"] = gaussians.nearness(vectors).double().numpy()
    added = index.added[places[:, 0]] if places.size else np.zeros(len(vectors), np.bool_)
    return Ranking(ids, scores, evidence, nearest, added)
