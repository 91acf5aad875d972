"""Axis: what the rows or columns of a map are: tokens of a text, patches of a picture, frames of a sound."""

from __future__ import annotations

import base64
import math
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
from clearhead.explore.scene_json import AxisExtras, AxisJson
from clearhead.explore.token_display import display_token_lists, find_delimiters
from clearhead.lens.record.attention_views import Forward
from clearhead.tasks.media import PictureInput, SoundInput, media_from_json

PICTURE_PIXELS = 448  # a side of pictures in a page
SPECTROGRAM_PIXELS = 2048
MAX_SPIKES = 20_000  # of CTC that a page draws


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
        return _picture_axis(media, count) if isinstance(media, PictureInput) else _sound_axis(media, count)

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
        return find_delimiters(shown, special)


def read_media(forward: Forward) -> PictureInput | SoundInput | None:
    """The picture or sound that the model has read; None if there is none, or it cannot be drawn."""
    try:
        media = None if forward.about.media is None else media_from_json(forward.about.media)
    except RecordError:
        return None
    if media is None or isinstance(media, PictureInput):
        return media if media is None or media.pixels.size else None
    times = (media.seconds, media.frame_seconds, media.position_seconds)
    if not media.spectrogram.size or not np.isfinite(media.spectrogram).all() or min(times) <= 0:
        return None
    spikes = [
        (position, text, min(max(chance, 0.0), 1.0))
        for position, text, chance in media.spikes[:MAX_SPIKES]
        if position >= 0 and math.isfinite(chance)
    ]
    return media._replace(spikes=spikes)


def get_file_name(path: str) -> str:
    """The last part of a path, of whichever system.

    >>> get_file_name("samples/1.png"), get_file_name(r"C:\\1.png"), get_file_name("a picture in memory")
    ('1.png', '1.png', 'a picture in memory')
    """
    return path.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1] or path


def _picture_axis(media: PictureInput, count: int) -> Axis:
    patches = [f"r{row} c{column}" for row in range(media.rows) for column in range(media.columns)]
    if len(patches) > count:
        return Axis.numbers(count)
    before = [f"⟨{number}⟩" for number in range(count - len(patches))]
    pixels = _shrink(torch.from_numpy(media.pixels.copy()).float().movedim(2, 0), PICTURE_PIXELS)
    extra: AxisExtras = {
        "grid": [media.rows, media.columns],
        "picture": encode_png_url(pixels.movedim(0, 2).round().byte()),
        "file": get_file_name(media.name),
    }
    return Axis([*before, *patches], "image", extra)


def _sound_axis(media: SoundInput, count: int) -> Axis:
    spectrogram = _shrink(torch.from_numpy(media.spectrogram.copy()).T[None], SPECTROGRAM_PIXELS)[0]
    extra: AxisExtras = {
        "grid": [1, count],
        "picture": encode_png_url(_scale_loudness(spectrogram.flip(0))),
        "file": get_file_name(media.name),
        "seconds": round(len(media.spectrogram) * media.frame_seconds, 6),
        "step": media.position_seconds,
        "start": round(media.start, 6),
        "spikes": [[position, text, round(chance, 4)] for position, text, chance in media.spikes if position < count],
    }
    return Axis([media.name_position(position) for position in range(count)], "audio", extra)


def _shrink(pictures: Float[Tensor, "channels height width"], most: int) -> Float[Tensor, "channels _ _"]:
    """Means over blocks, so that at most `most` pixels are left a side: a page must open at once."""
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
    filters = np.zeros((height, 1), np.uint8)  # of PNG: each line begins with one, 0 is none
    lines = np.concatenate([filters, raw.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    chunks = [_png_chunk(b"IHDR", header), _png_chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)), _png_chunk(b"IEND")]
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunks)).decode("ascii")


def _png_chunk(kind: bytes, content: bytes = b"") -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
