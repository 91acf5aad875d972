"""The settings of pictures: sizes against cases by hand, files against what was saved."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from clearhead.errors import DataError
from clearhead.images import Preprocessing


def test_pad_keeps_all_of_a_wide_picture_between_bars():
    settings = Preprocessing(height=6, width=4)
    resized = settings.resize_picture(torch.zeros(3, 10, 20))
    assert torch.allclose(resized[:, 2:4], torch.zeros(3, 2, 4))
    assert (resized[:, :2] == 1).all()
    assert (resized[:, 4:] == 1).all()


def test_crop_keeps_the_middle_of_a_wide_picture():
    picture = torch.zeros(3, 4, 12)
    picture[:, :, 4:8] = 1
    assert torch.equal(Preprocessing(height=2, width=2, resize="crop").resize_picture(picture), torch.ones(3, 2, 2))


def test_a_picture_of_the_right_size_is_left_alone():
    picture = torch.rand(3, 5, 7)
    for resize in ("pad", "crop"):
        assert torch.equal(Preprocessing(height=5, width=7, resize=resize).resize_picture(picture), picture)


def test_fine_stripes_become_grey_when_a_picture_gets_smaller():
    stripes = torch.tensor([0.0, 1.0]).repeat(64).expand(3, 128, 128)
    resized = Preprocessing(height=8, width=8).resize_picture(stripes)
    assert (resized - 0.5).abs().max() < 0.05


@given(
    size=st.tuples(st.integers(1, 50), st.integers(1, 50)),
    wanted=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    resize=st.sampled_from(["pad", "crop"]),
)
def test_every_size_gives_the_size_that_was_asked_for(size, wanted, resize):
    settings = Preprocessing(height=wanted[0], width=wanted[1], resize=resize)
    resized = settings.resize_picture(torch.full((3, *size), 0.5))
    assert resized.shape == (3, *wanted)
    shown = resized[resized < 0.9]
    assert len(shown)
    assert (shown - 0.5).abs().max() < 1e-5
    if resize != "pad":
        assert len(shown) == resized.numel()


def test_a_file_is_read_at_the_size_on_white(tmp_path):
    Image.new("RGBA", (10, 20), (0, 0, 0, 0)).save(tmp_path / "a.png")
    picture = Preprocessing(height=4, width=6).read(tmp_path / "a.png")
    assert torch.allclose(picture, torch.ones(3, 4, 6))
    with pytest.raises(DataError, match=r"b\.png is no readable .*: No such file"):
        Preprocessing().read(tmp_path / "b.png")
