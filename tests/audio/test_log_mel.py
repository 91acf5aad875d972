"""Log-mel spectrograms: judged by the definition, written out in float64 with a plain Fourier sum."""

import cmath
import math

import pytest
import torch

from clearhead.audio.log_mel import FLOOR, LogMelSettings, compute_log_mel, mel_filters, normalise_frames
from clearhead.errors import ShapeError

SMALL = LogMelSettings(rate=1000, window=0.023, hop=0.007, mels=5, lowest=30.0, highest=470.0, normalise=False)


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def mel(frequency: float) -> float:
    return 2595 * math.log10(1 + frequency / 700)


def by_definition(sound: list[float], s: LogMelSettings, size: int) -> list[list[float]]:
    width, hop = 23, 7
    edges = [mel(s.lowest) + (mel(s.top) - mel(s.lowest)) * place / (s.mels + 1) for place in range(s.mels + 2)]
    edges = [700 * (10 ** (edge / 2595) - 1) for edge in edges]
    frames = []
    for begin in range(0, len(sound) - width + 1, hop):
        part = [sound[begin + n] * math.sin(math.pi * n / width) ** 2 for n in range(width)]
        bands = [0.0] * s.mels
        for bin in range(size // 2 + 1):
            power = abs(sum(x * cmath.exp(-2j * math.pi * bin * n / size) for n, x in enumerate(part))) ** 2
            frequency = bin * s.rate / size
            for band, (low, middle, high) in enumerate(zip(edges, edges[1:], edges[2:], strict=False)):
                if low <= frequency <= middle:
                    bands[band] += power * (frequency - low) / (middle - low)
                elif middle < frequency <= high:
                    bands[band] += power * (high - frequency) / (high - middle)
        frames.append([math.log(max(FLOOR, band)) for band in bands])
    return frames


def test_it_is_the_definition():
    sound = noise(1, 101)
    truth = torch.tensor(by_definition(sound[0].tolist(), SMALL, 32), dtype=torch.float64)
    features, lengths = compute_log_mel(sound, torch.tensor([101]), SMALL)
    assert lengths.tolist() == [12] == [len(truth)] == [SMALL.frames(101)]
    # log(x) is off by the relative error of x: 32 terms, twice (transform, bands), of squares.
    assert float((features[0] - truth).abs().max()) <= 4 * 64 * torch.finfo(torch.float64).eps * 10
    plain, _ = compute_log_mel(sound.float(), torch.tensor([101]), SMALL)
    assert float((plain[0] - truth).abs().max()) <= 4 * 64 * torch.finfo(torch.float32).eps * 10


def test_a_tone_is_loudest_in_its_band():
    s = LogMelSettings(rate=16000, normalise=False)
    tone = torch.sin(2 * torch.pi * 1000 * torch.arange(4000) / 16000)[None]
    loudest = compute_log_mel(tone, torch.tensor([4000]), s)[0][0].mean(0).argmax()
    centre = mel(s.lowest) + (mel(s.top) - mel(s.lowest)) * (int(loudest) + 1) / (s.mels + 1)
    assert abs(centre - mel(1000)) <= (mel(s.top) - mel(s.lowest)) / (s.mels + 1)


def test_silence_is_the_floor_and_finite():
    features, _ = compute_log_mel(torch.zeros(1, 67), torch.tensor([67]), SMALL)
    assert torch.allclose(features, torch.tensor(math.log(FLOOR)))


@pytest.mark.parametrize("normalise", [False, True])
def test_padding_changes_nothing_and_is_zero(normalise):
    s = SMALL.model_copy(update={"normalise": normalise})
    lengths = torch.tensor([101, 53, 22])
    sound = noise(3, 101).masked_fill(torch.arange(101) >= lengths[:, None], 0.0)
    features, counts = compute_log_mel(sound, lengths, s)
    assert counts.tolist() == [12, 5, 0]
    alone, _ = compute_log_mel(sound[1:2, :53], torch.tensor([53]), s)
    assert torch.allclose(features[1, :5], alone[0], atol=1e-12)
    assert not features[1, 5:].any()
    assert not features[2].any()


def test_normalised_bands_have_mean_zero_and_variance_one():
    features = normalise_frames(3 + 5 * noise(2, 13, 7), torch.tensor([13, 11]))
    for row, length in enumerate((13, 11)):
        assert torch.allclose(features[row, :length].mean(0), torch.zeros(7, dtype=torch.float64), atol=1e-12)
        assert torch.allclose(features[row, :length].var(0, correction=0), torch.ones(7, dtype=torch.float64))
    assert not normalise_frames(noise(1, 1, 7), torch.tensor([1])).any()


def test_every_band_has_a_bin_at_any_rate():
    for rate in (8000, 16000, 22050, 48000):
        s = LogMelSettings(rate=rate, normalise=False)
        features, _ = compute_log_mel(noise(1, rate), torch.tensor([rate]), s)
        assert features.shape == (1, 98, 80)
        assert (features > math.log(FLOOR) + 1).all()


def test_triangles_sum_to_one_between_the_middles():
    filters = mel_filters(SMALL, 1024)
    edges = torch.linspace(mel(30), mel(470), 7, dtype=torch.float64)
    edges = 700 * (10 ** (edges / 2595) - 1)
    bins = torch.arange(513) * 1000 / 1024
    between = (bins >= edges[1]) & (bins <= edges[-2])
    assert torch.allclose(filters.sum(1)[between], torch.ones(int(between.sum()), dtype=torch.float64))
    assert not filters[(bins < 30) | (bins > 470)].any()


def test_frames_samples_and_seconds_belong_together():
    for frames in range(1, 9):
        assert SMALL.frames(SMALL.samples(frames)) == frames
        assert SMALL.frames(SMALL.samples(frames) - 1) == frames - 1
    assert SMALL.samples(0) == 0
    assert SMALL.frame_seconds(3) == pytest.approx((21 + 11.5) / 1000)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"hop": 0.03}, "hop = 0.03 is longer than window = 0.025"),
        ({"hop": 1e-5}, "less than a sample"),
        ({"highest": 9000.0}, "half the rate"),
        ({"lowest": 500.0, "highest": 500.0}, "lowest = 500 and highest = 500"),
        ({"lowest": 500.0, "highest": 500.1}, "too narrow"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values, said):
    with pytest.raises(ValueError, match=said):
        LogMelSettings(**values)


def test_a_batch_shorter_than_a_window_is_refused():
    with pytest.raises(ShapeError, match="22 samples are shorter than the window of 23"):
        compute_log_mel(noise(2, 22), torch.tensor([22, 20]), SMALL)
