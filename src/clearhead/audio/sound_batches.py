"""Sounds of different lengths in one flat tensor, from which padded batches are gathered on its device."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from clearhead.audio.log_mel import LogMelSettings

STEPS = 32767


class RaggedSounds:
    """Sounds of different lengths, kept as 16-bit integers to need half the memory of floats.

    Integers are in units of each sound's own peak / 32767: a sample is off by at most half a unit, 96 dB below the
    peak, however quiet the recording is.

    >>> sounds = RaggedSounds([torch.tensor([0.5, -1.0]), torch.tensor([0.25, 0.0, 0.25])])
    >>> sounds.pad(torch.tensor([1, 0]), size=4)[1]
    tensor([3, 2])
    """

    def __init__(self, sounds: Sequence[Float[Tensor, " _"]]) -> None:
        self.lengths = torch.tensor([len(sound) for sound in sounds], dtype=torch.long)
        self.starts = self.lengths.cumsum(0) - self.lengths
        peaks = [float(sound.abs().max()) if len(sound) else 0.0 for sound in sounds]
        self.units = torch.tensor(peaks, dtype=torch.float32) / STEPS
        # One more element: padding indexes it where there are no sounds.
        self.flat = torch.zeros(int(self.lengths.sum()) + 1, dtype=torch.int16)
        for sound, begin, unit in zip(sounds, self.starts.tolist(), self.units.tolist(), strict=True):
            if unit > 0:
                self.flat[begin : begin + len(sound)] = (sound / unit).round().clamp(-STEPS, STEPS).short()

    def __len__(self) -> int:
        return len(self.lengths)

    def to(self, device: torch.device) -> RaggedSounds:
        self.flat, self.lengths, self.starts, self.units = (
            part.to(device) for part in (self.flat, self.lengths, self.starts, self.units)
        )
        return self

    def fingerprint(self) -> str:
        """A SHA-256 of the sounds."""
        digest = hashlib.sha256()
        for part in (self.flat, self.lengths, self.units):
            digest.update(part.cpu().numpy().tobytes())
        return digest.hexdigest()

    def frame_counts(self, settings: LogMelSettings) -> NDArray[np.int64]:
        """The number of log-mel frames of every sound: the lengths that a batch plan with a budget of frames takes."""
        return np.array([settings.frames(length) for length in self.lengths.tolist()], dtype=np.int64)

    def pad(self, rows: Int[Tensor, " rows"], size: int) -> tuple[Float[Tensor, "rows size"], Int[Tensor, " rows"]]:
        """These sounds in float32, padded with zeros to `size` samples, and their lengths.

        Longer ones are cut to `size`. A plan by frames cuts only what belongs to no frame: there `size` is
        `settings.samples(frames)` of the longest.
        """
        lengths, places = self.lengths[rows].clamp_max(size), torch.arange(size, device=rows.device)
        inside = places < lengths[:, None]
        samples = self.flat[torch.where(inside, self.starts[rows][:, None] + places, 0)]
        return torch.where(inside, samples * self.units[rows][:, None], 0.0), lengths
