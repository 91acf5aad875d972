"""The picture or sound of a recorded call, checked: a record's file may hold anything."""

from __future__ import annotations

import math

import numpy as np

from clearhead.errors import RecordError
from clearhead.lens.record.attention_views import Forward
from clearhead.tasks.media import PictureInput, SoundInput, media_from_json

MAX_SPIKES = 20_000


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
    spikes = [one for one in media.spikes[:MAX_SPIKES] if one[0] >= 0 and math.isfinite(one[2])]
    return media._replace(spikes=[(place, text, min(max(chance, 0.0), 1.0)) for place, text, chance in spikes])


def get_file_name(path: str) -> str:
    """The last part of a path, of whichever system.

    >>> get_file_name("samples/1.png"), get_file_name(r"C:\\1.png"), get_file_name("a picture in memory")
    ('1.png', '1.png', 'a picture in memory')
    """
    return path.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1] or path
