"""The files that the shipped model zh-en is trained on, made from the corpora, and from what stands beside this script.

    python models/zh-en/prepare.py DATA models/zh-en/data

DATA holds tatoeba.{train,dev}.tsv, python-docs.tsv and 3am.{train,val}.{zh,en}. What is written: these corpora, and
five small files for what they lack: sentences without their full stop (bare), several sentences in one line (joined),
words, names and phrases (phrases), headlines (headlines), and things that are to be carried over as they are (copied).
The same DATA give the same files. No line that is trained on has the Chinese of a dev line, and no sentence that was
joined has, whatever its script and punctuation; the lines that had are left out and counted.
"""

from __future__ import annotations

import argparse
import gzip
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from random import Random

from copied import ALONE, FILLERS, WORDS, Pair, filled

from clearhead.text import read
from clearhead.text.chinese import load_converter

HERE = Path(__file__).parent
COLUMNS = ("chinese", "english")
BARE_SHARE = 0.22  # of the short Tatoeba sentences come without their full stop, too
SHORT = 20  # characters
JOINED, PART = 9000, 16  # lines of two or three sentences, of so many characters at most
TEMPLATED, SPACED = 4800, 0.25  # pairs; and how many of them have spaces around what is not Chinese
ENGLISH, ENGLISH_WORDS, ENGLISH_PIECES = 600, 900, 800  # pairs, of each kind
EMOJI_ROWS, EMOJI_ENDINGS, LONGEST_ROW = 800, 1000, 8
ROWS = 3  # for each phrase of another script so many lines in which it may stand among others, beside two for itself
HANGUL, HANGUL_WORDS = range(0xAC00, 0xD7A4), 90

STOPS = "。！？.!?"
ONE_STOP = re.compile(rf"[^{STOPS}]+[{STOPS}]")  # one sentence, and nothing like "3 p.m."
BETWEEN = re.compile(r"(?<=[\u4e00-\u9fff])(?=[A-Za-z0-9])|(?<=[A-Za-z0-9])(?=[\u4e00-\u9fff])")


class Guard:
    """Keeps dev out of what is trained on.

    >>> guard = Guard(["這很貴。"])
    >>> list(guard.allowed([("这很贵！", "This is expensive!"), ("贵", "expensive")])), guard.refused
    ([('贵', 'expensive')], 1)
    """

    def __init__(self, dev: Iterable[str]) -> None:
        self.convert = load_converter("simplified").convert
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
    """Every template equally often, more or less, and filled in a different way each time; some with spaces: 用 Git."""
    templates = pairs_of(HERE / "templates.tsv")
    made = dict.fromkeys(filled(templates[place % len(templates)], random) for place in range(TEMPLATED))
    for chinese, english in made:
        yield BETWEEN.sub(" ", chinese) if random.random() < SPACED else chinese, english


def joined(pairs: Iterable[Pair], random: Random) -> Iterator[Pair]:
    """Two or three sentences that have nothing to do with each other in one line: each is to be translated."""
    short = [pair for pair in pairs if len(pair[0]) <= PART and all(map(ONE_STOP.fullmatch, pair))]
    for _ in range(JOINED):
        some = random.sample(short, random.choice([2, 2, 3]))
        yield "".join(chinese for chinese, _ in some), " ".join(english for _, english in some)


def alone(random: Random) -> Iterator[Pair]:
    """Numbers, times, addresses, with nothing around them."""
    kinds = [kind for count, some in ALONE.items() for kind in count * some.split()]
    yield from dict.fromkeys(FILLERS[kind](random) for kind in kinds)


