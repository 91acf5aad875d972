"""Input that is legal and unpleasant: infinities, strides, empty batches, changed masks, second derivatives."""

import math

import pytest
import torch

from clearhead import Mask, attend, attention_weights, explain
from clearhead.errors import BackendError

BACKENDS = ["sdpa", "tiled", "auto"]


def qkv(batch: int = 2, heads: int = 3, tokens: int = 7, d: int = 5, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(batch, heads, tokens, d, generator=generator).to(dtype) for _ in range(3)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mask", [None, Mask.causal(), Mask.causal() & Mask.padding([3, 7]), Mask.padding([3, 7])])
def test_a_sink_of_minus_infinity_is_no_sink(backend, mask):
    for dtype, limit in ((torch.float64, 1e-12), (torch.float32, 1e-5), (torch.float16, 1e-2)):
        q, k, v = qkv(dtype=dtype)
        got = attend(q, k, v, mask, sinks=torch.full((3,), -math.inf), backend=backend)
        assert (got - attend(q, k, v, mask, backend="reference")).abs().max() < limit


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [1e12, 3e4, math.nan, math.inf])
def test_hidden_keys_may_hold_anything(backend, value, side):
    q, k, v = qkv()
    hidden = k.clone()
    hidden[1, :, 4:] = value
    if side == "left":
        q, k, v, hidden = (t.flip(2) for t in (q, k, v, hidden))
    mask = Mask.causal() & Mask.padding([7, 4], side=side)
    got = attend(q, hidden, v, mask, backend=backend)
    torch.testing.assert_close(got, attend(q, k, v, mask, backend="reference"), rtol=0, atol=1e-12)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_pads_on_either_side_stay_hidden_when_pad_queries_are(backend, side):
    q, k, v = qkv()
    mask = Mask.causal() & Mask.padding([7, 4], side=side, queries=True)
    got = attend(q, k, v, mask, backend=backend)
    torch.testing.assert_close(got, attend(q, k, v, mask, backend="reference"), rtol=0, atol=1e-12)


def test_tensors_of_any_stride_get_a_fused_kernel():
    q, k, v = qkv(dtype=torch.float32)
    turned = k.mT.contiguous().mT
    assert turned.stride(3) != 1
    assert explain(q, turned, v, Mask.causal()).kernel == "flash"
    torch.testing.assert_close(attend(q, turned, v), attend(q, k, v))


@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
def test_an_empty_batch_or_no_queries_give_an_empty_result(backend):
    mask = Mask.causal() & Mask.padding(torch.zeros(0, dtype=torch.long))
    assert attend(*qkv(batch=0), mask, backend=backend).shape == (0, 3, 7, 5)
    q, k, v = qkv()
    assert attend(q[:, :, :0], k, v, backend=backend).shape == (2, 3, 0, 5)


@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
def test_no_keys_give_zeros(backend):
    q, k, v = qkv()
    assert not attend(q, k[:, :, :0], v[:, :, :0], backend=backend).any()


@pytest.mark.parametrize("inference", [False, True])
def test_lengths_changed_in_place_are_noticed(inference):
    with torch.inference_mode(inference):
        q, k, v = qkv()
        lengths = torch.tensor([7, 7])
        mask = Mask.padding(lengths)
        attend(q, k, v, mask)
        lengths.copy_(torch.tensor([2, 3]))
        want = attend(q, k, v, Mask.padding([2, 3]), backend="reference")
        torch.testing.assert_close(attend(q, k, v, mask), want, rtol=0, atol=1e-12)


def test_a_mask_used_under_inference_mode_serves_training_too():
    q, k, v = qkv()
    mask = Mask.padding([7, 4])
    with torch.inference_mode():
        attend(q, k, v, mask)
    attend(q.requires_grad_(), k, v, mask).sum().backward()
    assert q.grad is not None


def test_document_ids_may_be_booleans():
    q, k, v = qkv()
    ids = torch.tensor([True, True, False, False, False, True, True])
    want = attend(q, k, v, Mask.documents(ids.int()), backend="reference")
    for backend in BACKENDS:
        torch.testing.assert_close(attend(q, k, v, Mask.documents(ids), backend=backend), want)


def test_second_derivatives_are_refused_where_they_would_be_wrong():
    q, k, v = (t.requires_grad_() for t in qkv())
    with pytest.raises(BackendError, match="differentiated only once"):
        torch.autograd.grad(attend(q, k, v, backend="tiled").sum(), q, create_graph=True)


def test_float64_is_left_alone_by_autocast():
    q, k, v = qkv()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert attend(q, k, v).dtype == torch.float64


def test_a_sink_keeps_its_precision_in_half_precision():
    """sink / scale rounded to bfloat16 would be off by up to 1/512 of it, and the weights by e to that."""
    q, k, v = (t.bfloat16() * 0.01 for t in qkv(d=64))
    sinks = torch.tensor([7.03, 5.01, 6.57])
    exact = attention_weights(q.double(), k.double(), sinks=sinks.double()) @ v.double()
    found = attend(q, k, v, sinks=sinks, backend="sdpa").double()
    assert (found - exact).abs().max() <= 2**-7 * exact.abs().max()


def test_tensors_without_data_are_shaped_like_the_real_ones():
    q, k, v = (t.to("meta") for t in qkv())
    assert attend(q, k, v, Mask.causal()).shape == (2, 3, 7, 5)


def test_a_mask_of_batch_and_keys_gets_a_hint():
    q, k, v = qkv()
    with pytest.raises(ValueError, match=r"write mask\[:, None, None\]"):
        attend(q, k, v, Mask.visible(torch.ones(2, 7, dtype=torch.bool)))


def test_printing_a_mask_without_sizes_draws_a_small_one():
    assert str(Mask.causal()).splitlines() == ["■" * n + "·" * (6 - n) for n in range(1, 7)]
    assert str(Mask.prefix(2)).splitlines() == ["■■····"] * 6
    assert Mask.causal().draw(0, 0) == ""
