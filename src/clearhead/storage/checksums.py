"""checksums.json: the SHA-256 of every file in a folder, written with the folder and checked when it is read."""

from __future__ import annotations

import hashlib
from collections.abc import Container
from pathlib import Path

from clearhead.errors import CheckpointError
from clearhead.storage.json_files import read_json, write_json

CHECKSUMS = "checksums.json"
FORMAT = 1


def write_checksums(folder: Path) -> list[str]:
    """Lists every file of a folder in its checksums.json; returns their names."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sums = {path.relative_to(folder).as_posix(): file_checksum(path) for path in files}
    write_json(folder / CHECKSUMS, {"format": FORMAT, "files": sums})
    return list(sums)


def verify_checksums(folder: str | Path, *, editable: Container[str] = ()) -> set[str]:
    """Checks every file that a folder's checksums.json lists, and returns their names.

    Raises CheckpointError for a file that is missing or changed, unless its name is in `editable`. Files that are not
    listed are ignored.
    """
    folder = Path(folder)
    listing = folder / CHECKSUMS
    if not listing.is_file():
        raise CheckpointError(f"{listing} is missing, so {folder} cannot be verified")
    content = read_json(listing)
    files = content.get("files")
    if content.get("format") != FORMAT or not isinstance(files, dict):
        raise CheckpointError(f"{listing} is not a list of checksums in format {FORMAT}")
    for name, checksum in files.items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise CheckpointError(f"{listing} lists {name!r}, which is not in this folder")
        if name in editable:
            continue
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder / name} is missing, though {CHECKSUMS} lists it")
        if file_checksum(folder / name) != checksum:
            raise CheckpointError(f"{folder / name} has changed: its checksum is not the one in {CHECKSUMS}")
    return set(files)


def file_checksum(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
