"""Resampling of sound between any two rates: a Kaiser-windowed sinc filter, evaluated phase by phase."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from clearhead.errors import ConfigError

# By Kaiser's formulas 64 zero crossings on each side and 100 dB give a transition from 0.9 to 1 times the lower Nyquist
# frequency: nothing above that frequency aliases, and what is below 0.9 of it passes unchanged.
ZERO_CROSSINGS = 64
ATTENUATION = 100.0  # dB
CUTOFF = 0.95  # the middle of the transition, as a share of the lower Nyquist frequency
BETA = 0.1102 * (ATTENUATION - 8.7)
BLOCK_SAMPLES = 1 << 20  # input samples of one convolution, so that memory stays bounded


def resampled_length(samples: int, from_rate: int, to_rate: int) -> int:
    """The number of samples after resampling: the duration is kept, a started sample counts.

    >>> resampled_length(5, 44100, 16000)
    2
    """
    return -(-samples * to_rate // from_rate)


def resample(x: Float[Tensor, "*batch samples"], from_rate: int, to_rate: int) -> Float[Tensor, "*batch resampled"]:
    """The same sound at another rate; outside its ends the sound is taken as zero.

    Frequencies up to 0.9 of the lower Nyquist frequency keep their amplitude within 1e-5, those above that frequency
    are damped to 1e-5. Only the ratio of the rates matters: `resample(x, 9, 10)` is 10 / 9 as long.

    >>> resample(torch.ones(800), 8000, 16000)[400].round(decimals=3)
    tensor(1.)
    """
    up, down = _reduce_ratio(from_rate, to_rate)
    if up == down:
        return x
    rows = x.reshape(-1, x.shape[-1])
    blocks = resample_blocks(iter(rows.split(BLOCK_SAMPLES, dim=-1)), from_rate, to_rate)
    parts = [block for block in blocks if block.shape[-1]]
    flat = torch.cat(parts, dim=-1) if parts else rows[:, :0]
    return flat.reshape(*x.shape[:-1], flat.shape[-1])


def resample_blocks(
    blocks: Iterable[Float[Tensor, "*batch _"]], from_rate: int, to_rate: int
) -> Iterator[Float[Tensor, "*batch _"]]:
    """The resampled sound block by block, for sound that is too long to be held at its own rate.

    The outputs one after the other are the resampling of the inputs one after the other: the filter runs across the
    borders of blocks, which may have any length.
    """
    up, down = _reduce_ratio(from_rate, to_rate)
    if up == down:
        yield from blocks
        return
    reach = _filter_reach(up, down)
    waiting: Tensor | None = None  # begins `reach` samples before the next output
    for block in blocks:
        waiting = functional.pad(block, (reach, 0)) if waiting is None else torch.cat([waiting, block], dim=-1)
        # Whole periods of the phases, so that every call begins at phase 0.
        periods = (waiting.shape[-1] - 2 * reach) // down
        if periods > 0:
            yield _convolve(waiting[..., : periods * down + 2 * reach], up, down, periods * up)
            waiting = waiting[..., periods * down :]
    if waiting is not None:
        remaining = waiting.shape[-1] - reach
        yield _convolve(functional.pad(waiting, (0, reach)), up, down, resampled_length(remaining, down, up))


def _reduce_ratio(from_rate: int, to_rate: int) -> tuple[int, int]:
    if from_rate < 1 or to_rate < 1:
        raise ConfigError(f"a rate is at least 1, got {from_rate} to resample from and {to_rate} to resample to")
    divisor = math.gcd(from_rate, to_rate)
    return to_rate // divisor, from_rate // divisor


def _filter_reach(up: int, down: int) -> int:
    """How many input samples before and after its time an output depends on."""
    return math.ceil(ZERO_CROSSINGS * max(1.0, down / up))


def filter_response(time: Float[Tensor, "*shape"], up: int, down: int) -> Float[Tensor, "*shape"]:
    """The filter's coefficient at a time given in input samples: a sinc under a Kaiser window, zero outside it."""
    scale = min(1.0, up / down)
    share = time * scale / ZERO_CROSSINGS
    window = torch.special.i0(BETA * (1 - share.square()).clamp_min(0).sqrt()) / torch.special.i0(time.new_tensor(BETA))
    response: Tensor = CUTOFF * scale * torch.sinc(CUTOFF * scale * time) * window
    return response.masked_fill(share.abs() > 1, 0.0)


@lru_cache(maxsize=16)
def _make_kernels(up: int, down: int, first: int, phases: int) -> Float[Tensor, "phases 1 taps"]:
    """One row of coefficients for each phase; all apply to inputs from that of phase `first` minus the reach on."""
    reach = _filter_reach(up, down)
    phase = torch.arange(first, first + phases)
    begin = first * down // up
    taps = (first + phases - 1) * down // up - begin + 2 * reach + 1
    # The exact numerator as an integer: p·down/up − k of large p would lose digits.
    numerator = (phase * down)[:, None] - (begin - reach + torch.arange(taps)) * up
    return filter_response(numerator.double() / up, up, down)[:, None]


def _convolve(x: Float[Tensor, "*batch padded"], up: int, down: int, outputs: int) -> Float[Tensor, "*batch outputs"]:
    """The first `outputs` samples after resampling of sound that has `reach` samples more on both sides."""
    reach = _filter_reach(up, down)
    rows = x.reshape(-1, 1, x.shape[-1])
    periods = -(-outputs // up)
    # Neighbouring phases share a convolution as long as their inputs lie no farther apart than a filter is long.
    together = max(1, min(up, 2 * reach * up // down))
    result = x.new_empty(len(rows), up, periods)
    for first in range(0, up, together):
        kernels = _make_kernels(up, down, first, min(together, up - first)).to(x)
        begin = first * down // up
        needed = (periods - 1) * down + kernels.shape[-1]
        part = functional.pad(rows[..., begin:], (0, max(0, begin + needed - rows.shape[-1])))
        convolved = functional.conv1d(part[..., :needed], kernels, stride=down)
        result[:, first : first + kernels.shape[0]] = convolved
    # Output n · up + p is period n of phase p.
    return result.transpose(1, 2).reshape(*x.shape[:-1], periods * up)[..., :outputs]