def english(pairs: list[Pair], random: Random) -> Iterator[Pair]:
    """English that stays as it is: sentences, every third as people type it (how are you), pieces of some, words."""
    sentences = list(dict.fromkeys(text for _, text in pairs))
    texts = [*WORDS["english"], *WORDS["english"]]
    for place, text in enumerate(random.sample(sentences, ENGLISH)):
        texts.append(text.rstrip(STOPS).lower() if place % 3 == 0 else text)
    for text in random.sample(sentences, ENGLISH_PIECES):
        words = re.findall(r"[\w'-]+", text)
        begin = random.randrange(len(words))
        texts.append(" ".join(words[begin : begin + random.randint(2, 4)]))
    counts = Counter(word for text in sentences for word in re.findall(r"[A-Za-z]+", text) if len(word) > 1)
    texts += [word for word, _ in counts.most_common(ENGLISH_WORDS)]
    yield from ((text, text) for text in texts)


def abroad(random: Random) -> Iterator[Pair]:
    """Other scripts, which stay as they are.

    Most of their letters come often enough to be pieces of both vocabularies. Korean has too many syllables for that:
    those that come once, which both languages spell in bytes, show how to copy any.
    """
    for kind in ("russian", "greek", "japanese", "korean", "arabic", "hebrew", "thai", "hindi"):
        words = WORDS[kind]
        rows = [" ".join(random.sample(words, random.randint(2, 4))) for _ in range(ROWS * len(words))]
        yield from ((text, text) for text in [*words, *words, *rows])
    syllables = iter(random.sample(HANGUL, 4 * HANGUL_WORDS))
    for _ in range(HANGUL_WORDS):
        text = "".join(chr(next(syllables)) for _ in range(random.randint(1, 4)))
        yield text, text


def emojis(random: Random) -> Iterator[Pair]:
    """Emoji alone, and in rows of equal and of different ones."""
    common, rare = WORDS["emojis"], WORDS["rare_emojis"][::2]
    rows = [random.choices(common, k=random.randint(2, LONGEST_ROW)) for _ in range(EMOJI_ROWS)]
    rows += [[emoji] * length for emoji in common for length in random.sample(range(2, LONGEST_ROW + 1), 3)]
    rows += [rare[begin : begin + 3] for begin in range(0, len(rare) // 2, 3)]
    for text in [*common, *rare[len(rare) // 2 :], *map("".join, rows)]:
        yield text, text


def emoji_endings(pairs: list[Pair], random: Random) -> Iterator[Pair]:
    """Short sentences and phrases with one to three emoji after them, on both sides; half without their full stop."""
    common, rare = WORDS["emojis"], WORDS["rare_emojis"][1::2]
    endings = [*rare]
    while len(endings) < EMOJI_ENDINGS:
        emoji = random.choice(common)
        endings.append(random.choice([emoji, emoji, emoji, 2 * emoji, 3 * emoji, emoji + random.choice(common)]))
    short = [pair for pair in pairs if len(pair[0]) <= SHORT]
    for place, (ending, pair) in enumerate(zip(endings, random.sample(short, EMOJI_ENDINGS), strict=True)):
        chinese, english = (side.rstrip(STOPS) for side in pair) if place % 2 else pair
        yield f"{chinese}{ending}", f"{english} {ending}"


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
    phrases, headlines = pairs_of(HERE / "phrases.tsv"), pairs_of(HERE / "headlines.tsv")
    said = [pair for pair in phrases if len(pair[0]) > 2 and pair[1][0].isupper()]
    copied = [
        *templated(Random("templates")),
        *alone(Random("alone")),
        *english(tatoeba_kept, Random("english")),
        *abroad(Random("abroad")),
        *emojis(Random("emojis")),
        *emoji_endings([*tatoeba_kept, *12 * said], Random("endings")),
    ]
    train = {
        "tatoeba": tatoeba,
        "python-docs": pairs_of(data / "python-docs.tsv"),
        "captions": pairs_of({"chinese": data / "3am.train.zh", "english": data / "3am.train.en"}),
        "bare": list(bare(tatoeba_kept, Random("bare"))),
        "joined": list(joined(tatoeba_kept, Random("joined"))),
        "phrases": phrases,
        "headlines": headlines,
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
