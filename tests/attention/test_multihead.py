"""MultiHeadAttention against torch's own, and against itself step by step."""

import pytest
import torch
from torch import nn

from clearhead import Alibi, KeyValueCache, Mask, MultiHeadAttention, Relative, Rotary, Seen, attention_weights
from clearhead.errors import ConfigError, ShapeError


def gradients(module: nn.Module, out: torch.Tensor) -> dict[str, torch.Tensor]:
    names, parameters = zip(*module.named_parameters(), strict=True)
    found = torch.autograd.grad((out * torch.arange(out.numel()).view(out.shape).cos()).sum(), parameters)
    return dict(zip(names, found, strict=True))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_it_equals_torchs_own_forward_and_backward(bias, causal):
    theirs = nn.MultiheadAttention(512, 8, bias=bias, batch_first=True)
    ours = MultiHeadAttention.from_torch(theirs)
    x = torch.randn(3, 37, 512)
    hidden = ~torch.ones(37, 37, dtype=torch.bool).tril() if causal else None
    want = theirs(x, x, x, attn_mask=hidden, need_weights=False)[0]
    got = ours(x, mask=Mask.hidden(hidden) if causal else None)
    assert (got - want).abs().max() <= 1e-6
    of_theirs, of_ours = gradients(theirs, want), gradients(ours, got)
    for mine, other in (("to_qkv.weight", "in_proj_weight"), ("to_out.weight", "out_proj.weight")):
        largest = of_theirs[other].abs().max()
        assert (of_ours[mine] - of_theirs[other]).abs().max() <= 1e-5 * largest


def test_a_padding_mask_equals_torchs_key_padding_mask():
    theirs = nn.MultiheadAttention(12, 3, batch_first=True)
    x, lengths = torch.randn(2, 5, 12), torch.tensor([3, 5])
    pads = torch.arange(5) >= lengths[:, None]  # True hides, in torch
    want = theirs(x, x, x, key_padding_mask=pads, need_weights=False)[0]
    got = MultiHeadAttention.from_torch(theirs)(x, mask=Mask.padding(lengths))
    assert (got - want).abs().max() <= 1e-6


@pytest.mark.parametrize("context_width", [12, 7])
def test_attention_over_a_context_equals_torchs_own(context_width):
    theirs = nn.MultiheadAttention(12, 3, kdim=context_width, vdim=context_width, batch_first=True)
    x, context = torch.randn(2, 5, 12), torch.randn(2, 11, context_width)
    want = theirs(x, context, context, need_weights=False)[0]
    assert (MultiHeadAttention.from_torch(theirs)(x, context=context) - want).abs().max() <= 1e-6


