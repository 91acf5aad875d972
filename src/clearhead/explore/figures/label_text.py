"""Label texts: tokens made safe to draw, in fonts that have their characters; how wide a text is."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache

from matplotlib.font_manager import FontProperties, fontManager, get_font
from matplotlib.textpath import text_to_path

import clearhead.shipped as shipped
from clearhead.explore.token_axis import display_tokens

LATIN, SHIPPED = "DejaVu Sans", "Clearhead CJK"  # the fonts that come with matplotlib and with clearhead
CHINESE = (  # installed with Linux, macOS and Windows; the shipped font comes after them
    *("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN", "PingFang SC"),
    *("Hiragino Sans GB", "Microsoft YaHei", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "SimHei", "Heiti SC"),
)
OTHERS = (  # scripts that neither LATIN nor CHINESE has
    *("Malgun Gothic", "Apple SD Gothic Neo", "NanumGothic", "Noto Sans Devanagari", "Noto Sans Bengali"),
    *("Noto Sans Tamil", "Nirmala UI", "Noto Sans Thai", "Leelawadee UI", "Thonburi", "Noto Sans Symbols2"),
    *("Segoe UI Symbol", "Noto Emoji"),
)
POINTS = 72  # in an inch
MAX_WIDTH = 16  # letters; a Chinese character counts as two
EMPTY, SPACE, GLUED, HOLDER, CUT = "∅", "␣", "·", "◌", "…"


@lru_cache(maxsize=1)
def list_families() -> tuple[str, ...]:
    """Font families in the order of lookup: Latin, Chinese of this machine, the shipped one, other scripts."""
    if SHIPPED not in fontManager.get_font_names():
        fontManager.addfont(shipped.FONT)
    installed = set(fontManager.get_font_names())
    chinese = [name for name in CHINESE if name in installed and _is_chinese(name)][:1]
    return (LATIN, *chinese, SHIPPED, *(name for name in OTHERS if name in installed))


def _is_chinese(family: str) -> bool:
    """Whether a font that matplotlib lists can be read, and has common Chinese characters."""
    try:
        return {ord(letter) for letter in "人的我"} <= _read_charmap(family)
    except (OSError, RuntimeError, ValueError):
        return False


@lru_cache(maxsize=32)
def _read_charmap(family: str) -> frozenset[int]:
    path = fontManager.findfont(FontProperties(family=family), fallback_to_default=False)
    return frozenset(get_font(path).get_charmap())


def has_glyph(letter: str) -> bool:
    """Whether any of the fonts has this character."""
    return any(ord(letter) in _read_charmap(family) for family in list_families())


def measure_width(text: str, size: float) -> float:
    """The width of a text in inches at a font size in points."""
    properties = FontProperties(family=list(list_families()), size=size)
    drawn, _, _ = text_to_path.get_text_width_height_descent(text, properties, ismath=False)
    return drawn / POINTS


def make_labels(tokens: Sequence[str | None]) -> list[str]:
    """The labels of tokens; one that continues a word begins with a dot.

    >>> make_labels(["▁un", "lock", "▁the", "▁door", ".", "\\t", "", "▁", "</s>"])
    ['un', '·lock', 'the', 'door', '.', '⇥', '∅', '␣', '⟨/s⟩']
    """
    labels, before = list[str](), ""
    shown, glued, _ = display_tokens([token or "" for token in tokens])
    for token, text, continues in zip(tokens, shown, glued, strict=True):
        dot = GLUED if continues and _in_word(before[-1:]) and _in_word(text[:1]) else ""
        labels.append(dot + make_drawable(text, MAX_WIDTH - len(dot)) if token else EMPTY)
        before = text
    return labels


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
    return next((letter for letter in visible if not has_glyph(letter)), "")


def stack_characters(label: str) -> str:
    """A label of Chinese characters from top to bottom; any other label unchanged."""
    return "\n".join(label) if label and all(is_wide(letter) for letter in label) else label


def wrap_text(text: str, inches: float, points: float) -> list[str]:
    """Lines no wider than `inches` at a font size in points; Chinese may be broken anywhere."""
    lines, room = [""], inches
    for part in re.findall(r"\s*(?:[^\s\u2e80-\uffef]+|\S)", text):
        wide = measure_width(part, points)
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
    if kind[0] in "CZ" or not has_glyph(letter):
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
