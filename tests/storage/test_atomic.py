"""Atomic writes: a file or folder is complete or not there, whatever happens while it is written."""

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from clearhead.errors import CheckpointError, ConfigError, DiskFullError
from clearhead.storage import atomic, atomic_file, atomic_folder, verify_checksums
from tests.storage.killed_save import FILE_POINTS, FOLDER_POINTS

ROOT = Path(__file__).parents[2]


def names_in(path: Path) -> set[str]:
    return {child.name for child in path.iterdir()}


def write_folder(path: Path, error: BaseException | None = None) -> None:
    with atomic_folder(path) as fresh:
        (fresh / "file").write_text("half")
        if error is not None:
            raise error


def write_file(path: Path, text: str, error: BaseException | None = None) -> None:
    with atomic_file(path) as fresh:
        fresh.write_text(text)
        if error is not None:
            raise error


# Folders


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), OSError(errno.EIO, "broken")])
def test_an_error_on_the_way_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        write_folder(tmp_path / "one", error)
    assert names_in(tmp_path) == set()


def write_while_another_does(path: Path) -> None:
    with atomic_folder(path) as fresh:
        (fresh / "file").write_text("new")
        path.mkdir()
        (path / "file").write_text("old")


def test_a_folder_that_fills_up_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="exists already"):
        write_while_another_does(tmp_path / "one")
    assert names_in(tmp_path) == {"one"}
    assert (tmp_path / "one" / "file").read_text() == "old"


def test_what_dead_processes_left_is_removed_and_what_live_ones_write_is_not(tmp_path: Path) -> None:
    dead = tmp_path / ".other.tmp-clearhead-0123"
    dead.mkdir()
    (dead / "big").write_text("x")
    (tmp_path / ".mine.tmp-1").mkdir()
    with atomic_folder(tmp_path / "one") as live:
        assert not dead.exists()
        with atomic_folder(tmp_path / "two"):
            assert live.exists()
        write_file(tmp_path / "three", "x")
        assert live.exists()
    assert names_in(tmp_path) == {"one", "two", "three", ".mine.tmp-1"}


def test_without_locks_only_old_leftovers_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "fcntl", None)
    old, young = tmp_path / ".a.tmp-clearhead-1", tmp_path / ".b.tmp-clearhead-2"
    old.mkdir()
    young.mkdir()
    os.utime(old, (0, 0))
    write_folder(tmp_path / "one")
    assert names_in(tmp_path) == {"one", young.name}


def test_a_temporary_folder_that_another_process_removes_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, calls = atomic.lock_folder, []

    def raced(folder: Path) -> int | None:
        calls.append(folder)
        if len(calls) == 1:
            raise BlockingIOError
        if len(calls) == 2:
            descriptor = lock(folder)
            folder.rmdir()
            return descriptor
        return lock(folder)

    monkeypatch.setattr(atomic, "lock_folder", raced)
    write_folder(tmp_path / "one")
    assert (tmp_path / "one" / "file").exists()
    assert len(calls) == 3


def test_everything_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    flush, replace = atomic.flush_to_disk, os.replace
    monkeypatch.setattr(atomic, "flush_to_disk", lambda path: (events.append(path.name), flush(path))[1])
    monkeypatch.setattr(os, "replace", lambda source, target: (events.append("rename"), replace(source, target))[1])
    with atomic_folder(tmp_path / "one") as fresh:
        (fresh / "a").write_text("a")
        (fresh / "b").write_text("b")
    place = events.index("rename")
    assert set(events[:place]) == {"a", "b", "checksums.json", fresh.name}
    assert events[place - 1] == fresh.name
    assert events[place + 1 :] == [tmp_path.name]
    events.clear()
    write_file(tmp_path / "c", "c")
    assert events == ["c", "rename", tmp_path.name]


# Killed

