"""Axis: what the rows or columns of a map are: tokens of a text, patches of a picture, frames of a sound."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Float, Shaped
from torch import Tensor

from clearhead.errors import RecordError
from clearhead.explore.scene_json import AxisExtras, AxisJson
from clearhead.explore.token_display import DELIMITERS, display_token_lists


@dataclass(frozen=True)
class Axis:
    """The tokens of an axis, by document position; made by `text`, `image` or `audio`."""

    tokens: Sequence[str]
    kind: str = "text"
    extra: AxisExtras = field(default_factory=AxisExtras)

    @classmethod
    def text(cls, tokens: Sequence[str], *, reads: str | None = None) -> Axis:
        """The tokens of a text; `reads` names the axis that a decoder reads while it writes these tokens."""
        return cls(tokens, "text", {} if reads is None else {"reads": reads})

    @classmethod
    def numbers(cls, count: int) -> Axis:
        """Positions, where the tokens are not known."""
        return cls([str(position) for position in range(count)], "text", {"unknown": True})

    @classmethod
    def image(
        cls, picture: Shaped[Tensor, "height width *channels"], grid: tuple[int, int], before: Sequence[str] = ()
    ) -> Axis:
        """The patches of a picture, row by row, after the tokens `before`, such as [CLS].

        The picture has bytes from 0 to 255 or floats from 0 to 1, one channel or three.
        """
        rows, columns = grid
        if rows < 1 or columns < 1:
            raise RecordError(f"a picture has at least one row and one column of patches, got {rows} × {columns}")
        patches = [f"{row},{column}" for row in range(rows) for column in range(columns)]
        return cls([*before, *patches], "image", {"grid": [rows, columns], "picture": encode_png_url(picture)})

    @classmethod
    def audio(cls, spectrogram: Float[Tensor, "bands frames"], frames: int, seconds: float | None = None) -> Axis:
        """The frames of a sound; the spectrogram, low bands first, may have more frames than the model has tokens."""
        if frames < 1:
            raise RecordError(f"a sound has at least one frame, got {frames}")
        low, high = float(spectrogram.min()), float(spectrogram.max())
        picture = (spectrogram.flip(0) - low) / max(high - low, 1e-12)
        each = None if seconds is None else seconds / frames
        tokens = [str(frame) if each is None else f"{frame * each:.2f} s" for frame in range(frames)]
        return cls(tokens, "audio", {"grid": [1, frames], "picture": encode_png_url(picture)})

    @cached_property
    def displayed(self) -> tuple[list[str], list[bool], list[bool]]:
        """Three lists: the text of each token, whether it continues the word before, and whether it is special."""
        if self.kind == "text" and "unknown" not in self.extra:
            return display_token_lists(self.tokens)
        plain = [False] * len(self.tokens)
        return list(self.tokens), plain, plain

    def to_json(self) -> AxisJson:
        shown, glued, special = self.displayed
        tokens = list(self.tokens)
        return {"kind": self.kind, "tokens": tokens, "shown": shown, "glued": glued, "special": special, **self.extra}

    def find_delimiters(self) -> list[bool]:
        """Which tokens are punctuation or special tokens, the first one excepted."""
        shown, _, special = self.displayed
        marks = {text: text != "" and set(text) <= DELIMITERS for text in dict.fromkeys(shown)}
        found = [end or marks[text] for text, end in zip(shown, special, strict=True)]
        return [False, *found[1:]] if found else []


def encode_png_url(picture: Shaped[Tensor, "height width *channels"]) -> str:
    """A picture as a PNG in a data: URL."""
    pixels = picture.detach().cpu()
    if pixels.is_floating_point():
        pixels = (pixels.clamp(0, 1) * 255).round()
    raw = pixels.numpy().astype(np.uint8)
    if raw.ndim not in (2, 3) or (raw.ndim == 3 and raw.shape[2] not in (1, 3)):
        raise RecordError(f"a picture is (height, width) or (height, width, 3), got {tuple(picture.shape)}")
    raw = raw[:, :, 0] if raw.ndim == 3 and raw.shape[2] == 1 else raw
    height, width = raw.shape[:2]
    colour = 2 if raw.ndim == 3 else 0
    lines = np.concatenate(
        [np.zeros((height, 1), np.uint8), raw.reshape(height, -1)], axis=1
    )  # PNG: each line begins with its filter, 0
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    ]
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunks)).decode("ascii")
