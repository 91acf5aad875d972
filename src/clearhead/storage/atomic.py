"""Atomic writes: a file or a folder is written beside its place, flushed to the disk, and renamed.

Whatever happens on the way (an error, a kill, a power cut, a full disk), there is the old content or the new one.
Processes that were killed leave temporary folders behind; the next write in the same place removes them. A process
that is alive holds a lock on its own. The system releases locks when their process dies.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from clearhead.errors import CheckpointError, ConfigError, DiskFullError
from clearhead.formatting import format_bytes
from clearhead.storage.json_files import CHECKSUMS, file_checksum, read_json, write_checksums, write_json

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FULL = (errno.ENOSPC, errno.EDQUOT)
TEMPORARY_MARK = ".tmp-clearhead-"  # in the names of temporary folders
WITHOUT_LOCKS = 24 * 3600  # seconds after which a temporary folder counts as abandoned where nothing can be locked


@contextmanager
def atomic_folder(path: str | Path, *, needs: int | None = None) -> Iterator[Path]:
    """A temporary folder beside `path` that becomes `path` at the end of the block.

    By then its files are listed in its checksums.json and are on the disk. A `path` that holds something is refused; an
    empty folder is replaced. `needs`, in bytes, is for the error message of a full disk.
    """
    path, final = Path(path), Path(path).resolve()
    _refuse_filled(final, path)
    final.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(path, needs=needs) as temporary:
        yield temporary
        names = write_checksums(temporary)
        for name in names:  # safetensors makes files that only their owner may read
            (temporary / name).chmod((temporary / CHECKSUMS).stat().st_mode)
        flush_tree(temporary)
        _refuse_filled(final, path)
        move_into_place(temporary, final)


@contextmanager
def atomic_file(path: str | Path, *, needs: int | None = None) -> Iterator[Path]:
    """A path of the same name in a temporary folder: the file written there takes the place of `path` at the end.

    An existing file is replaced and keeps its permissions; of a link, its target. Devices and pipes, such as
    /dev/stdout, are written directly.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        yield path
        return
    final = path.resolve()
    mode = stat.S_IMODE(final.stat().st_mode) if final.exists() else None
    if mode is not None and not os.access(final, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    with temporary_folder(path, needs=needs) as temporary:
        fresh = temporary / final.name
        yield fresh
        fresh.chmod(stat.S_IMODE(temporary.stat().st_mode) & 0o666 if mode is None else mode)
        flush_to_disk(fresh)
        move_into_place(fresh, final)


@contextmanager
def temporary_folder(path: str | Path, *, needs: int | None = None) -> Iterator[Path]:
    """A locked folder beside `path`, in which its content is prepared; removed at the end with what is left in it.

    Raises DiskFullError, with the name of `path`, if the disk gets full inside the block.
    """
    path, final = Path(path), Path(path).resolve()
    _remove_abandoned(final.parent)
    try:
        temporary, lock = _make_locked(final)
    except OSError as error:  # with the name that the user knows
        raise OSError(error.errno, error.strerror, str(path)) from error
    try:
        yield temporary
    except Exception as error:
        if not is_disk_full(error):
            raise
        needed = format_bytes(needs) if needs else f"more than {format_bytes(_bytes_in(temporary))}"
        shutil.rmtree(temporary, ignore_errors=True)
        free = format_bytes(_free_bytes(final.parent))
        raise DiskFullError(
            f"the disk is full: {path} needs {needed}, and {free} are free; free some space, or choose another disk"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def commit_files(folder: Path, *, added: Sequence[str], removed: Sequence[str]) -> None:
    """Lists files that were written into a folder in its checksums.json, and lists others no longer, in one step.

    Files that are not listed do not count: so the replacement of checksums.json is the moment of a change.
    """
    listing = read_json(folder / CHECKSUMS)
    unchanged = {name: checksum for name, checksum in listing["files"].items() if name not in removed}
    files = {**unchanged, **{name: file_checksum(folder / name) for name in added}}
    with atomic_file(folder / CHECKSUMS) as fresh:
        write_json(fresh, {**listing, "files": dict(sorted(files.items()))})


def temporary_path(path: Path, tag: str) -> Path:
    """A hidden name beside `path`, for what may be removed once no process holds a lock on it."""
    return path.with_name(f".{path.name}{TEMPORARY_MARK}{tag}")


def flush_to_disk(path: Path) -> None:
    """Waits until a file, or a folder's list of names, is on the disk."""
    if os.name == "nt":
        return  # a folder cannot be flushed there, and a file only through a descriptor that may write
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_tree(folder: Path) -> None:
    """Waits until a folder is on the disk with all that is in it."""
    for inside in (*folder.rglob("*"), folder):
        flush_to_disk(inside)


def move_into_place(fresh: Path, final: Path) -> None:
    """Renames a file or folder in one step, over a file or an empty folder, and flushes the new name to the disk."""
    os.replace(fresh, final)
    flush_to_disk(final.parent)


def replace_folder(fresh: Path, final: Path) -> None:
    """Puts a folder in the place of another, which is removed; both must be on the same file system.

    There is a moment without `final`: after a kill in that moment `restore_replaced` brings the old one back.
    """
    aside = _replaced_path(final)
    while True:
        if final.exists():
            shutil.rmtree(aside, ignore_errors=True)
            os.replace(final, aside)
        try:
            move_into_place(fresh, final)
            break
        except OSError as error:  # another process has brought the old one back in between
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    shutil.rmtree(aside, ignore_errors=True)


def restore_replaced(final: Path) -> None:
    """Brings a folder back that a process was about to replace when it was killed."""
    aside = _replaced_path(final)
    if aside.is_dir() and not final.exists():
        with suppress(OSError):  # another process was faster
            os.replace(aside, final)


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


def check_free(path: str | Path, needed: int, what: str) -> None:
    """Raises DiskFullError if `what`, such as "a run", of `needed` bytes, does not fit where `path` is or will be."""
    free = _free_bytes(path)
    if needed > free:
        raise DiskFullError(
            f"{what} needs {format_bytes(needed)}, and {format_bytes(free)} are free for {path}; "
            "free some space, or choose another disk"
        )


def is_disk_full(error: BaseException) -> bool:
    """Whether an error means that the disk, or the user's quota, is full; safetensors says so in its message only."""
    return getattr(error, "errno", None) in FULL or any(f"(os error {code})" in str(error) for code in FULL)


def _replaced_path(final: Path) -> Path:
    return final.parent / f".{final.name}.replaced"


def _make_locked(final: Path) -> tuple[Path, int | None]:
    """Makes a temporary folder and locks it; another process may have removed it in between, as abandoned."""
    while True:
        temporary = temporary_path(final, secrets.token_hex(4))
        temporary.mkdir()
        try:
            lock = lock_folder(temporary)
        except (BlockingIOError, FileNotFoundError):
            continue
        if temporary.exists():
            return temporary, lock
        if lock is not None:
            os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    """Removes the temporary folders of processes that were killed."""
    for folder in parent.glob(f".*{TEMPORARY_MARK}*"):
        with suppress(OSError):  # locked by its process, removed by another one, or not ours
            lock = lock_folder(folder)
            if lock is not None or time.time() - folder.stat().st_mtime > WITHOUT_LOCKS:
                shutil.rmtree(folder, ignore_errors=True)
            if lock is not None:
                os.close(lock)


def _refuse_filled(final: Path, path: Path) -> None:
    if final.exists() and not (final.is_dir() and not any(final.iterdir())):
        raise CheckpointError(f"{path} exists already; name another folder, or remove it first")


def _bytes_in(folder: Path) -> int:
    total = 0
    with suppress(OSError):
        total = sum(path.stat().st_size for path in folder.rglob("*"))
    return total


def _free_bytes(path: str | Path) -> int:
    """How many bytes this user may still write where `path` is or will be."""
    existing = Path(path).absolute()
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free
