"""Checksums: every file that is listed is checked, and none outside the folder."""

import json
from pathlib import Path

import pytest

from clearhead.errors import CheckpointError
from clearhead.storage import atomic_folder, verify_checksums


def test_folders_inside_are_checked_too(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "one") as fresh:
        (fresh / "inner").mkdir()
        (fresh / "inner" / "file").write_text("x")
    assert verify_checksums(tmp_path / "one") == {"inner/file"}
    (tmp_path / "one" / "inner" / "file").write_text("y")
    with pytest.raises(CheckpointError, match="inner/file has changed"):
        verify_checksums(tmp_path / "one")


def test_an_editable_file_may_be_changed_or_removed(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "one") as fresh:
        (fresh / "notes").write_text("x")
    (tmp_path / "one" / "notes").write_text("y")
    assert verify_checksums(tmp_path / "one", editable={"notes"}) == {"notes"}
    (tmp_path / "one" / "notes").unlink()
    assert verify_checksums(tmp_path / "one", editable={"notes"}) == {"notes"}
    with pytest.raises(CheckpointError, match=r"notes is missing, though checksums\.json lists it"):
        verify_checksums(tmp_path / "one")


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../secret"])
def test_checksums_do_not_lead_out_of_the_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "checksums.json").write_text(json.dumps({"format": 1, "files": {name: ""}}))
    with pytest.raises(CheckpointError, match="which is not in this folder"):
        verify_checksums(tmp_path)
