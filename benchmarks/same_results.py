"""Whether a refactoring changed any number: records what clearhead computes, and compares two recordings.

    python benchmarks/same_results.py record before      # at the old commit
    python benchmarks/same_results.py record after       # at the new one
    python benchmarks/same_results.py compare before after --except notes

A recording holds 200 translations with their scores, and for two recipes 50 training steps: the losses, every tensor of
the checkpoint and of the model folder, and ten further steps after a resume. `compare` also lets the code that runs it
read the first recording: its model folder predicts, its checkpoint resumes. Everything goes through the command line,
so one script serves both commits. To measure another checkout, put its `src` into PYTHONPATH. `--except` names keys
that are known to differ, such as the words of notes: they are counted apart.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from measuring import RESULTS, hardware

DEV = "tatoeba-zh-en.dev"
LINES, DEV_LINES, STEPS, FURTHER = 200, 20, 50, 10
HARD = ["", "啊" * 50, "😀" * 32, "1,000,000人在2024年12月31日23:59。", "你好。" * 40, "Ｈello　World", "一" * 300]
COMMON = ["train.evaluate_every=25", "train.log_every=10", "train.tensorboard=false", "data.dev=dev.tsv"]
RUNS = {
    "tiny": ("translate-zh-en-tiny", []),
    "large": ("translate-zh-en", ["train.batch_tokens=1024", "train.compile=false", "train.warmup=20"]),
}
THREADS = {**os.environ, "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": ""}


def clearhead(*arguments: str, folder: Path, text: str | None = None) -> str:
    command = [sys.executable, "-m", "clearhead", *arguments]
    done = subprocess.run(command, cwd=folder, env=THREADS, input=text, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


def translations(model: str, lines: list[str], folder: Path, *options: str) -> list[dict[str, Any]]:
    out = clearhead("predict", model, "-", "--json", *options, folder=folder, text="\n".join(lines) + "\n")
    return [json.loads(line) for line in out.splitlines()]


def digests(file: Path) -> dict[str, str]:
    """A checksum for every tensor: of its dtype, shape and bytes."""
    found = {}
    for name, tensor in sorted(load_file(file).items()):
        about = f"{tensor.dtype} {tuple(tensor.shape)}".encode()
        raw = tensor.contiguous().flatten().view(-1).numpy().tobytes() if tensor.numel() else b""
        found[name] = hashlib.sha256(about + raw).hexdigest()
    return found


def train(name: str, folder: Path, steps: int, *options: str) -> dict[str, Any]:
    """Trains up to a step; what the run's files hold then."""
    recipe, changes = RUNS[name]
    settings = [f"--set={change}" for change in [*COMMON, *changes, f"train.steps={steps}"]]
    clearhead("train", recipe, *settings, "--out", name, "--device", "cpu", *options, folder=folder)
    run = folder / name
    newest = max(path for path in (run / "checkpoints").iterdir() if path.name.isdecimal())
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "metrics.jsonl": metrics,
        "checkpoint": digests(newest / "state.safetensors"),
        "position": {
            k: v for k, v in json.loads((newest / "state.json").read_text())["position"].items() if k != "seconds"
        },
        "model": digests(run / "model" / "model.safetensors"),
        "scores": json.loads((run / "model" / "metrics.json").read_text())["dev"],
        "answers": translations(name, LINE_TEXTS[:20], folder),
    }


def source_lines() -> list[str]:
    import gzip

    import clearhead.shipped as shipped

    file = shipped.corpus(DEV)
    assert file is not None
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [line for line, _ in zip(lines, range(LINES), strict=False)]


CORPUS = source_lines()
LINE_TEXTS = [line.split("\t")[0] for line in CORPUS]


