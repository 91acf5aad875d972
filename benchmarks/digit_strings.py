"""Strings of spoken digits with known borders, from the recordings of fsdd: data for benchmarks/transcription.py.

    python benchmarks/digit_strings.py pack fsdd.tar fsdd.npz         # all recordings in one file, without loss
    python benchmarks/digit_strings.py write fsdd.npz digits          # WAV files with texts, for transcribe-digits

Recordings with index 0 to 4 are the test, 5 and 6 dev, the others are for training. A string has recordings of one
part only, of any speakers, at random loudness, with gaps of 50 to 400 ms between them and up to 400 ms around them, and
white noise 10 to 30 dB below.
"""

from __future__ import annotations

import io
import sys
import tarfile
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RATE = 8000
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
INDICES = {"test": range(5), "dev": range(5, 7), "train": range(7, 50)}
SEEDS = {"train": 1, "dev": 2, "test": 3, "other": 4}


class Recording(NamedTuple):
    digit: int
    speaker: str
    index: int
    samples: NDArray[np.int16]


class DigitString(NamedTuple):
    """Sound with its text, and begin and end of each digit in seconds."""

    samples: NDArray[np.float32]
    text: str
    times: list[tuple[float, float]]


def pack(tar: Path, target: Path) -> None:
    """Stores all recordings as differences of neighbouring samples, which compress well."""
    names, sounds = list[str](), list[NDArray[np.int16]]()
    with tarfile.open(tar) as archive:
        for member in sorted(archive.getmembers(), key=lambda one: one.name):
            if member.name.endswith(".wav"):
                file = archive.extractfile(member)
                assert file is not None
                with wave.open(io.BytesIO(file.read())) as sound:
                    assert (sound.getframerate(), sound.getsampwidth(), sound.getnchannels()) == (RATE, 2, 1), member
                    sounds.append(np.frombuffer(sound.readframes(sound.getnframes()), "<i2"))
                names.append(Path(member.name).stem)
    flat = np.concatenate(sounds)
    steps = np.diff(flat, prepend=flat.dtype.type(0))  # wraps around, and so does the sum
    low, high = (steps.view(np.uint16) & 255).astype(np.uint8), (steps.view(np.uint16) >> 8).astype(np.uint8)
    np.savez_compressed(target, names=np.array(names), lengths=np.array(list(map(len, sounds))), low=low, high=high)


def unpack(source: Path) -> list[Recording]:
    with np.load(source) as stored:
        steps = (stored["low"].astype(np.uint16) | (stored["high"].astype(np.uint16) << 8)).view(np.int16)
        flat = np.cumsum(steps, dtype=np.int16)
        parts = np.split(flat, np.cumsum(stored["lengths"])[:-1])
        names = [str(name).split("_") for name in stored["names"]]
    return [Recording(int(n[0]), n[1], int(n[2]), part) for n, part in zip(names, parts, strict=True)]


def choose(recordings: list[Recording], part: str) -> list[Recording]:
    """The recordings of a part; "other" strings, which heads are chosen on, are made of those of dev."""
    return [one for one in recordings if one.index in INDICES["dev" if part == "other" else part]]


def make_singles(recordings: list[Recording], part: str) -> Iterator[DigitString]:
    """Every recording of a part by itself, as it is."""
    for one in choose(recordings, part):
        samples = one.samples.astype(np.float32) / 32768
        yield DigitString(samples, DIGITS[one.digit], [(0.0, len(samples) / RATE)])


def make_strings(
    recordings: list[Recording], part: str, count: int, fewest: int = 3, most: int = 7
) -> Iterator[DigitString]:
    """So many random strings of `fewest` to `most` digits; the same at every call."""
    usable = choose(recordings, part)
    for number in range(count):
        chance = np.random.default_rng([SEEDS[part], number])
        chosen = [usable[place] for place in chance.integers(len(usable), size=chance.integers(fewest, most + 1))]
        yield join(chosen, chance)


def join(recordings: list[Recording], chance: np.random.Generator) -> DigitString:
    pieces, times, place = [_gap(chance, 0.0)], list[tuple[float, float]](), 0
    for one in recordings:
        sound = one.samples.astype(np.float32)
        loudness = float(np.sqrt(np.square(sound).mean())) or 1.0
        begin = sum(map(len, pieces))
        pieces.append(sound / loudness * np.float32(0.05 * 10 ** chance.uniform(-0.3, 0.3)))
        place = begin + len(sound)
        times.append((begin / RATE, place / RATE))
        pieces.append(_gap(chance))
    pieces[-1] = _gap(chance, 0.0)
    samples = np.concatenate(pieces)
    noise = 0.05 * 10 ** (-chance.uniform(10, 30) / 20)
    samples = samples + chance.normal(0, noise, len(samples)).astype(np.float32)
    peak = max(1.0, float(np.abs(samples).max()))
    return DigitString(samples / np.float32(peak), " ".join(DIGITS[one.digit] for one in recordings), times)


def _gap(chance: np.random.Generator, shortest: float = 0.05) -> NDArray[np.float32]:
    return np.zeros(int(RATE * chance.uniform(shortest, 0.4)), np.float32)


def make_training(recordings: list[Recording], count: int) -> Iterator[DigitString]:
    """What is trained on: `count` strings of 1 to 7 digits, and every recording by itself, five times."""
    yield from make_strings(recordings, "train", count, 1)
    for _ in range(5):
        yield from make_singles(recordings, "train")


def make_dev(recordings: list[Recording]) -> Iterator[DigitString]:
    """What the best model is chosen by: all recordings of dev by themselves, and 240 strings of them."""
    yield from make_singles(recordings, "dev")
    yield from make_strings(recordings, "dev", 240)


def write(source: Path, folder: Path) -> None:
    import torch

    from clearhead.audio import write_sound

    recordings = unpack(source)
    parts = {"train": list(make_training(recordings, 12_000)), "dev": list(make_dev(recordings))}
    parts["test"] = list(make_strings(recordings, "test", 500))
    parts["test-single"] = list(make_singles(recordings, "test"))
    for part, strings in parts.items():
        (folder / part).mkdir(parents=True, exist_ok=True)
        for number, one in enumerate(strings):
            path = folder / part / f"{number:05d}.wav"
            write_sound(path, torch.from_numpy(one.samples), RATE)
            path.with_suffix(".txt").write_text(one.text + "\n", encoding="utf-8")


if __name__ == "__main__":
    {"pack": pack, "write": write}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
