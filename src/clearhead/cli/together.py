"""Several processes, started by torchrun, that say together what one would say."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress

from clearhead.cli.speaking import say


def rank() -> int:
    """Which of torchrun's processes this is; 0 without it."""
    return int(os.environ.get("RANK", "0"))


def say_once(message: str) -> None:
    """Why the run failed, said by the process that failed first; torchrun's own summary gives it as the cause."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        say(message)
        return
    try:
        from clearhead.train.processes import telling
    except ImportError:  # which is then what the message is about
        if rank() == 0:
            say(message)
        return
    with telling() as mine:
        if mine:
            _leave(message)
            say(message)


def _leave(message: str) -> None:
    """For torchrun, in the form that it reads."""
    place = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if place:
        # It takes the earliest failure for the cause, in whole seconds: the others end in this one, too.
        extra = {"py_callstack": message, "timestamp": str(int(time.time()) - 1)}
        with suppress(OSError), open(place, "w", encoding="utf-8") as file:
            json.dump({"message": {"message": message, "extraInfo": extra}}, file)
