"""What is too long for every run: `python benchmarks/soak.py [tests] [resume] [tasks]`; the outputs are kept.

tests: the property tests with many more examples, each time others, and training with what a C++ compiler makes of it.
resume: a training run is killed again and again, and must end with the bits of one that never was.
tasks: the same for every shipped recipe whose name ends in -tiny, on all of its data, killed at random steps.
"""

from __future__ import annotations

import argparse
import datetime
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from clearhead import shipped

from measuring import RESULTS, hardware

sys.path.append(str(Path(__file__).parents[1]))
from tests.storage.killed_save import FOLDER_POINTS as POINTS
from tests.train.corpus import write_recipe
from tests.train.forked_runs import import_packages, train_straight_and_killed
from tests.train.test_resume import assert_same

ROOT = Path(__file__).parents[1]
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
COMMANDS = [
    ({}, [*PYTEST, "-m", "not unchecked", "tests/attention", "--hypothesis-profile=soak"]),
    (
        {"CLEARHEAD_CHECK_SHAPES": "0", "CLEARHEAD_SOAK": "1"},
        [*PYTEST, "-m", "unchecked", "tests/train/test_run.py", "--show-capture=no"],
    ),
]
TRAIN = "steps = 96\nevaluate_every = 24\nsave_every = 8"
KILLS = 20
TASK_STEPS, TASK_KILLS = 60, 5
TASK_SETTINGS: dict[str, object] = {
    "train.steps": TASK_STEPS,
    "train.log_every": 1,
    "train.evaluate_every": 20,
    "train.evaluate_lines": 20,
    "train.save_every": 7,
    "train.tensorboard": "false",
}


def start(recipe: Path, out: Path, *more: str, kill_at: str | None = None) -> subprocess.Popen[str]:
    """`clearhead train` in a process of its own; it may die at a named point of a save."""
    program = ["-m", "clearhead"] if kill_at is None else [str(ROOT / "tests" / "storage" / "killed_save.py"), kill_at]
    command = [sys.executable, *program, "train", str(recipe), "--out", str(out), "--device", "cpu", *more]
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes)


def finish(process: subprocess.Popen[str]) -> None:
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said


def tests(kept: IO[str]) -> bool:
    passed = True
    for changes, command in COMMANDS:
        said = " ".join([*(f"{name}={value}" for name, value in changes.items()), "python", *command[1:]])
        tell(kept, f"\ncommand: {said}\n")
        process = subprocess.Popen(
            command, env={**os.environ, **changes}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdout is not None
        for line in process.stdout:
            tell(kept, line.rstrip("\n"))
        passed = process.wait() == 0 and passed
    return passed


def resume(kept: IO[str], seed: int) -> bool:
    with TemporaryDirectory() as scratch:
        base = Path(scratch)
        recipe = write_recipe(base, train=TRAIN)
        began = time.monotonic()
        finish(start(recipe, base / "straight"))
        seconds = time.monotonic() - began
        lines = written(base / "straight")
        tell(kept, f"a run that nobody disturbs: 96 steps, 12 checkpoints, {lines} lines of metrics, {seconds:.1f} s\n")
        try:
            named_points(kept, recipe, base / "straight", base / "named")
            random_moments(kept, recipe, base, random.Random(seed), seconds, lines)
        except AssertionError as error:
            tell(kept, f"NOT IDENTICAL, or not killed: {error}")
            return False
        identical = "metrics.jsonl, model.safetensors, metrics.json and the last checkpoint are bit-identical"
        tell(kept, f"\n{len(list(saves())) + KILLS} kills, each followed by --resume: {identical}")
    return True


def saves() -> Iterator[tuple[str, str, int]]:
    """Which save, at which of its points, as the how-many-th in a process that goes on where the last one died."""
    for point in POINTS:
        yield "the tokenizers'", point, 1
    for point in POINTS:
        yield "the first checkpoint's", point, 1
    for point in POINTS:  # of a process that went on at steps 8, 24, 40 and 56: each comes two saves further
        yield "a later checkpoint's", point, 3
    yield "the model's", POINTS[0], 0  # after all checkpoints that are left
    for point in POINTS[1:]:
        yield "the model's", point, 1


def named_points(kept: IO[str], recipe: Path, straight: Path, out: Path) -> None:
    for save, point, times in saves():
        checkpoints = [int(path.name) for path in (out / "checkpoints").glob("[0-9]*")]
        left = 12 - max(checkpoints, default=0) // 8
        said = killed_at(start(recipe, out, "--resume", kill_at=f"{point}:{times or left + 1}"))
        assert said == -signal.SIGKILL, f"{save} save, {point}: exit code {said}"
        tell(kept, f"killed at {save} save, {point}")
    finish(start(recipe, out, "--resume"))
    assert_same(straight, out)
    tell(kept, "then to the end: identical\n")


def random_moments(kept: IO[str], recipe: Path, base: Path, chance: random.Random, seconds: float, lines: int) -> None:
    """Kills from outside, as many as wanted; a run that comes to its end is compared, and another begins."""
    kills, number, out = 0, 1, base / "random1"
    while kills < KILLS:
        process = start(recipe, out, "--resume")
        moment = wait(process, out, chance, seconds, lines)
        process.send_signal(signal.SIGKILL)
        if killed_at(process) == -signal.SIGKILL:
            kills += 1
            tell(kept, f"run {number} killed {moment}: {stage(out)}")
            if kills < KILLS:
                continue
            finish(start(recipe, out, "--resume"))
        assert_same(base / "straight", out)
        tell(kept, f"run {number} to its end: identical")
        number, out = number + 1, base / f"random{number + 1}"


def wait(process: subprocess.Popen[str], out: Path, chance: random.Random, seconds: float, lines: int) -> str:
    """Until a random moment, or until the process has come to its end: mostly while it trains, at times before."""
    before, after = written(out), 0
    if chance.random() < 0.75 and before < lines:
        after = min(lines, before + chance.randint(1, 9))
    longest = seconds if not after else 1.5 if after == lines else 0.2  # the model is written after the last line
    delay = chance.uniform(0, longest)
    while process.poll() is None and written(out) < after:
        time.sleep(0.001)
    end = time.monotonic() + delay
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.001)
    return f"{delay:.2f} s after " + (f"line {after} of the metrics" if after else "its start")


