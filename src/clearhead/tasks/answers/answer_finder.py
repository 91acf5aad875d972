"""AnswerFinder: the index, the detectors and the thresholds of a trained model; from vectors to predictions."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from clearhead.tasks.answers.answer_index import AnswerIndex, Entry, IndexSource, Vectors
from clearhead.tasks.answers.answer_ranking import NOBODY, Ranking, rank_intents, rank_pairs
from clearhead.tasks.answers.answer_settings import RANKED, UNKNOWN, AnswerPrediction, AnswersSection, Match
from clearhead.tasks.answers.out_of_scope import Calibration, Gaussians
from clearhead.tasks.classification.calibration import fit_temperature

GAUSSIANS = "detectors.safetensors"
EMPTY = "the question is empty"


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
            places = [place for place, answer in enumerate(answers) if answer in numbers]
            right = np.array([numbers[answers[place]] for place in places])
            temperature = fit_temperature(scores[places].double().numpy(), right) if places else 1.0
        ranking = self.rank(vectors, scores, best=RANKED, temperature=temperature)
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
            return rank_pairs(vectors, self.index, self.gaussians, temperature=self.similarity_unit, best=best)
        return rank_intents(
            scores,
            vectors,
            self.index,
            self.gaussians,
            temperature=temperature,
            neighbours=self.section.neighbours,
            best=best,
        )

    def answer(
        self,
        vectors: Float[Tensor, "questions width"],
        scores: Float[Tensor, "questions labels"] | None,
        *,
        empty: Sequence[bool],
        notes: Sequence[Sequence[str]],
        best: int | None,
    ) -> list[AnswerPrediction]:
        """A prediction for each question, with its notes; an empty one is never known."""
        calibration = self.calibration
        temperature = 1.0 if calibration is None else calibration.temperature
        ranking = self.rank(vectors, scores, best=max(RANKED, best or 0), temperature=temperature)
        evidence, in_scope, known = self._judge(ranking)
        texts = {**dict(enumerate(self.labels)), **self.index.answers}
        found = []
        for row, blank in enumerate(empty):
            pairs = zip(ranking.ids[row].tolist(), ranking.scores[row].tolist(), strict=True)
            matches = tuple(Match(number, texts[number], score) for number, score in pairs if number != NOBODY)
            sure = bool(known[row]) and not blank and bool(matches)
            found.append(
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
        return found

    def _judge(self, ranking: Ranking) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.float64], NDArray[np.bool_]]:
        """The scores of all detectors, those of the one in use, and which questions are known."""
        calibration, energy = self.calibration, ranking.evidence["energy"]
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
            save_file(self.gaussians.to_tensors(), folder / GAUSSIANS)

    def load(self, folder: Path) -> None:
        """Reads what `save` wrote, as far as it is there."""
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
