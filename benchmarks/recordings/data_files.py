"""The data of a recording: parts of the shipped corpora in other forms, small pictures and sounds.

All of it is written before anything is trained, the same at any commit.
"""

from __future__ import annotations

import gzip
import json
import math
import wave
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image

from recordings.commands import PACKAGE

RATE = 8000  # samples a second
COLOURS = {"red": (220, 30, 40), "green": (30, 160, 60), "blue": (40, 60, 210), "yellow": (230, 210, 40)}
PLACES = {"left": slice(2, 12), "right": slice(20, 30)}
TONES = {"ba": 220.0, "do": 330.0, "mi": 660.0}
FITTED = """task = "translation"
seed = 3

[data]
train = { source = "parallel.zh", target = "parallel.en" }
dev = 0.05
test = "named.csv"
columns = { source = "zh", target = "en" }

[text]
tokenizer = "unigram"
vocabulary = 500

[decode]
beam = 2
"""


def read_corpus(name: str, count: int | None = None) -> list[list[str]]:
    """The fields of the first rows of a shipped corpus."""
    file = next(PACKAGE.rglob(f"{name}.tsv.gz"))
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [line.rstrip("\n").split("\t") for line, _ in zip(lines, range(count or 10**9), strict=False)]


def write_data(folder: Path) -> dict[str, int]:
    """Writes all files into `folder`; their sizes by name."""
    folder.mkdir()
    _write_texts(folder)
    _write_translations(folder)
    _write_classes(folder)
    _write_entities(folder)
    _write_pictures(folder)
    _write_sounds(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def _write_rows(path: Path, rows: Sequence[Sequence[str]]) -> None:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def _write_texts(folder: Path) -> None:
    sentences = [row[1] for row in read_corpus("tatoeba-zh-en.train", 1500)]
    (folder / "sentences.txt").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    (folder / "sentences-dev.txt").write_text("\n".join(sentences[-60:]) + "\n", encoding="utf-8")
    messages = read_corpus("messages-en.train", 400)
    _write_rows(folder / "messages-dev.tsv", read_corpus("messages-en.dev", 12))
    lists = [{"article": text.split(". "), "short": [summary, summary.split(" ", 1)[0]]} for text, summary in messages]
    (folder / "lists.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lists), encoding="utf-8")
    # Each answer has one or two questions: `kind = "pairs"`; every tenth question has none and is out of scope.
    questions = [[text, "" if number % 10 == 9 else answer] for number, (text, answer) in enumerate(messages[:200])]
    _write_rows(folder / "questions.tsv", questions)
    _write_rows(folder / "more-answers.tsv", questions[:6])
    _write_rows(folder / "questions-dev.tsv", [[text.lower(), answer] for text, answer in questions[5:45]])


def _write_translations(folder: Path) -> None:
    rows = read_corpus("tatoeba-zh-en.train", 600)
    _write_rows(folder / "translate-dev.tsv", [row[:2] for row in read_corpus("tatoeba-zh-en.dev", 12)])
    (folder / "parallel.zh").write_text("".join(f"{row[0]}\n" for row in rows), encoding="utf-8")
    (folder / "parallel.en").write_text("".join(f"{row[1]}\n" for row in rows), encoding="utf-8")
    (folder / "chinese.txt").write_text("".join(f"{row[0]}\n" for row in rows[:20]), encoding="utf-8")
    named = [f'{number},"{row[1]}","{row[0]}"\n' for number, row in enumerate(rows[:8]) if '"' not in row[1]]
    (folder / "named.csv").write_text("number,en,zh\n" + "".join(named), encoding="utf-8")
    (folder / "fitted.toml").write_text(FITTED, encoding="utf-8")


def _write_classes(folder: Path) -> None:
    comments = [row[:2] for row in read_corpus("sentiment-en.train", 900)]
    labels = [[text, "|".join(_find_labels(text, label))] for text, label in comments]
    _write_rows(folder / "labels.tsv", labels[:700])
    _write_rows(folder / "labels-test.tsv", labels[700:760])
    pairs = [[one[0], other[0], "same" if one[1] == other[1] else "other"] for one, other in pairwise(comments)]
    _write_rows(folder / "pairs.tsv", pairs[:600])
    _write_rows(folder / "pairs-dev.tsv", pairs[600:660])


def _find_labels(text: str, label: str) -> Iterator[str]:
    yield from [label] if len(text) % 3 else []
    yield from ["question"] if "?" in text else []
    yield from ["loud"] if "!" in text else []


def _write_entities(folder: Path) -> None:
    """Sentences with spans of characters, from words with IOB tags."""
    sentences: list[list[list[str]]] = [[]]
    for row in read_corpus("entities-en.train"):
        sentences = [*sentences[:-1], [*sentences[-1], row]] if len(row) == 2 else [*sentences, []]
        if len(sentences) > 420:
            break
    lines = [json.dumps(_mark_spans(words), ensure_ascii=False) + "\n" for words in sentences[:420] if words]
    (folder / "spans.jsonl").write_text("".join(lines[60:]), encoding="utf-8")
    (folder / "spans-dev.jsonl").write_text("".join(lines[:60]), encoding="utf-8")


def _mark_spans(words: Sequence[Sequence[str]]) -> dict[str, object]:
    text, entities = "", list[dict[str, object]]()
    for word, tag in words:
        start = len(text) + bool(text)
        text = f"{text} {word}" if text else word
        if tag.startswith("B-"):
            entities.append({"start": start, "end": len(text), "label": tag[2:]})
        elif tag.startswith("I-") and entities:
            entities[-1]["end"] = len(text)
    return {"text": text, "entities": entities}


def _write_pictures(folder: Path) -> None:
    """Coloured squares on noise, of three sizes, with captions."""
    chance = np.random.default_rng(5)
    rows = []
    for number in range(36):
        colour, place = list(COLOURS)[number % 4], list(PLACES)[number // 4 % 2]
        pixels = chance.integers(215, 255, (32, 32, 3), np.uint8)
        pixels[8:20, PLACES[place]] = COLOURS[colour]
        size = ((32, 32), (48, 32), (32, 40))[number % 3]
        Image.fromarray(pixels).resize(size, Image.Resampling.NEAREST).save(folder / f"picture-{number}.png")
        rows.append([f"picture-{number}.png", f"a {colour} square on the {place}"])
    _write_rows(folder / "pictures.tsv", rows[:30])
    _write_rows(folder / "pictures-dev.tsv", rows[30:])


def _write_sounds(folder: Path) -> None:
    """Tones between pauses, with texts: one file in stereo, one silent, one that must be cut into pieces."""
    chance = np.random.default_rng(6)
    rows = []
    for number in range(30):
        words = [list(TONES)[int(place)] for place in chance.integers(0, 3, 1 + number % 3)]
        _write_sound(folder / f"sound-{number}.wav", words, chance)
        rows.append([f"sound-{number}.wav", " ".join(words)])
    _write_rows(folder / "sounds.tsv", rows[:24])
    _write_rows(folder / "sounds-dev.tsv", rows[24:])
    _write_sound(folder / "stereo.wav", ["ba", "mi"], chance, channels=2)
    _write_sound(folder / "silent.wav", [], chance)
    _write_sound(folder / "long.wav", [*TONES, *TONES, *TONES], chance)


def _write_sound(path: Path, words: Sequence[str], chance: np.random.Generator, channels: int = 1) -> None:
    pause = np.zeros(RATE // 5)
    tone = np.arange(RATE // 4) / RATE
    parts = [part for word in words for part in (0.4 * np.sin(2 * math.pi * TONES[word] * tone), pause)]
    samples = np.concatenate([pause, *parts])
    samples = samples + chance.normal(0, 0.004, len(samples)) * bool(words)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(np.repeat((samples * 32767).astype("<i2"), channels).tobytes())
