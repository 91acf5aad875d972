"""The definition: numbers worked out by hand, what must hold for all, derivatives, and which way a mask points."""

import math

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from hypothesis import given
from torch import Tensor, nn

from clearhead import Bias, Mask, attend, attention_weights
from tests.attention.cases import Case, cases, random

LN2, LN3 = math.log(2), math.log(3)


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def scored(*scores: float) -> dict[str, Tensor]:
    """q and k of one query, such that these are its scores at scale 1."""
    return {"q": double(1).view(1, 1, 1, 1), "k": double(*scores).view(1, 1, -1, 1), "scale": 1.0}


def weights(*scores: float, mask: Mask | None = None, **options: object) -> list[float]:
    return attention_weights(**scored(*scores), mask=mask, **options).flatten().tolist()


def approximately(*values: float) -> object:
    return pytest.approx(list(values), abs=1e-12)


def test_weights_are_shares_of_the_exponentials():
    assert weights(0, LN2, LN3) == approximately(1 / 6, 2 / 6, 3 / 6)


def test_hidden_keys_get_nothing_and_the_others_share_it():
    assert weights(0, LN2, LN3, mask=Mask.hidden(torch.tensor([False, True, False]))) == approximately(1 / 4, 0, 3 / 4)


def test_a_bias_is_added_to_the_scores_and_minus_infinity_hides():
    assert weights(0, 0, 0, bias=double(LN2, 0, -math.inf)) == approximately(2 / 3, 1 / 3, 0)


def test_a_sink_takes_weight_and_contributes_no_value():
    sinks = double(LN3)
    assert weights(0, LN2, sinks=sinks) == approximately(1 / 6, 2 / 6)
    assert attend(**scored(0, LN2), v=scored(6, 9)["k"], sinks=sinks, backend="reference").item() == pytest.approx(4)


def test_the_cap_comes_after_the_scale_and_before_the_bias():
    capped = 2 * math.tanh(6 / 2)
    found = attention_weights(**scored(3, 0) | {"scale": 2.0}, softcap=2.0, bias=double(-capped, LN2))
    assert found.flatten().tolist() == approximately(1 / 3, 2 / 3)


def test_the_scale_is_one_over_the_root_of_the_width_unless_given():
    q, k = random(0, 1, 2, 3, 16), random(1, 1, 2, 5, 16)
    assert torch.equal(attention_weights(q, k), attention_weights(q, k, scale=0.25))
    by_head = double(0.25, 2.0)
    assert torch.equal(attention_weights(q, k, scale=by_head)[:, 1], attention_weights(q, k, scale=2.0)[:, 1])


def test_a_query_that_sees_nothing_has_zero_weights_also_with_a_sink():
    nothing = Mask.hidden(torch.ones(1, 1, dtype=torch.bool))
    assert weights(1, 2, mask=nothing) == [0, 0]
    assert weights(1, 2, mask=nothing, sinks=double(1)) == [0, 0]
    assert weights(1, 2, bias=double(-math.inf, -math.inf)) == [0, 0]


def test_values_are_averaged_with_the_weights():
    v = double(6, 0, 0, 12).view(1, 1, 2, 2)
    out = attend(**scored(0, LN2), v=v, backend="reference")
    assert out.flatten().tolist() == approximately(2, 8)


def test_shared_key_heads_serve_neighbouring_query_heads():
    q, k, v = random(0, 2, 6, 5, 7), random(1, 2, 3, 11, 7), random(2, 2, 3, 11, 13)
    k_each, v_each = (torch.stack([t[:, n // 2] for n in range(6)], dim=1) for t in (k, v))
    assert torch.equal(attend(q, k, v, backend="reference"), attend(q, k_each, v_each, backend="reference"))


@given(case=cases())
def test_rows_sum_to_one_or_less_with_sinks_and_the_output_is_the_weights_times_the_values(case):
    weights, blind = case.weights(), ~case.visible().any(-1)
    sums = weights.sum(-1)
    assert not sums[blind].any()
    if "sinks" in case.tensors:
        assert (sums[~blind] < 1).all()
    else:
        torch.testing.assert_close(sums[~blind], torch.ones_like(sums[~blind]))
    v = case.tensors["v"].repeat_interleave(case.sizes[1] // case.tensors["v"].shape[1], dim=1)
    torch.testing.assert_close(case.attend("reference"), weights @ v)


PLAIN = {"q": random(0, 1, 2, 3, 2), "k": random(1, 1, 1, 5, 2), "v": random(2, 1, 1, 5, 3)}
SCALE, SINKS, SLOPES = random(3, 2), random(4, 2), random(5, 2).abs()
BLIND = Mask.hidden(torch.tensor([[False] * 5, [True] * 5, [True, False] * 2 + [False]]))


@pytest.mark.parametrize(
    "case",
    [
        Case(PLAIN),
        Case(PLAIN, BLIND),
        Case(PLAIN | {"scale": SCALE, "sinks": SINKS}, BLIND, None, {"softcap": 1.5}),
        Case(PLAIN | {"bias": random(6, 2, 3, 5), "scale": SCALE[0]}, Mask.causal() & Mask.padding([4], side="left")),
        Case(PLAIN | {"bias": SLOPES}, Mask.causal(), Bias.alibi(SLOPES), {"softcap": 2.0}),
    ],
    ids=["plain", "blind", "blind, capped, sinks, scale", "causal, padding, bias", "alibi, capped"],
)
def test_first_and_second_derivatives_check_out_numerically(case):
    case = case.to(torch.float64)

    def run(*tensors: Tensor) -> Tensor:
        return Case(dict(zip(case.tensors, tensors, strict=True)), case.mask, case.bias, case.options).attend(
            "reference"
        )

    inputs = tuple(case.tensors.values())
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)


def test_true_shows_in_visible_as_in_torchs_attention():
    q, k, v = random(0, 2, 3, 5, 7), random(1, 2, 3, 11, 7), random(2, 2, 3, 11, 7)
    seen = random(3, 2, 1, 5, 11) > 0
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    torch.testing.assert_close(attend(q, k, v, Mask.visible(seen), backend="reference"), theirs)


def test_true_hides_in_hidden_as_in_torchs_multihead_attention():
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(6, 2, bias=False, batch_first=True, dtype=torch.float64)
    x = random(0, 3, 5, 6)
    pad = torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [False] + [True] * 4])
    ahead = torch.ones(5, 5, dtype=torch.bool).triu(1)
    wanted, their_weights = theirs(x, x, x, key_padding_mask=pad, attn_mask=ahead, average_attn_weights=False)

    q, k, v = rearrange(x @ theirs.in_proj_weight.T, "b t (qkv h d) -> qkv b h t d", qkv=3, h=2)
    mask = Mask.hidden(pad[:, None, None]) & Mask.hidden(ahead)
    torch.testing.assert_close(attention_weights(q, k, mask), their_weights)
    ours = rearrange(attend(q, k, v, mask, backend="reference"), "b h t d -> b t (h d)")
    torch.testing.assert_close(theirs.out_proj(ours), wanted)
    assert torch.equal(mask.dense(5, 5), (Mask.causal() & Mask.padding([5, 3, 1])).dense(5, 5))
