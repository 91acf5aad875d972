"""Tokens a second of a translation model's training step on CPU, against JoeyNMT and transformers' MarianMT.

    JOEYNMT_PYTHON=another-environment/bin/python python benchmarks/train_speed_cpu.py

JoeyNMT 2.3.0 lives in an environment of its own (`pip install joeynmt==2.3.0 importlib_metadata==8.5.0`), so every
competitor is a process of its own that waits until it is its turn; the rounds alternate.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from peers.train_step import PAIRS, tokens

from measuring import Report, compare

WORKER = Path(__file__).parent / "peers" / "train_step.py"
SIZES = {
    "classic": {"layers": 6, "width": 512, "vocabulary": 12_000},
    "small": {"layers": 3, "width": 256, "vocabulary": 12_000},
}


class Competitor:
    """A process that does one training step each time it is called."""

    def __init__(self, name: str, size: dict[str, Any]) -> None:
        python = os.environ["JOEYNMT_PYTHON"] if name == "joeynmt" else sys.executable
        self.process = subprocess.Popen(
            [python, str(WORKER), name, json.dumps(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.about = json.loads(self.answer())
        self.losses: list[float] = []

    def __call__(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.losses.append(float(self.answer()))

    def answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args} ended; is the environment that it needs in JOEYNMT_PYTHON?")
        return line

    def __enter__(self) -> Competitor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(report: Report, case: str, size: dict[str, Any], rounds: int) -> None:
    count = tokens(size["vocabulary"])
    names = {"JoeyNMT": "joeynmt", "MarianMT": "marian", "clearhead": "clearhead"}
    if "JOEYNMT_PYTHON" not in os.environ:
        print("without JoeyNMT: its environment is not named in JOEYNMT_PYTHON")
        del names["JoeyNMT"]
    with ExitStack() as stack:
        competitors = {name: stack.enter_context(Competitor(kind, size)) for name, kind in names.items()}
        timings = compare(competitors, rounds=rounds)
    named = {}
    for name, timing in timings.items():
        about, losses = competitors[name].about, competitors[name].losses
        label = f"{name} ({about['version']}, {about['parameters'] / 1e6:.1f} M): {count / timing.median:,.0f} tokens/s"
        named[f"{label}, loss {losses[0]:.2f} to {losses[-1]:.2f}"] = timing
    report.add(case, f"{PAIRS} pairs, {count:,} tokens", named)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dropout", type=float, nargs="+", default=[0.1, 0.0])
    parser.add_argument("--dry", action="store_true", help="keep no file")
    settings = parser.parse_args()
    report = Report("train_speed", "A translation model's training step on CPU against JoeyNMT and MarianMT")
    for name, size in SIZES.items():
        for dropout in settings.dropout:
            case = f"{name} {size['layers']}+{size['layers']}, width {size['width']}, dropout {dropout}"
            measure(report, case, size | {"dropout": dropout, "threads": settings.threads}, settings.rounds)
    if not settings.dry:
        report.save()


if __name__ == "__main__":
    main()
