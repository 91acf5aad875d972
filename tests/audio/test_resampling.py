"""Resampling: judged by scipy with the same filter, by sines, and by its own definition of length."""

import math

import pytest
import scipy.signal
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.audio.resampling import (
    ATTENUATION,
    ZERO_CROSSINGS,
    filter_response,
    resample,
    resample_blocks,
    resampled_length,
)
from clearhead.errors import ConfigError

RATES = [(8000, 16000), (11025, 16000), (22050, 16000), (44100, 16000), (48000, 16000), (16000, 8000), (9, 10), (7, 5)]
DAMPED = 10 ** (-ATTENUATION / 20)


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(("old", "new"), [*RATES, (6007, 1601)])
def test_it_is_what_scipy_makes_with_the_same_filter(old, new):
    x = noise(2003)
    up, down = new // math.gcd(old, new), old // math.gcd(old, new)
    half = math.ceil(ZERO_CROSSINGS * max(1, down / up)) * up
    taps = filter_response(torch.arange(-half, half + 1).double() / up, up, down).numpy()
    judge = torch.from_numpy(scipy.signal.resample_poly(x.numpy(), up, down, window=taps / up))
    # At most 2 · reach + 1 products are summed, each coefficient below 1.
    limit = 2 * half / up * torch.finfo(torch.float64).eps * float(x.abs().max())
    assert resample(x, old, new).shape == judge.shape
    assert float((resample(x, old, new) - judge).abs().max()) <= limit


@pytest.mark.parametrize(("old", "new"), RATES[:6])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_a_sine_stays_the_same_sine(old, new, share):
    frequency = share * min(old, new) / 2
    x = torch.sin(2 * torch.pi * frequency * torch.arange(old // 4).double() / old)
    y = resample(x, old, new)
    truth = torch.sin(2 * torch.pi * frequency * torch.arange(len(y)).double() / new)
    inside = slice(2 * ZERO_CROSSINGS, -2 * ZERO_CROSSINGS)  # at the ends the sine starts from nothing
    # The filter is off by DAMPED in the passband, and lets that much of the two nearest images through.
    assert float((y - truth)[inside].abs().max()) <= 3 * DAMPED
    plain = resample(x.float(), old, new)
    assert (
        float((plain - truth)[inside].abs().max()) <= 3 * DAMPED + 4 * ZERO_CROSSINGS * torch.finfo(torch.float32).eps
    )


@pytest.mark.parametrize(("old", "new"), [(44100, 16000), (48000, 16000), (16000, 8000)])
def test_what_the_new_rate_cannot_hold_is_damped(old, new):
    x = torch.sin(2 * torch.pi * 0.51 * new * torch.arange(old // 4).double() / old)
    inside = slice(2 * ZERO_CROSSINGS, -2 * ZERO_CROSSINGS)
    assert float(resample(x, old, new)[inside].abs().max()) <= 2 * DAMPED


@given(st.integers(0, 400), st.integers(1, 30), st.integers(1, 30))
def test_the_length_is_that_of_the_same_time(samples, old, new):
    y = resample(noise(2, samples), old, new)
    assert y.shape == (2, math.ceil(samples * new / old)) == (2, resampled_length(samples, old, new))


@given(st.lists(st.integers(1, 500), min_size=1, max_size=7), st.sampled_from(RATES))
def test_blocks_give_what_the_whole_gives(sizes, rates):
    x = noise(sum(sizes))
    joined = torch.cat(list(resample_blocks(x.split(sizes), *rates)))
    assert joined.shape == resample(x, *rates).shape
    assert float((joined - resample(x, *rates)).abs().max()) <= 1e-12


def test_rows_do_not_mix():
    x = noise(3, 2, 701)
    y = resample(x, 44100, 16000)
    for row in range(3):
        assert float((y[row, 1] - resample(x[row, 1], 44100, 16000)).abs().max()) <= 1e-12


def test_the_same_rate_changes_nothing():
    x = noise(11)
    assert resample(x, 8000, 8000) is x


def test_a_rate_of_zero_is_refused():
    with pytest.raises(ConfigError, match="a rate is at least 1, got 0"):
        resample(noise(5), 0, 8000)
