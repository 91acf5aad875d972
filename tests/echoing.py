"""A task that needs no tokenizer: its answer is the input, backwards. For tests of folders, predictors, commands.

As a program it is `clearhead` with this task known: `python tests/echoing.py predict FOLDER -`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from clearhead import model_folder
from clearhead.model import EncoderDecoder, ModelConfig
from clearhead.tasks import TASKS, Task
from clearhead.tasks.base import Scores
from clearhead.tasks.sequence_to_sequence import GeneratedText
from clearhead.tasks.settings import Options, TaskRecipe, option

CARD = "# echo\n\n| licence | none |\n"


class EchoOptions(Options):
    beams: int = option(3, "Nothing: an echo searches for nothing.", flag="--beam", ge=1)
    best: int = option(1, "How many answers to give for each input.", only=["predict"], ge=1)
    lowercase: bool = option(False, "Said in the signature.", only=["evaluate"])

    @property
    def ranked(self) -> bool:
        return self.best > 1


class Echo(Task[EncoderDecoder, str, tuple[Tensor], EchoOptions]):
    name = "echo"
    recipe = TaskRecipe
    options = EchoOptions
    columns = ("source", "target")
    metrics = ("same",)
    metric = "same"
    actions = MappingProxyType({"shout": "Prints each word in capitals."})

    def __init__(self, config: ModelConfig, settings: dict[str, Any], marks: str) -> None:
        self.config, self.known, self.marks = config, settings, marks

    @property
    def settings(self) -> dict[str, Any]:
        return self.known

    @classmethod
    def prepare(cls, *_: Any) -> Echo:
        raise NotImplementedError

    def examples(self, *_: Any) -> Any:
        raise NotImplementedError

    def build(self) -> EncoderDecoder:
        return EncoderDecoder(self.config)

    def loss(self, *_: Any) -> Any:
        raise NotImplementedError

    def predict(self, model: EncoderDecoder, inputs: Sequence[str], options: EchoOptions) -> list[GeneratedText]:
        assert all("\n" not in text for text in inputs)
        if "break" in inputs:
            raise {"memory": MemoryError, "bug": KeyError}[self.settings["breaks"]]("broken")
        return [self._answer(text, options.best) for text in inputs]

    def _answer(self, text: str, best: int) -> GeneratedText:
        if not text:
            return GeneratedText("")
        others = [(text.upper(), -2.0), (text.lower(), float("-inf"))][: best - 1]
        notes = ["split into 2 parts"] if len(text) > 50 else []
        return GeneratedText(text[::-1] + self.marks, notes, -0.5, others)

    def stream(self, model: EncoderDecoder, given: str, options: EchoOptions) -> Iterator[str]:
        yield from self._answer(given, 1).text

    def score(self, rows: Sequence[Any], predictions: Sequence[GeneratedText], options: EchoOptions) -> Scores:
        same = [answer.text == row.values[1] for answer, row in zip(predictions, rows, strict=True)]
        return {"same": 100 * sum(same) / len(same), "signature": f"lowercase:{options.lowercase}|[red]"}

    def act(
        self, action: str, model: EncoderDecoder, folder: Path, arguments: Sequence[str], *, as_json: bool = False
    ) -> list[str]:
        assert action == "shout"
        assert (folder / "marks.txt").is_file(), "the folder is the model's own"
        return [word.upper() + self.marks for word in arguments]

    def save(self, folder: Path) -> None:
        (folder / "marks.txt").write_text(self.marks, encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> Echo:
        return cls(config, settings, (folder / "marks.txt").read_text(encoding="utf-8"))


def echo(**changes: Any) -> tuple[Echo, EncoderDecoder]:
    """The task and a small model with random weights."""
    config = ModelConfig.named("tiny", vocabulary=31, width=12, heads=3, layers=1, feedforward=20, **changes)
    torch.manual_seed(7)
    return Echo(config, {"breaks": "bug"}, "!"), EncoderDecoder(config)


def write_echo(path: Path, **options: Any) -> EncoderDecoder:
    """A model folder of it."""
    task, model = echo()
    metrics = {"dev": {"same": 12.5}}
    model_folder.write(path, **{"task": task, "model": model, "metrics": metrics, "card": CARD, **options})
    return model


if __name__ == "__main__":
    from clearhead.cli import main

    TASKS["echo"] = Echo
    sys.exit(main())
