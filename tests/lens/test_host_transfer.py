"""Copies of measures to the CPU."""

import pytest
import torch

from clearhead.lens.capture import host_transfer
from clearhead.lens.capture.host_transfer import copy_packed, to_host

FLOATS = torch.tensor([[0.1, -torch.inf, torch.nan], [3.0, 4.0, 5.0]])
KINDS = {
    "floats": FLOATS,
    "turned": FLOATS.T,
    "every second": torch.arange(10, dtype=torch.int32)[::2],
    "whole": torch.tensor([[[7, -1]]], dtype=torch.int32),
    "none": torch.zeros(2, 3, 0),
    "one": torch.tensor(2.5),
}


def test_several_in_one_copy_are_what_they_were_each_with_a_memory_of_its_own():
    found = copy_packed(KINDS)
    for name, tensor in KINDS.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0, equal_nan=True)
    found["floats"].zero_()
    assert found["turned"][1, 1] == 4.0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_small_ones_and_large_ones_come_in_their_order(monkeypatch):
    monkeypatch.setattr(host_transfer, "SMALL", 5)
    given = KINDS | {"long": torch.arange(4), "half": torch.ones(3, dtype=torch.bfloat16), "here": torch.ones(2)}
    found = to_host({name: tensor if name == "here" else tensor.cuda() for name, tensor in given.items()})
    assert list(found) == list(given)
    for name, tensor in given.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0, equal_nan=True)
