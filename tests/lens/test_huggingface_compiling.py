"""Compiled Hugging Face models under watch: compiled code is recompiled once, and then serves all watches."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch._dynamo.utils import counters

from clearhead.lens.capture.compiled_graphs import decode_values, encode_values
from clearhead.lens.capture.watch_context import watch
from clearhead.lens.huggingface.arguments import AttentionArguments
from tests.lens.huggingface_zoo import FAMILIES, assert_sees, eager_weights, inputs, tokens

pytestmark = pytest.mark.unchecked


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    counters.clear()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def graphs() -> int:
    return counters["stats"]["unique_graphs"]


def small(family: str) -> Any:
    """A model of its own with one layer: tracing is slow."""
    model = FAMILIES[family].make()
    stacks = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) > 1]
    for stack in stacks if family != "t5" else [model.encoder.block, model.decoder.block]:
        del stack[1:]
    return model


def names(family: str) -> list[str]:
    return [name for name in FAMILIES[family].names if ".0." in name]


def whole(model: Any) -> tuple[Any, Callable[..., Any]]:
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    return compiled, compiled


def in_place(model: Any) -> tuple[Any, Callable[..., Any]]:
    model.compile(backend="aot_eager")
    return model, model


def by_layers(model: Any) -> tuple[Any, Callable[..., Any]]:
    for layer in model.model.layers:
        layer.compile(backend="aot_eager")
    return model, model


@pytest.mark.parametrize("how", [whole, in_place, by_layers], ids=lambda how: how.__name__)
def test_a_model_compiled_before_is_seen_and_compiled_anew_only_once(how):
    model, given = small("llama"), {**inputs("llama"), "use_cache": False}
    wanted = eager_weights(model, given, names("llama"))
    watched, run = how(model)
    before = run(**given)[0]
    with watch(watched):
        run(**given)
    known = graphs()
    with watch(watched) as record:
        assert torch.equal(run(**given)[0], before)
    assert graphs() == known, "a second watch was compiled again"
    assert record.calls[0].ids.keys() == {"tokens"}
    for name, weights in wanted.items():
        assert_sees(record[name], weights)
    assert torch.equal(run(**given)[0], before)


@pytest.mark.parametrize("family", ["bert", "gemma2", "t5"])
def test_masks_biases_and_softcap_come_out_of_a_graph(family):
    model, given = small(family), inputs(family, None if family == "t5" else "left")
    given |= {} if family == "bert" else {"use_cache": False}
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with watch(compiled) as record:
        compiled(**given)
    for name, weights in eager_weights(model, given, names(family)).items():
        assert_sees(record[name], weights, given.get("attention_mask"))


def test_all_arguments_can_be_encoded_for_a_graph():
    q, k, v = torch.randn(3, 2, 3, 5, 7).unbind()
    rest = [torch.tensor([n]) for n in range(6)]
    plain = AttentionArguments("sdpa", q, k, v, None, None, True, None, None, None, None, None, None, None)
    full = AttentionArguments("flash", q, k, v, rest[0], 0.5, False, 2.0, 11, *rest[1:])
    scaled = full._replace(kind="eager", scale=torch.ones(3), window=None, softcap=None, positions=None)
    for got in (plain, full, scaled):
        for name, value, wanted in zip(got._fields, decode_values(encode_values(got)), got, strict=True):
            same = torch.equal(value, wanted) if isinstance(wanted, Tensor) else value == wanted
            assert same, f"{name} is {value!r}, not {wanted!r}"


def test_compiled_generation_with_a_static_cache_is_one_call():
    model, text = small("mistral"), tokens(7)
    config = transformers.CompileConfig(backend="aot_eager", mode=None, fullgraph=False)
    config._compile_all_devices = True

    def run() -> Tensor:
        options = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False, "cache_implementation": "static"}
        return model.generate(text, attention_mask=torch.ones_like(text), **options, compile_config=config)

    before = run()
    assert graphs() > 0
    with watch(model) as record:
        assert torch.equal(run(), before)
    assert torch.equal(record.calls[0].ids["tokens"], before[:, :-1])
    for name, weights in eager_weights(model, {"input_ids": before[:, :-1]}, names("mistral")).items():
        assert_sees(record[name], weights)
