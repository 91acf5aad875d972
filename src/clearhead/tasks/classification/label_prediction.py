"""LabelPrediction: the label or the labels of a text, with the probabilities of all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clearhead.tasks.answerer import Prediction
from clearhead.tasks.trace import AnswerPart


@dataclass(frozen=True)
class LabelPrediction(Prediction):
    """The likeliest label as `text` and `label`, its probability, and those of all labels, likeliest first.

    Where a text may have several labels, `labels` are those above their thresholds, likeliest first, perhaps none;
    `text` is all of them with commas between.
    """

    score: float = 0.0
    scores: dict[str, float] | None = None
    best: int = 1  # how many labels were asked for
    labels: tuple[str, ...] | None = None  # None: each text has one label

    @property
    def label(self) -> str:
        return self.text

    @property
    def answers(self) -> tuple[str, ...]:
        """The labels, or the only one."""
        return (self.text,) if self.labels is None else self.labels

    def to_json(self) -> dict[str, Any]:
        answer = {"label": self.label, "score": self.score} if self.labels is None else {"labels": list(self.labels)}
        return {**answer, "scores": self.scores, "notes": list(self.notes)}

    def describe(self) -> str:
        """One line with the answer and its probabilities, for the page of `look`.

        >>> LabelPrediction("good", score=0.9, scores={"good": 0.9, "bad": 0.1}).describe()
        'the label is good (0.90)'
        """
        sure = [f"{label} ({(self.scores or {}).get(label, self.score):.2f})" for label in self.answers]
        if self.labels is None:
            return f"the label is {sure[0]}"
        return f"the labels are {', '.join(sure)}" if sure else "it has none of the labels"

    def parts(self) -> list[AnswerPart]:
        """The labels with their probabilities, for the page of `look`."""
        scores = self.scores or {}
        marked = [AnswerPart(label, "", scores.get(label, self.score)) for label in self.answers]
        return [one for part in marked for one in (AnswerPart(" "), part)][1:]

    def ranking(self) -> list[tuple[str, float | None]]:
        scores: dict[str, float | None] = {**(self.scores or {self.text: self.score})}
        return list(scores.items())[: self.best]
