"""Free disk space, and errors that mean a full disk."""

import errno
import shutil
from pathlib import Path

import pytest

from clearhead.errors import DiskFullError
from clearhead.storage import check_free
from clearhead.storage.atomic import is_disk_full


def test_what_does_not_fit_is_refused_before_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2_500_000))
    check_free(tmp_path / "runs" / "new", 2_500_000, "a checkpoint")
    words = r"^a run needs 4\.0 GB, and 2\.5 MB are free for .*run; free some space, or choose another disk$"
    with pytest.raises(DiskFullError, match=words):
        check_free(tmp_path / "run", 4_000_000_000, "a run")


def test_a_full_disk_is_told_by_its_number_or_by_the_words_of_safetensors() -> None:
    assert is_disk_full(OSError(errno.ENOSPC, "No space left on device"))
    assert is_disk_full(OSError(errno.EDQUOT, "Disk quota exceeded"))
    assert is_disk_full(ValueError("I/O error: No space left on device (os error 28)"))
    assert not is_disk_full(OSError(errno.EIO, "broken"))
    assert not is_disk_full(ValueError("28"))
