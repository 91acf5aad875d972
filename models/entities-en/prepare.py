"""Makes the shipped corpora `entities-en.train` and `entities-en.dev` from WNUT 2017.

    python models/entities-en/prepare.py WNUT17/train.conll src/clearhead/shipped/corpora

Kept are sentences of 4 to 40 words in plain letters, without words that do not belong into a classroom: all with an
entity, and as many without one. Names of users become @user, addresses become URL. Every sixth is for dev.
"""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path

# Roots of rude, sexual, violent and political words, with which Twitter is rich.
UNWANTED = re.compile(
    r"fuck|fck|shit|bitch|cunt|dick|cock|puss|tits|boob|ass\b|arse|asshole|bastard|crap|damn|dang|piss|whore|slut|sex|porn|"
    r"rape|nazi|hitler|jew|muslim|islam|christ|\bgod|jesus|trump|obama|clinton|republican|democrat|liberal|racis|black|"
    r"white|gay|trans|lesb|queer|fag|nigg|nigga|retard|idiot|moron|stupid|dumb|kill|murder|suicid|die\b|dead|death|gun|"
    r"shoot|shot|drug|weed|drunk|beer|vodka|hell\b|sucks?\b|wtf|lmao|lmfao|stfu|hate|ugly|abus|terroris|communis|feminis|"
    r"abort|cancer|nude|naked|horny|virgin|wank|bloody|pedo|\bhoe|thot|scum|trash|garbage|pathetic|loser|smoke|blunt|"
    r"bomb|attack|war\b",
    re.IGNORECASE,
)
Sentence = list[tuple[str, str]]  # word, tag


def read(file: Path) -> list[Sentence]:
    blocks = re.split(r"\n\s*\n", file.read_text(encoding="utf-8-sig"))
    lines = [[line.split("\t") for line in block.splitlines() if line.strip()] for block in blocks]
    return [[(anonymise(word), tag) for word, tag in block] for block in lines if block]


def anonymise(word: str) -> str:
    if word.startswith("@") and len(word) > 1:
        return "@user"
    return "URL" if re.match(r"(https?:|www\.)", word, re.IGNORECASE) else word


def usable(sentence: Sentence) -> bool:
    text = " ".join(word for word, _ in sentence)
    return 4 <= len(sentence) <= 40 and text.isascii() and not UNWANTED.search(text)


def select(sentences: list[Sentence]) -> list[Sentence]:
    """All sentences with an entity, and the first ones without, as many; each once, in the order of the file."""
    named, plain, seen = list[int](), list[int](), set[str]()
    for place, sentence in enumerate(sentences):
        text = " ".join(word for word, _ in sentence).lower()
        if usable(sentence) and text not in seen:
            seen.add(text)
            (named if any(tag != "O" for _, tag in sentence) else plain).append(place)
    return [sentences[place] for place in sorted([*named, *plain[: len(named)]])]


def main(source: Path, target: Path) -> None:
    chosen = select(read(source))
    dev = chosen[::6]
    train = [sentence for place, sentence in enumerate(chosen) if place % 6]
    for part, sentences in (("train", train), ("dev", dev)):
        text = "\n".join("".join(f"{word}\t{tag}\n" for word, tag in sentence) for sentence in sentences)
        data = gzip.compress(text.encode(), compresslevel=9, mtime=0)
        (target / f"entities-en.{part}.tsv.gz").write_bytes(data)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
