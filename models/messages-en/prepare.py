"""Makes the shipped corpus messages-en: short messages and their summaries, from templates and a seed.

    python models/messages-en/prepare.py src/clearhead/shipped/corpora

Each message has one sentence with news and two or three without. The summary says who does what, and when: who wants to
write it must find the sentence and copy names, days and hours. The names in dev do not occur in train. Written for
clearhead and dedicated to the public domain (CC0 1.0).
"""

from __future__ import annotations

import gzip
import random
import sys
from pathlib import Path

TRAIN, DEV = 2000, 200

NAMES = [
    "Anna",
    "Ben",
    "Clara",
    "David",
    "Emma",
    "Felix",
    "Grace",
    "Henry",
    "Ines",
    "Jonas",
    "Kira",
    "Leo",
    "Mara",
    "Nils",
    "Olga",
    "Paul",
    "Rosa",
    "Simon",
    "Tina",
    "Uwe",
    "Vera",
    "Walter",
    "Yara",
    "Adam",
    "Bella",
    "Carl",
    "Dora",
    "Erik",
    "Fiona",
    "Georg",
    "Hanna",
    "Ivan",
    "Julia",
    "Karl",
    "Lena",
    "Max",
    "Nora",
    "Oscar",
    "Petra",
    "Ralf",
    "Sara",
    "Tom",
    "Ulla",
    "Viktor",
    "Wanda",
    "Amir",
    "Bianca",
    "Chen",
    "Diego",
    "Elif",
    "Farid",
    "Gita",
    "Hugo",
    "Irma",
    "Jamal",
    "Keiko",
    "Luis",
    "Mei",
    "Nadia",
    "Omar",
]
DEV_NAMES = [
    "Priya",
    "Quentin",
    "Rita",
    "Sven",
    "Tara",
    "Umar",
    "Violet",
    "Wei",
    "Xenia",
    "Yusuf",
    "Zoe",
    "Alan",
    "Betty",
    "Cyril",
]
DAYS = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
]
THINGS = [
    "meeting",
    "dinner",
    "lesson",
    "concert",
    "interview",
    "rehearsal",
    "party",
    "lecture",
    "game",
    "picnic",
]
PLACES = [
    "station",
    "library",
    "café",
    "park",
    "museum",
    "school",
    "office",
    "harbour",
    "market",
    "theatre",
]
OBJECTS = [
    "umbrella",
    "laptop",
    "camera",
    "bicycle",
    "guitar",
    "suitcase",
    "jacket",
    "dictionary",
    "ladder",
    "tent",
]
FILLERS = [
    "Thank you for your last message.",
    "The weather has been grey all week.",
    "My sister sends her regards.",
    "I hope that your cold is better.",
    "The trains were late again this morning.",
    "We are still painting the kitchen.",
    "Everybody here is talking about the holidays.",
    "I have just finished a long report.",
    "The coffee machine is broken once more.",
    "There is nothing new about the flat.",
    "I found your old photographs in a box.",
    "The neighbours have a new dog.",
]
NEWS = [
    ("{name} wants to move the {thing} from {day} to {other}.", "{name} moves the {thing} to {other}."),
    ("By the way, {name} had to cancel the {thing} on {day}.", "{name} cancels the {thing} on {day}."),
    ("Please meet {name} at the {place} at {hour} on {day}.", "Meet {name} at the {place} on {day} at {hour}."),
    ("{name} asks whether you could lend out your {object} until {day}.", "{name} wants to borrow the {object}."),
    ("Yesterday {name} left a {object} at the {place}.", "{name} forgot a {object} at the {place}."),
    ("{name} has invited all of us to the {thing} on {day} at {hour}.", "{name} invites us to the {thing} on {day}."),
]


def make_message(draw: random.Random, names: list[str]) -> tuple[str, str]:
    """A message and its summary."""
    day, other = draw.sample(DAYS, 2)
    values = {
        "name": draw.choice(names),
        "day": day,
        "other": other,
        "thing": draw.choice(THINGS),
        "place": draw.choice(PLACES),
        "object": draw.choice(OBJECTS),
        "hour": f"{draw.randint(8, 20)}:{draw.choice(['00', '15', '30', '45'])}",
    }
    news, summary = draw.choice(NEWS)
    sentences = draw.sample(FILLERS, draw.randint(2, 3))
    sentences.insert(draw.randint(0, len(sentences)), news.format(**values))
    return " ".join(sentences), summary.format(**values)


def make_table(rows: int, names: list[str], seed: int, taken: set[str]) -> str:
    """Rows of text and summary with a tab between, none of whose texts is taken."""
    draw, lines = random.Random(seed), list[str]()
    while len(lines) < rows:
        text, summary = make_message(draw, names)
        if text not in taken:
            taken.add(text)
            lines.append(f"{text}\t{summary}\n")
    return "".join(lines)


def main(folder: Path) -> None:
    taken = set[str]()
    for part, rows, names, seed in (("train", TRAIN, NAMES, 1), ("dev", DEV, DEV_NAMES, 2)):
        data = make_table(rows, names, seed, taken).encode()
        (folder / f"messages-en.{part}.tsv.gz").write_bytes(gzip.compress(data, compresslevel=9, mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
