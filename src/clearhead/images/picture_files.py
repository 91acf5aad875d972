"""Picture files into tensors: PNG, JPEG, WebP and the first frame of a GIF, decoded by Pillow.

The content of a file decides what it is, not its name. Files are read from the disk, never fetched. Colour profiles
(ICC) are ignored: values are taken as sRGB. Of 16 bits per channel, grey pictures keep all, the others the upper 8.
"""

from __future__ import annotations

import re
import struct
import warnings
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.errors import DataError, PackageError

if TYPE_CHECKING:
    from PIL.Image import Image

WHITE = (1.0, 1.0, 1.0)
MOST_PIXELS = 64_000_000  # 8,000 × 8,000: 0.8 GB as float32
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
BEGINNINGS = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG", b"GIF8": "GIF"}  # WebP has its size before its name
NAMES = "PNG, JPEG, WebP or GIF"
ORIENTATION = 0x0112  # the tag's number in EXIF
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


def read_picture(
    path: str | Path, *, background: tuple[float, float, float] = WHITE, most_pixels: int = MOST_PIXELS
) -> Float[Tensor, "3 height width"]:
    """Red, green and blue of a picture file, from 0 to 1, upright as its EXIF says.

    Transparent pixels are blended with the `background` (red, green, blue). A picture with more than `most_pixels` is
    refused before it is decoded. Everything that is wrong with a file is a DataError that begins with its path.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("RGB", (3, 2), (255, 0, 51)).save(f"{folder}/red.png")
    ...     picture = read_picture(f"{folder}/red.png")
    >>> picture.shape, picture[:, 0, 0]
    (torch.Size([3, 2, 3]), tensor([1.0000, 0.0000, 0.2000]))
    """
    path = Path(path)
    _check_file(path)
    _import_pillow()
    try:
        # Pillow warns of damaged EXIF and the like; whatever matters is an error here.
        with warnings.catch_warnings(), path.open("rb") as file:
            warnings.filterwarnings("ignore", module=r"PIL\b")
            return _decode(path, file, background, most_pixels)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


def _check_file(path: Path) -> None:
    try:
        size = path.stat().st_size
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        hint = "; pictures are read from files, not from addresses" if re.match(r"\w+:/", str(path)) else ""
        reason = "" if isinstance(error, FileNotFoundError) else f" ({getattr(error, 'strerror', None) or error})"
        raise DataError(f"{path}: there is no such file{reason}{hint}") from None
    if path.is_dir():
        raise DataError(f"{path} is a folder; a {NAMES} file is needed")
    if not path.is_file():
        raise DataError(f"{path} is no regular file; a {NAMES} file is needed")
    if not size:
        raise DataError(f"{path} is empty; a {NAMES} file is needed")


def _import_pillow() -> Any:
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        if error.name != "PIL":
            raise
        raise PackageError("reading pictures needs the package Pillow; pip install 'clearhead[images]'") from None
    return Image


def _decode(path: Path, file: BinaryIO, background: tuple[float, float, float], most_pixels: int) -> Tensor:
    pillow = _import_pillow()
    try:
        image = pillow.open(file, formats=FORMATS)  # reads the header only
    except pillow.DecompressionBombError as error:
        found = re.search(r"\d+", str(error))
        raise _too_large(path, f"{int(found.group()):,}" if found else "too many", most_pixels) from None
    except DAMAGED:
        raise DataError(f"{path} {_describe_unreadable(path)}") from None
    with image:
        return convert_image(image, str(path), background=background, most_pixels=most_pixels)


def convert_image(
    image: Image, name: str, *, background: tuple[float, float, float] = WHITE, most_pixels: int = MOST_PIXELS
) -> Float[Tensor, "3 height width"]:
    """What `read_picture` gives, of an image that Pillow has opened or made; errors begin with the `name`."""
    width, height = image.size
    if width * height > most_pixels:
        raise _too_large(name, f"{width:,} × {height:,}", most_pixels)
    if not width * height:
        raise DataError(f"{name} is a picture of {width} × {height} pixels; it needs at least one")
    try:
        image.load()
    except DAMAGED as error:
        raise DataError(f"{name} is a damaged or incomplete {image.format} file ({error})") from None
    try:
        return _blend(_turn_upright(image), background)
    except ValueError as error:  # of an image in memory: there is no way from La to RGBA
        raise DataError(f"{name} has the mode {image.mode}, which Pillow does not convert ({error})") from None


def _too_large(name: str | Path, pixels: str, most_pixels: int) -> DataError:
    return DataError(f"{name} has {pixels} pixels, at most {most_pixels:,} are read; make the picture smaller")


def _describe_unreadable(path: Path) -> str:
    """What a file that Pillow does not recognise seems to be."""
    with path.open("rb") as file:
        beginning = file.read(64)
    for magic, name in BEGINNINGS.items():
        if beginning.startswith(magic):
            return f"is a damaged or incomplete {name} file"
    if beginning.startswith(b"RIFF") and beginning[8:12] == b"WEBP":
        return "is a damaged or incomplete WebP file"
    text = beginning.decode("utf-8", errors="ignore")  # a character may be cut at the end
    if len(text.encode()) > len(beginning) - 4 and all(letter.isprintable() or letter in "\t\r\n" for letter in text):
        return f"is no {NAMES} file: it contains text ({text[:20]!r})"
    return f"is no {NAMES} file: it begins with the bytes {beginning[:8].hex(' ')}"


def _turn_upright(image: Image) -> Image:
    """The picture turned as the orientation in its EXIF says; damaged EXIF is ignored, as browsers do."""
    from PIL.Image import Transpose

    try:
        orientation = image.getexif().get(ORIENTATION)
    except DAMAGED:
        return image
    methods = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    method = methods.get(orientation) if isinstance(orientation, int) else None
    if method is None:
        return image
    turned = image.transpose(method)
    turned.info = image.info  # the transparent colour stays
    return turned


def _blend(image: Image, background: tuple[float, float, float]) -> Tensor:
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
    return torch.lerp(torch.tensor(background)[:, None, None], colour, alpha)


def _to_channels(image: Image) -> Tensor:
    array = np.array(image)  # a copy: PyTorch warns of memory that is read-only
    return torch.from_numpy(array).permute(2, 0, 1).to(torch.float32).div_(255)