@pytest.mark.parametrize("context_width", [None, 12, 7])
@pytest.mark.parametrize("bias", [True, False])
def test_weights_survive_a_round_trip_through_torch(context_width, bias):
    ours = MultiHeadAttention(12, 3, context_width=context_width, bias=bias, dropout=0.25)
    for parameter in ours.parameters():
        nn.init.normal_(parameter)
    theirs = ours.to_torch()
    context = torch.randn(2, 11, context_width or 12)
    x = torch.randn(2, 5, 12)
    ours.eval(), theirs.eval()
    assert theirs.dropout == 0.25
    want = theirs(x, context, context, need_weights=False)[0]
    assert (ours(x, context=context) - want).abs().max() <= 1e-5
    again = MultiHeadAttention.from_torch(theirs)
    for mine, other in zip(ours.projections(), again.projections(), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("option", [{"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 5, "vdim": 7}])
def test_what_has_no_counterpart_is_refused_by_name(option):
    with pytest.raises(ConfigError, match=r"no counterpart|same width"):
        MultiHeadAttention.from_torch(nn.MultiheadAttention(12, 3, **option))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kv_heads": 1}, "grouped heads"),
        ({"head_dim": 5}, "widths do not add up"),
        ({"value_head_dim": 5}, "values of another width"),
        ({"positions": Rotary(4)}, "positions"),
        ({"temperature": "learned"}, "learned temperature"),
    ],
)
def test_what_torch_cannot_express_is_refused_by_name(options, words):
    with pytest.raises(ConfigError, match=words):
        MultiHeadAttention(12, 3, **options).to_torch()


def test_heads_of_keys_16_and_values_32_wide_merge_back_to_the_width():
    attention = MultiHeadAttention(64, 4, head_dim=16, value_head_dim=32)
    assert attention(torch.randn(2, 5, 64)).shape == (2, 5, 64)
    assert attention.to_out.weight.shape == (64, 4 * 32)


def test_one_shared_key_head_equals_as_many_equal_ones():
    one, many = MultiHeadAttention(12, 3, kv_heads=1), MultiHeadAttention(12, 3)
    with torch.no_grad():
        for name in ("weight", "bias"):
            q, k, v = getattr(one.to_qkv, name).split([12, 4, 4])
            getattr(many.to_qkv, name).copy_(torch.cat([q, *[k] * 3, *[v] * 3]))
        many.to_out.load_state_dict(one.to_out.state_dict())
    x = torch.randn(2, 5, 12)
    torch.testing.assert_close(one(x), many(x), rtol=0, atol=1e-6)


def test_a_learned_temperature_starts_as_a_fixed_one_and_learns():
    fixed, learned = MultiHeadAttention(12, 3), MultiHeadAttention(12, 3, temperature="learned")
    learned.load_state_dict(fixed.state_dict(), strict=False)
    x = torch.randn(2, 5, 12)
    torch.testing.assert_close(learned(x), fixed(x), rtol=0, atol=1e-6)
    learned(x).square().sum().backward()
    assert learned.strength.grad.abs().min() > 0


def decoders() -> dict[str, tuple[dict, Mask]]:
    return {
        "causal": ({}, Mask.causal()),
        "window": ({}, Mask.window(3)),
        "grouped": ({"kv_heads": 2}, Mask.causal()),
        "grouped window": ({"kv_heads": 1}, Mask.window(2)),
        "rotary": ({"positions": Rotary(4)}, Mask.causal()),
        "alibi": ({"positions": Alibi(6)}, Mask.causal()),
        "relative": ({"positions": Relative(6)}, Mask.causal()),
        "left padding": ({}, Mask.causal() & Mask.padding([13, 7], side="left")),
        "wide values": ({"value_head_dim": 11}, Mask.causal()),
    }


@pytest.mark.parametrize("kind", decoders())
@pytest.mark.parametrize("capacity", [None, 13])
def test_cached_steps_equal_the_whole_at_once(kind, capacity):
    options, mask = decoders()[kind]
    attention = MultiHeadAttention(24, 6, **options).double()
    if kind == "relative":
        nn.init.normal_(attention.positions.table)
    x = torch.randn(2, 13, 24, dtype=torch.float64)
    whole = attention(x, mask=mask)
    cache, pieces = KeyValueCache(capacity), []
    with torch.no_grad():
        for start, end in ((0, 4), (4, 5), (5, 6), (6, 11), (11, 13)):
            if kind == "left padding":  # the pads came first, so a prefix of the sequence has fewer real tokens
                seen = torch.tensor([13, 7]) - (13 - end)
                mask = Mask.causal() & Mask.padding(seen.clamp(min=0), side="left")
            pieces.append(attention(x[:, start:end], mask=mask, cache=cache))
            assert cache.length == end
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, rtol=0, atol=1e-12)


def test_a_context_is_projected_once_and_follows_the_beams():
    attention = MultiHeadAttention(12, 3, context_width=7).double()
    x, context = torch.randn(2, 1, 12).double(), torch.randn(2, 5, 7).double()
    cache = KeyValueCache()
    first = attention(x, context=context, cache=cache)
    cache.reorder(torch.tensor([1, 0, 1]))
    moved = attention(x[[1, 0, 1]], context=torch.full((3, 5, 7), 1e9).double(), cache=cache)
    torch.testing.assert_close(moved, first[[1, 0, 1]], rtol=0, atol=1e-12)
    assert cache.length == 0


def test_reordering_and_cropping_give_what_a_fresh_cache_would():
    attention = MultiHeadAttention(12, 3).double()
    x = torch.randn(3, 7, 12).double()
    cache = KeyValueCache()
    with torch.no_grad():
        attention(x[:, :6], mask=Mask.causal(), cache=cache)
        cache.crop(4)
        cache.reorder(torch.tensor([2, 2]))
        got = attention(x[[0, 1], 6:], mask=Mask.causal(), cache=cache)
        spliced = torch.cat([x[[2, 2], :4], x[[0, 1], 6:]], dim=1)
        want = attention(spliced, mask=Mask.causal())[:, -1:]
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


def test_gradients_flow_through_a_cache():
    attention = MultiHeadAttention(12, 3).double()
    x = torch.randn(1, 5, 12).double().requires_grad_()
    cache = KeyValueCache()
    steps = torch.cat([attention(x[:, [t]], mask=Mask.causal(), cache=cache) for t in range(5)], dim=1)
    want = torch.autograd.grad(attention(x, mask=Mask.causal()).square().sum(), x)[0]
    got = torch.autograd.grad(steps.square().sum(), x)[0]
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)


