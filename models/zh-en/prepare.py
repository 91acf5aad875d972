"""The files that the shipped model zh-en is trained on, made from the corpora, and from what stands beside this script.

    python models/zh-en/prepare.py DATA models/zh-en/data

DATA holds tatoeba.{train,dev}.tsv, python-docs.tsv and 3am.{train,val}.{zh,en}. What is written: these corpora, and
three small files for what they lack: sentences without their full stop (bare), words, names and phrases (phrases), and
things that are to be carried over as they are (copied). The same DATA give the same files. No line that is trained on
has the Chinese of a dev line, whatever its script and punctuation; those that had are left out and counted.
"""

from __future__ import annotations

import argparse
import gzip
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from random import Random

from copied import WORDS, Pair, filled

from clearhead.text import read
from clearhead.text.scripts import converter

HERE = Path(__file__).parent
COLUMNS = ("chinese", "english")
BARE_SHARE = 0.35  # of the short Tatoeba sentences come without their full stop, too
SHORT = 20  # characters
TEMPLATED, ENGLISH, EMOJI_ROWS, EMOJI_ENDINGS = 5200, 1500, 300, 800  # pairs, of each kind of copying

STOPS = "。！？.!?"
ONE_STOP = re.compile(rf"[^{STOPS}]+[{STOPS}]")  # one sentence, and nothing like "3 p.m."


class Guard:
    """Keeps dev out of what is trained on.

    >>> guard = Guard(["這很貴。"])
    >>> list(guard.allowed([("这很贵！", "This is expensive!"), ("贵", "expensive")])), guard.refused
    ([('贵', 'expensive')], 1)
    """

    def __init__(self, dev: Iterable[str]) -> None:
        self.convert = converter("simplified").convert
        self.seen = {self.key(text) for text in dev} - {""}
        self.refused = 0

    def key(self, text: str) -> str:
        """The letters and digits alone, in simplified characters."""
        text = unicodedata.normalize("NFKC", self.convert(text))
        return "".join(character for character in text if unicodedata.category(character)[0] in "LN")

    def allowed(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        for pair in pairs:
            if self.key(pair[0]) in self.seen:
                self.refused += 1
            else:
                yield pair


def pairs_of(source: Path | Mapping[str, Path]) -> list[Pair]:
    return [(row.values[0], row.values[1]) for row in read(source, COLUMNS)]


def bare(pairs: Iterable[Pair], random: Random) -> Iterator[Pair]:
    """Some short sentences without what ends them, as people type them: 你是谁, Who are you."""
    for pair in pairs:
        if len(pair[0]) <= SHORT and all(map(ONE_STOP.fullmatch, pair)) and random.random() < BARE_SHARE:
            yield pair[0].rstrip(STOPS), pair[1].rstrip(STOPS)


def templated(random: Random) -> Iterator[Pair]:
    """Every template equally often, more or less, and filled in a different way each time."""
    templates = pairs_of(HERE / "templates.tsv")
    made = dict.fromkeys(filled(templates[place % len(templates)], random) for place in range(TEMPLATED))
    yield from made


def english(pairs: list[Pair], random: Random) -> Iterator[Pair]:
    """English that stays as it is; every third sentence as people type it: how are you."""
    sentences = list(dict.fromkeys(text for _, text in pairs))
    for place, text in enumerate(random.sample(sentences, ENGLISH)):
        text = text.rstrip(STOPS).lower() if place % 3 == 0 else text
        yield text, text


def emojis(random: Random) -> Iterator[Pair]:
    """Emoji alone, and some in rows."""
    common, rare = WORDS["emojis"], WORDS["rare_emojis"][::2]
    rows = [random.choices(common, k=random.randint(2, 4)) for _ in range(EMOJI_ROWS)]
    rows += [[emoji] * random.randint(2, 3) for emoji in common]
    for text in [*common, *rare, *map("".join, rows)]:
        yield text, text


def emoji_endings(pairs: list[Pair], random: Random) -> Iterator[Pair]:
    """Short sentences with an emoji after them, on both sides; half of them without their full stop."""
    rare = WORDS["rare_emojis"][1::2]
    endings = [*rare, *random.choices(WORDS["emojis"], k=EMOJI_ENDINGS - len(rare))]
    short = [pair for pair in pairs if len(pair[0]) <= SHORT]
    for place, (emoji, pair) in enumerate(zip(endings, random.sample(short, EMOJI_ENDINGS), strict=True)):
        chinese, english = (side.rstrip(STOPS) for side in pair) if place % 2 else pair
        yield f"{chinese}{emoji}", f"{english} {emoji}"


def write(path: Path, pairs: Iterable[Pair]) -> int:
    """A gzipped TSV that has the same bytes whenever it has the same pairs; how many there are."""
    lines = [f"{chinese}\t{english}\n" for chinese, english in pairs]
    path.write_bytes(gzip.compress("".join(lines).encode(), compresslevel=9, mtime=0))
    return len(lines)


def prepare(data: Path, out: Path) -> None:
    tatoeba = pairs_of(data / "tatoeba.train.tsv")
    dev = {
        "tatoeba.dev": pairs_of(data / "tatoeba.dev.tsv"),
        "captions.dev": pairs_of({"chinese": data / "3am.val.zh", "english": data / "3am.val.en"}),
    }
    guard = Guard(chinese for pairs in dev.values() for chinese, _ in pairs)
    tatoeba_kept = list(guard.allowed(tatoeba))
    copied = [
        *templated(Random("templates")),
        *english(tatoeba_kept, Random("english")),
        *emojis(Random("emojis")),
        *emoji_endings(tatoeba_kept, Random("endings")),
    ]
    train = {
        "tatoeba": tatoeba,
        "python-docs": pairs_of(data / "python-docs.tsv"),
        "captions": pairs_of({"chinese": data / "3am.train.zh", "english": data / "3am.train.en"}),
        "bare": list(bare(tatoeba_kept, Random("bare"))),
        "phrases": pairs_of(HERE / "phrases.tsv"),
        "copied": copied,
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, pairs in train.items():
        guard.refused = 0
        count = write(out / f"{name}.tsv.gz", guard.allowed(pairs))
        print(f"{name:14}{count:7,} pairs, {guard.refused} left out: their Chinese is in a dev set")
    for name, pairs in dev.items():
        print(f"{name:14}{write(out / f'{name}.tsv.gz', pairs):7,} pairs")


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the files that zh-en is trained on.")
    parser.add_argument("data", type=Path, help="the folder with the corpora")
    parser.add_argument("out", type=Path, help="the folder to write to, such as models/zh-en/data")
    given = parser.parse_args()
    prepare(given.data, given.out)


if __name__ == "__main__":
    main()
