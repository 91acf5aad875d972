"""What pre-training is worth: the same task with and without it, at equal fine-tuning minutes, with a 95 % interval.

    python benchmarks/pretraining_gain.py sst2 --data DATA --out gain-sst2 --jobs 5
    python benchmarks/pretraining_gain.py resume-zh --data DATA --out gain-zh --jobs 5
    python benchmarks/pretraining_gain.py tiny --out gain-tiny --smoke        # shipped data, a minute on a CPU

In this order: writes the texts to pre-train on (none of the task's dev set), pre-trains once, fine-tunes the recipe of
the task from scratch with every seed, and then from the pre-trained weights, for as many minutes as the slowest run
from scratch took (or both for --minutes). With --same-model the pre-trained model's sizes are also trained from
scratch. Finished runs in --out are not repeated. DATA is a folder with the corpora that the functions *_texts name.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch

from measuring import RESULTS, hardware

# The 97.5 % quantile of Student's t, by degrees of freedom from 1.
QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
OWN = 4  # times that the task's own training texts are among the texts


class Case(NamedTuple):
    """One task: recipes, the data of fine-tuning, and what starting from trained weights changes in its recipe."""

    pretrain: str
    fine_tune: str
    metric: str
    files: dict[str, str]  # keys of [data], below DATA
    changes: tuple[str, ...]  # with trained weights
    texts: Callable[[Path], Iterator[str]] | None


def read_sst2(file: Path) -> list[str]:
    return [line.split(" ", 1)[1] for line in file.read_text(encoding="utf-8").splitlines() if " " in line]


def read_bmes(file: Path) -> list[str]:
    """The sentences of a file with one character and its tag on each line."""
    sentences = file.read_text(encoding="utf-8").split("\n\n")
    return ["".join(line.split()[0] for line in one.splitlines() if line.strip()) for one in sentences]


def read_column(file: Path, column: int, separator: str = "\t") -> list[str]:
    with file.open(encoding="utf-8", newline="") as opened:
        rows = csv.reader(
            opened, delimiter=separator, quoting=csv.QUOTE_MINIMAL if separator == "," else csv.QUOTE_NONE
        )
        return [row[column] for row in rows if len(row) > column]


def english_texts(data: Path) -> Iterator[str]:
    for _ in range(OWN):
        yield from read_sst2(data / "classify/sst2/train.txt")
    yield from read_column(data / "classify/goemotions-sentiment/train.tsv", 0)
    yield from read_column(data / "zh-en/tatoeba.train.tsv", 1)
    yield from (data / "multi30k/train.en").read_text(encoding="utf-8").splitlines()
    for line in (data / "summarise/dialogsum/train.jsonl").read_text(encoding="utf-8").splitlines():
        yield from (turn.split(":", 1)[-1] for turn in json.loads(line)["dialogue"].splitlines())
    for line in (data / "lm/wikitext2/train.tokens").read_text(encoding="utf-8").splitlines():
        if not line.strip().startswith("="):
            yield line.replace("<unk>", "").replace(" @-@ ", "-").replace(" @,@ ", ",").replace(" @.@ ", ".")


def chinese_texts(data: Path) -> Iterator[str]:
    for _ in range(OWN):
        yield from read_bmes(data / "ner/resume-zh/train.char.bmes")
    yield from read_column(data / "classify/chnsenticorp-hotel.csv", 1, ",")
    yield from read_column(data / "zh-en/tatoeba.train.tsv", 0)
    yield from (data / "zh-en/3am.train.zh").read_text(encoding="utf-8").splitlines()
    yield from read_column(data / "zh-en/python-docs.tsv", 0)


CASES = {
    "sst2": Case(
        "pretrain-sst2",
        "classify-sst2-scratch",
        "accuracy",
        {"train": "classify/sst2/train.txt", "dev": "classify/sst2/dev.txt"},
        (
            "model={ dropout = 0.5, ngrams = 2 }",
            "loss.token_dropout=0.2",
            "train.learning_rate=1e-3",
            "train.layer_decay=0.85",
            "train.steps=600",
            "train.warmup=60",
        ),
        english_texts,
    ),
    "resume-zh": Case(
        "pretrain-zh",
        "tag-resume-zh",
        "entity_f1",
        {"train": "ner/resume-zh/train.char.bmes", "dev": "ner/resume-zh/dev.char.bmes"},
        ("model={ dropout = 0.3, attention_dropout = 0.1 }", "train.layer_decay=0.9"),
        chinese_texts,
    ),
    "tiny": Case("pretrain-tiny", "classify-tiny", "accuracy", {}, ("model={ dropout = 0.3 }",), None),
}


def held_out(name: str, data: Path) -> set[str]:
    """The texts of the task's dev set, without spaces: none of them may be pre-trained on."""
    files = CASES[name].files
    read = read_sst2 if name == "sst2" else read_bmes
    return {_key(text) for text in read(data / files["dev"])}


