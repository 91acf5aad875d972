"""PictureInput, SoundInput: a picture or sound as a model took it, kept in traces and, as JSON, in records."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, UInt8

from clearhead.errors import RecordError

Spike = tuple[int, str, float]


class PictureInput(NamedTuple):
    """A picture at the size that the model takes, and its grid of patches, which are numbered row by row."""

    pixels: UInt8[np.ndarray, "height width 3"]
    rows: int
    columns: int
    name: str


class SoundInput(NamedTuple):
    """A spectrogram as the model took it, the times of its frames and positions, and what CTC found where.

    A frame is `frame_seconds` long, a position of the encoder `position_seconds`. `spikes` are positions with the text
    that CTC writes there, and its probability.
    """

    spectrogram: Float32[np.ndarray, "frames mels"]
    seconds: float  # of the whole sound
    frame_seconds: float
    position_seconds: float
    spikes: Sequence[Spike]
    name: str
    start: float = 0.0  # when the first frame begins in the recording; below 0 in silence that was put before it

    def name_position(self, position: int) -> str:
        """When a position of the encoder begins in the recording, such as "61.85 s"."""
        return f"{self.start + position * self.position_seconds:.2f} s"


def media_to_json(media: PictureInput | SoundInput) -> dict[str, Any]:
    """A picture or sound as JSON values, exactly: its numbers as base64.

    >>> picture = PictureInput(np.zeros((2, 3, 3), np.uint8), 1, 1, "black.png")
    >>> media_to_json(picture)["shape"], media_from_json(media_to_json(picture)).pixels.shape
    ([2, 3, 3], (2, 3, 3))
    """
    values = media._asdict()
    array = np.ascontiguousarray(values.pop("pixels" if isinstance(media, PictureInput) else "spectrogram"))
    if isinstance(media, SoundInput):
        values["spikes"] = [list(spike) for spike in media.spikes]
    kind = "picture" if isinstance(media, PictureInput) else "sound"
    data = base64.b64encode(array.tobytes()).decode("ascii")
    return {"kind": kind, "shape": list(array.shape), "data": data, **values}


def media_from_json(values: Any) -> PictureInput | SoundInput:
    """The inverse of `media_to_json`; RecordError if a file holds something else."""
    try:
        if values["kind"] == "picture":
            pixels = _read_array(values, np.uint8)
            if pixels.ndim != 3 or pixels.shape[2] != 3 or min(values["rows"], values["columns"]) < 1:
                raise ValueError("a picture has a height, a width and 3 colours, and at least one patch")
            return PictureInput(pixels, int(values["rows"]), int(values["columns"]), str(values["name"]))
        spectrogram = _read_array(values, np.float32)
        times = {name: float(values[name]) for name in ("seconds", "frame_seconds", "position_seconds", "start")}
        if values["kind"] != "sound" or spectrogram.ndim != 2 or not all(map(math.isfinite, times.values())):
            raise ValueError("a sound has a spectrogram of frames and mels")
        spikes = [(int(position), str(text), float(chance)) for position, text, chance in values["spikes"]]
        return SoundInput(spectrogram, **times, spikes=spikes, name=str(values["name"]))
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"the record's picture or sound is damaged ({error})") from None


def _read_array(values: Mapping[str, Any], kind: Any) -> Any:
    shape = tuple(int(size) for size in values["shape"])
    return np.frombuffer(base64.b64decode(values["data"], validate=True), kind).reshape(shape)
