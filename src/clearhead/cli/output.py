"""Output on stdout, messages on stderr, and the exit code and message for an error."""

from __future__ import annotations

import errno
import sys
from typing import Any

from clearhead.errors import ClearheadError, DataError, DiskFullError, TrainingError, out_of_memory
from clearhead.formatting import escape_control

EXTRAS = {"matplotlib": "explore", "fastapi": "serve", "uvicorn": "serve", "transformers": "hf"}


class StdoutClosed(Exception):
    """The reader of stdout has closed it, as `| head` does."""


def print_output(text: str, end: str = "\n") -> None:
    """Prints text or a line of JSON to stdout; control characters, which may come from a file, are escaped."""
    try:
        print(escape_control(text), end=end)
    except BrokenPipeError:
        raise StdoutClosed from None


def flush_output() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise StdoutClosed from None


def print_message(message: str) -> None:
    """Prints a message to stderr; control characters, which may come from a file, are escaped."""
    print(f"clearhead: {escape_control(message)}", file=sys.stderr, flush=True)


def describe_error(error: Exception) -> tuple[int, str]:
    """The exit code and the message for an error."""
    message = getattr(error, "format_message", None)
    if message is not None:  # the command line itself is wrong
        context: Any = getattr(error, "ctx", None)
        program = context.command_path if context else "clearhead"
        return 2, f"{message() or 'a command is missing'} ({program} --help lists all options)"
    if isinstance(error, DataError):
        return 2, escape_control(str(error), keep="")  # one line, whatever a file's name is
    if isinstance(error, ClearheadError):
        return 1 if isinstance(error, (TrainingError, DiskFullError)) else 2, str(error)
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("clearhead"):
        extra = EXTRAS.get(str(error.name).split(".")[0], "train")
        return 2, f'the package {error.name} is missing; pip install "clearhead[{extra}]"'
    if out_of_memory(error):
        return 1, (
            "out of memory; use a smaller --batch or --beam, or, in training, a smaller train.batch_tokens, "
            "train.checkpointing=true or a smaller model"
        )
    if isinstance(error, OSError):
        wrong = isinstance(error, (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError))
        place = "" if error.filename is None else f"{error.filename}: "
        full = " (the disk is full)" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        return 2 if wrong else 1, f"{place}{error.strerror or error}{full}"
    return 1, (
        f"{type(error).__name__}: {error}; this is a bug: please report it with the traceback "
        "that CLEARHEAD_TRACEBACK=1 shows"
    )
