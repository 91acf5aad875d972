"""Archives of captioned pictures (.npz)."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from clearhead.errors import DataError
from clearhead.text.corpora import Row, check_file

ARCHIVE = ".npz"


def read_archive(path: Path) -> Iterator[Row]:
    """The rows of an .npz: `pixels` (pictures, height, width, 3) in bytes, and `texts`."""
    path = check_file(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            pixels, texts = archive["pixels"], archive["texts"]
    except (OSError, ValueError, KeyError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is no archive with the arrays pixels and texts ({error})") from None
    is_bytes = pixels.dtype == np.uint8 and pixels.ndim == 4 and pixels.shape[3] == 3
    if not is_bytes or texts.shape != pixels.shape[:1]:
        raise DataError(
            f"{path}: pixels must be bytes (pictures, height, width, 3) with a text for each picture, got "
            f"{pixels.dtype} {pixels.shape} and {texts.shape}"
        )
    pairs = zip(pixels, texts.tolist(), strict=True)
    return (Row(pair, str(path), number) for number, pair in enumerate(pairs, 1))
