"""PictureInputs: pictures at the model's size, from files, memory or a program that draws them."""

from __future__ import annotations

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


class PictureInputs(FileInputs):
    """Pictures as bytes (3, height, width), resized as the preprocessing says."""

    kind = "picture"
    suffixes = (".png", ".jpg", ".jpeg", ".webp", ".gif")
    generators = MappingProxyType(
        {"pairs": lambda part, count: (scene[:2] for scene in make_pairs(part, count or 1000))}
    )

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.preprocessing = preprocessing

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


def _to_bytes(picture: Float[Tensor, "3 height width"]) -> UInt8[Tensor, "3 height width"]:
    return (picture * 255).round().to(torch.uint8)
