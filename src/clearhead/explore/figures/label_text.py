"""Label texts: tokens made safe to draw, on one line, with visible blanks and no missing glyphs."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from clearhead.explore.figures import fonts
from clearhead.explore.token_axis import display_tokens

MAX_WIDTH = 16  # letters; a Chinese character counts as two
EMPTY, SPACE, GLUED, HOLDER, CUT = "∅", "␣", "·", "◌", "…"


def make_labels(tokens: Sequence[str | None]) -> list[str]:
    """The labels of tokens; one that continues a word begins with a dot.

    >>> make_labels(["▁un", "lock", "▁the", "▁door", ".", "\\t", "", "▁", "</s>"])
    ['un', '·lock', 'the', 'door', '.', '⇥', '∅', '␣', '⟨/s⟩']
    """
    labels, before = list[str](), ""
    for token, word in zip(tokens, display_tokens([token or "" for token in tokens]), strict=True):
        dot = GLUED if word.glued and _in_word(before[-1:]) and _in_word(word.shown[:1]) else ""
        labels.append(dot + make_drawable(word.shown, MAX_WIDTH - len(dot)) if token else EMPTY)
        before = word.shown
    return labels


def make_axis_labels(texts: Sequence[str | None] | None, positions: Sequence[int]) -> list[str]:
    """The labels of tokens, or their positions where the texts are not known."""
    return [str(position) for position in positions] if texts is None else make_labels(texts)


def make_drawable(text: str, widest: int = MAX_WIDTH) -> str:
    """A text that is safe to draw: one line, cut to `widest` letters, code points instead of missing glyphs.

    >>> [make_drawable(text) for text in ("Donaudampfschifffahrt", "a\\tb", "\\ud800", "人工智能")]
    ['Donaudampf…hrt', 'a\\\\tb', 'U+D800', '人工智能']
    """
    if not text:
        return EMPTY
    if len(text) > 4 * widest:  # the middle would be cut anyway
        text = text[: 2 * widest] + text[-2 * widest :]
    pieces = [_make_visible(letter, index, text) for index, letter in enumerate(text)]
    if sum(map(_count_columns, pieces)) <= widest:
        return _join_pieces(pieces)
    first = _take_fitting(pieces, widest - 6)
    last = _take_fitting(pieces[: len(first) - 1 : -1], 3)[::-1]
    return f"{_join_pieces(first)}{CUT}{_join_pieces(last)}"


def find_missing_character(texts: Iterable[str | None]) -> str:
    """A visible character of these texts that no font has; "" if there is none."""
    letters = {letter for text in texts for letter in text or ""}
    visible = (letter for letter in sorted(letters) if unicodedata.category(letter)[0] in "LNPS")
    return next((letter for letter in visible if not fonts.has_glyph(letter)), "")


def stack_characters(label: str) -> str:
    """A label of Chinese characters from top to bottom; any other label unchanged.

    >>> stack_characters("人工"), stack_characters("word")
    ('人\\n工', 'word')
    """
    return "\n".join(label) if label and all(is_wide(letter) for letter in label) else label


def wrap_text(text: str, inches: float, points: float) -> list[str]:
    """Lines no wider than `inches` at a font size in points; Chinese may be broken anywhere.

    >>> wrap_text("one two three", 0.6, 10.0)
    ['one two', 'three']
    """
    lines, room = [""], inches
    for part in re.findall(r"\s*(?:[^\s\u2e80-\uffef]+|\S)", text):
        wide = fonts.measure_width(part, points)
        if wide > room and lines[-1]:
            lines, room = [*lines, part.lstrip()], inches
        else:
            lines[-1] += part
        room -= wide
    return [line for line in lines if line]


def is_wide(letter: str) -> bool:
    return unicodedata.east_asian_width(letter) in "WF"


def _make_visible(letter: str, index: int, text: str) -> str:
    """The character of a text at an index, or what is drawn instead of it."""
    kind = unicodedata.category(letter)
    if letter == " ":
        return SPACE if index in (0, len(text) - 1) else letter
    if kind == "Cc":
        return ascii(letter)[1:-1]
    if letter in "\ufe0e\ufe0f" and index > 0:  # variation selectors are invisible
        return ""
    if kind[0] in "CZ" or not fonts.has_glyph(letter):
        return f"U+{ord(letter):04X}"
    return HOLDER + letter if kind[0] == "M" and index == 0 else letter


def _count_columns(piece: str) -> int:
    return sum(2 if is_wide(letter) else 1 for letter in piece)


def _take_fitting(pieces: Sequence[str], widest: int) -> list[str]:
    """The first pieces that fit, at least one."""
    fitting, used = list[str](), 0
    for piece in pieces:
        used += _count_columns(piece)
        if fitting and used > widest:
            break
        fitting.append(piece)
    return fitting


def _join_pieces(pieces: Sequence[str]) -> str:
    """One string, with spaces around code points."""
    text, coded = "", False
    for piece in pieces:
        before, coded = coded, len(piece) > 1 and piece.startswith("U+")
        text += f" {piece}" if text and piece and (coded or before) else piece
    return text


def _in_word(letter: str) -> bool:
    return letter.isalnum() and not is_wide(letter)
