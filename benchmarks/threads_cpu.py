"""How long prediction and training take with 1, 2 and more threads, alone and beside another program that holds a core.

    python benchmarks/threads_cpu.py predict lines.txt       the shipped zh-en, as `clearhead predict zh-en -`
    python benchmarks/threads_cpu.py train                   60 steps of translate-zh-en-tiny

Every run is a process of its own, start included, because OpenMP reads its environment once. Rounds go through all
cases in turn. Beside each time stands what further programs took meanwhile, in cores; a run that they disturbed is
repeated once, and the quieter of the two counts.
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROUNDS, LIMIT = int(os.environ.get("ROUNDS", "3")), 60
CASES = {
    "1 thread": {"OMP_NUM_THREADS": "1"},
    # what OpenMP does by itself; said, because `clearhead` sets another number where there is none
    "2 threads, GOMP_SPINCOUNT=300000": {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "300000"},
    "2 threads, OMP_WAIT_POLICY=PASSIVE": {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"},
    "2 threads, GOMP_SPINCOUNT=1000": {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "1000"},
    "2 threads, GOMP_SPINCOUNT=10000": {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "10000"},
}
TRIES, OTHERS = 2, 0.1  # cores


def busy_seconds() -> float:
    """CPU time that all programs together have used since the machine started."""
    user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:8])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Took(NamedTuple):
    seconds: float
    others: float  # cores that further programs took meanwhile


def undisturbed(job: str, lines: Path | None, settings: dict[str, str], busy: bool) -> Took:
    tries = list[Took]()
    while not tries or (len(tries) < TRIES and tries[-1].others > OTHERS):
        start, whole, own = time.perf_counter(), busy_seconds(), own_seconds()
        took = seconds(job, lines, settings, busy)
        others = (busy_seconds() - whole - (own_seconds() - own)) / (time.perf_counter() - start)
        tries.append(Took(took, others))
    return min(tries, key=lambda one: one.others)


def seconds(job: str, lines: Path | None, settings: dict[str, str], busy: bool) -> float:
    """Of one run; `busy`: the last core is taken by a loop."""
    command = [sys.executable, "-m", "clearhead"]
    with tempfile.TemporaryDirectory() as folder:
        if job == "predict":
            command += ["predict", "zh-en", "-", "--device", "cpu"]
        else:
            command += [
                "train",
                "translate-zh-en-tiny",
                "--set",
                "train.steps=60",
                "--device",
                "cpu",
                "--out",
                f"{folder}/run",
            ]
        core = str((os.cpu_count() or 1) - 1)
        loop = subprocess.Popen(["taskset", "-c", core, sys.executable, "-c", "while True: pass"]) if busy else None
        try:
            start = time.perf_counter()
            with open(lines or os.devnull, "rb") as stdin:
                subprocess.run(
                    command, stdin=stdin, capture_output=True, check=True, env={**os.environ, **settings}, timeout=LIMIT
                )
            return time.perf_counter() - start
        except subprocess.TimeoutExpired:
            return float(LIMIT)
        finally:
            if loop is not None:
                loop.kill()
                loop.wait()


def main() -> None:
    import torch

    job, lines = sys.argv[1], Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else None
    took: dict[tuple[str, bool], list[Took]] = {(name, busy): [] for name in CASES for busy in (False, True)}
    for _ in range(ROUNDS):
        for name, busy in took:
            took[name, busy].append(undisturbed(job, lines, CASES[name], busy))
            print(name, "a core is held" if busy else "alone", took[name, busy][-1], file=sys.stderr, flush=True)
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    print(f"- {os.cpu_count()} cores; {versions}; {ROUNDS} rounds: median (each, with the cores that others took)")
    print("\n| | alone, s | a core is held, s |\n| --- | --- | --- |")
    for name in CASES:
        shown = []
        for busy in (False, True):
            each = ", ".join(f"{one.seconds:.1f} with {one.others:.1f}" for one in took[name, busy])
            shown.append(f"{statistics.median(one.seconds for one in took[name, busy]):.1f} ({each})")
        print(f"| {name} | {' | '.join(shown)} |")


if __name__ == "__main__":
    main()
