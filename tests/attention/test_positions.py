"""Positions against their formulas."""

import math

import pytest
import torch

from clearhead import Alibi, Learned, Relative, Rotary, Sinusoidal
from clearhead.attention.biases import alibi_slopes, t5_buckets
from clearhead.errors import ConfigError, ShapeError


def test_sinusoids_are_the_papers_interleaved_ones():
    got = Sinusoidal(6)(torch.arange(5))
    for p in range(5):
        for i in range(3):
            angle = p / 10000 ** (2 * i / 6)
            assert got[p, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-7)
            assert got[p, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-7)


def test_sinusoids_stay_exact_at_a_million():
    far = 1_000_003
    got = Sinusoidal(4)(torch.tensor([far]))
    want = [math.sin(far), math.cos(far), math.sin(far / 100), math.cos(far / 100)]
    assert got[0].tolist() == pytest.approx(want, abs=1e-6)


def test_rotary_scores_depend_on_the_distance_only():
    rotary = Rotary(8)
    q, k = torch.randn(1, 1, 1, 8).double(), torch.randn(1, 1, 1, 8).double()

    def score(i: int, j: int) -> float:
        turned = [rotary.turn(x, rotary(torch.tensor([p]))) for x, p in ((q, i), (k, j))]
        return (turned[0] * turned[1]).sum().item()

    assert score(7, 3) == pytest.approx(score(104, 100), abs=1e-6)
    assert abs(score(7, 3) - score(7, 4)) > 1e-3


def test_rotary_positions_may_differ_from_sample_to_sample():
    rotary, x = Rotary(4), torch.randn(2, 3, 5, 4)
    places = torch.tensor([[0, 1, 2, 3, 4], [7, 8, 9, 10, 11]])
    both = rotary.turn(x, rotary(places))
    for sample in range(2):
        alone = rotary.turn(x[[sample]], rotary(places[sample]))
        torch.testing.assert_close(both[[sample]], alone, rtol=0, atol=1e-6)


def test_linear_scaling_divides_positions():
    plain, device = Rotary(8).speeds(torch.device("cpu")), torch.device("cpu")
    torch.testing.assert_close(Rotary(8, scaling={"type": "linear", "factor": 4}).speeds(device), plain / 4)


def test_alibi_slopes_of_a_count_that_is_no_power_of_two_fill_the_gaps():
    want = [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]
    assert alibi_slopes(6).tolist() == pytest.approx(want)


def test_t5_buckets_equal_hugging_faces():
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = torch.arange(-300, 300)
    for both_ways in (True, False):
        want = T5Attention._relative_position_bucket(distance, both_ways, 32, 128)
        assert torch.equal(t5_buckets(32, 128, both_ways=both_ways)(distance), want)


def test_relative_tables_get_gradients_and_slopes_do_not():
    relative = Relative(3)
    relative.bias().dense(5, 7).square().sum().backward()
    assert relative.table.grad is not None
    assert not Alibi(3).slopes.requires_grad


def test_learned_positions_say_where_they_end():
    with pytest.raises(ShapeError, match="position 5 lies beyond the 5 learned positions"):
        Learned(5, 4).check(5)


@pytest.mark.parametrize("make", [lambda: Sinusoidal(5), lambda: Rotary(5)])
def test_odd_widths_are_refused(make):
    with pytest.raises(ConfigError, match="must be even, got 5"):
        make()


def test_an_unknown_scaling_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="'yarn'; choose from none, linear, llama3"):
        Rotary(8, scaling={"type": "yarn"})


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        ({"type": "linear", "factr": 2.0}, "needs factor, got factr"),
        ({"type": "llama3", "factor": 8.0}, "low_freq_factor, original_max_position_embeddings, got factor"),
        ({"type": "linear", "factor": 0.0}, "positive, finite numbers"),
        ({"type": "linear", "factor": float("inf")}, "positive, finite numbers"),
        ({"rope_type": "linear"}, "'none' needs nothing, got rope_type"),
    ],
)
def test_a_scaling_with_wrong_values_is_refused(scaling, words):
    with pytest.raises(ConfigError, match=words):
        Rotary(8, scaling=scaling)
