"""What is measured, by hand: small numbers written out, for the definition and for every way of measuring."""

import math

import pytest
import torch
from torch import Tensor

from clearhead import Bias, Mask
from clearhead.lens import measure
from clearhead.lens.measures.definition import choose_blocks, locate_first_query, sum_blocks

LN2, LN3, LN6 = math.log(2), math.log(3), math.log(6)
THIRDS = [LN3, LN2, 0.0]  # the scores of weights 1/2, 1/3 and 1/6


@pytest.fixture(params=["defined", "tiled", "auto"])
def way(request: pytest.FixtureRequest) -> str:
    return request.param


def exact(numbers: list) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def row(*numbers: float) -> Tensor:
    """Keys (or queries) of width 1, of one sample and head."""
    return exact(list(numbers)).view(1, 1, -1, 1)


def near(*numbers: float) -> object:
    return pytest.approx(list(numbers), abs=1e-12)


def test_one_query_and_weights_of_a_half_a_third_and_a_sixth(way):
    seen = measure(row(1), row(*THIRDS), scale=1.0, top=2, backend=way)
    assert seen.logsumexp.flatten().tolist() == near(LN6)
    assert seen.entropy.flatten().tolist() == near(LN2 / 2 + LN3 / 3 + LN6 / 6)
    assert seen.peak.flatten().tolist() == near(1 / 2)
    assert seen.peak_key.flatten().tolist() == [0]
    assert seen.distance.flatten().tolist() == near(2 / 2 + 1 / 3)  # the query stands beside the last key
    assert seen.first.flatten().tolist() == near(1 / 2)
    assert seen.top_keys.flatten().tolist() == [0, 1]
    assert seen.top_weights.flatten().tolist() == near(1 / 2, 1 / 3)
    assert seen.received.flatten().tolist() == near(1 / 2, 1 / 3, 1 / 6)
    assert seen.map.flatten().tolist() == near(1 / 2, 1 / 3, 1 / 6)


def test_a_sink_takes_weight_and_the_rest_is_not_renormalised(way):
    seen = measure(row(1), row(*THIRDS), scale=1.0, sinks=exact([LN6]), top=1, backend=way)
    assert seen.logsumexp.flatten().tolist() == near(math.log(12))
    assert seen.received.flatten().tolist() == near(1 / 4, 1 / 6, 1 / 12)
    assert seen.entropy.flatten().tolist() == near(math.log(4) / 4 + LN6 / 6 + math.log(12) / 12)
    assert seen.peak.flatten().tolist() == seen.top_weights.flatten().tolist() == near(1 / 4)
    assert seen.distance.flatten().tolist() == near(2 / 4 + 1 / 6)
    assert seen.map.sum().item() == pytest.approx(1 / 2)


def test_queries_with_uniform_causal_weights(way):
    seen = measure(row(0, 0, 0, 0), row(5, -1, 2, 3), Mask.causal(), pixels=2, top=2, backend=way)
    assert seen.logsumexp.flatten().tolist() == near(0, LN2, LN3, 2 * LN2)
    assert seen.entropy.flatten().tolist() == near(0, LN2, LN3, 2 * LN2)
    assert seen.peak.flatten().tolist() == near(1, 1 / 2, 1 / 3, 1 / 4)
    assert seen.peak_key.flatten().tolist() == [0, 0, 0, 0]
    assert seen.distance.flatten().tolist() == near(0, 1 / 2, 1, 3 / 2)
    assert seen.first.flatten().tolist() == near(1, 1 / 2, 1 / 3, 1 / 4)
    assert seen.top_keys[0, 0].tolist() == [[0, -1], [0, 1], [0, 1], [0, 1]]
    assert seen.top_weights[0, 0, 0].tolist() == [1, 0]
    assert seen.received.flatten().tolist() == near(25 / 12, 13 / 12, 7 / 12, 1 / 4)
    assert seen.map.flatten().tolist() == near(2, 0, 7 / 6, 5 / 6)


def test_a_query_that_sees_nothing(way):
    mask = Mask.visible(torch.tensor([[False, False], [False, True]]))
    seen = measure(row(1, 1), row(3, 4), mask, top=1, backend=way)
    assert seen.logsumexp.flatten().tolist() == [-math.inf, 4]
    for name, wanted in {"entropy": 0, "peak": 1, "distance": 0, "first": 1}.items():
        assert getattr(seen, name).flatten().tolist() == [0, wanted], name
    assert seen.peak_key.flatten().tolist() == seen.top_keys.flatten().tolist() == [-1, 1]
    assert seen.top_weights.flatten().tolist() == [0, 1]
    assert seen.received.flatten().tolist() == [0, 1]


def test_the_first_visible_key_is_not_the_first_key(way):
    seen = measure(row(0, 0, 0), row(1, 2, 3), Mask.window(1), backend=way)
    assert seen.first.flatten().tolist() == near(1, 1 / 2, 1 / 2)
    assert seen.received.flatten().tolist() == near(3 / 2, 1, 1 / 2)


def test_a_bias_of_minus_infinity_hides(way):
    bias = exact([-math.inf, LN2, 0])
    seen = measure(row(0), row(1, 2, 3), bias=bias, top=3, backend=way)
    assert seen.first.flatten().tolist() == near(2 / 3)
    assert seen.top_keys.flatten().tolist() == [1, 2, -1]
    assert seen.logsumexp.flatten().tolist() == near(LN3)


def test_ties_go_to_the_smallest_key(way):
    seen = measure(row(1, -1), row(2, 7, 7, 2, 7), scale=1.0, top=4, backend=way)
    assert seen.peak_key.flatten().tolist() == [1, 0]
    assert seen.top_keys[0, 0].tolist() == [[1, 2, 4, 0], [0, 3, 1, 2]]


