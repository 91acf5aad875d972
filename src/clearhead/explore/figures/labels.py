"""Tokens as labels: whatever they are, one can tell which is which, and nothing breaks."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from clearhead.explore.figures import fonts
from clearhead.explore.words import words

WIDEST = 16  # letters; a Chinese character counts for two
EMPTY, SPACE, GLUED, HOLDER, CUT = "∅", "␣", "·", "◌", "…"


def labels(tokens: Sequence[str | None]) -> list[str]:
    """Tokens as they are written beside a figure; what goes on a word has a dot before it.

    >>> labels(["▁un", "lock", "▁the", "▁door", ".", "\\t", "", "▁", "</s>"])
    ['un', '·lock', 'the', 'door', '.', '⇥', '∅', '␣', '⟨/s⟩']
    """
    found, before = list[str](), ""
    for token, word in zip(tokens, words([token or "" for token in tokens]), strict=True):
        dot = GLUED if word.glued and _in_word(before[-1:]) and _in_word(word.shown[:1]) else ""
        found.append(dot + shown(word.shown, WIDEST - len(dot)) if token else EMPTY)
        before = word.shown
    return found


def shown(text: str, widest: int = WIDEST) -> str:
    """A text that is safe to draw: on one line, no wider than so many letters, what no font has as its code point.

    >>> shown("Donaudampfschifffahrt"), shown("a\\tb"), shown("\\ud800"), shown("人工智能")
    ('Donaudampf…hrt', 'a\\\\tb', 'U+D800', '人工智能')
    """
    if not text:
        return EMPTY
    if len(text) > 4 * widest:  # what lies between is never shown
        text = text[: 2 * widest] + text[-2 * widest :]
    pieces = [_piece(letter, place, text) for place, letter in enumerate(text)]
    if sum(map(_columns, pieces)) <= widest:
        return _joined(pieces)
    first = _fitting(pieces, widest - 6)
    last = _fitting(pieces[: len(first) - 1 : -1], 3)[::-1]
    return f"{_joined(first)}{CUT}{_joined(last)}"


def missing(texts: Iterable[str | None]) -> str:
    """A character of these texts that people would see, if only a font had it; or nothing."""
    letters = {letter for text in texts for letter in text or ""}
    return next((one for one in sorted(letters) if _is_seen(one) and not fonts.covered(one)), "")


def stacked(label: str) -> str:
    """A label in Chinese characters from top to bottom, where there is little room; any other stays as it is.

    >>> stacked("人工"), stacked("word")
    ('人\\n工', 'word')
    """
    return "\n".join(label) if label and all(is_wide(letter) for letter in label) else label


def wrapped(text: str, inches: float, points: float) -> list[str]:
    """Lines no wider than so many inches, at letters of so many points; Chinese may be cut anywhere.

    >>> wrapped("one two three", 0.6, 10.0)
    ['one two', 'three']
    """
    lines, room = [""], inches
    for part in re.findall(r"\s*(?:[^\s\u2e80-\uffef]+|\S)", text):
        wide = fonts.width(part, points)
        if wide > room and lines[-1]:
            lines, room = [*lines, part.lstrip()], inches
        else:
            lines[-1] += part
        room -= wide
    return [line for line in lines if line]


def is_wide(letter: str) -> bool:
    return unicodedata.east_asian_width(letter) in "WF"


def _is_seen(letter: str) -> bool:
    return unicodedata.category(letter)[0] in "LNPS"


def _piece(letter: str, place: int, text: str) -> str:
    """A character as it is shown."""
    kind = unicodedata.category(letter)
    if letter == " ":
        return SPACE if place == 0 or place == len(text) - 1 else letter
    if kind == "Cc":
        return ascii(letter)[1:-1]
    if letter in "\ufe0e\ufe0f" and place > 0:  # they only choose between two forms of the sign before
        return ""
    if kind[0] in "CZ" or not fonts.covered(letter):
        return f"U+{ord(letter):04X}"
    return HOLDER + letter if kind[0] == "M" and place == 0 else letter


def _columns(piece: str) -> int:
    return sum(2 if is_wide(letter) else 1 for letter in piece)


def _fitting(pieces: Sequence[str], widest: int) -> list[str]:
    """As many as fit, at least one."""
    kept, used = list[str](), 0
    for piece in pieces:
        used += _columns(piece)
        if kept and used > widest:
            break
        kept.append(piece)
    return kept


def _joined(pieces: Sequence[str]) -> str:
    """One string, in which code points do not run into each other."""
    text, coded = "", False
    for piece in pieces:
        before, coded = coded, len(piece) > 1 and piece.startswith("U+")
        text += f" {piece}" if text and piece and (coded or before) else piece
    return text


def _in_word(letter: str) -> bool:
    return letter.isalnum() and not is_wide(letter)
