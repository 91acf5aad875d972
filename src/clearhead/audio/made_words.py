"""Made-up words, spoken by a program: sound with its text and the times of its words, for examples and tests.

Every letter has a sound of its own: vowels are harmonics under two formants, other letters hum or hiss. Pitch, speed,
gaps and loudness are random, and there is a little noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

RATE = 8000  # samples a second
WORDS = ("bami", "dolu", "fesa", "gino", "kutu", "lami", "mesu", "nado", "rifu", "sola", "tebi", "umako")
MOST_WORDS = 3
COUNTS = {"train": 600, "dev": 60, "test": 60}
HARMONICS = np.arange(1, 24)


# How each letter sounds: two formants in Hz, and its duration in seconds.
LETTERS = {
    "a": (750, 1250, 0.12),
    "e": (500, 1900, 0.11),
    "i": (300, 2400, 0.10),
    "o": (480, 850, 0.12),
    "u": (320, 650, 0.11),
    "b": (180, 500, 0.05),
    "d": (220, 1650, 0.05),
    "f": (1500, 3000, 0.08),
    "g": (200, 2050, 0.06),
    "k": (1800, 2100, 0.05),
    "l": (380, 1050, 0.06),
    "m": (240, 900, 0.07),
    "n": (260, 1450, 0.07),
    "r": (420, 1350, 0.06),
    "s": (3300, 3700, 0.10),
    "t": (2600, 3200, 0.05),
}
HISSING = "fkst"  # letters that hiss instead of sounding


class MadeUtterance(NamedTuple):
    """Sound at `RATE` samples a second, its text, and begin and end of each word in seconds."""

    samples: Float32[np.ndarray, " samples"]
    text: str
    times: list[tuple[float, float]]


def make_utterances(part: str, count: int | None = None) -> Iterator[tuple[tuple[NDArray[np.float32], int], str]]:
    """Sounds, each with its rate, and their texts: of "train", "dev" or "test", the same at every call."""
    for number in range(COUNTS[part] if count is None else count):
        chance = np.random.default_rng([list(COUNTS).index(part), number])
        words = [str(word) for word in chance.choice(WORDS, size=chance.integers(1, MOST_WORDS + 1))]
        spoken = speak(words, chance)
        yield (spoken.samples, RATE), spoken.text


def speak(words: list[str], chance: np.random.Generator) -> MadeUtterance:
    """The sound of these words, with a pause before, between and after them.

    >>> spoken = speak(["bami", "sola"], np.random.default_rng(1))
    >>> spoken.text, len(spoken.times), round(len(spoken.samples) / RATE, 1)
    ('bami sola', 2, 0.9)
    """
    pitch, speed = chance.uniform(100, 220), chance.uniform(0.85, 1.2)
    pieces, times, now = [_pause(chance, 0.05)], list[tuple[float, float]](), 0
    for word in words:
        begin = sum(map(len, pieces))
        pieces += [_sound_of(letter, pitch, speed, chance) for letter in word]
        now = sum(map(len, pieces))
        times.append((begin / RATE, now / RATE))
        pieces.append(_pause(chance, 0.08))
    samples = np.concatenate(pieces) * chance.uniform(0.1, 0.9)
    samples += chance.normal(0, 0.003, len(samples))
    return MadeUtterance(samples.astype(np.float32), " ".join(words), times)


def _pause(chance: np.random.Generator, shortest: float) -> NDArray[np.float64]:
    return np.zeros(int(RATE * chance.uniform(shortest, 2 * shortest)))


def _sound_of(letter: str, pitch: float, speed: float, chance: np.random.Generator) -> NDArray[np.float64]:
    *formants, seconds = LETTERS[letter]
    size = int(RATE * seconds / speed * chance.uniform(0.9, 1.1))
    if letter in HISSING:
        spectrum = np.fft.rfft(chance.normal(0, 1, size))
        sound = np.fft.irfft(spectrum * _loudness(formants, np.fft.rfftfreq(size, 1 / RATE)), size)
    else:
        frequencies = HARMONICS * pitch * chance.uniform(0.97, 1.03)
        frequencies = frequencies[frequencies < RATE / 2]
        phases = 2 * np.pi * frequencies[:, None] * np.arange(size) / RATE
        sound = _loudness(formants, frequencies) @ np.sin(phases)
    edge = min(size // 2, RATE // 200)
    ramp = np.minimum(1.0, np.minimum(np.arange(size), np.arange(size)[::-1]) / edge)
    faded: NDArray[np.float64] = sound / max(1e-9, float(np.abs(sound).max())) * ramp
    return faded


def _loudness(formants: Sequence[int], frequencies: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """The loudness of these frequencies: two peaks, and a little of everything."""
    peaks = [np.exp(-(((frequencies - centre) / 180) ** 2)) for centre in formants]
    loudness: NDArray[np.float64] = peaks[0] + 0.7 * peaks[1] + 0.01
    return loudness
