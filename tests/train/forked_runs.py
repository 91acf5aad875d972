"""Trains in forks of one process that has imported everything: `python -m tests.train.forked_runs < runs.json`.

The process itself computes nothing. A run may be killed or interrupted at a chosen moment, and may have several
processes, as under torchrun.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch

from clearhead.cli import main
from clearhead.train.observers import LossPlot, Observer
from tests.storage.killed_save import kill_at
from tests.train.signalled import strike

ROOT = Path(__file__).parents[2]
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
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint.hf_storage",
    "rich.progress",
    "sacrebleu",
    "opencc",
]
IMPORTED_BY_SHIPPED_RECIPES = [
    "sklearn.feature_extraction.text",
    "sklearn.linear_model",
    "sklearn.pipeline",
    "bm25s",
    "rouge_score.rouge_scorer",
]


class Run(NamedTuple):
    """One `clearhead train`."""

    recipe: str
    out: str
    settings: Sequence[str] = ()
    resume: bool = False
    struck: str = ""  # "SIGINT:2" at the second line of its metrics, or "before fsync:3" as killed_save.py has it
    ignored: str = ""  # a signal that it ignores from its start
    processes: int = 1


class Ended(NamedTuple):
    """The exit code of a run, negative after a signal, and what it said on stderr."""

    code: int
    said: str


def train_in_forks(runs: Sequence[Run]) -> list[Ended]:
    """Trains one after the other, in forks of a new process."""
    command = [sys.executable, "-m", "tests.train.forked_runs"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    options = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True, "timeout": 600}
    done = subprocess.run(command, input=json.dumps(runs), **options)
    assert done.returncode == 0, done.stderr
    return [Ended(*values) for values in json.loads(done.stdout)]


def import_packages(names: Sequence[str] = (*IMPORTED, *IMPORTED_BY_SHIPPED_RECIPES)) -> None:
    for name in names:
        with suppress(ImportError):
            importlib.import_module(name)


def train_in_fork(run: Run) -> Ended:
    """Trains in a child process, or in several; the code is that of the first one that failed."""
    with socket.socket() as free, tempfile.TemporaryFile("w+") as log:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
        free.close()
        children = []
        for rank in range(run.processes):
            child = os.fork()
            if not child:
                group = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(run.processes)}
                os.environ |= group | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                os.dup2(log.fileno(), 2)
                os.dup2(log.fileno(), 1)
                _train(run)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        log.seek(0)
        return Ended(next(filter(None, codes), 0), log.read())


def _train(run: Run) -> None:
    """Trains in this process, and ends it."""
    code = 1
    try:
        torch.set_num_threads(1)
        LossPlot.close = Observer.close  # type: ignore[method-assign]  # drawing takes half of the time
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup the tests ignore it
        if run.ignored:
            signal.signal(signal.Signals[run.ignored], signal.SIG_IGN)
        if run.struck.startswith("SIG"):
            name, _, line = run.struck.partition(":")
            strike(signal.Signals[name], int(line))
        elif run.struck:
            kill_at(run.struck)
        settings = [part for setting in run.settings for part in ("--set", setting)]
        resume = ["--resume"] if run.resume else []
        code = main(["train", run.recipe, "--out", run.out, "--device", "cpu", *settings, *resume])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def list_killed_runs(
    recipe: str, folder: Path, kills: Sequence[str], settings: Mapping[str, object] = SHORT
) -> list[Run]:
    """A run `straight` that nobody disturbs, and a run `killed` that is struck at each of `kills` and resumed."""
    changes = [f"{key}={value}" for key, value in settings.items()]
    runs = [Run(recipe, str(folder / "straight"), changes)]
    for number, kill in enumerate([*kills, ""]):
        runs.append(Run(recipe, str(folder / "killed"), changes, resume=number > 0, struck=kill))
    return runs


def find_problem(runs: Sequence[Run], ends: Sequence[Ended]) -> str:
    """What went wrong in such runs; empty if nothing did."""
    for run, (code, said) in zip(runs, ends, strict=True):
        if code != (-signal.SIGKILL if run.struck else 0):
            return f"the run struck at {run.struck!r} ended with {code}: {said[-2000:]}"
    return ""


def train_straight_and_killed(
    recipe: str, folder: Path, kills: Sequence[int], settings: Mapping[str, object] = SHORT
) -> str:
    """Trains both, killed at these lines of the metrics; returns what went wrong, or ""."""
    folder.mkdir(parents=True)
    runs = list_killed_runs(recipe, folder, [f"SIGKILL:{line}" for line in kills], settings)
    return find_problem(runs, [train_in_fork(run) for run in runs])


if __name__ == "__main__":
    runs = [Run(*values) for values in json.load(sys.stdin)]
    shipped = not all(run.recipe.endswith(".toml") for run in runs)
    import_packages([*IMPORTED, *(IMPORTED_BY_SHIPPED_RECIPES if shipped else [])])
    json.dump([train_in_fork(run) for run in runs], sys.stdout)
