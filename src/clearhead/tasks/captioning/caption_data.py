"""Archives of captioned pictures (.npz), and the keywords of their rows."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np

from clearhead.errors import DataError
from clearhead.text.corpora import Row, check_file

ARCHIVE = ".npz"


def split_keywords(row: Row) -> list[str]:
    """The keywords of a row, in lower case; none if it has no such column."""
    written = row.values[2] if len(row.values) > 2 else ""
    return list(dict.fromkeys(word.strip().lower() for word in written.split(",") if word.strip()))


def count_keywords(rows: Sequence[Row]) -> list[str]:
    """The keywords of at least two rows, the most frequent first."""
    counts = Counter(word for row in rows for word in split_keywords(row))
    return [word for word, count in counts.most_common() if count > 1]


def has_word(row: Row, words: Collection[str]) -> bool:
    """Whether one of the words, in lower case, is in a row's caption or is one of its keywords.

    >>> has_word(Row(("a.png", "Left arrow", "symbols, arrow"), "rows", 1), ["left"])
    True
    """
    own = {*re.findall(r"\w+", str(row.values[1]).lower()), *split_keywords(row)}
    return not own.isdisjoint(words)


def read_archive(path: Path, *, keywords: bool) -> Iterator[Row]:
    """The rows of an .npz: `pixels` (pictures, height, width, 3) in bytes, `texts`, and perhaps `keywords`."""
    path = check_file(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            pixels, *texts = (archive[name] for name in ("pixels", "texts", *(("keywords",) if keywords else ())))
    except (OSError, ValueError, KeyError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is no archive with the arrays pixels and texts ({error})") from None
    if (
        pixels.dtype != np.uint8
        or pixels.ndim != 4
        or pixels.shape[3] != 3
        or any(column.shape != pixels.shape[:1] for column in texts)
    ):
        raise DataError(
            f"{path}: pixels must be bytes (pictures, height, width, 3) with a text for each picture, got "
            f"{pixels.dtype} {pixels.shape} and {', '.join(str(column.shape) for column in texts)}"
        )
    rows = zip(pixels, *(column.tolist() for column in texts), strict=True)
    return (Row(tuple(values), str(path), number) for number, values in enumerate(rows, 1))