def test_heads_have_their_own_scale_bias_and_keys(way):
    q, k = torch.ones(1, 4, 1, 1).double(), exact([[0.0, LN3], [LN2, 0.0]]).view(1, 2, 2, 1)
    seen = measure(q, k, scale=exact([1.0, 0.0, 1.0, 2.0]), backend=way)
    assert seen.received[0, :, 0].tolist() == near(1 / 4, 1 / 2, 2 / 3, 4 / 5)
    alibi = measure(q, k, scale=0.0, bias=Bias.alibi(exact([0.0, LN2, LN3, 0.0])), backend=way)
    assert alibi.received[0, :, 0].tolist() == near(1 / 2, 1 / 3, 1 / 4, 1 / 2)


def test_a_cap_on_scores(way):
    seen = measure(row(1), row(1000, 0), scale=1.0, softcap=LN2, backend=way)
    assert seen.received.flatten().tolist() == near(2 / 3, 1 / 3)


def test_the_last_pixels_are_short(way):
    seen = measure(row(*[0] * 5), row(*[0] * 7), pixels=3, backend=way)
    assert seen.map.shape == (1, 1, 3, 3)
    assert seen.map.flatten().tolist() == near(*[6 / 7, 6 / 7, 2 / 7] * 2, 3 / 7, 3 / 7, 1 / 7)


def test_distance_follows_the_offset(way):
    q, k = row(0, 0), row(0, 0, 0)
    assert measure(q, k, backend=way).distance.flatten().tolist() == near(2 / 3, 1)  # at 1 and 2
    assert measure(q, k, offset=0, backend=way).distance.flatten().tolist() == near(1, 2 / 3)
    assert measure(q, k, offset=5, backend=way).distance.flatten().tolist() == near(4, 5)
    assert measure(q, k, Mask.causal(0), backend=way).distance.flatten().tolist() == near(0, 1 / 2)


def test_every_third_query_counted_from_the_end_of_each_three(way):
    k = row(*[0] * 7)
    seen = measure(row(*[0] * 7), k, Mask.causal(), every=3, top=1, pixels=2, backend=way)
    assert seen.entropy.flatten().tolist() == near(LN3, LN6)  # the queries at 2 and 5
    assert seen.received.flatten().tolist() == near(*[1 / 2] * 3, *[1 / 6] * 3, 0)
    assert seen.map.flatten().tolist() == near(1, 0, 2 / 3, 1 / 3)
    late = measure(row(0, 0), k, Mask.causal(), every=3, backend=way)  # at 5 and 6
    assert late.entropy.flatten().tolist() == near(LN6)
    assert measure(row(0), k, every=3, backend=way).entropy.shape == (1, 1, 0)  # at 6


def test_measures_that_are_not_requested_are_left_out(way):
    seen = measure(row(1, 2), row(3, 4, 5), pixels=0, top=0, received=False, backend=way)
    assert seen.received is None
    assert seen.map.shape == (1, 1, 0, 0)
    assert seen.top_keys.shape == seen.top_weights.shape == (1, 1, 2, 0)
    assert seen.peak_key.flatten().tolist() == [2, 2]


def test_half_precision_is_measured_in_single_precision(way):
    q, k = row(1).bfloat16(), row(*THIRDS).bfloat16()
    seen = measure(q, k, scale=1.0, backend=way)
    wanted = measure(q.double(), k.double(), scale=1.0, backend="defined")
    assert seen.entropy.dtype == seen.map.dtype == torch.float32
    assert seen.entropy.item() == pytest.approx(wanted.entropy.item(), rel=1e-6)


def test_blocks_and_positions():
    assert choose_blocks(7, 100, 3) == (3, 34)
    assert choose_blocks(2, 3, 3) == (1, 1)
    assert choose_blocks(7, 100, 0) == (0, 0)
    assert sum_blocks(torch.arange(6).view(2, 3), 2, 1).tolist() == [[1, 2], [7, 5]]
    assert locate_first_query(None, 2, 5) == 3
    assert locate_first_query(Mask.causal(1) & Mask.padding([4]), 2, 5) == 1
    assert locate_first_query(Mask.prefix(3) | Mask.causal(1), 2, 5) == 1
    assert locate_first_query(Mask.padding([4]), 2, 5) == 3


@pytest.mark.parametrize("top", [1, 3])
@pytest.mark.parametrize("queries", [1, 5])
def test_weights_that_are_nan_have_no_top_key(way, queries, top):
    q, k = torch.ones(1, 2, queries, 3), torch.ones(1, 2, 7, 3)
    q[0, 1, -1, 0] = math.nan
    seen = measure(q, k, top=top, backend=way)
    assert seen.peak_key[0, 1, -1] == -1
    assert seen.top_keys[0, 1, -1].tolist() == [-1] * top
    assert seen.peak[0, 1, -1].isnan()
    assert seen.top_weights[0, 1, -1].tolist() == [0.0] * top
    assert (seen.peak_key[0, 0] == 0).all()
    assert not seen.peak[0, 0].isnan().any()


def test_a_key_that_is_nan_affects_only_queries_that_see_it(way):
    q, k = torch.ones(1, 1, 5, 3), torch.ones(1, 1, 5, 3)
    k[0, 0, 3] = math.nan
    seen = measure(q, k, Mask.causal(), top=2, backend=way)
    assert seen.peak_key.flatten().tolist() == [0, 0, 0, -1, -1]
    assert seen.top_keys[0, 0, 3:].tolist() == [[-1, -1], [-1, -1]]
