"""Augmentation of sound in training: speed perturbation of samples, and SpecAugment's masks on spectrograms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from clearhead.audio.resampling import resample, resampled_length
from clearhead.errors import ConfigError

PERCENT = 100  # speeds are multiples of 0.01, so that the ratio of resampling stays small


class SpecAugment(BaseModel):
    """How much of a spectrogram is hidden in training (Park et al. 2019); zero masks hide nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    band_masks: int = Field(2, ge=0)  # number of masks that hide neighbouring mel bands
    band_width: int = Field(15, ge=0)  # largest number of neighbouring mel bands that one mask hides
    time_masks: int = Field(2, ge=0)  # number of masks that hide neighbouring frames
    time_width: int = Field(40, ge=0)  # largest number of frames that one mask hides
    time_share: float = Field(0.15, ge=0, le=1)  # largest share of a recording that one mask hides


def mask_spectrogram(
    features: Float[Tensor, "batch frames mels"],
    lengths: Int[Tensor, " batch"],
    settings: SpecAugment,
    generator: torch.Generator,
) -> Float[Tensor, "batch frames mels"]:
    """The spectrograms with random stretches of bands and of time set to zero, the mean of normalised frames.

    Widths and places are drawn from `generator` alone: the same number of draws for every batch of a size, so a run
    that restores its state goes on with the same masks.
    """
    rows, frames, mels = features.shape
    full = torch.full((rows,), mels, dtype=torch.long, device=lengths.device)
    most = (lengths * settings.time_share).floor().clamp_max(settings.time_width)
    bands = _draw_stretches(full, full.clamp_max(settings.band_width), mels, settings.band_masks, generator)
    times = _draw_stretches(lengths, most.long(), frames, settings.time_masks, generator)
    hidden = bands[:, None] | times[:, :, None]
    return features.masked_fill(hidden.to(features.device), 0.0)


def perturb_speed(
    sound: Float[Tensor, "batch samples"],
    lengths: Int[Tensor, " batch"],
    speeds: Sequence[float],
    generator: torch.Generator,
) -> tuple[Float[Tensor, "batch resampled"], Int[Tensor, " batch"]]:
    """Every sound at a speed drawn from `speeds`, and the new lengths; 1.1 is a tenth faster, and higher.

    The result always has the width of the slowest of `speeds`, so that shapes are few.
    """
    check_speeds(speeds)
    drawn = torch.randint(len(speeds), (len(sound),), generator=generator, device=generator.device).tolist()
    result = sound.new_zeros(len(sound), perturbed_length(sound.shape[1], min(speeds)))
    new_lengths = lengths.clone()
    for number, speed in enumerate(speeds):
        rows = [row for row, choice in enumerate(drawn) if choice == number]
        if rows:
            percent, where = round(speed * PERCENT), torch.tensor(rows, device=sound.device)
            faster = resample(sound[where], percent, PERCENT)
            result[where, : faster.shape[1]] = faster
            new_lengths[where] = -((-lengths[where] * PERCENT) // percent)
    # The filter rings a little into the padding; a sound ends where it ends.
    places = torch.arange(result.shape[1], device=sound.device)
    return result.masked_fill(places >= new_lengths[:, None], 0.0), new_lengths


def perturbed_length(samples: int, speed: float) -> int:
    """The number of samples at another speed.

    >>> perturbed_length(900, 0.9)
    1000
    """
    return resampled_length(samples, round(speed * PERCENT), PERCENT)


def check_speeds(speeds: Sequence[float]) -> None:
    """A ConfigError unless every speed is a multiple of 0.01 between 0.5 and 2."""
    for speed in speeds:
        if not (0.5 <= speed <= 2 and math.isclose(speed * PERCENT, round(speed * PERCENT), abs_tol=1e-6)):
            raise ConfigError(f"a speed of {speed} is no multiple of 0.01 between 0.5 and 2")
    if not speeds:
        raise ConfigError("there are no speeds to draw from; [1.0] leaves sound as it is")


def _draw_stretches(
    lengths: Int[Tensor, " batch"], widths: Int[Tensor, " batch"], size: int, masks: int, generator: torch.Generator
) -> Bool[Tensor, "batch size"]:
    """True inside `masks` random stretches for each row: up to `widths` wide, inside its first `lengths` places."""
    chance = torch.rand(2, len(lengths), masks, generator=generator, device=generator.device).to(lengths.device)
    # floor(u · n) is below n, unless float32 rounds the product up to n.
    width = torch.minimum((chance[0] * (widths + 1)[:, None]).long(), widths[:, None])
    free = (lengths[:, None] - width).clamp_min(0)
    begin = torch.minimum((chance[1] * (free + 1)).long(), free)
    places = torch.arange(size, device=lengths.device)
    inside = (places >= begin[..., None]) & (places < (begin + width)[..., None])
    return inside.any(1)