def _key(text: str) -> str:
    return "".join(text.split()).lower()


def write_texts(name: str, data: Path, file: Path) -> int:
    """Writes the texts of a case in random order, one a line; returns how many."""
    texts = CASES[name].texts
    assert texts is not None
    hidden = held_out(name, data)
    lines = [" ".join(text.split()) for text in texts(data)]
    lines = [line for line in lines if line and _key(line) not in hidden]
    random.Random(1).shuffle(lines)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(lines)


class Run(NamedTuple):
    score: float
    minutes: float
    steps: int


def train(recipe: str, out: Path, settings: Sequence[str], seed: int, device: str, threads: int) -> Path:
    """Trains by a recipe in a process of its own, unless that run is finished; its output goes to OUT.log."""
    if not (out / "model").is_dir():
        shutil.rmtree(out, ignore_errors=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "clearhead", "train", recipe, "--out", str(out), "--seed", str(seed)]
        command += ["--device", device, "--set", "train.tensorboard=false", "--set", "train.heads_every=0"]
        command += [part for one in settings for part in ("--set", one)]
        with out.with_suffix(".log").open("w") as log:
            done = subprocess.run(
                command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": str(threads)}, check=False
            )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{out.with_suffix('.log').read_text()[-2000:]}")
    return out


def read_run(out: Path, metric: str) -> Run:
    metrics = json.loads((out / "model" / "metrics.json").read_text())
    speed = [json.loads(line) for line in (out / "speed.jsonl").read_text().splitlines()]
    return Run(100 * metrics["dev"][metric], speed[-1]["seconds"] / 60, speed[-1]["step"])


def gain_interval(without: Sequence[float], with_it: Sequence[float]) -> tuple[float, float]:
    """The mean gain, and half of its 95 % interval by Welch's t (at least one degree of freedom).

    >>> [round(number, 3) for number in gain_interval([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])]
    [3.0, 2.266]
    """
    parts = [statistics.variance(one) / len(one) for one in (without, with_it)]
    gain = statistics.mean(with_it) - statistics.mean(without)
    if not sum(parts):
        return gain, 0.0
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(one) - 1) for part, one in zip(parts, (without, with_it), strict=True)
    )
    quantile = QUANTILES[min(max(1, math.floor(freedom + 1e-9)), len(QUANTILES)) - 1]
    return gain, quantile * math.sqrt(sum(parts))


def size_settings(pretrained: Path) -> list[str]:
    """The [model] of a pre-trained run as settings, for the same model with random weights."""
    import tomllib

    model = tomllib.loads((pretrained / "recipe.toml").read_text())["model"]
    return [f"model.{key}={json.dumps(value)}" for key, value in model.items() if key not in ("dropout", "ngrams")]


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pretrained", type=Path, help="a run that was pre-trained before, instead of a new one")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=5, help="fine-tuning runs side by side")
    parser.add_argument("--minutes", type=float, help="of every fine-tuning run")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--same-model", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="a few steps, to see that it works")
    for stage in ("pretrain", "scratch", "init"):
        parser.add_argument(f"--{stage}-set", action="append", default=[], metavar="KEY=VALUE")
    return parser.parse_args()


