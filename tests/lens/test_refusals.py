"""measure refuses what makes no sense, in words that name the values and the remedy."""

import pytest
import torch

from clearhead.errors import BackendError, DeviceError, DtypeError, MaskError, ShapeError
from clearhead.lens import measure
from tests.attention.test_refusals import k, q, refused

pytestmark = pytest.mark.unchecked


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"pixels": -1}, ["pixels", "at least 0", "-1"]),
        ({"pixels": 2.5}, ["pixels", "whole number", "2.5"]),
        ({"top": -3}, ["top", "at least 0", "-3"]),
        ({"top": None}, ["top", "whole number", "None"]),
        ({"every": 0}, ["every", "at least 1", "0"]),
        ({"every": 1 / 16}, ["every", "whole number", "0.0625"]),
    ],
)
def test_numbers_that_make_no_sense(asked, words):
    with refused(ShapeError, *words):
        measure(q(), k(), **asked)


def test_a_logsumexp_of_other_queries():
    with refused(ShapeError, "logsumexp must be (2, 6, 5)", "(2, 6, 7)"):
        measure(q(), k(), logsumexp=torch.zeros(2, 6, 7))


def test_a_logsumexp_that_lies_elsewhere():
    with refused(DeviceError, "logsumexp is on meta", "q on cpu", ".to(q.device)"):
        measure(q(), k(), logsumexp=torch.zeros(2, 6, 5, device="meta"))


def test_a_way_that_does_not_exist():
    with refused(BackendError, "'flash'", "auto, defined, tiled, triton"):
        measure(q(), k(), backend="flash")


def test_a_way_that_cannot():
    with refused(BackendError, "Triton kernel cannot", "'tiled'"):
        measure(q().double(), k().double(), backend="triton")


def test_what_attention_refuses_is_refused_here_too():
    with refused(ShapeError, "6 query heads cannot share 4 key heads"):
        measure(q(), k(kv_heads=4))
    with refused(MaskError, "does not say whether True shows or hides"):
        measure(q(), k(), torch.ones(5, 11, dtype=torch.bool))
    with refused(DtypeError, "must have one dtype"):
        measure(q(), k().double())
