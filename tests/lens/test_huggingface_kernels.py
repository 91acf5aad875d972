"""Attention functions other than sdpa and eager: each reads masks in its own way; measured is what it computes.

FlashAttention is not installed here, and FlexAttention compiles for half a minute: both are stood in for by plain code
with the same conventions, beneath the functions of transformers that are really in force.
"""

import contextlib
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention
from transformers.integrations import flash_attention as flash_functions
from transformers.integrations import flex_attention as flex_functions

from clearhead.errors import LensError
from clearhead.lens.capture.watch_context import watch
from tests.lens.huggingface_zoo import FAMILIES, assert_sees, eager_weights, implementation, made, padding, tokens


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def one_text(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Tensor:
    """(tokens, heads, width) of one text without padding, its last query beside its last key."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * (options.get("softmax_scale") or q.shape[-1] ** -0.5)
    if options.get("softcap") is not None:
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    apart = torch.arange(len(q))[:, None] + len(k) - len(q) - torch.arange(len(k))
    if options["is_causal"]:
        scores = scores.masked_fill(apart < 0, -torch.inf)
    if options.get("sliding_window") is not None:
        scores = scores.masked_fill(apart.abs() >= options["sliding_window"], -torch.inf)
    if options.get("s_aux") is not None:
        sinks = options["s_aux"].view(-1, 1, 1).expand(-1, len(q), 1)
        return torch.einsum("hqk,khd->qhd", torch.cat([scores, sinks], -1).softmax(-1)[..., :-1], v)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


def flash_stand_in(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
    """What FlashAttention is asked for, text by text: padding is cut away, packed texts are kept apart."""
    out, positions = torch.zeros_like(q[..., : v.shape[-1]]), options.get("position_ids")
    for sample in range(len(q)):
        real = torch.ones(k.shape[1], dtype=torch.bool) if mask is None else mask[sample].bool()
        keys = real.nonzero()[:, 0]
        queries = real[-q.shape[1] :].nonzero()[:, 0] if q.shape[1] > 1 else torch.tensor([0])
        pieces = [(queries, keys)]
        if mask is None and len(q) == 1 and positions is not None and q.shape[1] > 1:
            cuts = [0, *((positions[0].diff() != 1).nonzero()[:, 0] + 1).tolist(), q.shape[1]]
            pieces = [(torch.arange(a, b), torch.arange(a, b)) for a, b in itertools.pairwise(cuts)]
        for rows, columns in pieces:
            out[sample, rows] = one_text(q[sample, rows], k[sample, columns], v[sample, columns], options)
    return out


@pytest.fixture
def flash(monkeypatch):
    monkeypatch.setattr(flash_functions, "_flash_attention_forward", flash_stand_in)


@pytest.mark.usefixtures("flash")
@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("family", ["bert", "modernbert", "llama", "mistral", "gemma2", "gpt-oss"])
def test_padding_windows_softcap_and_sinks_of_flash_attention_are_read(family, side):
    model, given = made(family), {"input_ids": tokens()}
    if side is not None:
        given["attention_mask"] = padding(side)
    with implementation(model, "flash_attention_2"):
        before = model(**given)[0]
        with watch(model) as record:
            assert torch.equal(model(**given)[0], before)
    for name, weights in eager_weights(model, given, FAMILIES[family].names).items():
        assert_sees(record[name], weights, given.get("attention_mask"))


@pytest.mark.usefixtures("flash")
def test_flash_attention_keeps_packed_texts_apart_by_their_positions():
    model, starts = made("llama"), torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7]])
    given = {"input_ids": tokens()[:1], "position_ids": starts, "use_cache": False}
    with implementation(model, "flash_attention_2"), watch(model) as record:
        model(**given)
    for name, weights in eager_weights(model, given, FAMILIES["llama"].names).items():
        assert_sees(record[name], weights)


@pytest.mark.usefixtures("flash")
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_flash_attention_can_be_followed_through_generation(cache):
    model, real = made("mistral"), padding("left")
    given = {"input_ids": tokens(), "attention_mask": real}
    with implementation(model, "flash_attention_2"), watch(model) as record:
        out = model.generate(**given, max_new_tokens=5, min_new_tokens=5, do_sample=False, cache_implementation=cache)
    real = torch.cat([real, real.new_ones(3, 4)], 1)
    given = {"input_ids": out[:, :-1], "attention_mask": real, "position_ids": (real.cumsum(1) - 1).clamp(min=0)}
    for name, weights in eager_weights(model, given, FAMILIES["mistral"].names).items():
        assert_sees(record[name], weights, real)


@pytest.fixture
def flex(monkeypatch):
    """FlexAttention without its compiler: the same masks and scores, worked out plainly."""
    make = flex_attention.create_block_mask

    def create_block_mask(*args: Any, _compile: bool = False, **kwargs: Any) -> Any:
        return make(*args, **kwargs)

    def attention(query: Tensor, key: Tensor, value: Tensor, training: bool = False, **kwargs: Any) -> Any:
        return flex_attention.flex_attention(query, key, value, **kwargs)

    monkeypatch.setattr("transformers.masking_utils.create_block_mask", create_block_mask)
    monkeypatch.setattr(flex_functions, "compile_friendly_flex_attention", attention)


@pytest.mark.usefixtures("flex")
@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
@pytest.mark.parametrize("side", [None, "left"])
@pytest.mark.parametrize("family", ["bert", "llama", "mistral", "gemma2"])
def test_masks_of_flex_attention_are_evaluated_block_by_block(family, side):
    model, given = made(family), {"input_ids": tokens()}
    if side is not None:
        given["attention_mask"] = padding(side)
    with implementation(model, "flex_attention"):
        before = model(**given)[0]
        with watch(model) as record:
            assert torch.equal(model(**given)[0], before)
    for name, weights in eager_weights(model, given, FAMILIES[family].names).items():
        assert_sees(record[name], weights, given.get("attention_mask"))


@pytest.mark.usefixtures("flex")
@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
def test_windows_of_weights_can_be_had_under_flex_attention():
    model, given = made("mistral"), {"input_ids": tokens()}
    with implementation(model, "flex_attention"), watch(model, keep="qk") as record:
        model(**given)
    weights = eager_weights(model, given, FAMILIES["mistral"].names)["decoder.1.self"]
    found = record["decoder.1.self"].weights(1, 2, slice(5, 9), slice(2, 11))
    assert (found - weights[1, 2, 5:9, 2:11]).abs().max() < 1e-5


def test_continuous_batching_is_refused():
    model = made("llama")
    with pytest.raises(LensError, match="continuous batching keeps keys in pages"), watch(model):
        model.model.layers[0].self_attn(
            torch.zeros(1, 1, 30), (torch.ones(1, 1, 10), torch.zeros(1, 1, 10)), None, cache=_Pages()
        )


def test_continuous_batching_is_refused_even_if_its_own_thread_has_caught_the_error():
    attention = made("llama").model.layers[0].self_attn
    angles = (torch.ones(1, 1, 10), torch.zeros(1, 1, 10))
    watching = watch(attention)
    watching.__enter__()
    with contextlib.suppress(LensError):
        attention(torch.zeros(1, 1, 30), angles, None, cache=_Pages())
    with pytest.raises(LensError, match="continuous batching keeps keys in pages"):
        watching.__exit__(None, None, None)


class _Pages:
    """Stands for the pages of a server."""