def pretrain(given: argparse.Namespace, few: Sequence[str]) -> Path:
    """Pre-trains once, on the texts of the case; the run folder."""
    case, settings = CASES[given.case], [*few, *given.pretrain_set]
    if case.texts is not None:
        file = given.out / "texts.txt"
        count = write_texts(given.case, given.data, file)
        print(f"{count:,} texts, {file.stat().st_size / 1e6:.1f} MB", flush=True)
        settings.insert(0, f"data.train={file.resolve()}")
    begin = time.monotonic()
    out = train(case.pretrain, given.out / "pretrain", settings, 1, given.device, os.cpu_count() or 1)
    print(f"pre-trained in {(time.monotonic() - begin) / 60:.1f} min", flush=True)
    return out


def fine_tune(given: argparse.Namespace, pretrained: Path, few: Sequence[str]) -> dict[str, list[Run]]:
    """Fine-tunes with every seed, from scratch first: that says how many minutes the others have."""
    case, threads = CASES[given.case], max(1, (os.cpu_count() or 1) // given.jobs)
    data = [f"data.{key}={(given.data / path).resolve()}" for key, path in case.files.items()]
    arms = {"scratch": given.scratch_set}
    if given.same_model:
        arms["same model"] = [*size_settings(pretrained), *given.scratch_set]
    arms["pre-trained"] = [f"train.init_from={pretrained}", *case.changes, *given.init_set]
    results: dict[str, list[Run]] = {}
    minutes = given.minutes
    with ThreadPoolExecutor(given.jobs) as pool:
        for arm, changes in arms.items():
            limit = [] if minutes is None else [f"train.minutes={minutes:.4f}"]
            settings = [*data, *few, *limit, *changes]

            def run(seed: int, arm: str = arm, settings: Sequence[str] = settings) -> Run:
                out = given.out / f"{arm.replace(' ', '-')}-{seed}"
                return read_run(train(case.fine_tune, out, settings, seed, given.device, threads), case.metric)

            results[arm] = list(pool.map(run, range(1, given.seeds + 1)))
            print(f"{arm}: {case.metric} {', '.join(f'{one.score:.2f}' for one in results[arm])}", flush=True)
            minutes = minutes or max(one.minutes for one in results["scratch"])
    return results


def main() -> None:
    given = read_arguments()
    case, few = CASES[given.case], list[str]()
    if given.smoke:
        few = ["data.lines=300", "train.steps=20", "train.evaluate_every=10", "train.warmup=5", "train.compile=false"]
        given.seeds = 2
    pretrained = pretrain(given, few) if given.pretrained is None else given.pretrained
    results = fine_tune(given, pretrained.resolve(), few)
    lines = [f"# {case.fine_tune} with and without {case.pretrain}", "", f"- hardware: {hardware()}"]
    lines += [f"- command: `python {' '.join(sys.argv)}`", "", *make_table(case.metric, results)]
    print("\n".join(lines))
    if not given.smoke:
        kind = "h200" if "H200" in hardware() else "gpu" if torch.cuda.is_available() else "cpu"
        file = RESULTS / f"pretraining_gain_{given.case}_{kind}_{datetime.date.today()}.md"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def make_table(metric: str, results: dict[str, list[Run]]) -> list[str]:
    """A Markdown table: a row for each arm, with its gain over training from scratch."""
    header = ["arm", f"{metric}, mean of {len(results['scratch'])} seeds", "deviation", "minutes", "steps", "gain", "±"]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for arm, runs in results.items():
        scores = [one.score for one in runs]
        cells = [arm, f"{statistics.mean(scores):.2f}", f"{statistics.stdev(scores):.2f}"]
        cells += [
            f"{statistics.mean(one.minutes for one in runs):.2f}",
            f"{statistics.mean(one.steps for one in runs):.0f}",
        ]
        if arm == "scratch":
            cells += ["", ""]
        else:
            gain, half = gain_interval([one.score for one in results["scratch"]], scores)
            cells += [f"{gain:+.2f}", f"{half:.2f} (95 %: {gain - half:+.2f} to {gain + half:+.2f})"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


if __name__ == "__main__":
    main()
