"""Norms of what heads can add, against the explicit construction in float64."""

import pytest
import torch
from torch import Tensor

from clearhead import EncoderDecoder, ModelConfig, MultiHeadAttention, Seen
from clearhead.errors import RecordError, ShapeError
from clearhead.lens import watch
from clearhead.lens.analysis import norms
from clearhead.lens.analysis.norms import norm_weights, value_norms


def explicit(v: Tensor, weight: Tensor, heads: int) -> Tensor:
    """Every v_j W_O^h, built, and then its length."""
    v = v.double().repeat_interleave(heads // v.shape[1], dim=1)
    maps = weight.double().unflatten(1, (heads, v.shape[3]))
    return torch.einsum("bhnd,whd->bhnw", v, maps).norm(dim=-1)


# Few keys, which go through W_O itself; many, through its R; a width smaller than a head's.
@pytest.mark.parametrize("sizes", [(2, 3, 5, 7, 31), (2, 3, 101, 7, 31), (3, 1, 67, 11, 5)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_they_equal_the_explicit_ones(sizes, dtype):
    torch.manual_seed(1)
    batch, kv_heads, keys, d, width = sizes
    v, weight = torch.randn(batch, kv_heads, keys, d).to(dtype), torch.randn(width, 2 * kv_heads * d).to(dtype)
    found = value_norms(v, weight, 2 * kv_heads)
    want = explicit(v, weight, 2 * kv_heads)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    # What comes in is taken as it is, and then a few roundings of the longest sum.
    assert (found - want).abs().max() <= 16 * torch.finfo(found.dtype).eps * want.max()


def test_a_value_that_the_map_nearly_swallows_keeps_its_digits():
    """By way of WᵀW, whose digits are those of the square, nothing would be left of it."""
    torch.manual_seed(2)
    d, tiny = 5, 1e-6
    basis = torch.linalg.qr(torch.randn(13, d, dtype=torch.float64)).Q
    weight = basis * torch.tensor([1.0, 1.0, 1.0, 1.0, tiny])
    v = torch.zeros(1, 1, 29, d)
    v[..., -1] = 1.0
    assert value_norms(v, weight.float(), 1).sub(tiny).abs().max() <= 1e-3 * tiny


def test_pieces_give_what_the_whole_gives(monkeypatch):
    v, weight = torch.randn(2, 3, 53, 7), torch.randn(11, 42)
    whole = value_norms(v, weight, 6)
    monkeypatch.setattr(norms, "CHUNK", 2 * 6 * 7 * 5)
    torch.testing.assert_close(value_norms(v, weight, 6), whole)


def test_of_an_attention_it_is_what_a_lone_key_adds():
    """A query that sees one key alone gets all of it: then the norm is that of the output itself."""
    torch.manual_seed(3)
    attention, seen = MultiHeadAttention(12, 3, kv_heads=1, bias=False).double(), []
    attention.observer = seen.append
    x = torch.randn(5, 1, 12, dtype=torch.float64)
    with torch.no_grad():
        attention(x)
        for head in range(3):
            attention.ablated_heads = (torch.arange(3) != head).view(3, 1, 1)
            given: Seen = seen[0]
            found = value_norms(given.v, attention.to_out.weight, 3)[:, head]
            torch.testing.assert_close(found, attention(x).norm(dim=-1))


@pytest.mark.parametrize(("heads", "features"), [(4, 14), (3, 21), (2, 15)])
def test_a_weight_of_other_sizes_is_refused(heads, features):
    with pytest.raises(ShapeError, match=r"merged by a weight of \(width"):
        value_norms(torch.zeros(1, 2, 3, 7), torch.zeros(5, features), heads)


def test_norm_weighted_attention_is_the_length_of_what_a_key_adds():
    """Every w_ij · v_j · W_O^h, built in float64 from the model's own tensors."""
    torch.manual_seed(5)
    model = EncoderDecoder(ModelConfig.named("tiny", vocabulary=41, width=24, heads=3, layers=1)).double().eval()
    source, target = torch.randint(41, (2, 7)), torch.randint(41, (2, 11))
    attention, seen = model.decoder.layers[0].cross_attention, []
    with torch.no_grad(), watch(model, keep="qk", norms=True) as record:
        model(source, target)
    attention.observer = seen.append
    with torch.no_grad():
        model(source, target)
    maps = attention.to_out.weight.detach().unflatten(1, (3, 8))
    added = torch.einsum("bhij,bhjd,whd->bhijw", seen[0].weights(), seen[0].v, maps).norm(dim=-1)
    sight = record["decoder.0.cross"]
    for batch, head in ((0, 0), (1, 2)):
        torch.testing.assert_close(norm_weights(sight, batch, head), added[batch, head])
        window = norm_weights(sight, batch, head, slice(3, 5), slice(1, 6))
        torch.testing.assert_close(window, added[batch, head, 3:5, 1:6])
        torch.testing.assert_close(norm_weights(sight, batch, head, 4, 5), added[batch, head, 4:5, 5:6])
        backwards = norm_weights(sight, batch, head, None, slice(None, None, -2))
        torch.testing.assert_close(backwards, added[batch, head].flip(-1)[:, ::2])
    torch.testing.assert_close(sight.received * sight.norms, added.sum(2))


def test_of_chosen_heads_each_has_its_own_norms():
    model, x = MultiHeadAttention(12, 3).double(), torch.randn(2, 5, 12, dtype=torch.float64)
    with (
        torch.no_grad(),
        watch(model, norms=True, keep="qk") as whole,
        watch(model, heads=[2], norms=True, keep="qk") as one,
    ):
        model(x)
    torch.testing.assert_close(one["attention"].norms[:, 0], whole["attention"].norms[:, 2])
    torch.testing.assert_close(norm_weights(one["attention"], 1, 2), norm_weights(whole["attention"], 1, 2))


def test_without_norms_the_error_names_the_option():
    model = MultiHeadAttention(12, 3)
    with watch(model) as record:
        model(torch.randn(1, 5, 12))
    with pytest.raises(RecordError, match=r"watch\(…, norms=True\)"):
        norm_weights(record["attention"], 0, 0)
