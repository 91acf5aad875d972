"""What models answer: predict, evaluate, look and figures, by the command line and in Python."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import clearhead
from recordings.commands import clean, run_command, run_or_fail
from recordings.recording import Items
from recordings.records import describe_record
from recordings.run_files import describe_run, extend_copy, list_changes_by_interruption, train
from recordings.trainings import Training
from recordings.values import describe_file, describe_folder, digest

PAGE_DATA = re.compile(r'<script type="([\w/-]+)" id="([\w-]+)">(.*?)</script>', re.DOTALL)


def record_group(folder: Path, group: list[Training]) -> Items:
    """Trains models and uses them. A training that fails does not stop the others."""
    errors = list[str]()
    for training in group:
        try:
            yield from _record_training(folder, training)
        except Exception as error:
            yield f"{training.name}: failed", f"{type(error).__name__}: {error}"
            errors.append(f"{training.name}: {error}")
    if errors:
        raise RuntimeError("\n".join(errors))


def _record_training(folder: Path, training: Training) -> Items:
    name = training.name
    yield f"{name}: training", train(training, folder, name)
    yield f"{name}: run", describe_run(folder / name, folder)
    if training.interrupted:
        yield f"{name}: changed by an interruption", list_changes_by_interruption(training, folder)
    if training.extended:
        yield f"{name}: more steps", extend_copy(folder / name, folder, training)
    else:
        shutil.rmtree(folder / name / "checkpoints")  # they are large
    yield from use_model(folder, training)


def use_model(folder: Path, training: Training) -> Items:
    """All that is asked of one model."""
    name = training.name
    yield f"{name}: predict", predict(folder, training)
    if training.evaluate:
        yield f"{name}: evaluate", run_command("evaluate", name, *training.evaluate, "--json", folder=folder)
    if training.look:
        yield f"{name}: look", look(folder, name, training.look)
        yield f"{name}: page", make_page(folder, name, training.look, training.look_options)
    if training.figures:
        yield f"{name}: figures", draw(folder, name, training.look)
    if training.merged:
        yield f"{name}: merged", merge(folder, training)
    for title, arguments in training.commands.items():
        yield f"{name}: {title}", run_command(*arguments, folder=folder)


def predict(folder: Path, training: Training) -> dict[str, Any]:
    """Answers with the defaults, with each set of options, and in Python."""
    model, text = training.name, _join_lines(training.inputs)
    found: dict[str, Any] = {"default": predict_by_default(folder, training)}
    for title, options in training.predictions.items():
        found[title] = run_command("predict", model, "-", "--json", *options, folder=folder, text=text)
    if training.plain is not None:
        found["plain"] = run_command("predict", model, "-", *training.plain, folder=folder, text=text)
    return found | {"in Python": predict_in_python(folder, training)}


def predict_by_default(folder: Path, training: Training) -> dict[str, Any]:
    text = _join_lines(training.inputs)
    return run_command("predict", training.name, "-", "--json", folder=folder, text=text)


def predict_in_python(folder: Path, training: Training) -> list[Any]:
    """The text and the notes of each answer."""
    given = [_find_input(folder, one) for one in training.inputs]
    answers = load_model(folder, training.name).predict(given)
    return [[answer.text, [clean(note, folder) for note in answer.notes]] for answer in answers]


def load_model(folder: Path, model: str) -> clearhead.Predictor:
    """A model of this recording, or a shipped one."""
    trained = folder / model
    return clearhead.load(trained if trained.exists() else model, device="cpu")


def look(folder: Path, model: str, text: str) -> dict[str, Any]:
    """The record of a look, and its file, which stays."""
    record = load_model(folder, model).look(_find_input(folder, text))
    file = folder / f"{model}.record"
    record.save(file)
    return {"record": describe_record(record), "file": describe_file(file, folder)}


def make_page(folder: Path, model: str, text: str, options: list[str]) -> dict[str, Any]:
    """What the command prints that writes a page, and the data in it."""
    page = folder / f"{model}.html"
    printed = run_command("look", model, text, "--out", page.name, *options, folder=folder)
    return {"printed": printed, "data": describe_page(page) if page.exists() else None}


def describe_page(path: Path) -> dict[str, Any]:
    """The data of a page, without its scripts: scenes as JSON, blocks of numbers by digest."""
    blocks = PAGE_DATA.findall(path.read_text(encoding="utf-8"))
    if not blocks:
        raise RuntimeError(f"{path} has no data")
    return {
        name: json.loads(content) if kind == "application/json" else f"{len(content)} long, {digest(content.encode())}"
        for kind, name, content in blocks
    }


def draw(folder: Path, model: str, text: str) -> dict[str, Any]:
    """The list of figures of a look, and a digest of each."""
    where = f"{model}, figures"
    printed = run_command("figures", model, text, "--out", where, folder=folder)
    return {"printed": printed, "files": describe_folder(folder / where, folder)}


def merge(folder: Path, training: Training) -> dict[str, Any]:
    """The files of an adapter merged into its base, and what this model answers."""
    merged = f"{training.name}, merged"
    printed = run_or_fail("merge", training.name, "--out", merged, folder=folder)
    answers = run_command("predict", merged, "-", "--json", folder=folder, text=_join_lines(training.inputs))
    return {"printed": printed, "files": describe_folder(folder / merged, folder), "answers": answers}


def _join_lines(inputs: list[str]) -> str:
    return "".join(f"{one}\n" for one in inputs)


def _find_input(folder: Path, text: str) -> str:
    """An input in Python: one that is a file of the recording is given by its whole path."""
    return str(folder / text) if os.path.isfile(folder / text) else text  # which takes a text of any length
