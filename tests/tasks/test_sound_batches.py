"""Padded batches of sounds, planned by frames."""

import torch

from clearhead.audio import LogMelSettings, compute_log_mel
from clearhead.tasks.transcription.sound_examples import RaggedSounds
from clearhead.text.batches import BatchPlan

SETTINGS = LogMelSettings(rate=1000, window=0.023, hop=0.007, mels=5)


def sounds(*lengths: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(length, generator=generator) * 10.0 ** -(place % 4) for place, length in enumerate(lengths)]


def test_sounds_come_back_within_half_a_step_of_their_peak():
    originals = sounds(11, 7, 0, 23, 5)
    padded, lengths = RaggedSounds(originals).pad(torch.tensor([3, 0, 2, 4]), size=23)
    assert lengths.tolist() == [23, 11, 0, 5]
    for row, place in enumerate((3, 0, 2, 4)):
        sound = originals[place]
        limit = (float(sound.abs().max()) if len(sound) else 0.0) / 32767 * 0.501
        assert ((padded[row, : len(sound)] - sound).abs() <= limit).all()
        assert not padded[row, len(sound) :].any()


def test_no_sounds_and_silence_are_no_trouble():
    assert not len(RaggedSounds([]).lengths)
    assert not RaggedSounds([torch.zeros(3)]).pad(torch.tensor([0]), size=5)[0].any()


def test_a_plan_by_frames_keeps_every_frame():
    kept = RaggedSounds(sounds(*range(23, 423, 13)))
    frames = kept.frame_counts(SETTINGS)
    plan = BatchPlan(frames[:, None], tokens=200, seed=1)
    seen = []
    for batch in plan.epoch(0):
        (size,) = batch.sizes
        assert len(batch.examples) == 1 or len(batch.examples) * size <= 200
        rows = torch.from_numpy(batch.examples)
        features, counts = compute_log_mel(*kept.pad(rows, SETTINGS.samples(size)), SETTINGS)
        assert features.shape[1] == size
        assert counts.tolist() == frames[batch.examples].tolist()
        seen += batch.examples.tolist()
    assert sorted(seen) == list(range(len(kept.lengths)))


def test_a_fingerprint_tells_sounds_apart():
    one = sounds(11, 7)
    assert RaggedSounds(one).fingerprint() == RaggedSounds(one).fingerprint()
    assert RaggedSounds(one).fingerprint() != RaggedSounds([2 * one[0], one[1]]).fingerprint()
    assert RaggedSounds(one).fingerprint() != RaggedSounds(sounds(7, 11)).fingerprint()


def test_they_move_to_a_device(device):
    kept = RaggedSounds(sounds(11, 7)).to(torch.device(device))
    assert kept.pad(torch.tensor([1], device=device), size=7)[0].device.type == device
