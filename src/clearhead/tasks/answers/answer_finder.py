"""AnswerFinder: the index, the detectors and the thresholds of a trained model; from vectors to predictions."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from clearhead.errors import ConfigError
from clearhead.tasks.answers.answer_index import AnswerIndex, Entry, IndexSource, Vectors
from clearhead.tasks.answers.answer_settings import RANKED_ANSWERS, UNKNOWN, AnswerPrediction, AnswersSection, Match
from clearhead.tasks.answers.out_of_scope import Calibration, Gaussians, Scores1d
from clearhead.tasks.classification.calibration import fit_temperature

GAUSSIANS = "detectors.safetensors"
EMPTY = "the question is empty"
NOBODY = -1  # the id at a position of a ranking that no answer has
VOTE_UNIT = 0.05  # similarities are divided by it where added questions compete with trained ones
VECTORS_PER_ANSWER = 8  # nearest vectors that are searched for each wanted answer, which may have several


class Ranking(NamedTuple):
    """The best answers to each question, and the features for out-of-scope detection."""

    ids: NDArray[np.int64]  # (questions, best), best first
    scores: NDArray[np.float64]
    evidence: dict[str, Scores1d]
    nearest: Scores1d  # similarity of the nearest vector
    added: NDArray[np.bool_]  # whether that was added after training


class AnswerFinder:
    """Finds answers by similarity of vectors, and by label scores if the model was trained on intents (`labels`).

    Before `fit` it ranks the answers of the index (or the labels), and takes every question for known.
    """

    def __init__(self, labels: Sequence[str], width: int, section: AnswersSection, similarity_unit: float) -> None:
        self.labels, self.section, self.similarity_unit = list(labels), section, similarity_unit
        self._known_labels = frozenset(labels)
        self.index = AnswerIndex.empty(width)
        self.source: IndexSource | None = None  # None: the index was made here
        self.calibration: Calibration | None = None
        self.gaussians: Gaussians | None = None

    def fill(self, entries: Sequence[Entry], vectors: Float[Tensor, "entries width"]) -> None:
        """Replaces the index, and fits the distributions of the known questions' vectors."""
        self.index = AnswerIndex.empty(vectors.shape[1]).extend(entries, vectors.numpy())
        asked = torch.tensor([entry.question is not None for entry in entries])
        classes = torch.tensor([entry.id if self.labels else 0 for entry in entries])
        self.gaussians = Gaussians.fit(vectors[asked], classes[asked], max(len(self.labels), 1))

    def fit(
        self,
        vectors: Float[Tensor, "questions width"],
        scores: Float[Tensor, "questions labels"] | None,
        answers: Sequence[str],
    ) -> None:
        """Chooses detector, thresholds and temperature by questions with known answers; empty ones are out of scope."""
        inside = np.array([bool(answer) for answer in answers])
        if not inside.any():
            return
        temperature = 1.0
        if scores is not None:
            numbers = {text: number for number, text in enumerate(self.labels)}
            rows = [row for row, answer in enumerate(answers) if answer in numbers]
            right = np.array([numbers[answers[row]] for row in rows])
            temperature = fit_temperature(scores[rows].double().numpy(), right) if rows else 1.0
        ranking = self.rank(vectors, scores, best=RANKED_ANSWERS, temperature=temperature)
        self.calibration = Calibration.fit(
            ranking.evidence,
            ranking.nearest,
            inside,
            detector=self.section.detector,
            reject=self.section.reject,
            temperature=temperature,
        )

    def has_answer(self, text: str) -> bool:
        """Whether this answer is a label of training, or in the index."""
        return text in self._known_labels or text in self.index.texts

    def rank(
        self,
        vectors: Float[Tensor, "questions width"],
        scores: Float[Tensor, "questions labels"] | None,
        *,
        best: int,
        temperature: float,
    ) -> Ranking:
        """The best answers to questions, by their unit vectors and the scores of the labels."""
        if scores is None:
            return self._rank_pairs(vectors, best)
        return self._rank_intents(vectors, scores, best, temperature)

    def _rank_intents(self, vectors: Tensor, scores: Tensor, best: int, temperature: float) -> Ranking:
        """Answers by the probabilities of the classifier, in which questions added after training have a vote.

        Label i is the answer with the id i; labels that the index no longer has are left out. Before the index is
        built all labels count.
        """
        index, labels, built = self.index, scores.shape[1], self.index.next_id > 0
        present = torch.tensor(sorted({*index.owners.tolist()} & {*range(labels)}) if built else range(labels)).long()
        inside = scores[:, present]
        shares = torch.zeros(len(scores), max(labels, index.next_id), dtype=torch.float64)
        shares[:, present] = (inside / temperature).softmax(-1).double()
        evidence = {
            "probability": shares.amax(-1).numpy() if shares.shape[1] else np.zeros(len(scores)),
            "energy": inside.logsumexp(-1).double().clamp(min=-1e3).numpy(),
        }
        nearest, added = np.ones(len(scores)), np.zeros(len(scores), np.bool_)
        if index.entries:
            similar, places = index.search(vectors.numpy(), self.section.neighbours)
            evidence["neighbours"] = similar.mean(-1)
            nearest, added = similar[:, 0], index.added[places[:, 0]]
            _add_votes(shares.numpy(), similar, places, index)
        elif built:
            evidence["neighbours"] = np.full(len(scores), -1.0)
        if self.gaussians is not None:
            evidence["mahalanobis"] = self.gaussians.nearness(vectors, present).double().numpy()
        top = shares.topk(min(best, shares.shape[1]))
        ids = torch.where(top.values > 0, top.indices, NOBODY)
        return Ranking(ids.numpy(), top.values.numpy(), evidence, nearest, added)

    def _rank_pairs(self, vectors: Tensor, best: int) -> Ranking:
        """Answers by similarity: that of the answer's own text, or of one of its known questions, the larger one."""
        index = self.index
        similar, places = index.search(vectors.numpy(), VECTORS_PER_ANSWER * best)
        ids = np.full((len(vectors), best), NOBODY, dtype=np.int64)
        scores = np.full((len(vectors), best), -1.0)
        for row, owners in enumerate(index.owners[places] if places.size else []):
            answers, first = np.unique(owners, return_index=True)
            order = np.argsort(first)[:best]  # nearest first
            ids[row, : len(order)], scores[row, : len(order)] = answers[order], similar[row, first[order]]
        logits = torch.from_numpy(scores) / self.similarity_unit
        nearest = scores[:, 0].copy()
        evidence = {
            "probability": logits.softmax(-1).amax(-1).numpy(),
            "energy": logits.logsumexp(-1).numpy(),
            "neighbours": nearest,  # the nearest alone: an answer may have no more than one question
        }
        if self.gaussians is not None:
            evidence["mahalanobis"] = self.gaussians.nearness(vectors).double().numpy()
        added = index.added[places[:, 0]] if places.size else np.zeros(len(vectors), np.bool_)
        return Ranking(ids, scores, evidence, nearest, added)

    def answer(
        self,
        vectors: Float[Tensor, "questions width"],
        scores: Float[Tensor, "questions labels"] | None,
        *,
        empty: Sequence[bool],
        notes: Sequence[Sequence[str]],
        best: int | None,
        reject: float | None = None,
    ) -> list[AnswerPrediction]:
        """A prediction for each question, with its notes; an empty one is never known."""
        calibration = self.select_calibration(reject)
        temperature = 1.0 if calibration is None else calibration.temperature
        ranking = self.rank(vectors, scores, best=max(RANKED_ANSWERS, best or 0), temperature=temperature)
        evidence, in_scope, known_questions = self._judge(ranking, calibration)
        texts = {**dict(enumerate(self.labels)), **self.index.answers}
        predictions = []
        for row, blank in enumerate(empty):
            pairs = zip(ranking.ids[row].tolist(), ranking.scores[row].tolist(), strict=True)
            matches = tuple(Match(number, texts[number], score) for number, score in pairs if number != NOBODY)
            sure = bool(known_questions[row]) and not blank and bool(matches)
            predictions.append(
                AnswerPrediction(
                    matches[0].text if sure else UNKNOWN,
                    (*notes[row], *([EMPTY] if blank else [])),
                    known=sure,
                    matches=matches,
                    best=best,
                    in_scope=float(in_scope[row]),
                    evidence={name: float(values[row]) for name, values in evidence.items()},
                )
            )
        return predictions

    def select_calibration(self, reject: float | None) -> Calibration | None:
        """With the thresholds for this share of refused questions; None: for that of the index, or of training."""
        reject = self.index.reject if reject is None else reject
        if reject is None:
            return self.calibration
        if self.calibration is None:
            raise ConfigError("this model was not calibrated, as dev has no answerable questions: omit reject")
        return self.calibration.with_reject(reject)

    def _judge(
        self, ranking: Ranking, calibration: Calibration | None
    ) -> tuple[dict[str, Scores1d], Scores1d, NDArray[np.bool_]]:
        """The scores of all detectors, those of the one in use, and which questions are known."""
        energy = ranking.evidence["energy"]
        if calibration is None:
            return ranking.evidence, energy, np.ones(len(energy), np.bool_)
        evidence = calibration.complete(ranking.evidence)
        in_scope = evidence[calibration.detector]
        # The detectors know nothing of what was added after training: there the nearest question decides.
        near = ranking.added & (ranking.nearest >= calibration.nearest)
        return evidence, in_scope, (in_scope >= calibration.thresholds[calibration.detector]) | near

    def with_answers(self, texts: Sequence[str], vectors: Vectors) -> AnswerFinder:
        """A copy that can find further answers by their own text."""
        other = copy.copy(self)
        other.source = None
        entries = [Entry(number, text, None) for number, text in zip(self.index.assign_ids(texts), texts, strict=True)]
        other.index = self.index.extend(entries, vectors)
        return other

    def save(self, folder: Path) -> None:
        if self.index.entries:
            self.index.save(folder)
        if self.gaussians is not None:
            tensors = {"means": self.gaussians.means, "whitening": self.gaussians.whitening}
            save_file(tensors, folder / GAUSSIANS)

    def load(self, folder: Path) -> None:
        """Reads the files that `save` wrote; some may be missing."""
        self.source = IndexSource.read(folder)  # before the index, so that no later change is missed
        self.index = AnswerIndex.load(folder) or self.index
        if (folder / GAUSSIANS).exists():
            self.gaussians = Gaussians(**load_file(folder / GAUSSIANS))

    def with_newest_index(self) -> AnswerFinder:
        """This finder, or a copy with the index that another process has put in force in the model folder meanwhile.

        A model folder that was removed, or that another model has replaced, changes nothing.
        """
        if self.source is None or not self.source.has_changed():
            return self
        other, newest = copy.copy(self), IndexSource.read(self.source.folder)
        other.source = newest._replace(model=self.source.model)
        if newest.model == self.source.model:
            other.index = AnswerIndex.load(newest.folder) or self.index
        return other


def _add_votes(
    shares: NDArray[np.float64], similar: NDArray[np.float64], places: NDArray[np.int64], index: AnswerIndex
) -> None:
    """Shifts probability to the answers of added questions that are nearer than trained ones.

    Among a question's neighbours every answer has one vote for its nearest trained question and one for its nearest
    added question, with a weight that grows with similarity. The share of the votes of added questions goes to their
    answers, the rest stays with the classifier.
    """
    for row in np.flatnonzero(index.added[places].any(-1)):
        votes: dict[tuple[int, bool], float] = {}
        for similarity, entry in zip(similar[row], places[row], strict=True):  # nearest first
            votes.setdefault((int(index.owners[entry]), bool(index.added[entry])), similarity)
        weights = np.exp((np.array(list(votes.values())) - similar[row, 0]) / VOTE_UNIT)
        weights /= weights.sum()
        trained = shares[row].any()
        gain = sum(weight for (_, added), weight in zip(votes, weights, strict=True) if added)
        shares[row] *= 1 - gain
        for (number, added), weight in zip(votes, weights, strict=True):
            if added:
                shares[row, number] += weight if trained else weight / gain
