"""Augmentation: what is hidden is bounded, speeds are exact, and a restored generator goes on the same way."""

import pytest
import torch

from clearhead.audio import SpecAugment, mask_spectrogram, perturb_speed, resample
from clearhead.audio.sound_augmentation import perturbed_length
from clearhead.errors import ConfigError


def seeded(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def runs(hidden: torch.Tensor) -> int:
    return int((hidden.int().diff(prepend=torch.zeros(1)) == 1).sum())


def test_masks_are_few_narrow_and_inside_the_sound():
    settings = SpecAugment(band_masks=2, band_width=5, time_masks=3, time_width=7, time_share=0.1)
    generator, lengths = seeded(), torch.tensor([97, 41, 5])
    seen = set()
    for _ in range(50):
        masked = mask_spectrogram(torch.ones(3, 97, 23), lengths, settings, generator)
        for row, length in enumerate(lengths.tolist()):
            bands, times = (masked[row] == 0).all(0), (masked[row] == 0).all(1)
            assert runs(bands) <= 2
            assert int(bands.sum()) <= 10
            assert int(times.sum()) <= 3 * min(7, length // 10)
            assert not times[length:].any()
            # Nothing else is hidden than whole bands and whole frames.
            assert torch.equal(masked[row] == 0, bands[None] | times[:, None])
            seen.add((row, int(bands.sum()) > 0, int(times.sum()) > 0))
    assert {(0, True, True), (1, True, True), (2, True, False)} <= seen
    assert not any(times for row, _, times in seen if row == 2)


def test_every_place_is_hidden_sooner_or_later():
    settings, generator, lengths = (
        SpecAugment(band_masks=1, band_width=3, time_masks=1, time_width=3, time_share=1.0),
        seeded(),
        torch.tensor([11]),
    )
    hidden = sum((mask_spectrogram(torch.ones(1, 11, 7), lengths, settings, generator) == 0).int() for _ in range(300))
    assert (hidden > 0).all()


def test_no_masks_hide_nothing():
    ones = torch.ones(2, 11, 7)
    nothing = SpecAugment(band_masks=0, time_masks=0)
    assert torch.equal(mask_spectrogram(ones, torch.tensor([11, 3]), nothing, seeded()), ones)


def test_a_restored_generator_goes_on_the_same_way():
    features, sound, lengths = torch.ones(5, 61, 23), torch.randn(5, 400, generator=seeded()), torch.tensor([61] * 5)
    generator = seeded()
    mask_spectrogram(features, lengths, SpecAugment(), generator)
    state = generator.get_state()

    def go_on(generator):
        masked = mask_spectrogram(features, lengths, SpecAugment(), generator)
        return masked, *perturb_speed(sound, torch.full((5,), 400), [0.9, 1.0, 1.1], generator)

    first = go_on(generator)
    fresh = torch.Generator()
    fresh.set_state(state)
    assert all(torch.equal(one, other) for one, other in zip(first, go_on(fresh), strict=True))


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    mask_spectrogram(torch.ones(2, 11, 7), torch.tensor([11, 3]), SpecAugment(), seeded())
    perturb_speed(torch.ones(2, 11), torch.tensor([11, 3]), [0.9, 1.1], seeded())
    assert torch.equal(before, torch.get_rng_state())


def test_each_sound_gets_one_of_the_speeds():
    lengths = torch.tensor([900, 450, 901, 17] * 5)
    sound = torch.randn(20, 901, generator=seeded()).masked_fill(torch.arange(901) >= lengths[:, None], 0.0)
    faster, new = perturb_speed(sound, lengths, [0.9, 1.0, 1.1], seeded(3))
    assert faster.shape == (20, perturbed_length(901, 0.9)) == (20, 1002)
    drawn = set()
    for row, length in enumerate(lengths.tolist()):
        options = {percent: -(-length * 100 // percent) for percent in (90, 100, 110)}
        (percent,) = [percent for percent, size in options.items() if size == int(new[row])]
        drawn.add(percent)
        alone = resample(sound[row, :length], percent, 100)
        assert torch.allclose(faster[row, : len(alone)], alone, atol=1e-5)
        assert not faster[row, len(alone) :].any()
    assert drawn == {90, 100, 110}


def test_a_faster_tone_is_a_higher_tone():
    tone = torch.sin(2 * torch.pi * 100 * torch.arange(4000) / 8000)[None]
    faster, new = perturb_speed(tone, torch.tensor([4000]), [1.25], seeded())
    assert new.tolist() == [3200]
    assert int(torch.fft.rfft(faster[0]).abs().argmax()) == round(125 * 3200 / 8000)


@pytest.mark.parametrize("speeds", [[0.0], [1.005], [3.0], [-1.0], []])
def test_speeds_that_make_no_sense_are_refused(speeds):
    with pytest.raises(ConfigError, match="speed"):
        perturb_speed(torch.ones(1, 5), torch.tensor([5]), speeds, seeded())
