"""Locks on folders, which the system releases when their process dies."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clearhead.errors import ConfigError

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


@contextmanager
def hold_lock(folder: Path, patience: float = 10.0) -> Iterator[None]:
    """Context manager: no other process that calls this changes the folder meanwhile.

    Waits `patience` seconds for one that does. Raises ConfigError if that takes longer, or if another process replaces
    the folder meanwhile.
    """
    until = time.monotonic() + patience
    while True:
        try:
            lock = lock_folder(folder)
            break
        except BlockingIOError:
            if time.monotonic() > until:
                raise ConfigError(f"another process is changing {folder}; try again when it is done") from None
            time.sleep(0.05)
    try:
        if lock is not None and not os.path.samestat(os.fstat(lock), os.stat(folder)):
            raise ConfigError(f"another process replaced {folder} meanwhile; try again")
        yield
    finally:
        if lock is not None:
            os.close(lock)
