"""Runs of `clearhead train`: what is in their folders, and whether an interruption changes any of it."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import clearhead
from clearhead.train import read_recipe
from recordings.commands import run_or_fail
from recordings.comparison import find_differences
from recordings.trainings import QUICK, Training
from recordings.values import describe_folder

INTERRUPTED_AT = 12  # of 16 steps; evaluations and planned checkpoints are at 8 and 16
MORE_STEPS = 24


class Interruption(clearhead.Observer):
    """Ctrl-C at a step."""

    def logged(self, moment: clearhead.Moment) -> None:
        if moment.step == INTERRUPTED_AT:
            os.kill(os.getpid(), signal.SIGINT)


def make_settings(training: Training) -> list[str]:
    removed = [setting for setting in _split_settings(training.removed) if _is_known(training.recipe, setting)]
    return [*(f"train.{setting}" for setting in QUICK), *_split_settings(training.settings), *removed]


def _split_settings(settings: str) -> list[str]:
    return [setting.strip() for setting in settings.split(";") if setting.strip()]


def _is_known(recipe: str, setting: str) -> bool:
    """Whether the code that runs accepts a setting."""
    try:
        read_recipe(recipe, [setting])
    except clearhead.ClearheadError:
        return False
    return True


def train(training: Training, folder: Path, out: str, *options: str) -> dict[str, Any]:
    """Trains by the command line: what was printed."""
    settings = [f"--set={setting}" for setting in make_settings(training)]
    return run_or_fail("train", training.recipe, *settings, *options, "--out", out, folder=folder)


def describe_run(where: Path, folder: Path) -> dict[str, Any]:
    """What all files of a run hold; of its checkpoints the newest."""
    steps = sorted(path for path in (where / "checkpoints").iterdir() if path.name.isdecimal())
    files = {name: held for name, held in describe_folder(where, folder).items() if not name.startswith("checkpoints/")}
    return files | {"checkpoints": [path.name for path in steps], "newest": describe_folder(steps[-1], folder)}


def list_changes_by_interruption(training: Training, folder: Path) -> list[str]:
    """What differs between a run and the same run that was interrupted and resumed; nothing should."""
    name = f"{training.name}, interrupted"
    _train_until_interrupted(training, folder, name)
    train(training, folder, name, "--resume")
    straight, resumed = (describe_run(folder / one, folder) for one in (training.name, name))
    for files in (straight, resumed):
        files["model/README.md"] = files["model/README.md"][1:]  # the first line is the run's name
        del files["checkpoints"]  # there is one more, of the interruption
    shutil.rmtree(folder / name)
    return [str(one) for one in find_differences(straight, resumed, "run")]


def _train_until_interrupted(training: Training, folder: Path, out: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it
    with contextlib.chdir(folder), contextlib.redirect_stderr(io.StringIO()):
        try:
            clearhead.run_training(
                training.recipe,
                overrides=make_settings(training),
                out=Path(out),
                device="cpu",
                observers=[Interruption()],
            )
        except clearhead.ClearheadError as error:
            if "interrupted at step" in str(error):
                return
            raise
    raise RuntimeError(f"{training.name} was not interrupted at step {INTERRUPTED_AT}")


def extend_copy(run: Path, folder: Path, training: Training) -> dict[str, Any]:
    """A copy of a finished run is given more steps: what that prints, and its files."""
    name = f"{training.name}, extended"
    shutil.copytree(run, folder / name)
    printed = train(training, folder, name, "--resume", f"--set=train.steps={MORE_STEPS}")
    files = describe_run(folder / name, folder)
    shutil.rmtree(folder / name)
    return {"printed": printed, "files": files}
