"""Answerer: a processor and a model that answer inputs and score answers, and never change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import nn

from clearhead.errors import DataError
from clearhead.tasks.processor import Processor
from clearhead.tasks.settings import Options
from clearhead.text import Report, Row
from clearhead.text.report import describe_flaws

ProcessorT = TypeVar("ProcessorT", bound=Processor[Any, Any])
ModelT = TypeVar("ModelT", bound=nn.Module)
InputT = TypeVar("InputT")
OptionsT = TypeVar("OptionsT", bound=Options)
Scores = dict[str, float | str]


@dataclass(frozen=True)
class Prediction:
    """One answer. `text` is what the command line prints; a task adds fields, and says in `to_json` what they are."""

    text: str
    notes: Sequence[str] = ()  # what the user should know about it

    def to_json(self) -> dict[str, Any]:
        """The object that `predict --json` prints, beside the input."""
        return {"output": self.text, "notes": list(self.notes)}

    def to_cells(self) -> dict[str, Any]:
        """What `predict` adds to the row of a table, by the names of the columns."""
        return {"output": self.text}

    def ranking(self) -> list[tuple[str, float | None]]:
        """This answer and its alternatives with their scores, best first."""
        return [(self.text, None)]


class Evaluation(NamedTuple):
    """Scores, and the rows and predictions that they were computed from."""

    scores: Scores
    rows: Sequence[Row]
    predictions: Sequence[Prediction]


class Baseline(NamedTuple):
    """The scores of a simple method on the same rows, such as TF-IDF with logistic regression."""

    name: str
    scores: Scores


class Answerer(ABC, Generic[ProcessorT, ModelT, InputT, OptionsT]):
    """Base class of answerers. Any number of threads may call one at the same time.

    The model is in evaluation mode. Nothing here is changed by a call: what a request sets comes in its options.
    """

    options: ClassVar[type[Options]] = Options  # OptionsT

    def __init__(self, processor: ProcessorT, model: ModelT) -> None:
        self.processor, self.model = processor, model

    @abstractmethod
    def predict(self, inputs: Sequence[InputT], options: OptionsT, *, inputs_before: int = 0) -> Sequence[Prediction]:
        """An answer for every input, in their order.

        `inputs_before` counts the inputs of the same request in earlier calls: what is drawn at random for an input
        depends on its number in the request.
        """

    @abstractmethod
    def evaluate(self, rows: Sequence[Row], options: OptionsT) -> Evaluation:
        """Scores on these rows; a `note` says which rows were left out, and what is wrong in others."""

    def evaluate_quickly(self, rows: Sequence[Row], options: OptionsT) -> Evaluation:
        """An evaluation during training. Where only the loss is scored, it has answers to show, and no scores."""
        return self.evaluate(rows, options)


class ScoringAnswerer(Answerer[ProcessorT, ModelT, InputT, OptionsT]):
    """Base class of answerers whose predictions are compared with the right answers."""

    @abstractmethod
    def score(self, rows: Sequence[Row], predictions: Sequence[Any], options: OptionsT) -> Scores:
        """How good predictions are for these rows, and the signatures of how that was computed."""

    def predict_rows(self, rows: Sequence[Row], options: OptionsT) -> Sequence[Prediction]:
        """What `score` judges of these rows: an answer to each input."""
        return self.predict([self.processor.inputs.of_row(row) for row in rows], options)

    @torch.no_grad()
    def evaluate(self, rows: Sequence[Row], options: OptionsT) -> Evaluation:
        report, check = Report(), self.processor.check_row
        rows = self.processor.inputs.load_rows(rows)
        usable = [row for row in rows if report.admit(row, check(row).problem)]
        if rows and not usable:
            raise DataError(f"no row is left to score: {report}")
        predictions = self.predict_rows(usable, options)
        scores = self.score(usable, predictions, options)
        flaws = describe_flaws((row, check(row).flaws) for row in usable)
        notes = [*([str(report)] if report.dropped else []), *flaws]
        return Evaluation({**scores, "note": "; ".join(notes)} if notes else scores, usable, predictions)


class StreamingAnswerer(Answerer[ProcessorT, ModelT, InputT, OptionsT]):
    """Base class of answerers whose answers can be had in pieces, while they are written."""

    @abstractmethod
    def stream(self, request: InputT, options: OptionsT, *, inputs_before: int = 0) -> Iterator[str]:
        """Yields the answer in pieces, each as soon as no later token can change it."""

    def stream_notes(self, request: InputT) -> list[str]:
        """What the user should know about an input before its answer is streamed, such as that it is cut."""
        return []


AnyAnswerer = Answerer[Any, Any, Any, Any]