def test_the_observer_sees_what_was_attended_and_changes_nothing():
    attention, seen = MultiHeadAttention(12, 3), []
    x = torch.randn(2, 5, 12)
    unwatched = attention(x, mask=Mask.causal())
    attention.observer = seen.append
    assert torch.equal(attention(x, mask=Mask.causal()), unwatched)
    (only,) = seen
    assert isinstance(only, Seen)
    weights = attention_weights(only.q, only.k, only.mask, scale=only.scale, bias=only.bias)
    merged = (weights @ only.v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(attention.to_out(merged), unwatched, rtol=0, atol=1e-6)


def test_too_much_for_the_cache_says_how_much_fits():
    attention, cache = MultiHeadAttention(12, 3), KeyValueCache(capacity=4)
    attention(torch.randn(1, 3, 12), cache=cache)
    with pytest.raises(ShapeError, match="room for 4 tokens and holds 3: 2 more do not fit"):
        attention(torch.randn(1, 2, 12), cache=cache)


def test_another_batch_in_the_same_cache_is_refused():
    attention, cache = MultiHeadAttention(12, 3), KeyValueCache()
    with torch.no_grad():
        attention(torch.randn(2, 3, 12), cache=cache)
        with pytest.raises(ShapeError, match="holds 2 samples, the step has 3"):
            attention(torch.randn(3, 1, 12), cache=cache)


def test_cropping_to_more_than_there_is_is_refused():
    with pytest.raises(ShapeError, match="cannot crop to 3 tokens: the cache holds 0"):
        KeyValueCache().crop(3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"width": 12, "heads": 5}, "12 does not split into 5 heads"),
        ({"width": 12, "heads": 3, "kv_heads": 2}, "3 query heads cannot share 2 key heads"),
        ({"width": 12, "heads": 3, "temperature": "warm"}, "'fixed' or 'learned', not 'warm'"),
        ({"width": 12, "heads": 3, "positions": Rotary(6)}, "need head_dim 6, the attention has 4"),
        ({"width": 12, "heads": 3, "positions": Alibi(2)}, "for 2 heads, but the attention has 3"),
        ({"width": 12, "heads": 3, "dropout": 1.5}, "less than 1, got 1.5"),
    ],
)
def test_impossible_sizes_are_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        MultiHeadAttention(**arguments)


def test_a_missing_context_is_asked_for():
    with pytest.raises(ShapeError, match="context of width 7; pass it as context="):
        MultiHeadAttention(12, 3, context_width=7)(torch.randn(1, 5, 12))


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: MultiHeadAttention(12, 3)(torch.randn(2, 5, 11)),
            ShapeError,
            r"\(batch, tokens, 12\), got \(2, 5, 11\)",
        ),
        (lambda: MultiHeadAttention(12, 3)(torch.randn(5, 12)), ShapeError, r"got \(5, 12\)"),
        (
            lambda: MultiHeadAttention(12, 3, context_width=7)(torch.randn(2, 5, 12), context=torch.randn(2, 5, 12)),
            ShapeError,
            r"context must be \(batch, tokens, 7\)",
        ),
        (
            lambda: MultiHeadAttention(12, 3, positions="rotary"),
            ConfigError,
            "a Rotary, Alibi or Relative, got 'rotary'",
        ),
        (lambda: MultiHeadAttention.from_torch(nn.Linear(3, 3)), ConfigError, "got Linear"),
    ],
)
def test_wrong_input_is_named_with_what_was_wanted(call, error, words):
    with pytest.raises(error, match=words):
        call()
