"""Picture files into tensors: PNG, JPEG, WebP and the first frame of a GIF, decoded by Pillow.

The content of a file decides what it is, not its name. Files are read from the disk, never fetched. Colour profiles
(ICC) are ignored: values are taken as sRGB. Of 16 bits per channel, grey pictures keep all, the others the upper 8.
"""

from __future__ import annotations

import struct
import warnings
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.errors import DataError, import_extra

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_PIXELS = 64_000_000  # 8,000 × 8,000: 0.8 GB as float32
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
NAMES = "PNG, JPEG, WebP or GIF"
ORIENTATION = 0x0112  # the tag's number in EXIF
# Pillow's transposition for each orientation from 2 on.
TURNS = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")
MODES_WITH_ALPHA = ("LA", "PA", "RGBA", "La", "RGBa")

# What Pillow's decoders raise for damaged files, found by damaging files; UnidentifiedImageError is an OSError.
DAMAGED = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    struct.error,
    zlib.error,
)


def read_picture(path: str | Path, *, most_pixels: int = MOST_PIXELS) -> Float[Tensor, "3 height width"]:
    """Red, green and blue of a picture file, from 0 to 1, upright as its EXIF says.

    Transparent pixels are blended with white. A picture with more than `most_pixels` is refused before it is decoded.
    Everything that is wrong with a file is a DataError that begins with its path.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("RGB", (3, 2), (255, 0, 51)).save(f"{folder}/red.png")
    ...     picture = read_picture(f"{folder}/red.png")
    >>> picture.shape, picture[:, 0, 0]
    (torch.Size([3, 2, 3]), tensor([1.0000, 0.0000, 0.2000]))
    """
    path, pillow = Path(path), import_extra("PIL.Image", "reading pictures", "images", package="Pillow")
    try:
        # Pillow warns of damaged EXIF and the like; whatever matters is an error here.
        with warnings.catch_warnings(), path.open("rb") as file:
            warnings.filterwarnings("ignore", module=r"PIL\b")
            image = pillow.open(file, formats=FORMATS)  # reads the header only
            with image:
                return convert_image(image, str(path), most_pixels=most_pixels)
    except pillow.DecompressionBombError:
        raise DataError(f"{path} has far more than {most_pixels:,} pixels; make the picture smaller") from None
    except DataError:
        raise
    except DAMAGED as error:
        reason = getattr(error, "strerror", None) or "it is damaged or incomplete, or of another kind"
        raise DataError(f"{path} is no readable {NAMES} file: {reason}") from None


def convert_image(image: Image, name: str, *, most_pixels: int = MOST_PIXELS) -> Float[Tensor, "3 height width"]:
    """What `read_picture` gives, of an image that Pillow has opened or made; errors begin with the `name`."""
    width, height = image.size
    if width * height > most_pixels:
        raise DataError(
            f"{name} has {width:,} × {height:,} pixels, at most {most_pixels:,} are read; make the picture smaller"
        )
    if not width * height:
        raise DataError(f"{name} is a picture of {width} × {height} pixels; it needs at least one")
    try:
        image.load()
    except DAMAGED as error:
        raise DataError(f"{name} is a damaged or incomplete {image.format} file ({error})") from None
    try:
        return _blend(_turn_upright(image))
    except ValueError as error:  # of an image in memory: there is no way from La to RGBA
        raise DataError(f"{name} has the mode {image.mode}, which Pillow does not convert ({error})") from None


def _turn_upright(image: Image) -> Image:
    """The picture turned as the orientation in its EXIF says; damaged EXIF is ignored, as browsers do."""
    from PIL.Image import Transpose

    try:
        orientation = image.getexif().get(ORIENTATION)
    except DAMAGED:
        return image
    if not isinstance(orientation, int) or not 2 <= orientation <= 8:
        return image
    turned = image.transpose(Transpose[TURNS[orientation - 2]])
    turned.info = image.info  # the transparent colour stays
    return turned


def _blend(image: Image) -> Tensor:
    transparent = image.info.get("transparency")  # a grey value, a colour, or the alpha of each palette entry
    if image.mode == "I" or image.mode.startswith("I;16"):  # 16-bit grey
        values = np.asarray(image).astype(np.float32)
        colour = torch.from_numpy(values / 65535).clamp(0, 1).expand(3, -1, -1)
        alpha = None if transparent is None else torch.from_numpy(values != transparent).float()
    elif image.mode in MODES_WITH_ALPHA or transparent is not None:
        if isinstance(transparent, tuple) and max(transparent) > 255:  # of 16 bits, while Pillow has decoded to 8
            image = image.copy()  # the caller's keeps its own
            image.info["transparency"] = tuple(value >> 8 for value in transparent)
        channels = _to_channels(image.convert("RGBA"))
        colour, alpha = channels[:3], channels[3]
    else:
        colour, alpha = _to_channels(image.convert("RGB")), None
    if alpha is None:
        return colour.contiguous()
    return torch.lerp(torch.ones(3, 1, 1), colour, alpha)


def _to_channels(image: Image) -> Tensor:
    array = np.array(image)  # a copy: PyTorch warns of memory that is read-only
    return torch.from_numpy(array).permute(2, 0, 1).to(torch.float32).div_(255)
