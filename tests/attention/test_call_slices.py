"""Some queries of a call see what they saw among all, under every mask and bias."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from clearhead import Bias, Mask
from clearhead.attention import reference
from clearhead.attention.biases import t5_buckets
from clearhead.attention.call import check_call, slice_queries
from tests.attention.cases import masks

BATCH, HEADS, WIDTH = 3, 2, 5


@given(data=st.data(), queries=st.sampled_from([1, 7, 37]), keys=st.sampled_from([41, 53]))
def test_a_slice_of_the_queries_sees_what_they_saw(data, queries, keys):
    mask = data.draw(masks(BATCH, HEADS, queries, keys))
    start, stop = sorted(data.draw(st.tuples(st.integers(0, queries), st.integers(0, queries))))
    q, k = (torch.randn(BATCH, HEADS, n, WIDTH, generator=torch.Generator().manual_seed(n)) for n in (queries, keys))
    call = check_call(q, k, None, mask)
    found = slice_queries(call, start, stop)
    assert found.q.shape[2] == stop - start
    if start < stop:
        weights, wanted = reference.weights(found), reference.weights(call)[:, :, start:stop]
        assert torch.equal(weights > 0, wanted > 0)
        torch.testing.assert_close(weights, wanted)
    if mask is not None and start < stop:
        assert slice_queries(call, start, stop).mask is found.mask, "layers that share a mask share its slices"


@pytest.mark.parametrize(
    "bias",
    [
        Bias.alibi(HEADS),
        Bias.alibi(HEADS, 3),
        Bias.relative(torch.randn(8, HEADS), t5_buckets(8, 20)),
        torch.randn(BATCH, 1, 13, 19),
        torch.randn(HEADS, 1, 19),
    ],
    ids=["alibi", "alibi, offset 3", "T5", "dense", "by head and key"],
)
def test_a_bias_is_that_of_the_chosen_queries(bias):
    q, k = torch.randn(BATCH, HEADS, 13, WIDTH), torch.randn(BATCH, HEADS, 19, WIDTH)
    call = check_call(q, k, None, Mask.causal(), bias=bias)
    torch.testing.assert_close(reference.weights(slice_queries(call, 4, 9)), reference.weights(call)[:, :, 4:9])


class Odd(Mask):
    """A mask of one's own: odd queries see odd keys."""

    def at(self, b, h, i, j, queries, keys):
        return (i + j) % 2 == 0

    def blocks(self, queries, keys, rows, columns, device=None):
        shape = (1, 1, -(-queries // rows), -(-keys // columns))
        return torch.ones(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)


def test_a_mask_of_an_unknown_class_is_sliced_too():
    x = torch.randn(1, 1, 11, WIDTH)
    call = check_call(x, x, None, Odd())
    torch.testing.assert_close(reference.weights(slice_queries(call, 3, 8)), reference.weights(call)[:, :, 3:8])
