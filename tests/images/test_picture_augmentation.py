"""Random changes of pictures: reproducible, of each picture its own, and by hand where that can be done."""

import math

import pytest
import torch

from clearhead.images import Augmentation

NOTHING = {"shift": 0.0, "zoom": 0.0, "rotation": 0.0, "brightness": 0.0, "contrast": 0.0, "saturation": 0.0}
BATCH, HEIGHT, WIDTH = 5, 11, 13


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_pictures(batch: int = BATCH) -> torch.Tensor:
    return torch.rand(batch, 3, HEIGHT, WIDTH, generator=seeded(7))


def fix_draws(monkeypatch, *amounts: float) -> None:
    """Makes every picture draw these amounts, from −1 to 1: flip, angle, zoom, across, down, and the colours."""
    row = torch.tensor([*amounts, *[0.0] * (16 - len(amounts))], dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda batch, draws, **_: ((row + 1) / 2).repeat(batch, 1))


def test_the_same_state_of_the_generator_makes_the_same_changes(device):
    pictures, augment = random_pictures().to(device), Augmentation(flip=True)
    generator = seeded()
    first = augment(pictures, generator)
    state = generator.get_state()
    second = augment(pictures, generator)
    resumed = torch.Generator()
    resumed.set_state(state)
    assert torch.equal(augment(pictures, resumed), second)
    assert not torch.equal(first, second)
    assert not torch.equal(augment(pictures, seeded(4)), first)


def test_the_global_generator_is_not_used():
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    Augmentation(flip=True)(random_pictures(), seeded())
    assert torch.equal(torch.random.get_rng_state(), before)


def test_as_many_numbers_are_drawn_whatever_is_switched_on():
    states = []
    for augment in (Augmentation(), Augmentation(**NOTHING), Augmentation(flip=True)):
        generator = seeded()
        augment(random_pictures(), generator)
        states.append(generator.get_state())
    assert all(torch.equal(state, states[0]) for state in states)


def test_changes_belong_to_pictures_not_to_batches():
    pictures, generator = random_pictures(), seeded()
    whole = Augmentation(flip=True)(pictures, seeded())
    parts = [Augmentation(flip=True)(part, generator) for part in pictures.split(2)]
    assert torch.allclose(torch.cat(parts), whole, atol=1e-6)


def test_each_picture_gets_its_own_change():
    changed = Augmentation()(random_pictures(1).repeat(3, 1, 1, 1), seeded())
    assert not torch.allclose(changed[0], changed[1])
    assert not torch.allclose(changed[1], changed[2])


def test_values_stay_from_0_to_1_and_the_input_as_it_was():
    pictures = random_pictures()
    copy = pictures.clone()
    changed = Augmentation(
        shift=1.0, zoom=0.9, rotation=180.0, flip=True, brightness=1.0, contrast=1.0, saturation=1.0
    )(pictures, seeded())
    assert changed.shape == pictures.shape
    assert 0 <= changed.min() <= changed.max() <= 1
    assert torch.equal(pictures, copy)


def test_nothing_switched_on_changes_nothing():
    assert torch.equal(Augmentation(**NOTHING)(random_pictures(), seeded()), random_pictures())


def test_a_flip_is_exact_and_not_of_every_picture():
    pictures = random_pictures(40)
    changed = Augmentation(**{**NOTHING, "flip": True})(pictures, seeded())
    flipped = [torch.equal(one, other.flip(-1)) for one, other in zip(changed, pictures, strict=True)]
    kept = [torch.equal(one, other) for one, other in zip(changed, pictures, strict=True)]
    assert all(one != other for one, other in zip(flipped, kept, strict=True))
    assert 10 < sum(flipped) < 30
    assert not Augmentation().flip


def test_a_shift_by_whole_pixels_brings_in_white(monkeypatch):
    pictures = torch.rand(2, 3, 5, 10, generator=seeded())
    fix_draws(monkeypatch, 0, 0, 0, 1, 0)
    changed = Augmentation(**{**NOTHING, "shift": 0.2})(pictures, seeded())
    assert torch.allclose(changed[..., :8], pictures[..., 2:], atol=1e-5)
    assert torch.allclose(changed[..., 8:], torch.ones(2, 3, 5, 2), atol=1e-5)


@pytest.mark.parametrize("size", [(6, 6), (4, 8)])
def test_half_a_turn_turns_upside_down(monkeypatch, size):
    pictures = torch.rand(2, 3, *size, generator=seeded())
    fix_draws(monkeypatch, 0, 1)
    changed = Augmentation(**{**NOTHING, "rotation": 180.0})(pictures, seeded())
    assert torch.allclose(changed, pictures.flip(-1, -2), atol=1e-5)


def test_a_quarter_turn_of_a_wide_picture_keeps_pixels_square(monkeypatch):
    fix_draws(monkeypatch, 0, 1)
    pictures = torch.ones(1, 3, 5, 9)
    pictures[:, :, 2, 3:6] = 0  # a line of three pixels through the middle
    changed = Augmentation(**{**NOTHING, "rotation": 90.0})(pictures, seeded())
    expected = torch.ones(1, 3, 5, 9)
    expected[:, :, 1:4, 4] = 0
    assert torch.allclose(changed, expected, atol=1e-5)


def test_zoom_enlarges_about_the_middle(monkeypatch):
    fix_draws(monkeypatch, 0, 0, 0.9)
    pictures = torch.zeros(1, 3, 20, 20)
    pictures[:, :, 8:12, 8:12] = 1
    changed = Augmentation(**{**NOTHING, "zoom": 0.9})(pictures, seeded())
    assert math.isclose(changed.sum() / pictures.sum(), 1.81**2, rel_tol=0.05)
    assert torch.allclose(changed, changed.flip(-1, -2), atol=1e-5)


def test_colours_are_changed_as_by_hand(monkeypatch):
    pictures = torch.tensor([0.4, 0.2, 0.6])[None, :, None, None].repeat(1, 1, 1, 2)
    pictures[..., 1] = 0.0
    jitter = {"brightness": 0.5, "contrast": 0.5, "saturation": 0.5}
    fix_draws(monkeypatch, 0, 0, 0, 0, 0, 1)
    changed = Augmentation(**{**NOTHING, "brightness": 0.5})(pictures, seeded())
    assert torch.allclose(changed[0, :, 0, 0], torch.tensor([0.6, 0.3, 0.9]))
    grey = 0.299 * 0.4 + 0.587 * 0.2 + 0.114 * 0.6
    fix_draws(monkeypatch, 0, 0, 0, 0, 0, 0, -1)
    changed = Augmentation(**{**NOTHING, "contrast": 0.5})(pictures, seeded())
    assert torch.allclose(changed[0, :, 0, 0], (torch.tensor([0.4, 0.2, 0.6]) + grey / 2) / 2)
    assert torch.allclose(changed[0, :, 0, 1], torch.tensor(grey / 4))
    fix_draws(monkeypatch, 0, 0, 0, 0, 0, 0, 0, -1)
    changed = Augmentation(**{**NOTHING, **jitter})(pictures, seeded())
    assert torch.allclose(changed[0, :, 0, 0], (torch.tensor([0.4, 0.2, 0.6]) + grey) / 2)
