"""Input texts of a command, from its arguments or from the lines of the standard input, in UTF-8."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator

from clearhead.errors import ConfigError, DataError

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
    return decode_utf8(sys.stdin.buffer.read(), "the standard input").removeprefix("\ufeff").rstrip("\r\n")


def batch_inputs(texts: Iterable[str], batch_size: int) -> Iterator[list[str]]:
    """Lists of `batch_size` texts; if a line is not UTF-8, the lines before it still come first."""
    batch, broken = list[str](), None
    try:
        for text in texts:
            batch.append(text)
            if len(batch) == batch_size:
                yield batch
                batch = []
    except DataError as error:
        broken = error
    if batch:
        yield batch
    if broken is not None:
        raise broken


def _read_lines(stream: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(stream, 1):
        text = decode_utf8(line, f"line {number} of the standard input").removesuffix("\n").removesuffix("\r")
        yield text.removeprefix("\ufeff") if number == 1 else text


def decode_utf8(raw: bytes, name: str) -> str:
    """The text that these bytes are in UTF-8; `name` says in the error where they come from."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte, where = raw[error.start], error.start + 1
        raise DataError(
            f"{name} is not UTF-8: byte 0x{byte:02X} at place {where}; convert it first, as iconv does"
        ) from None
