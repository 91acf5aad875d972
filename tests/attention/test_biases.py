"""Biases: numbers worked out by hand, against the papers and Hugging Face, and tile by tile equal to the whole."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead import Bias
from clearhead.attention.biases import Dense, alibi_slopes, t5_buckets
from tests.attention.cases import biases, random


def test_alibi_subtracts_the_slope_times_the_distance():
    bias = Bias.alibi(torch.tensor([1.0, 0.25]))
    assert bias.dense(2, 3).tolist() == [[[[-1, 0, -1], [-2, -1, 0]], [[-0.25, 0, -0.25], [-0.5, -0.25, 0]]]]


def test_an_offset_is_the_position_of_the_first_query():
    slopes = torch.tensor([1.0])
    assert Bias.alibi(slopes, offset=0).dense(2, 3).tolist() == [[[[0, -1, -2], [-1, 0, -1]]]]
    table = torch.tensor([[-1.0], [0.0], [1.0]])
    assert Bias.relative(table, 1, offset=2).dense(1, 4).tolist() == [[[[-1, -1, 0, 1]]]]


def test_the_slopes_are_those_of_the_paper():
    assert alibi_slopes(8).tolist() == [2.0**-n for n in range(1, 9)]
    twelve = [2.0**-n for n in range(1, 9)] + [2.0**-n for n in (0.5, 1.5, 2.5, 3.5)]
    torch.testing.assert_close(alibi_slopes(12), torch.tensor(twelve))
    assert torch.equal(Bias.alibi(12).dense(1, 3), Bias.alibi(alibi_slopes(12)).dense(1, 3))


def test_a_relative_table_is_read_by_distance_and_clipped_at_its_ends():
    table = torch.tensor([[10.0, 1], [20, 2], [30, 3], [40, 4], [50, 5]])  # distances -2 to 2, two heads
    first, second = Bias.relative(table, 2).dense(4, 4)[0].tolist()
    assert first == [[30, 40, 50, 50], [20, 30, 40, 50], [10, 20, 30, 40], [10, 10, 20, 30]]
    assert second == [[x / 10 for x in row] for row in first]


@pytest.mark.parametrize("both_ways", [True, False])
def test_t5_buckets_are_those_of_hugging_face(both_ways):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5", reason="transformers is not installed")
    distances = torch.arange(-300, 301)
    theirs = t5.T5Attention._relative_position_bucket(distances, both_ways, num_buckets=32, max_distance=128)
    assert torch.equal(t5_buckets(32, 128, both_ways=both_ways)(distances), theirs)


@given(data=st.data(), queries=st.sampled_from([1, 5, 11]), keys=st.sampled_from([1, 7, 13]))
def test_a_tile_is_a_piece_of_the_whole_and_so_is_its_gradient(data, queries, keys):
    parameter, bias = data.draw(biases(2, 3, queries, keys))
    parameter = parameter.requires_grad_()
    bias = Dense(parameter) if bias is None else bias.replace(parameter)
    rows, columns = (slice(*sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2)))) for n in (queries, keys))
    rows = slice(rows.start, rows.stop, data.draw(st.sampled_from([None, 2, 3])))
    size = (2, 3, queries, keys)
    whole, piece = (
        bias.dense(queries, keys).expand(size)[:, :, rows, columns],
        bias.tile(rows, columns, queries, keys),
    )
    assert torch.equal(piece.expand(whole.shape), whole)
    some = bias.of_heads(slice(1, 3)).tile(rows, columns, queries, keys)
    assert torch.equal(some.expand(2, 2, *whole.shape[2:]), whole[:, 1:3])

    of_tile = random(1, *whole.shape)
    (wanted,) = torch.autograd.grad(whole, parameter, of_tile)
    total = torch.zeros_like(bias.parameter)
    bias.add_gradient(total, of_tile, rows, columns, queries, keys)
    torch.testing.assert_close(total.view(wanted.shape), wanted)
