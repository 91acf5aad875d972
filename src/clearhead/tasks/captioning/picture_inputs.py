"""PictureInputs: pictures at the model's size, from files, memory, archives (.npz) or a program that draws them."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from clearhead.errors import DataError
from clearhead.images import Preprocessing, convert_image
from clearhead.images.scenes import make_pairs
from clearhead.tasks.file_inputs import FileInputs
from clearhead.tasks.media import PictureInput
from clearhead.tasks.processor import Columns, Files
from clearhead.text.corpora import Row, check_file

ARCHIVE = ".npz"


class PictureInputs(FileInputs):
    """Pictures as bytes (3, height, width), resized as the preprocessing says."""

    kind = "picture"
    suffixes = (".png", ".jpg", ".jpeg", ".webp", ".gif")
    generators = MappingProxyType(
        {"pairs": lambda part, count: (scene[:2] for scene in make_pairs(part, count or 1000))}
    )

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.preprocessing = preprocessing

    @classmethod
    def read(cls, source: Files, names: tuple[str, ...], columns: Columns = None) -> Iterator[Row]:
        """Rows of a table, a folder, a program, or an .npz with the arrays `pixels` (bytes) and `texts`."""
        if not isinstance(source, Mapping) and Path(source).suffix == ARCHIVE:
            return read_archive(Path(source))
        return super().read(source, names, columns)

    def load_file(self, path: Path) -> UInt8[Tensor, "3 height width"]:
        return _to_bytes(self.preprocessing.read(path))

    def load_value(self, value: Any) -> UInt8[Tensor, "3 height width"]:
        """A picture in memory: bytes (height, width, 3), a PIL image, or what a trace kept of one."""
        if isinstance(value, PictureInput):
            value = value.pixels
        elif hasattr(value, "getexif"):
            picture = convert_image(value, "the PIL image", background=self.preprocessing.background)
            return _to_bytes(self.preprocessing.resize_picture(picture))
        if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim != 3 or value.shape[2] != 3:
            got = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else f"{value!r:.60}"
            raise DataError(f"a picture is a path, a PIL image or an array of bytes (height, width, 3), got {got}")
        if not value.size:
            raise DataError(f"a picture needs at least one pixel, got {value.shape}")
        picture = torch.from_numpy(value.copy()).permute(2, 0, 1).float() / 255
        return _to_bytes(self.preprocessing.resize_picture(picture))

    def save_file(self, content: UInt8[Tensor, "3 height width"], path: Path) -> None:
        from PIL import Image

        Image.fromarray(content.permute(1, 2, 0).contiguous().numpy()).save(path)


def read_archive(path: Path) -> Iterator[Row]:
    """The rows of an .npz: `pixels` (pictures, height, width, 3) in bytes, and `texts`."""
    path = check_file(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            pixels, texts = archive["pixels"], archive["texts"]
    except (OSError, ValueError, KeyError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is no archive with the arrays pixels and texts ({error})") from None
    if texts.shape != pixels.shape[:1]:
        raise DataError(f"{path}: pixels and texts differ in number, {pixels.shape} and {texts.shape}")
    return (Row(pair, str(path), number) for number, pair in enumerate(zip(pixels, texts.tolist(), strict=True), 1))


def _to_bytes(picture: Float[Tensor, "3 height width"]) -> UInt8[Tensor, "3 height width"]:
    return (picture * 255).round().to(torch.uint8)
