"""Log-mel spectrograms: the loudness of sound in frequency bands of the mel scale, one frame every few milliseconds."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from clearhead.errors import ShapeError

FLOOR = 1e-10  # power below this counts as this: the logarithm of silence is finite
LARGEST_FFT = 1 << 16


class LogMelSettings(BaseModel):
    """How sound becomes frames; stored in the model folder.

    >>> LogMelSettings(rate=16000).frames(16000)
    98
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    rate: int = Field(16000, ge=1000, le=192_000)  # samples a second
    window: float = Field(0.025, gt=0, le=1)  # seconds of a frame
    hop: float = Field(0.010, gt=0, le=1)  # seconds from one frame to the next
    mels: int = Field(80, ge=1, le=512)  # frequency bands
    lowest: float = Field(20.0, ge=0)  # Hz, where the first band begins
    highest: float | None = None  # Hz, where the last band ends; None: half the rate
    normalise: bool = True  # mean 0 and variance 1 for each band: loudness and microphone matter less

    @model_validator(mode="after")
    def _check(self) -> LogMelSettings:
        if self.hop > self.window:
            raise ValueError(f"hop = {self.hop:g} is longer than window = {self.window:g}; make it shorter")
        if self.hop_samples < 1 or self.window_samples < 2:
            raise ValueError(
                f"window = {self.window:g} and hop = {self.hop:g} are less than a sample at {self.rate} Hz"
            )
        if not self.lowest < self.top <= self.rate / 2:
            raise ValueError(
                f"lowest = {self.lowest:g} and highest = {self.top:g} must satisfy "
                f"lowest < highest ≤ {self.rate / 2:g}, half the rate"
            )
        _choose_fft_size(self)  # raises where bands are too narrow
        return self

    @property
    def top(self) -> float:
        """The upper end of the highest band, in Hz."""
        return self.rate / 2 if self.highest is None else self.highest

    @property
    def window_samples(self) -> int:
        return round(self.rate * self.window)

    @property
    def hop_samples(self) -> int:
        return round(self.rate * self.hop)

    def frames(self, samples: int) -> int:
        """The number of frames of a sound; frames lie inside it, so one shorter than a window has none."""
        return max(0, 1 + (samples - self.window_samples) // self.hop_samples)

    def samples(self, frames: int) -> int:
        """The smallest number of samples that has this number of frames."""
        return 0 if frames < 1 else (frames - 1) * self.hop_samples + self.window_samples

    def frame_seconds(self, frame: int | float) -> float:
        """When a frame is, in seconds from the start of the sound: the middle of its window."""
        return (frame * self.hop_samples + self.window_samples / 2) / self.rate


def compute_log_mel(
    sound: Float[Tensor, "batch samples"], lengths: Int[Tensor, " batch"], settings: LogMelSettings
) -> tuple[Float[Tensor, "batch frames mels"], Int[Tensor, " batch"]]:
    """The log-mel frames of a padded batch of sounds, and how many frames each has; frames of padding are zero.

    `lengths` are in samples. What a sound gives does not depend on its padding.
    """
    if sound.shape[-1] < settings.window_samples:
        raise ShapeError(
            f"{sound.shape[-1]} samples are shorter than the window of {settings.window_samples}; "
            "pad them, or drop sounds this short"
        )
    size = _choose_fft_size(settings)
    window = torch.hann_window(settings.window_samples, periodic=True, dtype=torch.float64).to(sound)
    windows = sound.unfold(-1, settings.window_samples, settings.hop_samples) * window
    power = torch.fft.rfft(windows, n=size).abs().square()
    bands = power @ mel_filters(settings, size).to(sound)
    features = bands.clamp_min(FLOOR).log()
    counts = ((lengths - settings.window_samples) // settings.hop_samples + 1).clamp_min(0)
    if settings.normalise:
        return normalise_frames(features, counts), counts
    return features.masked_fill(~_inside(features, counts), 0.0), counts


def normalise_frames(
    features: Float[Tensor, "batch frames mels"], lengths: Int[Tensor, " batch"]
) -> Float[Tensor, "batch frames mels"]:
    """The frames with mean 0 and variance 1 for each sound and band; frames of padding are zero.

    A band that does not vary, such as that of a single frame, becomes zero.
    """
    inside = _inside(features, lengths)
    counts = lengths.clamp_min(1)[:, None, None]
    centred = features - features.masked_fill(~inside, 0.0).sum(1, keepdim=True) / counts
    centred = centred.masked_fill(~inside, 0.0)
    variance = centred.square().sum(1, keepdim=True) / counts
    # Rounding of the mean is no signal: 1e-5 of a logarithm's scale.
    return centred / variance.sqrt().clamp_min(1e-5 * -math.log(FLOOR))


@lru_cache(maxsize=16)
def mel_filters(settings: LogMelSettings, fft_size: int) -> Float[Tensor, "bins mels"]:
    """The share of every frequency bin in every band: triangles of height 1 that are equally wide on the mel scale.

    Band m rises from edge m to edge m + 1 and falls to edge m + 2, where the edges divide the mel scale between the
    lowest and the highest frequency into equal parts. mel(f) = 2595 · log10(1 + f / 700).
    """
    ends = [2595 * math.log10(1 + frequency / 700) for frequency in (settings.lowest, settings.top)]
    edges = 700 * (10 ** (torch.linspace(ends[0], ends[1], settings.mels + 2, dtype=torch.float64) / 2595) - 1)
    bins = torch.arange(fft_size // 2 + 1, dtype=torch.float64)[:, None] * settings.rate / fft_size
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return torch.minimum(rising, falling).clamp_min(0)


def _choose_fft_size(settings: LogMelSettings) -> int:
    """The smallest power of two that holds a window and puts a bin into every band."""
    size = 1 << (settings.window_samples - 1).bit_length()
    while not (mel_filters(settings, size) > 0).any(0).all():
        size *= 2
        if size > LARGEST_FFT:
            raise ValueError(
                f"mels = {settings.mels} bands between {settings.lowest:g} and {settings.top:g} Hz are too narrow; "
                "take fewer, or a wider range"
            )
    return size


def _inside(features: Float[Tensor, "batch frames mels"], lengths: Int[Tensor, " batch"]) -> Tensor:
    """True for frames of sound, False for those of padding."""
    return (torch.arange(features.shape[1], device=features.device) < lengths[:, None])[..., None]