def tasks(kept: IO[str], seed: int) -> bool:
    """Every tiny recipe, once undisturbed and once killed at random lines of its metrics."""
    chance, passed = random.Random(seed), True
    import_packages()
    with TemporaryDirectory() as scratch:
        for name in (name for name in shipped.recipes() if name.endswith("-tiny")):
            lines = sorted(chance.sample(range(1, TASK_STEPS + 3), TASK_KILLS))
            began, folder = time.monotonic(), Path(scratch) / name
            problem = train_straight_and_killed(name, folder, lines, TASK_SETTINGS)
            if not problem:
                try:
                    assert_same(folder / "straight", folder / "killed")
                except AssertionError as error:
                    problem = f"NOT IDENTICAL: {error}"
            passed = passed and not problem
            said = f"{TASK_STEPS} steps, killed at lines {', '.join(map(str, lines))} of its metrics"
            tell(kept, f"{name}: {said}: {problem or 'identical'} ({time.monotonic() - began:.0f} s)")
    return passed


def killed_at(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=300)
    return process.returncode


def written(out: Path) -> int:
    path = out / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def stage(out: Path) -> str:
    """What there was when it died."""
    if not (out / "task").exists():
        return "before there were tokenizers"
    newest = max((int(path.name) for path in (out / "checkpoints").glob("[0-9]*")), default=0)
    halves = sum(1 for _ in out.rglob(".*.tmp-clearhead-*"))
    model = ", the model was there" if (out / "model").exists() else ""
    return f"newest checkpoint {newest}{model}" + (", in the middle of a save" if halves else "")


def tell(kept: IO[str], text: str) -> None:
    print(text, flush=True)
    print(text, file=kept, flush=True)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("parts", nargs="*", metavar="PART", choices=[[], "tests", "resume", "tasks"], default=[])
    arguments.add_argument("--seed", type=int, default=1)
    given = arguments.parse_args()
    passed = True
    for part in given.parts or ["tests", "resume", "tasks"]:
        path = RESULTS / f"soak_{'' if part == 'tests' else part + '_'}{datetime.date.today()}.txt"
        with path.open("w", encoding="utf-8") as kept:
            tell(kept, f"hardware: {hardware()}")
            if part == "tests":
                passed = tests(kept) and passed
            else:
                tell(kept, f"command: python benchmarks/soak.py {part} --seed {given.seed}\n")
                passed = {"resume": resume, "tasks": tasks}[part](kept, given.seed) and passed
        print(f"kept as {path}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
