"""Errors under torchrun: the process that failed first reports, the others stay silent."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress

from clearhead.cli.output import print_message


def rank() -> int:
    """The rank of this process; 0 without torchrun."""
    return int(os.environ.get("RANK", "0"))


def report_failure(message: str) -> None:
    """Prints why the run failed, only in the process that failed first; torchrun shows it as the root cause."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        print_message(message)
        return
    try:
        from clearhead.train.processes import elect_reporter
    except ImportError:  # the message is about this very error
        if rank() == 0:
            print_message(message)
        return
    with elect_reporter() as mine:
        if mine:
            _write_error_file(message)
            print_message(message)


def _write_error_file(message: str) -> None:
    """Writes the message to the file and in the format that torchrun reads."""
    place = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if place:
        # torchrun shows the earliest failure, in whole seconds; the other processes fail in the same second.
        extra = {"py_callstack": message, "timestamp": str(int(time.time()) - 1)}
        with suppress(OSError), open(place, "w", encoding="utf-8") as file:
            json.dump({"message": {"message": message, "extraInfo": extra}}, file)
