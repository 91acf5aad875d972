"""Locks on folders, which the system releases when their process dies."""

from __future__ import annotations

import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def lock_folder(folder: Path) -> int | None:
    """Locks a folder until the returned descriptor is closed; None where the system has no such locks.

    Raises BlockingIOError if another process, or another descriptor of this one, holds the lock.
    """
    if fcntl is None:
        return None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:  # some network file systems
        os.close(descriptor)
        return None
    return descriptor
