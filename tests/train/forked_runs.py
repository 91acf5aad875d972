"""Trains each recipe twice, once killed and resumed: `python tests/train/forked_runs.py FOLDER KILLS RECIPE…`.

FOLDER/RECIPE/straight is a run that nobody disturbs. FOLDER/RECIPE/killed gets SIGKILL at KILLS, lines of its metrics
such as 6 or 2,6,9, and is resumed after each. Prints one line for each recipe: its name, a tab, and what went wrong.
All packages are imported once: every run is a fork of this process, which itself computes nothing.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from clearhead.train import run
from clearhead.train.observers import LossPlot, Observer
from tests.train.signalled import strike

SHORT: dict[str, object] = {
    "data.lines": 150,
    "data.dev": 0.03,
    "train.steps": 8,
    "train.evaluate_lines": 2,
    "train.batch_tokens": 512,
    "train.log_every": 1,
    "train.evaluate_every": 4,
    "train.save_every": 2,
    "train.heads_every": 0,
    "train.tensorboard": "false",
}
# What runs import when they need it; a package that is not installed is not needed either.
IMPORTED = [
    "torch._dynamo",
    "rich.progress",
    "sklearn.feature_extraction.text",
    "sklearn.linear_model",
    "sklearn.pipeline",
    "sacrebleu",
    "opencc",
    "tokenizers",
    "bm25s",
    "rouge_score.rouge_scorer",
]


def import_packages() -> None:
    for name in IMPORTED:
        with suppress(ImportError):
            importlib.import_module(name)


def train_in_fork(recipe: str, out: Path, settings: Mapping[str, object], *, resume: bool, kill_at: int | None) -> int:
    """Trains in a child process, which dies at line `kill_at` of its metrics; returns its exit code, −9 if killed."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        torch.set_num_threads(1)
        LossPlot.close = Observer.close  # type: ignore[method-assign]  # drawing takes half of the time
        if kill_at is not None:
            strike(signal.SIGKILL, kill_at)
        with (out.parent / "log.txt").open("a", encoding="utf-8") as log:
            os.dup2(log.fileno(), 2)
        overrides = [f"{key}={value}" for key, value in settings.items()]
        run(recipe, out=out, device="cpu", resume=resume, overrides=overrides)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def train_straight_and_killed(
    recipe: str, folder: Path, kills: Sequence[int], settings: Mapping[str, object] = SHORT
) -> str:
    """Trains one recipe twice in a folder; returns what went wrong, or ""."""
    folder.mkdir(parents=True)
    if code := train_in_fork(recipe, folder / "straight", settings, resume=False, kill_at=None):
        return f"the undisturbed run ended with {code}"
    for number, line in enumerate([*kills, None]):
        code = train_in_fork(recipe, folder / "killed", settings, resume=number > 0, kill_at=line)
        if code != (0 if line is None else -signal.SIGKILL):
            return f"the run that is to be killed at line {line} ended with {code}"
    return ""


if __name__ == "__main__":
    import_packages()
    base, lines = Path(sys.argv[1]), [int(line) for line in sys.argv[2].split(",")]
    for name in sys.argv[3:]:
        problem = train_straight_and_killed(name, base / name, lines)
        print(f"{name}\t{problem}", flush=True)
