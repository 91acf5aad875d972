"""The process that a command runs in: its standard streams, PyTorch with its threads, Ctrl-C, and messages for errors.

The threads were measured in benchmarks/results/threads_cpu_2026-11-16.md.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from clearhead.errors import ClearheadError, ConfigError, DataError, DiskFullError, TrainingError, out_of_memory
from clearhead.formatting import escape_control, print_message

TABLE = re.compile(r"\.(csv|tsv|jsonl?)(\.(gz|xz))?$", re.IGNORECASE)  # the end of its name
EXTRAS = {"matplotlib": "explore", "fastapi": "serve", "uvicorn": "serve", "transformers": "hf"}
INTERRUPTED = 130  # the exit code after Ctrl-C, as shells have it
READ_AHEAD = 4  # batches of lines are read before one is answered: sorted by length, they need less padding
# How OpenMP's threads wait for each other, unless the user set one of these. By itself GNU's OpenMP spins for 300,000
# iterations, and keeps a core busy that the awaited thread may need: beside another program, up to six times slower.
WAIT_POLICY, SPINS = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"


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


def one_line(text: str) -> str:
    return text.translate({ord(mark): " " for mark in "\r\n\t"})


def flush_output() -> None:
    sys.stdout.flush()


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


def find_table(texts: list[str] | None) -> Path | None:
    """The table whose rows are the inputs, if that is what a command was given: an existing CSV, TSV or JSONL."""
    tables = [text for text in texts or [] if TABLE.search(text) and os.path.isfile(text)]
    if tables and len(texts or []) > 1:
        raise ConfigError(f"{tables[0]} is a table; give it alone, and other inputs in another call")
    return Path(tables[0]) if tables else None


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


def limit_spinning() -> None:
    """Lets waiting threads sleep, unless the user set something else; OpenMP reads this when PyTorch is imported."""
    if "torch" not in sys.modules and WAIT_POLICY not in os.environ and SPINS not in os.environ:
        os.environ[WAIT_POLICY] = "PASSIVE"


def import_torch(threads: int | None) -> None:
    """Imports PyTorch and sets its number of CPU threads; None keeps the defaults of PyTorch and the tokenizers."""
    limit_spinning()
    if threads is not None:
        os.environ["RAYON_NUM_THREADS"] = str(threads)  # the tokenizers' threads, which start at their first use
    with _exit_on_interrupt():
        import torch
    if threads is not None:
        torch.set_num_threads(threads)


@contextmanager
def _exit_on_interrupt() -> Iterator[None]:
    """Ctrl-C ends the process at once: PyTorch's import of NumPy swallows a KeyboardInterrupt."""
    if "torch" in sys.modules or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(*_: Any) -> None:
    if rank() == 0:
        print_message("clearhead: interrupted")
    os._exit(INTERRUPTED)


def rank() -> int:
    """The rank of this process; 0 without torchrun."""
    return int(os.environ.get("RANK", "0"))


def report_failure(error: Exception, message: str) -> None:
    """Prints why the command failed. Under torchrun it writes the file from which torchrun prints the root cause."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path is None:
        print_message(f"clearhead: {message}")
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
