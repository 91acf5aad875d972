"""Attention functions other than sdpa and eager: each reads masks in its own way; measured is what it computes.

FlashAttention is not installed here: it is stood in for by plain code with the same conventions, beneath the functions
of transformers that are really in force. FlexAttention is refused.
"""

import contextlib
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.integrations import flash_attention as flash_functions
from transformers.integrations import flex_attention as flex_functions

from clearhead.errors import LensError
from clearhead.lens.capture.watch_context import watch
from clearhead.lens.huggingface.arguments import classify_function, read_arguments
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


def test_flex_attention_is_refused_with_the_way_out():
    q, function = torch.zeros(1, 2, 3, 5), flex_functions.flex_attention_forward
    arguments = read_arguments(classify_function(function), function, made("llama"), q, q, q, object(), (), {})
    assert arguments.kind == "flex"
    assert "set_attn_implementation('sdpa')" in arguments.refusal


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
