"""Packing: numbers come back as they went in, within what was promised, and as small as they can be."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from clearhead.explore.tensor_encoding import (
    EncodedTensor,
    choose_levels,
    encode_bytes,
    encode_floats,
    encode_keys,
    encode_weights,
    to_text,
)
from tests.explore.decoding import decode_tensor, from_text


def there_and_back(packed: EncodedTensor, coding: str = "base64"):
    return torch.from_numpy(decode_tensor(from_text(to_text(packed.data, coding), coding), packed.layout).copy())


@pytest.mark.parametrize("coding", ["base64", "seven"])
@pytest.mark.parametrize(("keys", "pack"), [(7, "planes"), (307, "nibbles")])
def test_weights_come_back_within_half_a_level(keys, pack, coding):
    weights = (2 * torch.randn(3, 5, keys)).softmax(-1)
    packed = encode_weights(weights)
    assert (packed.layout.get("pack", "planes")) == pack
    assert (there_and_back(packed, coding) - weights).abs().max() <= 0.0005 + 1e-7
    assert there_and_back(encode_weights(weights, 65535)).sub(weights).abs().max() <= 0.5 / 65535 + 1e-7


def test_extremes_are_exact():
    weights = torch.zeros(1, 2, 401)
    weights[0, 0, 3], weights[0, 1, 5:7] = 1.0, 0.5
    assert torch.equal(there_and_back(encode_weights(weights)), weights)
    assert there_and_back(encode_weights(torch.zeros(2, 0, 5))).shape == (2, 0, 5)


def test_each_head_may_have_a_scale():
    sums = torch.rand(2, 5, 7) * torch.tensor([3.0, 400.0]).view(2, 1, 1)
    found = there_and_back(encode_weights(sums, 1000, [3.0, 400.0]))
    assert (found - sums).abs().amax((1, 2)).le(torch.tensor([0.0015, 0.2]) + 1e-4).all()


@pytest.mark.parametrize("largest", [6, 65533, 65534, 100_003])
def test_keys_come_back_with_none_as_zero(largest):
    keys = torch.tensor([[[0, largest, -1], [5, 3, 2]]], dtype=torch.int32)
    packed = encode_keys(keys)
    assert torch.equal(there_and_back(packed).long(), keys.long() + 1)
    assert packed.layout["planes"] == (2 if largest < 65535 else 4)


def test_other_numbers_come_back_as_they_are():
    numbers = torch.randn(3, 7)
    assert torch.equal(there_and_back(encode_floats(numbers)), numbers)
    grey = torch.randint(0, 256, (2, 5, 5), dtype=torch.uint8)
    assert torch.equal(there_and_back(encode_bytes(grey.numpy())).long(), grey.long())


@given(st.binary(max_size=300))
def test_any_bytes_survive_as_text_that_html_leaves_alone(data):
    text = to_text(data, "seven")
    assert from_text(text, "seven") == data
    assert not set(text) & set("\0\r<")


def test_five_hundred_tokens_stay_near_their_entropy():
    weights = torch.randn(2, 512, 512).softmax(-1)
    counts = torch.bincount((weights * 1000).round().long().flatten()).double()
    shares = counts[counts > 0] / counts.sum()
    entropy = float(-(shares * shares.log2()).sum()) / 8 * weights.numel()
    size = len(encode_weights(weights).data)
    assert size < 1.03 * entropy
    # 144 heads of such weights, the worst that q and k drawn at random can do, and the page around them.
    assert 72 * len(to_text(encode_weights(weights).data, "seven").encode()) < 14_600_000


def test_digits_are_spent_where_there_is_room():
    room = 2_000_000
    assert choose_levels(torch.rand(100, 20).softmax(-1), 10_000, room) == 65535
    assert choose_levels(torch.zeros(0, 5), 0, room) == 65535
    assert choose_levels(torch.randn(128, 128).softmax(-1), 20 * 144 * 128 * 128, room) == 1000
    for keys, heads in ((500, 8), (2000, 8)):  # broad heads: even weights are many levels
        weights = torch.rand(keys, keys).softmax(-1)
        levels = choose_levels(weights[:: keys // 100], heads * keys**2, room)
        assert levels >= 4 * keys
        assert heads * len(encode_weights(weights[None], levels).data) * 8 / 7 < room * 8
