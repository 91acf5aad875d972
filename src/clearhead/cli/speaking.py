"""What goes to the user: output, messages apart from it, and errors in words."""

from __future__ import annotations

import errno
import sys
from typing import Any

from clearhead.errors import ClearheadError, DiskFullError, TrainingError, out_of_memory

EXTRAS = {"matplotlib": "explore", "fastapi": "serve", "uvicorn": "serve", "transformers": "hf"}


class StdoutClosed(Exception):
    """Nobody reads on, as after `| head`."""


def put(text: str, end: str = "\n") -> None:
    try:
        print(text, end=end)
    except BrokenPipeError:
        raise StdoutClosed from None


def flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise StdoutClosed from None


def say(message: str) -> None:
    """To the user, apart from the output; control characters, which may come from a file, cannot play tricks."""
    plain = "".join(mark if mark.isprintable() or mark == "\n" else ascii(mark)[1:-1] for mark in message)
    print(f"clearhead: {plain}", file=sys.stderr, flush=True)


def explained(error: Exception) -> tuple[int, str]:
    """The exit code for an error, and what to say about it."""
    said = getattr(error, "format_message", None)
    if said is not None:  # the command line itself is wrong
        context: Any = getattr(error, "ctx", None)
        return 2, f"{said() or 'say what to do'} ({context.command_path if context else 'clearhead'} --help says more)"
    if isinstance(error, ClearheadError):
        return 1 if isinstance(error, (TrainingError, DiskFullError)) else 2, str(error)
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("clearhead"):
        extra = EXTRAS.get(str(error.name).split(".")[0], "train")
        return 2, f'the package {error.name} is missing; pip install "clearhead[{extra}]"'
    if out_of_memory(error):
        return 1, (
            "out of memory; take a smaller --batch or --beam, or, in training, a smaller train.batch_tokens, "
            "train.checkpointing=true or a smaller model"
        )
    if isinstance(error, OSError):
        wrong = isinstance(error, (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError))
        place = "" if error.filename is None else f"{error.filename}: "
        full = " (the disk is full)" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        return 2 if wrong else 1, f"{place}{error.strerror or error}{full}"
    return 1, (
        f"{type(error).__name__}: {error}; this should not happen: CLEARHEAD_TRACEBACK=1 shows where, and a report "
        "of it is welcome"
    )
