"""Output on stdout, messages on stderr, closed streams, and the exit code and message for an error."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
import time
from contextlib import suppress
from typing import Any

import clearhead.formatting as formatting
from clearhead.errors import ClearheadError, ConfigError, DataError, DiskFullError, TrainingError, out_of_memory
from clearhead.formatting import escape_control

EXTRAS = {"matplotlib": "explore", "fastapi": "serve", "uvicorn": "serve", "transformers": "hf"}


class _ClosedOutput(io.TextIOBase):
    """Takes the place of a standard output that was closed before the start; refuses all text."""

    def write(self, text: str) -> int:
        raise ConfigError("the standard output is closed; redirect it to a file, or to /dev/null")


def prepare_streams() -> None:
    """Sets the standard streams to UTF-8 in every locale, and replaces those that are closed."""
    for descriptor in (0, 1, 2):  # what opens next would otherwise get this number, and what libraries print to it
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = _ClosedOutput()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (open until the end)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def discard_output() -> None:
    """Discards what stdout and stderr still hold: their reader has left, and Python flushes them at its exit."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_output(text: str, end: str = "\n") -> None:
    """Prints text or a line of JSON to stdout; control characters, which may come from a file, are escaped."""
    print(escape_control(text), end=end)


def flush_output() -> None:
    sys.stdout.flush()


def print_message(message: str) -> None:
    """Prints a message of the command line to stderr."""
    formatting.print_message(f"clearhead: {message}")


def rank() -> int:
    """The rank of this process; 0 without torchrun."""
    return int(os.environ.get("RANK", "0"))


def report_failure(error: Exception, message: str) -> None:
    """Prints why the command failed. Under torchrun it writes the file from which torchrun prints the root cause."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path is None:
        print_message(message)
        return
    # torchrun shows the earliest failure, in whole seconds. A RuntimeError may only say that another process is gone.
    is_cause = isinstance(error, ClearheadError) or not isinstance(error, RuntimeError)
    details = {"py_callstack": message, "timestamp": str(int(time.time()) - is_cause)}
    with suppress(OSError), open(path, "w", encoding="utf-8") as file:
        json.dump({"message": {"message": message, "extraInfo": details}}, file)


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
        name = "" if error.filename is None else f"{error.filename}: "
        full = " (the disk is full)" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        return 2 if wrong else 1, f"{name}{error.strerror or error}{full}"
    return 1, (
        f"{type(error).__name__}: {error}; this is a bug: please report it with the traceback "
        "that CLEARHEAD_TRACEBACK=1 shows"
    )
