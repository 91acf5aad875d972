"""Axis: what the rows or columns of a map are: tokens of a text, patches of a picture, frames of a sound."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional

from clearhead.errors import RecordError
from clearhead.explore.recorded_media import get_file_name
from clearhead.explore.scene_json import AxisExtras, AxisJson
from clearhead.explore.token_display import DELIMITERS, display_token_lists
from clearhead.tasks.media import PictureInput, SoundInput

PICTURE_PIXELS = 448  # a side of pictures in a page
SPECTROGRAM_PIXELS = 2048


@dataclass(frozen=True)
class Axis:
    """The tokens of an axis, by document position; made by `text`, `image`, `audio` or `media`."""

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
        extra: AxisExtras = {"grid": [1, frames], "picture": encode_png_url(_scale_loudness(spectrogram.flip(0)))}
        if seconds is None:
            return cls([str(frame) for frame in range(frames)], "audio", extra)
        each = seconds / frames
        tokens = [f"{frame * each:.2f} s" for frame in range(frames)]
        return cls(tokens, "audio", {**extra, "seconds": seconds, "step": each})

    @classmethod
    def media(cls, media: PictureInput | SoundInput, count: int) -> Axis:
        """The patches or moments of an input that a task has read: `count` tokens of the encoder."""
        if isinstance(media, PictureInput):
            if media.rows * media.columns > count:
                return cls.numbers(count)
            before = [f"⟨{number}⟩" for number in range(count - media.rows * media.columns)]
            patches = [f"r{row} c{column}" for row in range(media.rows) for column in range(media.columns)]
            pixels = _shrink(torch.from_numpy(media.pixels.copy()).float().movedim(2, 0), PICTURE_PIXELS)
            extra: AxisExtras = {
                "grid": [media.rows, media.columns],
                "picture": encode_png_url(pixels.movedim(0, 2).round().byte()),
                "file": get_file_name(media.name),
            }
            return cls([*before, *patches], "image", extra)
        spectrogram = _shrink(torch.from_numpy(media.spectrogram.copy()).T[None], SPECTROGRAM_PIXELS)[0]
        extra = {
            "grid": [1, count],
            "picture": encode_png_url(_scale_loudness(spectrogram.flip(0))),
            "file": get_file_name(media.name),
            "seconds": round(len(media.spectrogram) * media.frame_seconds, 6),
            "step": media.position_seconds,
            "start": round(media.start, 6),
            "spikes": [
                [position, text, round(chance, 4)] for position, text, chance in media.spikes if position < count
            ],
        }
        return cls(name_moments(media, count), "audio", extra)

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
        marks = [text[:1] in DELIMITERS and set(text) <= DELIMITERS for text in shown]
        found = [end or mark for mark, end in zip(marks, special, strict=True)]
        return [False, *found[1:]] if found else []


def name_moments(media: SoundInput, count: int) -> list[str]:
    """The begin of each position in the recording, in seconds."""
    return [media.name_position(place) for place in range(count)]


def _shrink(pictures: Float[Tensor, "channels height width"], most: int) -> Float[Tensor, "channels _ _"]:
    """Means over blocks, so that at most so many pixels are left a side: a page must open at once."""
    blocks = [max(1, -(-size // most)) for size in pictures.shape[1:]]
    return functional.avg_pool2d(pictures[None], blocks, ceil_mode=True)[0] if max(blocks) > 1 else pictures


def _scale_loudness(spectrogram: Float[Tensor, "bands frames"]) -> Float[Tensor, "bands frames"]:
    """From 0 for the most silent fifth to 1 for the loudest thousandth, so that single values do not darken it."""
    steps = spectrogram.flatten()[:: max(1, spectrogram.numel() // 100_000)].sort().values
    low, high = float(steps[int(0.2 * len(steps))]), float(steps[min(int(0.999 * len(steps)), len(steps) - 1)])
    return ((spectrogram - low) / max(high - low, 1e-12)).clamp(0, 1)


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
