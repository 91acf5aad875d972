"""JSON files that hold one object, and the format numbers in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clearhead.errors import CheckpointError


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
    """Raises CheckpointError unless the format number in a file is the one that this version reads.

    >>> check_format("model/config.json", 2, readable=1)
    Traceback (most recent call last):
    clearhead.errors.CheckpointError: model/config.json was written by a newer clearhead (format 2; this one reads 1); \
upgrade
    """
    if type(number) is int and number > readable:
        raise CheckpointError(
            f"{path} was written by a newer clearhead (format {number}; this one reads {readable}); upgrade"
        )
    if type(number) is not int or number != readable:
        raise CheckpointError(f"{path} says format = {number!r:.40}; this clearhead reads {readable}")
