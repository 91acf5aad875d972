"""A task that needs no tokenizer: its answer is the input, backwards. For tests of folders, predictors, commands.

As a program it is `clearhead` with this task known: `python tests/echoing.py predict FOLDER -`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead import model_folder
from clearhead.model import EncoderDecoder, ModelConfig
from clearhead.tasks import TASKS, Task
from clearhead.tasks.answerer import Scores, ScoringAnswerer, StreamingAnswerer
from clearhead.tasks.objective import Objective
from clearhead.tasks.processor import Processor
from clearhead.tasks.sequence_to_sequence.generation import GeneratedText
from clearhead.tasks.settings import Options, TaskRecipe, option
from clearhead.tasks.task import Action
from clearhead.tasks.trace import TaskTracer, Trace

CARD = "# echo\n\n| licence | none |\n"


class EchoOptions(Options):
    beams: int = option(3, "Nothing: an echo searches for nothing.", flag="--beam", ge=1)
    best: int = option(1, "How many answers to give for each input.", only=["predict"], ge=1)
    lowercase: bool = option(False, "Said in the signature.", only=["evaluate"])

    @property
    def ranked(self) -> bool:
        return self.best > 1


class EchoProcessor(Processor[TaskRecipe, tuple[Tensor]]):
    columns = ("source", "target")
    metric = "same"

    def __init__(self, config: ModelConfig, settings: dict[str, Any], marks: str) -> None:
        self.config, self.known, self.marks = config, settings, marks

    @property
    def settings(self) -> dict[str, Any]:
        return self.known

    @classmethod
    def prepare(cls, *_: Any) -> EchoProcessor:
        raise NotImplementedError

    def examples(self, *_: Any) -> Any:
        raise NotImplementedError

    def build(self) -> EncoderDecoder:
        return EncoderDecoder(self.config)

    def save(self, folder: Path) -> None:
        (folder / "marks.txt").write_text(self.marks, encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> EchoProcessor:
        return cls(config, settings, (folder / "marks.txt").read_text(encoding="utf-8"))


class EchoObjective(Objective[EchoProcessor, TaskRecipe, EncoderDecoder, tuple[Tensor]]):
    def loss(self, *_: Any) -> Any:
        raise NotImplementedError


class EchoAnswerer(
    StreamingAnswerer[EchoProcessor, EncoderDecoder, str, EchoOptions],
    ScoringAnswerer[EchoProcessor, EncoderDecoder, str, EchoOptions],
):
    options = EchoOptions

    def predict(self, inputs: Sequence[str], options: EchoOptions, *, inputs_before: int = 0) -> list[GeneratedText]:
        assert all("\n" not in text for text in inputs)
        if "break" in inputs:
            raise {"memory": MemoryError, "bug": KeyError}[self.processor.settings["breaks"]]("broken")
        return [self._answer(text, options.best) for text in inputs]

    def _answer(self, text: str, best: int) -> GeneratedText:
        if not text:
            return GeneratedText("")
        others = [(text.upper(), -2.0), (text.lower(), float("-inf"))][: best - 1]
        notes = ["split into 2 parts"] if len(text) > 50 else []
        return GeneratedText(text[::-1] + self.processor.marks, notes, -0.5, others)

    def stream(self, given: str, options: EchoOptions, *, inputs_before: int = 0) -> Iterator[str]:
        yield from self._answer(given, 1).text

    def score(self, rows: Sequence[Any], predictions: Sequence[GeneratedText], options: EchoOptions) -> Scores:
        same = [answer.text == row.values[1] for answer, row in zip(predictions, rows, strict=True)]
        return {"same": 100 * sum(same) / len(same), "signature": f"lowercase:{options.lowercase}|[red]"}


class EchoTracer(TaskTracer[EchoAnswerer]):
    def traces(self, given: str, *, answer: str | None, options: EchoOptions) -> list[Trace]:
        return []

    def run(self, trace: Trace) -> None:
        raise NotImplementedError


def shout(answerer: EchoAnswerer, folder: Path, arguments: Sequence[str], as_json: bool) -> list[str]:
    assert (folder / "marks.txt").is_file(), "the folder is the model's own"
    return [word.upper() + answerer.processor.marks for word in arguments]


ECHO = Task(
    name="echo",
    recipe=TaskRecipe,
    processor=EchoProcessor,
    objective=EchoObjective,
    answerer=EchoAnswerer,
    tracer=EchoTracer,
    metrics=("same",),
    actions={"shout": Action("Prints each word in capitals.", shout)},
)


def echo(**changes: Any) -> tuple[EchoProcessor, EncoderDecoder]:
    """The processor and a small model with random weights."""
    config = ModelConfig.named("tiny", vocabulary=31, width=12, heads=3, layers=1, feedforward=20, **changes)
    torch.manual_seed(7)
    return EchoProcessor(config, {"breaks": "bug"}, "!"), EncoderDecoder(config)


def write_echo(path: Path, **options: Any) -> EncoderDecoder:
    """A model folder of it."""
    processor, model = echo()
    metrics = {"dev": {"same": 12.5}}
    parts = {"task": ECHO, "processor": processor, "model": model}
    model_folder.write(path, **{**parts, "metrics": metrics, "card": CARD, **options})
    return model


if __name__ == "__main__":
    from clearhead.cli import main

    TASKS.add(ECHO)
    sys.exit(main())
