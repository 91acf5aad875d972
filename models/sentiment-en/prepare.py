"""Makes the shipped corpora `sentiment-en.train` and `sentiment-en.dev` from GoEmotions.

    python models/sentiment-en/prepare.py GOEMOTIONS src/clearhead/shipped/corpora

GOEMOTIONS is a folder with train.tsv and dev.tsv: text, numbers of labels, id. Kept are comments that are only positive
or only negative, of 15 to 100 characters, without names in brackets and without words that do not belong into a
classroom; as many positive as negative ones.
"""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path

LABELS = {"1": "negative", "3": "positive"}
COUNTS = {"train": 3000, "dev": 250}  # of each label
# Roots of rude, sexual, violent and political words, with which Reddit is rich.
UNWANTED = re.compile(
    r"\[|http|/r/|/u/|r/|u/|fuck|shit|bitch|cunt|dick|cock|puss|tit[s ]|boob|ass\b|arse|asshole|bastard|crap|damn|"
    r"piss|whore|slut|sex|porn|rape|nazi|hitler|jew|muslim|christ|god|jesus|trump|obama|clinton|republican|democrat|"
    r"liberal|racis|black|white|gay|trans|lesb|queer|fag|nigg|retard|idiot|moron|stupid|dumb|kill|murder|suicid|die\b|"
    r"dead|death|gun|shoot|drug|weed|drunk|hell\b|sucks?\b|wtf|lmao|stfu|hate|ugly|abus|terroris|communis|feminis|"
    r"abort|cancer|nude|naked|horny|virgin|nuts|wank|bloody|pedo|incel|hoe|thot|scum|trash|garbage|pathetic|loser",
    re.IGNORECASE,
)


def usable(text: str) -> bool:
    return 15 <= len(text) <= 100 and text.isascii() and not UNWANTED.search(text)


def select(file: Path, count: int) -> list[tuple[str, str, str]]:
    """The first so many comments of each label, in the order of the file."""
    left, rows, seen = dict.fromkeys(LABELS.values(), count), [], set()
    for line in file.read_text(encoding="utf-8").splitlines():
        text, labels, name = line.split("\t")
        label, text = LABELS.get(labels), " ".join(text.split())
        if label is not None and left[label] and usable(text) and text.lower() not in seen:
            seen.add(text.lower())
            left[label] -= 1
            rows.append((text, label, name))
    return rows


def main(source: Path, target: Path) -> None:
    train = select(source / "train.tsv", COUNTS["train"])
    known = {text.lower() for text, *_ in train}
    dev = [row for row in select(source / "dev.tsv", COUNTS["dev"]) if row[0].lower() not in known]
    for part, rows in (("train", train), ("dev", dev)):
        data = "".join("\t".join(row) + "\n" for row in rows).encode()
        (target / f"sentiment-en.{part}.tsv.gz").write_bytes(gzip.compress(data, compresslevel=9, mtime=0))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
