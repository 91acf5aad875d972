"""`clearhead` that gets a signal at a line of its metrics: `python tests/train/signalled.py SIGKILL 6 train …`.

A signal from outside comes when the machine has time for it, which on a busy one may be after the end of the run.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import IO, Any

from clearhead.cli import main
from clearhead.train.observers import MetricsLog


def strike(number: signal.Signals, line: int) -> None:
    """From now on a journal sends this process the signal, as soon as its file of metrics has so many lines."""
    write = MetricsLog._write

    def struck(self: MetricsLog, file: IO[str], values: dict[str, Any]) -> None:
        write(self, file, values)
        with open(self.metrics.name, "rb") as metrics:
            if file is self.metrics and metrics.read().count(b"\n") == line:
                os.kill(os.getpid(), number)

    MetricsLog._write = struck  # type: ignore[method-assign]


if __name__ == "__main__":
    name, line, *command = sys.argv[1:]
    strike(signal.Signals[name], int(line))
    sys.exit(main(command))
