"""Attention functions that users register: read by what they return, and refused by name if nothing explains it."""

import copy
import functools
import re
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.integrations.flash_attention import flash_attention_forward

from clearhead.errors import LensError
from clearhead.lens.analysis.ablation import ablate
from clearhead.lens.capture.watch_context import watch
from clearhead.lens.huggingface import verification
from tests.lens.huggingface_zoo import FAMILIES, assert_sees, eager_weights, implementation, made, padding, tokens


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def register(monkeypatch):
    """Registers an attention function under a name, with the masks of another."""
    functions = transformers.AttentionInterface._global_mapping
    masks = transformers.AttentionMaskInterface._global_mapping

    def add(function: Any, name: str = "mine", mask: str = "sdpa") -> Any:
        monkeypatch.setitem(functions, name, function)
        monkeypatch.setitem(masks, name, masks[mask])
        return function

    return add


def flash_but_plain(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, **options: Any) -> Any:
    """Its name says flash; its masks are those of sdpa."""
    return transformers.AttentionInterface._global_mapping["sdpa"](module, q, k, v, mask, **options)


def scored(temper: float = 1.0, slope: float = 0.0, *, causal: bool = False) -> Any:
    """A function in plain code that may do more to the scores than its arguments say."""

    def flex_scores(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, scaling: float, **options: Any) -> Any:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        apart = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2] - torch.arange(k.shape[2])
        scores = q @ k.mT * scaling * temper - (slope * apart.abs()).to(q.dtype)
        scores = scores if mask is None else scores.masked_fill(~mask, -1e4)
        scores = scores.masked_fill(apart < 0, -1e4) if causal else scores
        return (scores.softmax(-1) @ v).transpose(1, 2).contiguous(), None

    return flex_scores


class CallableAttention:
    """An attention function that is an object, without code of its own."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize(
    "function",
    [
        flash_but_plain,
        functools.partial(flash_but_plain, unused=1),
        functools.wraps(flash_attention_forward)(lambda *args, **options: flash_but_plain(*args, **options)),
        CallableAttention(flash_but_plain),
        scored(causal=True),
    ],
    ids=["flash in its name", "partial", "wraps", "an object", "causal by itself"],
)
def test_a_function_of_ones_own_is_read_by_what_it_returns_not_by_its_name(register, function, side):
    register(function)
    model, given = made("mistral"), {"input_ids": tokens()}
    if side is not None:
        given["attention_mask"] = padding(side)
    with implementation(model, "mine"):
        before = model(**given)[0]
        with watch(model) as record:
            assert torch.equal(model(**given)[0], before)
    for name, weights in eager_weights(model, given, FAMILIES["mistral"].names).items():
        assert_sees(record[name], weights, given.get("attention_mask"))


def test_a_function_that_ignores_causality_is_seen_to_do_so(register):
    register(scored())
    model = made("llama")
    with implementation(model, "mine"), watch(model) as record:
        model(tokens())
    assert (record["decoder.0.self"].map[:, :, 0, 1:] > 0).all()


@pytest.mark.parametrize("function", [scored(temper=1.1), scored(slope=0.3)], ids=["temperature", "alibi"])
@pytest.mark.parametrize("side", [None, "left"])
def test_a_function_with_scores_of_its_own_is_refused_by_name(register, function, side):
    register(function)
    model, given = made("llama"), {"input_ids": tokens()}
    if side is not None:
        given["attention_mask"] = padding(side)
    with (
        implementation(model, "mine"),
        pytest.raises(LensError, match=r"'decoder\.0\.self' attends by 'flex_scores'.*differs by"),
        watch(model),
    ):
        model(**given)


def test_a_refusal_tells_a_small_difference_from_the_limit_that_it_broke(register):
    register(scored(temper=1.0003, causal=True))
    model = made("llama")
    numbers = r"differs by (\S+) of its size, and rounding explains at most (\S+)\)"
    with implementation(model, "mine"), pytest.raises(LensError, match=numbers) as refused, watch(model):
        model(tokens())
    found = re.search(numbers, str(refused.value))
    share, limit = float(found[1]), float(found[2])
    assert 0 < limit < share < 1e-3


def test_a_function_whose_arguments_fit_no_form_is_refused_without_a_number(register, monkeypatch):
    register(flash_but_plain)
    model = made("llama")
    monkeypatch.setattr(verification, "to_seen", lambda *_: torch.zeros(2) + torch.zeros(3))  # no form of it fits
    refused = pytest.raises(LensError, match=r"arguments \(none of the forms that transformers gives them fits\)")
    with implementation(model, "mine"), refused, watch(model):
        model(tokens())


def test_a_function_of_another_output_and_one_with_dropout_are_refused(register):
    model = made("llama")
    register(lambda module, q, k, v, mask, **options: (q, None))
    with implementation(model, "mine"), pytest.raises(LensError, match=r"<lambda>.*returned"), watch(model):
        model(tokens())
    register(lambda *args, **options: flash_but_plain(*args, **{**options, "dropout": 0.0}))
    attention = model.model.layers[0].self_attn
    inputs = (torch.randn(1, 3, 30), (torch.ones(1, 3, 10), torch.zeros(1, 3, 10)), None)
    attention.attention_dropout = 0.5
    attention.train()
    try:
        with implementation(model, "mine"), pytest.raises(LensError, match="dropout"), watch(attention):
            attention(*inputs)
    finally:
        attention.eval()
        attention.attention_dropout = 0.0


def test_heads_that_are_switched_off_do_not_count_against_a_function_of_ones_own(register):
    register(flash_but_plain)
    model = made("llama")
    with implementation(model, "mine"), watch(model) as record, ablate(model, {"decoder.0.self": [1]}):
        model(tokens())
    assert record.names == FAMILIES["llama"].names


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_functions_of_ones_own_may_round_as_their_precision_does(register, dtype):
    register(scored(causal=True))
    model = copy.deepcopy(made("llama")).to(dtype)
    with implementation(model, "mine"), watch(model) as record:
        model(tokens())
    assert (record["decoder.0.self"].map[:, :, 0, 1:] == 0).all()


@pytest.mark.unchecked
def test_a_compiled_model_is_checked_too(register):
    register(flash_but_plain)
    model = copy.deepcopy(made("llama"))
    compiled = torch.compile(model, backend="eager")
    with implementation(model, "mine"), watch(compiled) as record:
        compiled(tokens())
    for name, weights in eager_weights(model, {"input_ids": tokens()}, FAMILIES["llama"].names).items():
        assert_sees(record[name], weights)
    register(scored(temper=1.1), "hot")
    torch.compiler.reset()
    with implementation(model, "hot"), pytest.raises(LensError, match="'flex_scores'"), watch(compiled):
        compiled(tokens())
