"""A small translator of the tests' made-up language, trained in a few seconds and then shared by all tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from clearhead import model_folder
from clearhead.model import EncoderDecoder
from clearhead.tasks.sequence_to_sequence.search import SearchOptions
from clearhead.tasks.translation import TASK, TranslationAnswerer, TranslationProcessor
from clearhead.text import Report, Row
from clearhead.train.data import TrainingData
from clearhead.train.loop import Trainer
from clearhead.train.processes import Processes
from clearhead.train.recipe import Recipe, check_recipe
from clearhead.train.run_folder import Checkpoints
from tests.train.corpus import sentences

SHAPE = {"shape": "tiny", "width": 64, "heads": 4, "feedforward": 128, "layers": 1, "dropout": 0.0}


def rows_of(pairs: list[tuple[str, str]], file: str = "train.tsv") -> list[Row]:
    return [Row(pair, file, line) for line, pair in enumerate(pairs, start=1)]


def recipe_of(text: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Recipe:
    """A recipe for small translators; `sections` are added, such as `decode={"beam": 3}`."""
    values = {"text": {"vocabulary": 320, **(text or {})}, "data": {"train": "train.tsv"}, "model": SHAPE, **sections}
    return check_recipe({"task": "translation", **values}, "test")


def prepared(pairs: list[tuple[str, str]], text: dict[str, Any] | None = None, **decode: Any) -> TranslationProcessor:
    """The stored part alone, with its tokenizers."""
    return TranslationProcessor.prepare(rows_of(pairs), recipe_of(text, decode=decode))


def options(**values: Any) -> SearchOptions:
    """What `answerer.predict` is given where a user would write `predictor.predict(…, **values)`."""
    return TASK.read_options("predict", values)


def untrained(processor: TranslationProcessor, seed: int = 3) -> EncoderDecoder:
    torch.manual_seed(seed)
    model = processor.build().eval()
    assert isinstance(model, EncoderDecoder)
    return model


@cache
def learned() -> TranslationAnswerer:
    """It translates nearly every sentence of `sentences` word by word. Do not change it: copy what you change."""
    pairs = sentences(2000, seed=1)
    train = {
        "steps": 300,
        "batch_tokens": 800,
        "warmup": 20,
        "learning_rate": 0.005,
        "schedule": "linear",
        "evaluate_every": 1000,
    }
    recipe = recipe_of(loss={"label_smoothing": 0.05}, train=train)
    processor, alone = TranslationProcessor.prepare(rows_of(pairs), recipe), Processes(0, 1, torch.device("cpu"))
    model, objective = untrained(processor), TASK.objective(processor, recipe)
    data = TrainingData(recipe, TASK, objective, processor.examples(rows_of(pairs), Report()))
    with TemporaryDirectory() as scratch:
        Trainer(data, model, Checkpoints(Path(scratch) / "checkpoints", 1, alone), alone).run()
    return TranslationAnswerer(processor, model.eval())


def write(path: Path, processor: TranslationProcessor, model: EncoderDecoder) -> Path:
    """A model folder of these."""
    model_folder.write(path, task=TASK, processor=processor, model=model, metrics={}, card="# a test\n")
    return path
