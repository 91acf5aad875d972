"""JSON files that hold one object, format numbers, and checksums.json: the SHA-256 of every file in a folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container
from pathlib import Path
from typing import Any

from clearhead.errors import CheckpointError

CHECKSUMS, CHECKSUMS_FORMAT = "checksums.json", 1


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes an object as indented JSON in UTF-8. Not atomic: use it inside atomic_file or atomic_folder."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, or a CheckpointError that says what is wrong with the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not readable JSON ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} must contain a JSON object, got a {type(content).__name__}")
    return content


def check_format(path: str | Path, number: object, readable: int) -> None:
    """Raises CheckpointError unless the format number in a file is the one that this version reads."""
    if type(number) is int and number > readable:
        raise CheckpointError(
            f"{path} was written by a newer clearhead (format {number}; this one reads {readable}); upgrade"
        )
    if type(number) is not int or number != readable:
        raise CheckpointError(f"{path} says format = {number!r:.40}; this clearhead reads {readable}")


def write_checksums(folder: Path) -> list[str]:
    """Lists every file of a folder in its checksums.json; returns their names."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sums = {path.relative_to(folder).as_posix(): file_checksum(path) for path in files}
    write_json(folder / CHECKSUMS, {"format": CHECKSUMS_FORMAT, "files": sums})
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
    if content.get("format") != CHECKSUMS_FORMAT or not isinstance(files, dict):
        raise CheckpointError(f"{listing} is not a list of checksums in format {CHECKSUMS_FORMAT}")
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
