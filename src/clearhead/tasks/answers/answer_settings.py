"""What users may set for answers, and what a prediction holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pydantic import Field

from clearhead.tasks.answerer import Prediction
from clearhead.tasks.answers.out_of_scope import Calibration
from clearhead.tasks.settings import Options, Section, TaskRecipe, option

UNKNOWN = "I don't know"
SHOWN_ANSWERS = 5  # in JSON unless --best says otherwise
RANKED_ANSWERS = 10  # at least, for the scores


class AnswersLoss(Section):
    """`[loss]`; a weight of 0 leaves a term out."""

    label_smoothing: float = Field(0.0, ge=0, lt=1)  # of intents
    temperature: float = Field(0.05, gt=0)  # cosine similarities are divided by it
    contrast: float = Field(0.0, ge=0)  # weight of the contrastive loss between questions of the same answer
    outliers: float = Field(1.0, ge=0)  # weight of out-of-scope questions, which should fit no answer


class AnswersSection(Section):
    """`[answers]`: how answers are found, and when there is none."""

    # intents: few answers with many questions each, told apart by a classifier; pairs: a two-tower encoder;
    # auto: intents if there are at least 4 questions to an answer on average
    kind: Literal["auto", "intents", "pairs"] = "auto"
    # Of pairs: number of similar wrong answers beside each question of a batch, searched anew every epoch.
    hard_negatives: int = Field(1, ge=0)
    reject: float = Field(0.05, ge=0, lt=1)  # share of answerable questions that may be answered by "I don't know"
    detector: Literal["auto", "probability", "energy", "neighbours", "mahalanobis", "mean"] = "auto"
    neighbours: int = Field(10, ge=1)


class AnswersRecipe(TaskRecipe):
    loss: AnswersLoss = AnswersLoss()
    answers: AnswersSection = AnswersSection()


class AnswerSettings(Section):
    """The settings that a model folder keeps."""

    kind: Literal["intents", "pairs"]  # decided by the data where the recipe says "auto"
    labels: list[str] = Field([])  # all answers, of intents
    longest: int = 0  # tokens of a text in training; 0: not known
    answers: AnswersSection = AnswersSection()
    loss: AnswersLoss = AnswersLoss()
    calibration: Calibration | None = None


class AnswerOptions(Options):
    best: int | None = option(None, "How many answers to give for each input.", only=("predict",), ge=1)
    reject: float | None = option(
        None, "Share of answerable questions that may be refused.", only=("predict", "evaluate"), ge=0, le=1
    )

    @property
    def ranked(self) -> bool:
        return self.best is not None and self.best > 1


class Match(NamedTuple):
    """An answer that fits: its number in the index, its text, its probability (similarity if `kind` is pairs)."""

    id: int
    text: str
    score: float


@dataclass(frozen=True)
class AnswerPrediction(Prediction):
    """The best answer as `text` if the question is `known`, else "I don't know"; `matches`, best first, in any case."""

    known: bool = True
    matches: Sequence[Match] = ()
    best: int | None = None  # how many were asked for
    in_scope: float = 0.0  # of the detector in use: the larger, the more likely is the question known
    evidence: Mapping[str, float] = field(default_factory=dict)  # the scores of all detectors

    def to_json(self) -> dict[str, Any]:
        answers = [match._asdict() for match in self.matches[: self.best or SHOWN_ANSWERS]]
        return {"known": self.known, "answers": answers, "notes": list(self.notes)}

    def to_cells(self) -> dict[str, Any]:
        """Without an answer if the question is not known, as in data; the score is that of the best one."""
        score = self.matches[0].score if self.matches else None
        return {"answer": self.text if self.known else "", "score": score, "known": self.known}

    def ranking(self) -> list[tuple[str, float | None]]:
        """The best answers; "I don't know" stands before them if the question is not known."""
        answers: list[tuple[str, float | None]] = [
            (match.text, match.score) for match in self.matches[: self.best or 1]
        ]
        return answers if self.known else [(UNKNOWN, None), *answers]
