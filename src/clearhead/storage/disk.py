"""The disk: flushing files to it, its free space, and the error when it is full."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from clearhead.errors import DiskFullError
from clearhead.formatting import format_bytes

FULL = (errno.ENOSPC, errno.EDQUOT)


def flush_to_disk(path: Path) -> None:
    """Waits until a file, or a folder's list of names, is on the disk."""
    if os.name == "nt":
        return  # a folder cannot be flushed there, and a file only through a descriptor that may write
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def free_bytes(path: str | Path) -> int:
    """How many bytes this user may still write where `path` is or will be."""
    existing = Path(path).absolute()
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free


def check_free(path: str | Path, needed: int, what: str) -> None:
    """Raises DiskFullError if `what`, of `needed` bytes, does not fit where `path` is or will be; `what` is singular.

    >>> check_free(".", 10**18, "a run of 3 checkpoints")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    clearhead.errors.DiskFullError: a run of 3 checkpoints needs 1,000,000,000.0 GB, and ... free for .; ...
    """
    free = free_bytes(path)
    if needed > free:
        raise DiskFullError(
            f"{what} needs {format_bytes(needed)}, and {format_bytes(free)} are free for {path}; "
            "free some space, or choose another disk"
        )


def is_disk_full(error: BaseException) -> bool:
    """Whether an error means that the disk, or the user's quota, is full; safetensors says so in its message only."""
    return getattr(error, "errno", None) in FULL or any(f"(os error {code})" in str(error) for code in FULL)


def disk_full_error(path: str | Path, folder: Path, needed: str) -> DiskFullError:
    """The error that says that `path`, which is written into a folder, did not fit."""
    free = format_bytes(free_bytes(folder))
    return DiskFullError(
        f"the disk is full: {path} needs {needed}, and {free} are free; free some space, or choose another disk"
    )
