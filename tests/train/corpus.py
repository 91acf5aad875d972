"""A tiny task for the tests: sentences of a made-up language, and recipes that train on them in a second."""

from __future__ import annotations

import random
from pathlib import Path

WORDS = {
    "我": "I",
    "你": "you",
    "他": "he",
    "爱": "love",
    "看": "see",
    "吃": "eat",
    "书": "books",
    "鱼": "fish",
    "水": "water",
}


def sentences(count: int, seed: int = 0) -> list[tuple[str, str]]:
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        chinese = chance.choices(list(WORDS), k=chance.randint(1, 7))
        made.append(("".join(chinese), " ".join(WORDS[word] for word in chinese)))
    return made


def write_corpus(folder: Path, train: int = 61, dev: int = 7) -> None:
    for name, count, seed in (("train", train, 1), ("dev", dev, 2)):
        text = "".join(f"{chinese}\t{english}\n" for chinese, english in sentences(count, seed))
        (folder / f"{name}.tsv").write_text(text, encoding="utf-8")


RECIPE = """
task = "translation"
seed = 3

[data]
train = "train.tsv"
dev = "dev.tsv"

[text]
tokenizer = "character"
vocabulary = 300
shared = false

[model]
shape = "tiny"
width = 16
heads = 2
feedforward = 32
layers = 1
dropout = 0.1

[train]
steps = 24
batch_tokens = 128
shapes = 3
warmup = 4
learning_rate = 0.01
log_every = 3
evaluate_every = 8
save_every = 4
evaluate_lines = 5
average = "ema"
decay = 0.9
tensorboard = false
heads_every = 0

[decode]
beam = 2
"""


def write_recipe(folder: Path, **changes: str) -> Path:
    """A corpus and its recipe; changes such as train="steps = 8" are added to their sections."""
    write_corpus(folder)
    text = RECIPE
    for section, lines in changes.items():
        for line in lines.splitlines():
            key = line.split("=")[0].strip()
            kept = [old for old in text.splitlines() if old.split("=")[0].strip() != key]
            text = "\n".join(kept).replace(f"[{section}]", f"[{section}]\n{line}") + "\n"
    path = folder / "toy.toml"
    path.write_text(text, encoding="utf-8")
    return path
