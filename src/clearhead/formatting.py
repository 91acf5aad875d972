"""Text for messages and numbers that users write: sizes, counts, escaped characters, a hint for an unknown name."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

DIGITS = 18  # of a number that fits into 64 bits


def format_bytes(count: int) -> str:
    """
    >>> format_bytes(1_500_000_000), format_bytes(2_340_000), format_bytes(560)
    ('1.5 GB', '2.3 MB', '560 bytes')
    """
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count} bytes"


def format_duration(seconds: float) -> str:
    """
    >>> format_duration(42.0), format_duration(200.0), format_duration(7300.0)
    ('42 s', '3 min 20 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def format_count(count: int, noun: str, plural: str | None = None) -> str:
    """
    >>> format_count(1, "step"), format_count(2000, "step"), format_count(0, "query", "queries")
    ('1 step', '2,000 steps', '0 queries')
    """
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def parse_whole_number(text: str) -> int | None:
    """The number that ASCII digits write; None for any other text, and for more than 18 digits.

    >>> parse_whole_number("042"), parse_whole_number("٣"), parse_whole_number("-1"), parse_whole_number("9" * 5000)
    (42, None, None, None)
    """
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= DIGITS else None


def escape_control(text: str, *, keep: str = "\n\t") -> str:
    r"""The text with escaped control characters, which could otherwise clear a terminal or move its cursor.

    The characters in `keep` stay. A line of JSON stays JSON: it has no character below U+0020, and the escapes of those
    from U+007F on are JSON's own.

    >>> print(escape_control("\x1b[2J \x9b"), escape_control("a\nb", keep=""))
    \x1b[2J \u009b a\nb
    """

    def escape(match: re.Match[str]) -> str:
        mark = match[0]
        if mark in keep:
            return mark
        return ascii(mark)[1:-1] if mark < " " else f"\\u{ord(mark):04x}"

    return re.sub(r"[\x00-\x1f\x7f-\x9f]", escape, text)


def print_message(text: str) -> None:
    """Prints a message to stderr; control characters, which may come from a file, are escaped."""
    print(escape_control(text), file=sys.stderr, flush=True)


def suggest_name(name: Any, choices: Iterable[str], otherwise: str | None = None) -> str:
    """The choice that is most similar to an unknown name; `otherwise` (by default all choices) if none is.

    >>> suggest_name("step", ["steps", "minutes"]), suggest_name("x", ["steps", "minutes"])
    ("did you mean 'steps'?", 'choose from steps, minutes')
    """
    names = list(choices)
    near = get_close_matches(str(name), names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"choose from {', '.join(names) or 'nothing'}" if otherwise is None else otherwise
