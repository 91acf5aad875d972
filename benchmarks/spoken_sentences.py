"""English sentences of the shipped Tatoeba corpus, spoken by voices of espeak-ng: data for benchmarks/transcription.py.

    pip install espeakng-loader            # or: apt-get install espeak-ng
    python benchmarks/spoken_sentences.py --out sentences --train 2000      # writes WAV files with texts

Training sentences are spoken by many voices (accent and variant) at random speed and pitch, and then played up to an
eighth faster or slower, which makes other voices of them. The sentences of dev and
test are others, and so are their voices: their variants are not in training.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import hashlib
import multiprocessing
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CORPUS = Path(__file__).parents[1] / "src/clearhead/shipped/corpora/tatoeba-zh-en.train.tsv.gz"
RATE = 22050  # espeak-ng's own
ACCENTS = ("en-US", "en-US", "en", "en-GB-x-rp", "en-GB-scotland", "en-029")  # half of the voices should be American
VARIANTS = (
    "m1",
    "m2",
    "m3",
    "m4",
    "m5",
    "m6",
    "m8",
    "f1",
    "f2",
    "f3",
    "f5",
    "Andy",
    "Annie",
    "Denis",
    "Lee",
    "linda",
    "max",
)
UNSEEN = {"dev": "en+m7", "test": "en-US+f4"}  # variants that no training voice has
SILENCE = 0.1  # seconds of it that are left before and after a sentence


class Spoken(NamedTuple):
    """What is to be said, by which voice, at which speed (words a minute) and pitch (0 to 99), and played how fast."""

    text: str
    voice: str
    speed: int = 175
    pitch: int = 50
    playback: float = 1.0


def read_sentences() -> list[str]:
    """The distinct English sentences of 2 to 12 words that have only letters, in a fixed random order."""
    found = dict[str, None]()
    with gzip.open(CORPUS, "rt", encoding="utf-8") as file:
        for line in file:
            text = line.rstrip("\n").split("\t")[1].replace("’", "'")
            plain = normalise(text)
            if re.fullmatch(r"[a-z' ]+", plain) and 2 <= len(plain.split()) <= 12 and re.fullmatch(r"[ -~]+", text):
                found.setdefault(plain, None)
    return sorted(found, key=lambda text: hashlib.sha1(text.encode()).hexdigest())


def normalise(text: str) -> str:
    return " ".join(re.sub(r"[^\w\s']|_", " ", text.lower()).split())


def plan(part: str, count: int) -> list[Spoken]:
    """What is said in a part: test has the first 500 sentences, dev the next 300, train the others, again and again."""
    sentences = read_sentences()
    places = {"test": slice(0, 500), "dev": slice(500, 800), "train": slice(800, None)}
    chosen, chance = sentences[places[part]], np.random.default_rng(7)
    if part != "train":
        return [Spoken(text, UNSEEN[part]) for text in chosen[:count]]
    voices = [f"{accent}+{variant}" for accent in ACCENTS for variant in VARIANTS]
    return [
        Spoken(
            chosen[number % len(chosen)],
            str(chance.choice(voices)),
            int(chance.integers(140, 196)),
            int(chance.integers(25, 76)),
            float(chance.uniform(0.88, 1.13)),
        )
        for number in range(count)
    ]


class Espeak:
    """espeak-ng's library, called directly: a process may have one."""

    def __init__(self, folder: str | None = None) -> None:
        library, data = _find_library(folder)
        self.library = ctypes.CDLL(library)
        self.buffers = list[NDArray[np.int16]]()
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
        self.callback = kind(self._receive)  # kept: the library calls it later
        rate = self.library.espeak_Initialize(2, 0, None if data is None else data.encode(), 0)
        if rate != RATE:
            raise RuntimeError(f"espeak-ng gives {rate} samples a second, expected {RATE}")
        self.library.espeak_SetSynthCallback(self.callback)

    def _receive(self, samples: object, count: int, events: object) -> int:
        if samples and count > 0:
            self.buffers.append(np.ctypeslib.as_array(samples, (count,)).copy())  # type: ignore[call-overload]
        return 0

    def speak(self, what: Spoken) -> NDArray[np.int16]:
        """The sound, with the silence at both ends cut to `SILENCE` seconds."""
        self.buffers.clear()
        if self.library.espeak_SetVoiceByName(f"gmw/{what.voice}".encode()):
            raise RuntimeError(f"espeak-ng has no voice {what.voice}")
        self.library.espeak_SetParameter(1, what.speed, 0)
        self.library.espeak_SetParameter(3, what.pitch, 0)
        text = what.text.encode()
        self.library.espeak_Synth(text, ctypes.c_size_t(len(text) + 1), 0, 0, 0, 1, None, None)
        self.library.espeak_Synchronize()
        sound = np.concatenate(self.buffers)
        loud = np.flatnonzero(np.abs(sound.astype(np.int32)) > 200)
        edge = int(SILENCE * RATE)
        sound = sound[max(0, loud[0] - edge) : loud[-1] + edge]
        if what.playback == 1.0:
            return sound
        places = np.arange(int(len(sound) / what.playback)) * what.playback
        return np.interp(places, np.arange(len(sound)), sound).astype(np.int16)


def _find_library(folder: str | None) -> tuple[str, str | None]:
    """The library and the folder of its data: in `folder`, in the package espeakng-loader, or the system's."""
    if folder is not None:
        return str(Path(folder) / "libespeak-ng.so"), str(Path(folder) / "espeak-ng-data")
    try:
        import espeakng_loader
    except ImportError:
        return "libespeak-ng.so.1", None
    return str(espeakng_loader.get_library_path()), str(espeakng_loader.get_data_path())


_espeak: Espeak | None = None


def _start(folder: str | None) -> None:
    global _espeak
    _espeak = Espeak(folder)


def _speak(what: Spoken) -> NDArray[np.int16]:
    assert _espeak is not None
    return _espeak.speak(what)


def speak_all(wanted: Iterable[Spoken], folder: str | None = None, processes: int = 2) -> Iterator[NDArray[np.int16]]:
    """The sound of everything that is to be said, in this order."""
    with multiprocessing.get_context("fork").Pool(processes, _start, (folder,)) as pool:
        yield from pool.imap(_speak, wanted, chunksize=64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--train", type=int, default=20_000, help="how many training sentences")
    parser.add_argument("--espeak", help="folder with libespeak-ng.so and espeak-ng-data")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    import soundfile

    for part, count in (("train", given.train), ("dev", 300), ("test", 500)):
        (given.out / part).mkdir(parents=True, exist_ok=True)
        wanted = plan(part, count)
        for number, sound in enumerate(speak_all(wanted, given.espeak, given.processes)):
            path = given.out / part / f"{number:05d}.wav"
            soundfile.write(path, sound, RATE)
            path.with_suffix(".txt").write_text(wanted[number].text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
