"""Writes one poem for each held-out title and counts: the form is right, poems are distinct, nothing is copied.

    python benchmarks/poems.py poems-zh models/poems-zh/data/train.jsonl models/poems-zh/data/heldout.jsonl

Of 100 titles at least 90 poems must have a right form, at least 95 must be distinct, and at most 10 may share ten
consecutive characters with the training data. Ten characters are counted twice, with and without punctuation and line
breaks; a poem that shares in either count is counted as sharing. The exit code is 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from measuring import RESULTS, hardware

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import clearhead

FORM = re.compile(r"(?:[\u4e00-\u9fff]{5}，[\u4e00-\u9fff]{5}。)+|(?:[\u4e00-\u9fff]{7}，[\u4e00-\u9fff]{7}。)+")
LINES = (4, 8)
RUN = 10  # consecutive characters that count as copied
LIMITS = {"right form": (0.90, 1.0), "distinct": (0.95, 1.0), "sharing": (0.0, 0.10)}  # shares of the titles


def has_right_form(poem: str) -> bool:
    """Whether a poem has 4 or 8 lines, all of 5 or all of 7 Chinese characters, that end in ， and 。 in turn.

    >>> has_right_form("床前明月光，疑是地上霜。举头望明月，低头思故乡。"), has_right_form("床前明月光，疑是地上霜。")
    (True, False)
    """
    text = re.sub(r"\s", "", poem)
    return FORM.fullmatch(text) is not None and len(re.findall("[，。]", text)) in LINES


def list_runs(text: str) -> Iterator[str]:
    """All sequences of ten consecutive characters, of the text as it is and of its letters alone, without repetition.

    >>> sorted(list_runs("一二三四五，六七八九十"))
    ['一二三四五六七八九十', '一二三四五，六七八九', '二三四五，六七八九十']
    """
    found = set[str]()
    for written in (re.sub(r"\s", "", text), re.sub(r"\W", "", text)):
        found |= {written[start : start + RUN] for start in range(len(written) - RUN + 1)}
    yield from found


def find_shared(poems: Sequence[str], training: Iterable[str]) -> list[str | None]:
    """For each poem a sequence of ten characters that occurs in the training texts, or None."""
    owners: dict[str, list[int]] = {}
    for number, poem in enumerate(poems):
        for run in list_runs(poem):
            owners.setdefault(run, []).append(number)
    shared: list[str | None] = [None] * len(poems)
    for text in training:
        for run in list_runs(text):
            for number in owners.get(run, ()):
                shared[number] = run
    return shared


def read_texts(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("model")
    arguments.add_argument("train", type=Path)
    arguments.add_argument("heldout", type=Path)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument(
        "--set", action="append", default=[], metavar="OPTION=NUMBER", help="such as temperature=0.8"
    )
    given = arguments.parse_args()
    titles = list(dict.fromkeys(text.split("\n")[0] for text in read_texts(given.heldout)))
    training = read_texts(given.train)
    if known := set(titles) & {text.split("\n")[0] for text in training}:
        sys.exit(f"{given.train} has poems of held-out titles, such as {min(known)}")
    options = {name: json.loads(value) for name, value in (one.split("=") for one in given.set)}
    began = time.monotonic()
    predictor = clearhead.load(given.model)
    poems = [one.text for one in predictor.predict(titles, seed=given.seed, **options)]
    seconds = time.monotonic() - began
    shared = find_shared(poems, map(predictor.processor.tokenizer.normal, training))  # variants of characters are equal
    right = [has_right_form(poem) for poem in poems]
    counts = {"right form": sum(right), "distinct": len(set(poems)), "sharing": sum(one is not None for one in shared)}
    lines = [f"hardware: {hardware()}", f"command: python {' '.join(sys.argv)}", ""]
    for title, poem, fine, run in zip(titles, poems, right, shared, strict=True):
        notes = ("" if fine else "  [wrong form]") + ("" if run is None else f"  [shares {run}]")
        lines.append(f"《{title}》 {' '.join(poem.split())}{notes}")
    lines.append(f"\n{len(titles)} titles, {seconds:.1f} s")
    passed = True
    for name, count in counts.items():
        low, high = (limit * len(titles) for limit in LIMITS[name])
        passed = passed and low <= count <= high
        lines.append(f"{name}: {count} (limit: {f'at most {high:.0f}' if low == 0 else f'at least {low:.0f}'})")
    text = "\n".join(lines)
    print(text)
    path = RESULTS / f"poems_{datetime.date.today()}.txt"
    path.write_text(text + "\n", encoding="utf-8")
    print(f"kept as {path}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
