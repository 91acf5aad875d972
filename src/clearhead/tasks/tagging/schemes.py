"""Tag schemes (IOB1, IOB2, BIOES, BMES): entities to tags and back, and which tag may follow which.

A tag is "O", or a letter, a hyphen and a label: "B-PER". The letters of all schemes are read alike, as `conlleval` and
`seqeval` read them, so a wrong sequence still gives entities; `write_tags` then gives the sequence that was meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

OUTSIDE = "O"
TAG = re.compile(r"O|[BIESMLU]-(?=\S).+", re.DOTALL)
SAME = {"M": "I", "L": "E", "U": "S"}  # BMES and BILOU write other letters for the same
# The letters of the first, an inner, the last and the only word of an entity.
LETTERS = {"iob1": "IIII", "iob2": "BIIB", "bioes": "BIES", "bmes": "BMES"}


class Span(NamedTuple):
    """An entity: words `begin` to `end` (not included), counted from 0, and its label."""

    begin: int
    end: int
    label: str


def is_tag(text: str) -> bool:
    """Whether a text is "O", or a scheme's letter, a hyphen and a label.

    >>> [is_tag(text) for text in ("O", "B-PER", "S-creative-work", "B-", "NN", "")]
    [True, True, True, False, False, False]
    """
    return TAG.fullmatch(text) is not None


def read_tags(tags: Sequence[str]) -> list[Span]:
    """The entities of a sequence of tags, of whichever scheme and however wrong.

    B and S begin an entity, E and S end one, and so does a tag with another label; an I without a B begins one, too.

    >>> read_tags(["B-PER", "I-PER", "O", "I-LOC", "I-ORG"])
    [Span(begin=0, end=2, label='PER'), Span(begin=3, end=4, label='LOC'), Span(begin=4, end=5, label='ORG')]
    """
    spans: list[Span] = []
    begin, before, last = 0, OUTSIDE, ""  # where the open entity began, and the letter and label of the last word
    for word, tag in enumerate([*tags, OUTSIDE]):
        letter, _, label = tag.partition("-")
        letter = SAME.get(letter, letter)
        inside = before in ("B", "I") and letter in ("I", "E") and label == last
        if before != OUTSIDE and not inside:
            spans.append(Span(begin, word, last))
        if not inside:
            begin = word
        before, last = letter, label
    return spans


def write_tags(spans: Iterable[Span], words: int, scheme: str) -> list[str]:
    """The tags of a sentence with these entities, which do not overlap.

    >>> write_tags([Span(0, 3, "ORG"), Span(3, 4, "ORG")], 5, "bioes")
    ['B-ORG', 'I-ORG', 'E-ORG', 'S-ORG', 'O']
    >>> write_tags([Span(0, 3, "ORG"), Span(3, 4, "ORG")], 5, "iob1")
    ['I-ORG', 'I-ORG', 'I-ORG', 'B-ORG', 'O']
    """
    first, inner, last, only = list(LETTERS[scheme])
    tags = [OUTSIDE] * words
    for begin, end, label in sorted(spans):
        letters = [only] if end == begin + 1 else [first, *[inner] * (end - begin - 2), last]
        if scheme == "iob1" and begin and tags[begin - 1][2:] == label:
            letters[0] = "B"
        tags[begin:end] = [f"{letter}-{label}" for letter in letters]
    return tags


def detect_scheme(sentences: Iterable[Sequence[str]]) -> str:
    """The scheme of a file's tags, by the letters that occur in it, and by where B stands.

    In IOB1 a B stands only after an entity of the same label; one B elsewhere makes it IOB2.

    >>> detect_scheme([["I-PER", "I-PER", "B-PER"]]), detect_scheme([["B-PER", "I-PER", "O", "I-LOC"]])
    ('iob1', 'iob2')
    >>> detect_scheme([["B-PER", "M-PER", "E-PER"]]), detect_scheme([["O", "S-PER"]]), detect_scheme([["O"]])
    ('bmes', 'bioes', 'iob2')
    """
    letters, begins_anywhere = set[str](), False
    for tags in sentences:
        before = ""
        for tag in tags:
            letter, _, label = tag.partition("-")
            letters.add(letter)
            begins_anywhere |= letter == "B" and before != label
            before = label
    if letters & {"M"}:
        return "bmes"
    if letters & {"E", "S", "L", "U"}:
        return "bioes"
    return "iob1" if "I" in letters and not begins_anywhere else "iob2"


def count_repairs(tags: Sequence[str], scheme: str) -> int:
    """How many tags of a sentence are not what its entities have in this scheme.

    >>> count_repairs(["O", "I-PER", "I-PER"], "iob2"), count_repairs(["O", "I-PER", "I-PER"], "iob1")
    (1, 0)
    """
    wanted = write_tags(read_tags(tags), len(tags), scheme)
    same = {"L": "E", "U": "S"} if scheme == "bioes" else {}
    written = [same.get(tag[0], tag[0]) + tag[1:] for tag in tags]
    return sum(tag != right for tag, right in zip(written, wanted, strict=True))


def list_tags(labels: Sequence[str], scheme: str) -> list[str]:
    """All tags of a scheme for these labels, "O" first.

    >>> list_tags(["LOC"], "bioes"), list_tags(["LOC"], "iob2")
    (['O', 'B-LOC', 'I-LOC', 'E-LOC', 'S-LOC'], ['O', 'B-LOC', 'I-LOC'])
    """
    letters = dict.fromkeys(LETTERS[scheme])
    return [OUTSIDE, *(f"{letter}-{label}" for label in labels for letter in letters)]


class Legality(NamedTuple):
    """Which tags may begin a sentence, follow each other (from row to column) and end it."""

    first: NDArray[np.bool_]
    between: NDArray[np.bool_]
    last: NDArray[np.bool_]


def legal_sequences(tags: Sequence[str]) -> Legality:
    """Which sequences of these tags, of IOB2 or BIOES, are legal.

    >>> legal_sequences(["O", "B-A", "I-A"]).between.astype(int)
    array([[1, 1, 0],
           [1, 1, 1],
           [1, 1, 1]])
    """
    closing = any(tag[0] in "ES" for tag in tags)  # an entity that began must be closed
    opens = np.array([tag[0] in "OBS" for tag in tags])
    closes = np.array([not closing or tag[0] in "OES" for tag in tags])
    numbers = {label: number for number, label in enumerate(dict.fromkeys(tag[2:] for tag in tags))}
    label = np.array([numbers[tag[2:]] for tag in tags])
    goes_on = np.array([tag[0] in "BI" for tag in tags])
    continues = np.array([tag[0] in "IE" for tag in tags])
    inner = goes_on[:, None] & continues & (label[:, None] == label)
    return Legality(opens, (closes[:, None] & opens[None, :]) | inner, closes)


def tag_order(tag: str) -> tuple[bool, str, int]:
    """A key to sort tags for tables: by label, B before I, M, E, S; "O" last."""
    letter, _, label = tag.partition("-")
    return tag == OUTSIDE, label, "BIMES".find(letter)
