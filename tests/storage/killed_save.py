"""`clearhead` that is killed at a point of a save: `python tests/storage/killed_save.py "before fsync:3" train …`.

"before fsync:3" is the third time that a folder is about to be flushed; without a number it is the first time.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clearhead.storage import atomic

FOLDER_POINTS = ("written", "before fsync", "before rename", "after rename")
FILE_POINTS = ("before replace", "after replace")


def kill_at(wanted: str) -> None:
    """From now on this process dies, as in a power cut, when atomic_folder or atomic_file come to this point."""
    point, _, times = wanted.partition(":")
    left = int(times or 1)

    def reach(reached: str) -> None:
        nonlocal left
        left -= reached == point
        if reached == point and not left:
            os.kill(os.getpid(), signal.SIGKILL)

    def announce(reached: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: (reach(reached), function(*arguments))[1]

    replace = os.replace

    def announce_replace(source: Path, target: Path) -> None:
        kind = "rename" if os.path.isdir(source) else "replace"
        reach(f"before {kind}")
        replace(source, target)
        reach(f"after {kind}")

    atomic.write_checksums = announce("written", atomic.write_checksums)
    atomic.flush_tree = announce("before fsync", atomic.flush_tree)
    os.replace = announce_replace  # type: ignore[assignment]


if __name__ == "__main__":
    from clearhead.cli import main

    wanted, *command = sys.argv[1:]
    kill_at(wanted)
    sys.exit(main(command))
