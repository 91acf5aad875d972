"""What comes from the user: texts of the command line or lines of the standard input, all in UTF-8."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator

from clearhead.errors import ConfigError, DataError

READ_AHEAD = 4  # batches' worth of lines are read before they are answered: sorted by length, they need fewer pads


def inputs(texts: list[str] | None, batch: int) -> tuple[Iterable[str], str, int]:
    """What to answer, what to call one of them, and how many to take at a time."""
    if texts and texts != ["-"]:
        if "-" in texts:
            raise ConfigError("- means the lines of the standard input, and stands alone")
        return (utf8(os.fsencode(text), f"text {number}") for number, text in enumerate(texts, 1)), "text", batch
    if sys.stdin is None or (not texts and sys.stdin.isatty()):
        raise ConfigError("there is nothing to answer; give a TEXT, or - for the lines of the standard input")
    at_once = 1 if batch == 1 or sys.stdin.isatty() else READ_AHEAD * batch
    return _lines(sys.stdin.buffer), "line", at_once


def one_text(text: str | None) -> str | None:
    """One text, from the command line or the standard input."""
    if text != "-":
        return None if text is None else utf8(os.fsencode(text), "TEXT")
    if sys.stdin is None:
        raise ConfigError("there is no standard input to read")
    return utf8(sys.stdin.buffer.read(), "the standard input").removeprefix("\ufeff").rstrip("\r\n")


def groups(inputs: Iterable[str], at_once: int) -> Iterator[list[str]]:
    """So many at a time; what comes before a broken line is still answered."""
    some, broken = list[str](), None
    try:
        for text in inputs:
            some.append(text)
            if len(some) == at_once:
                yield some
                some = []
    except DataError as error:
        broken = error
    if some:
        yield some
    if broken is not None:
        raise broken


def _lines(stream: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(stream, 1):
        text = utf8(line, f"line {number} of the standard input").removesuffix("\n").removesuffix("\r")
        yield text.removeprefix("\ufeff") if number == 1 else text


def utf8(raw: bytes, place: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte, where = raw[error.start], error.start + 1
        raise DataError(
            f"{place} is not UTF-8: byte 0x{byte:02X} at place {where}; convert it first, as iconv does"
        ) from None