def record(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "dev.tsv").write_text("".join(CORPUS[:DEV_LINES]), encoding="utf-8")
    found: dict[str, Any] = {
        "translations": translations("zh-en", LINE_TEXTS, folder),
        "hard": translations("zh-en", HARD, folder),
        "three best": translations("zh-en", LINE_TEXTS[:20], folder, "--best", "3"),
        "greedy": translations("zh-en", LINE_TEXTS[:50], folder, "--beam", "1"),
        "evaluate": clearhead("evaluate", "zh-en", "dev.tsv", "--columns", "source,target,-", "--json", folder=folder),
    }
    for name in RUNS:
        found[f"{name}, {STEPS} steps"] = train(name, folder, STEPS)
        shutil.copytree(folder / name, folder / f"{name}-{STEPS}")
        found[f"{name}, resumed to {STEPS + FURTHER}"] = train(name, folder, STEPS + FURTHER, "--resume")
    (folder / "found.json").write_text(json.dumps(found, ensure_ascii=False, indent=1), encoding="utf-8")


def read_old(before: Path, scratch: Path) -> dict[str, Any]:
    """What this code makes of the folders and checkpoints of another recording."""
    scratch.mkdir(parents=True)
    shutil.copy(before / "dev.tsv", scratch / "dev.tsv")
    found = {}
    for name in RUNS:
        shutil.copytree(before / f"{name}-{STEPS}", scratch / name)
        found[f"{name}: old model folder"] = translations(name, LINE_TEXTS[:20], scratch)
        found[f"{name}: old checkpoint resumed"] = train(name, scratch, STEPS + FURTHER, "--resume")
    return found


def differences(old: Any, new: Any, place: str = "") -> list[str]:
    """The places where two values differ; a key that is new is no difference."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            one
            for key in old
            for one in (differences(old[key], new[key], f"{place}.{key}") if key in new else [f"{place}.{key} is gone"])
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [one for number, pair in pairs for one in differences(*pair, f"{place}[{number}]")]
    return [] if old == new else [f"{place}: {old!r:.60} became {new!r:.60}"]


def about() -> list[str]:
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return [f"- date: {datetime.date.today()}", f"- hardware: {hardware()}", f"- versions: {versions}"]


def compare(before: Path, after: Path, known: list[str]) -> int:
    old, new = (json.loads((one / "found.json").read_text(encoding="utf-8")) for one in (before, after))
    pairs = {name: (old[name], new[name]) for name in old}
    scratch = after / "read-old"
    shutil.rmtree(scratch, ignore_errors=True)
    mine = read_old(before, scratch)
    for name in RUNS:
        pairs[f"{name}: old model folder"] = (
            old[f"{name}, {STEPS} steps"]["answers"],
            mine[f"{name}: old model folder"],
        )
        resumed = old[f"{name}, resumed to {STEPS + FURTHER}"]
        pairs[f"{name}: old checkpoint resumed"] = (resumed, mine[f"{name}: old checkpoint resumed"])
    lines, count = ["# Same results before and after", "", *about(), "", "| what | |", "|---|---|"], 0
    details = []
    for name, (was, now) in pairs.items():
        every = differences(was, now)
        found = [one for one in every if not any(f".{key}" in one.split(":")[0] for key in known)]
        count += len(found)
        said = "identical" if not found else f"{len(found)} differences"
        if len(every) > len(found):
            said += f", but for {len(every) - len(found)} in {', '.join(known)}"
        lines.append(f"| {name} | {said} |")
        details += [f"- {name}{one}" for one in found[:5]] + [f"- {name}: …"] * (len(found) > 5)
    text = "\n".join([*lines, "", *details, ""])
    print(text)
    (after / "comparison.md").write_text(text, encoding="utf-8")
    print(f"wrote {after / 'comparison.md'}; keep it in {RESULTS}")
    return 1 if count else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--except", dest="known", nargs="*", default=[], metavar="KEY", help="keys that may differ")
    given = parser.parse_args()
    if given.what == "record":
        record(given.folders[0].resolve())
    else:
        before, after = (folder.resolve() for folder in given.folders)
        sys.exit(compare(before, after, given.known))
