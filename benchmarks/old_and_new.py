"""Whether a change of the code made anything slower: the same jobs on two checkouts, in alternation.

    python benchmarks/old_and_new.py ../before ../after --rounds 15

Each checkout works in a process of its own (PYTHONPATH is its src folder), with one thread. In each round both do a job
one after the other, the other one first in every second round. A ratio is new / old of the same round: median and
quartiles, of wall time and of CPU time, which other processes on the machine change less.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

JOBS = ("one sentence", "128 sentences", "tag 2,000", "training steps", "watch 128", "watch 512")
COMMANDS = {
    "import clearhead": ["-c", "import clearhead"],
    "clearhead --help": ["-m", "clearhead", "--help"],
}
LIMIT = 1.03


class Cost(NamedTuple):
    wall: float  # seconds
    cpu: float  # seconds of the process


def measure(action: Callable[[], object]) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def work() -> None:
    """The process of one checkout: reads names of jobs, a line each, and answers each with the times as JSON."""
    import torch

    torch.set_num_threads(1)
    answers, sys.stdout = sys.stdout, io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        jobs = make_jobs(Path(folder))
        for line in sys.stdin:
            cost = jobs[line.strip()]()
            print(json.dumps(cost), file=answers, flush=True)


def make_jobs(folder: Path) -> dict[str, Callable[[], Cost]]:
    import torch
    from transformers import BertConfig, BertModel

    import clearhead
    from clearhead.cli import main

    def train(name: str, *changes: str) -> Path:
        out = folder / name
        settings = [part for change in changes for part in ("--set", change)]
        with contextlib.redirect_stderr(io.StringIO()):
            code = main(["train", name, "--out", str(out), "--overwrite", *settings])
        assert code in (0, None), f"training {name} ended with {code}"
        return out

    def training_steps() -> Cost:
        cpu = time.process_time()
        out = train("translate-zh-en-tiny", "train.steps=60", "train.log_every=20", "train.evaluate_every=60")
        cpu = time.process_time() - cpu
        lines = [json.loads(line) for line in (out / "speed.jsonl").read_text().splitlines()]
        return Cost(sum(line["seconds"] for line in lines[1:]), cpu)  # without the first steps

    def watch(tokens: int) -> Callable[[], object]:
        numbers = torch.randint(0, 1000, (1, tokens), generator=torch.Generator().manual_seed(1))

        def run() -> None:
            with torch.no_grad(), clearhead.watch(bert):
                bert(numbers)

        return run

    corpus = Path(clearhead.__file__).parent / "shipped" / "corpora" / "tatoeba-zh-en.dev.tsv.gz"
    rows = [line.split("\t") for line in gzip.decompress(corpus.read_bytes()).decode().splitlines()]
    chinese, english = [row[0] for row in rows], [row[1] for row in rows]
    translator = clearhead.load("zh-en")
    tagger = clearhead.load(train("tag-tiny", "train.steps=20", "train.evaluate_every=20"))
    torch.manual_seed(1)
    bert = BertModel(BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536))
    bert.eval()
    texts = (english * (2000 // len(english) + 1))[:2000]
    actions: dict[str, Callable[[], object]] = {
        "one sentence": lambda: [translator.predict(text) for text in chinese[:8]],
        "128 sentences": lambda: translator.predict(chinese[:128], beams=5),
        "tag 2,000": lambda: tagger.predict(texts),
        "watch 128": watch(128),
        "watch 512": watch(512),
    }
    timed = {name: lambda action=action: measure(action) for name, action in actions.items()}
    return {**timed, "training steps": training_steps}


def children_seconds() -> float:
    """CPU time of the child processes that have ended, in microseconds, where os.times() counts in hundredths."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class Checkout:
    def __init__(self, folder: Path) -> None:
        self.environment = {**os.environ, "PYTHONPATH": str(folder.resolve() / "src"), "OMP_NUM_THREADS": "1"}
        self.worker = subprocess.Popen(
            [sys.executable, __file__, "--work"],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, job: str) -> Cost:
        assert self.worker.stdin is not None
        assert self.worker.stdout is not None
        self.worker.stdin.write(job + "\n")
        self.worker.stdin.flush()
        return Cost(*json.loads(self.worker.stdout.readline()))

    def start(self, command: str) -> Cost:
        wall, cpu = time.perf_counter(), children_seconds()
        subprocess.run([sys.executable, *COMMANDS[command]], env=self.environment, check=True, capture_output=True)
        return Cost(time.perf_counter() - wall, children_seconds() - cpu)


def compare(old: Callable[[], Cost], new: Callable[[], Cost], rounds: int) -> list[str]:
    """The cells of a row: median and quartiles of the ratios, of wall time and of CPU time."""
    old(), new()
    pairs = []
    for number in range(rounds):
        if number % 2:
            later, earlier = new(), old()
            pairs.append((earlier, later))
        else:
            pairs.append((old(), new()))
    cells = [f"{statistics.median(earlier.wall for earlier, _ in pairs) * 1e3:.1f}"]
    for key in ("wall", "cpu"):
        ratios = [getattr(later, key) / max(getattr(earlier, key), 1e-9) for earlier, later in pairs]
        low, middle, high = statistics.quantiles(ratios, n=4)
        cells.append(f"{middle:.3f} ({low:.3f}–{high:.3f}){'' if middle <= LIMIT else ' OVER'}")
    return cells


def main() -> None:
    from measuring import RESULTS, hardware

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", help="one job")
    chosen = parser.parse_args()
    old, new = Checkout(chosen.old), Checkout(chosen.new)
    rows = []
    for job in [chosen.only] if chosen.only else [*JOBS, *COMMANDS]:
        sides = [partial(side.start if job in COMMANDS else side.run, job) for side in (old, new)]
        cells = compare(*sides, chosen.rounds)
        rows.append([job, *cells])
        print(" | ".join(rows[-1]), flush=True)
    commits = [
        subprocess.run(
            ["git", "-C", str(folder), "describe", "--always"], capture_output=True, text=True
        ).stdout.strip()
        for folder in (chosen.old, chosen.new)
    ]
    date = time.strftime("%Y-%m-%d")
    header = [["job", "old, median ms", "wall, new / old", "CPU, new / old"], ["---"] * 4]
    about = f"Commits {commits[0]} and {commits[1]}; {date}; {hardware()}; `python benchmarks/old_and_new.py OLD NEW`"
    table = "\n".join(f"| {' | '.join(row)} |" for row in [*header, *rows])
    if not chosen.only:
        (RESULTS / f"old_and_new_cpu_{date}.md").write_text(
            f"# Old and new code in alternation\n\n{about}\n\n{table}\n"
        )


if __name__ == "__main__":
    work() if sys.argv[1:] == ["--work"] else main()
