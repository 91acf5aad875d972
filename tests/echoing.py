"""A task that needs no tokenizer: its answer is the input, backwards. For tests of folders, predictors, commands.

As a program it is `clearhead` with this task known: `python tests/echoing.py predict FOLDER -`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from clearhead import model_folder
from clearhead.model import EncoderDecoder, ModelConfig
from clearhead.tasks import TASKS, Prediction, Task

CARD = "# echo\n\n| licence | none |\n"


class Echo(Task):
    name = "echo"
    architecture = EncoderDecoder
    columns = ("source", "target")
    metric = "same"

    def __init__(self, config: ModelConfig, settings: dict[str, Any], marks: str) -> None:
        self.config, self.settings, self.marks = config, settings, marks

    @classmethod
    def prepared(cls, *_: Any) -> Echo:
        raise NotImplementedError

    def examples(self, *_: Any) -> Any:
        raise NotImplementedError

    def loss(self, *_: Any) -> Any:
        raise NotImplementedError

    def predict(
        self, model: Any, inputs: Sequence[str], *, beams: int = 3, best: int = 1, batch: int = 64
    ) -> list[Prediction]:
        assert all("\n" not in text for text in inputs)
        if "break" in inputs:
            raise {"memory": MemoryError, "bug": KeyError}[self.settings["breaks"]]("broken")
        return [self._answer(text, best) for text in inputs]

    def _answer(self, text: str, best: int) -> Prediction:
        if not text:
            return Prediction("")
        others = [(text.upper(), -2.0), (text.lower(), float("-inf"))][: best - 1]
        notes = ["split into 2 parts"] if len(text) > 50 else []
        return Prediction(text[::-1] + self.marks, -0.5, others, notes)

    def evaluate(self, model: Any, rows: Sequence[Any], *, lowercase: bool = False, **options: Any) -> dict[str, Any]:
        answers = self.predict(model, [row.values[0] for row in rows], **options)
        same = [answer.text == row.values[1] for answer, row in zip(answers, rows, strict=True)]
        return {"same": 100 * sum(same) / len(same), "signature": f"lowercase:{lowercase}|[red]"}

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
