"""Input texts of a command, from its arguments or from the lines of the standard input, in UTF-8."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator

from clearhead.errors import ConfigError, DataError

# How PNG, JPEG, GIF, WAV, WebP and FLAC files begin, with bytes that no text has
MEDIA = re.compile(rb"\x89PNG|\xff\xd8\xff|GIF8[79]a.{4}[\x80-\xff]|RIFF.{4}(WAVEfmt |WEBPVP8)|fLaC\0", re.DOTALL)
READ_AHEAD = 4  # batches of lines are read before one is answered: sorted by length, they need less padding


def open_inputs(texts: list[str] | None, batch: int) -> tuple[Iterable[str], str, int]:
    """The texts to answer, the word for one of them in messages, and how many to read at a time."""
    if texts and texts != ["-"]:
        if "-" in texts:
            raise ConfigError("- means the lines of the standard input; it cannot be combined with other texts")
        return (decode_utf8(os.fsencode(text), f"text {number}") for number, text in enumerate(texts, 1)), "text", batch
    if sys.stdin is None:
        raise ConfigError("there is nothing to answer: the standard input is closed; give an INPUT")
    if not texts and sys.stdin.isatty():
        raise ConfigError("there is nothing to answer; give an INPUT, or - for the lines of the standard input")
    batch_size = 1 if batch == 1 or sys.stdin.isatty() else READ_AHEAD * batch
    return _read_lines(sys.stdin.buffer), "line", batch_size


def read_text(text: str | None) -> str | None:
    """The one text of a command: its argument, or all of the standard input if that is `-`."""
    if text != "-":
        return None if text is None else decode_utf8(os.fsencode(text), "INPUT")
    if sys.stdin is None:
        raise ConfigError("the standard input is closed; give an INPUT")
    raw = sys.stdin.buffer.read()
    _refuse_media(raw)
    return decode_utf8(raw, "the standard input").removeprefix("\ufeff").rstrip("\r\n")


def batch_inputs(texts: Iterable[str], batch_size: int) -> Iterator[list[str]]:
    """Lists of `batch_size` texts; if a line is not UTF-8, the lines before it still come first."""
    some, broken = list[str](), None
    try:
        for text in texts:
            some.append(text)
            if len(some) == batch_size:
                yield some
                some = []
    except DataError as error:
        broken = error
    if some:
        yield some
    if broken is not None:
        raise broken


def _read_lines(stream: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(stream, 1):
        if number == 1:
            _refuse_media(line)
        text = decode_utf8(line, f"line {number} of the standard input").removesuffix("\n").removesuffix("\r")
        yield text.removeprefix("\ufeff") if number == 1 else text


def _refuse_media(raw: bytes) -> None:
    if MEDIA.match(raw):
        raise DataError("the standard input is a picture or a sound, but - reads texts or paths; give the file's path")


def decode_utf8(raw: bytes, place: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte, where = raw[error.start], error.start + 1
        raise DataError(
            f"{place} is not UTF-8: byte 0x{byte:02X} at place {where}; convert it first, as iconv does"
        ) from None