KILLED = """
import os, pathlib, sys
sys.path.insert(0, sys.argv[2])
from clearhead.storage import atomic_file, atomic_folder
from tests.storage.killed_save import kill_at
for point in sys.argv[3:]:
    child = os.fork()
    if not child:
        place = pathlib.Path(sys.argv[1], point)
        place.mkdir()
        (place / "file").write_text("old")
        kill_at(point)
        for name in ("first", "second"):
            with atomic_folder(place / name) as fresh:
                (fresh / "file").write_text("x" * 1000)
        with atomic_file(place / "file") as fresh:
            fresh.write_text("new")
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_kill_at_any_point_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    points = [f"{point}:{time}" for point in FOLDER_POINTS for time in (1, 2)] + list(FILE_POINTS)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path, ROOT, *points, "never"], capture_output=True, text=True, check=True
    )
    assert list(map(int, done.stdout.split())) == [-signal.SIGKILL] * len(points) + [0]
    for point in [*points, "never"]:
        place, whole = tmp_path / point, {"first", "second"}
        if point.endswith(":1"):
            whole = {"first"} if point.startswith("after") else set()
        elif point.endswith(":2"):
            whole = {"first", "second"} if point.startswith("after") else {"first"}
        assert {path.name for path in place.iterdir() if not path.name.startswith(".")} == whole | {"file"}, point
        for name in whole:
            verify_checksums(place / name)
        assert (place / "file").read_text() == ("new" if point in ("after replace", "never") else "old")
        shutil.rmtree(place / "second", ignore_errors=True)
        write_folder(place / "second")
        assert names_in(place) == {"second", "file"} | whole, "and what the dead process left is gone"


# Files


def test_a_file_is_replaced_at_the_end_of_the_block_and_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    path.chmod(0o640)
    with atomic_file(path) as fresh:
        fresh.write_text("new")
        assert fresh.name == "file.txt"
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert names_in(tmp_path) == {"file.txt"}


def test_a_new_file_is_as_readable_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with atomic_file(tmp_path / "one") as fresh:
        fresh.touch(mode=0o600)  # as safetensors does
    assert (tmp_path / "one").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), OSError(errno.EIO, "broken")])
def test_an_error_on_the_way_leaves_the_old_file(tmp_path: Path, error: BaseException) -> None:
    (tmp_path / "one").write_text("old")
    for name in ("one", "two"):
        with pytest.raises(type(error)):
            write_file(tmp_path / name, "new", error)
    assert names_in(tmp_path) == {"one"}
    assert (tmp_path / "one").read_text() == "old"


def test_of_a_link_the_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far" / "file")
    for text in ("first", "second"):
        write_file(tmp_path / "link", text)
        assert (tmp_path / "far" / "file").read_text() == text
    assert (tmp_path / "link").is_symlink()


def test_a_pipe_is_written_directly(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_file(tmp_path / "pipe", "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


def test_errors_name_the_file_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        write_file(tmp_path / "nowhere" / "file", "x")
    assert missing.value.filename == str(tmp_path / "nowhere" / "file")
    with pytest.raises(IsADirectoryError) as folder:
        write_file(tmp_path, "x")
    assert folder.value.filename == str(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_file_that_may_not_be_written_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "file").chmod(0o444)
    with pytest.raises(PermissionError, match="file"):
        write_file(tmp_path / "file", "new")


# A full disk


def test_a_full_disk_names_what_was_written_and_leaves_nothing(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(DiskFullError, match=r"the disk is full: .*/one needs more than .* bytes, and .* are free"):
        write_folder(tmp_path / "one", full)
    with pytest.raises(DiskFullError, match=r"the disk is full: .*/loss\.png needs more than \d+ bytes"):
        write_file(tmp_path / "loss.png", "x", full)
    with pytest.raises(DiskFullError, match=r"needs 2\.5 GB"), atomic_file(tmp_path / "x", needs=2_500_000_000):
        raise full
    assert names_in(tmp_path) == set()


# Replaced folders


def make_pair(tmp_path: Path) -> tuple[Path, Path]:
    old, new = tmp_path / "model", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "file").write_text(folder.name)
    return old, new


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    old, new = make_pair(tmp_path)
    (tmp_path / ".model.replaced").mkdir()  # of an earlier kill
    atomic.replace_folder(new, old)
    assert names_in(tmp_path) == {"model"}
    assert (old / "file").read_text() == "new"


@pytest.mark.parametrize("point", ["between", "after"])
def test_a_kill_while_a_folder_is_replaced_leaves_the_old_or_the_new(tmp_path, monkeypatch, point):
    old, new = make_pair(tmp_path)
    rename = os.replace

    def stop(source: Path, target: Path) -> None:
        if point == "after" or source != new:
            rename(source, target)
        if source == new:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        atomic.replace_folder(new, old)
    assert old.exists() == (point == "after")
    monkeypatch.setattr(os, "replace", rename)
    atomic.restore_replaced(old)
    assert (old / "file").read_text() == {"between": "model", "after": "new"}[point]


def test_a_lock_on_a_folder_that_was_replaced_meanwhile_is_refused(tmp_path, monkeypatch):
    old, new = make_pair(tmp_path)
    lock = atomic.lock_folder

    def replace_first(folder: Path) -> int | None:
        found = lock(folder)
        atomic.replace_folder(new, old)
        return found

    monkeypatch.setattr(atomic, "lock_folder", replace_first)
    with pytest.raises(ConfigError, match=r"replaced .* meanwhile; try again"), atomic.hold_lock(old):
        pass


def test_a_folder_that_stays_locked_is_named(tmp_path):
    refused = pytest.raises(ConfigError, match="another process is changing")
    with atomic.hold_lock(tmp_path), refused, atomic.hold_lock(tmp_path, patience=0.1):
        pass
