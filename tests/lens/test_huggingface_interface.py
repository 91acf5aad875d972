"""Modules that do not use Hugging Face's attention interface as most do: replaced forwards, subscripts, other names."""

import copy
import types
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.models.chameleon.modeling_chameleon import ChameleonVQVAEEncoderAttnBlock
from transformers.models.llama.modeling_llama import LlamaAttention
from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as omni

from clearhead.lens.capture.watch_context import watch
from tests.lens.huggingface_zoo import made, tokens


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


class PlainAttention(LlamaAttention):
    """Overrides forward, and attends by itself."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        return hidden_states, None


class SameAttention(LlamaAttention):
    """Overrides forward, and calls that of its parent."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


def test_a_layer_whose_class_replaces_forward_is_named():
    model = copy.deepcopy(made("llama"))
    model.model.layers[1].self_attn.__class__ = PlainAttention
    with (
        pytest.warns(UserWarning, match=r"was replaced by one without.*decoder\.1\.self \(PlainAttention\)"),
        watch(model) as record,
    ):
        model(tokens())
    assert record.names == ["decoder.0.self"]
    assert record.missing == ["decoder.1.self"]
    assert repr(record).splitlines()[-1] == "  not recorded, of 2 that were watched: decoder.1.self"


def test_a_layer_whose_own_forward_is_replaced_is_named():
    model = copy.deepcopy(made("llama"))
    attention = model.model.layers[0].self_attn
    attention.forward = types.MethodType(PlainAttention.forward, attention)
    with pytest.warns(UserWarning, match=r"not recorded: decoder\.0\.self"), watch(model) as record:
        model(tokens())
    assert record.missing == ["decoder.0.self"]
    with watch(model, layers=1) as record:
        model(tokens())
    assert not record.missing


def test_forwards_that_call_the_original_take_part_and_copies_leave_no_trace():
    model = copy.deepcopy(made("llama"))
    first, second = (layer.self_attn for layer in model.model.layers)
    first.__class__, original = SameAttention, second.forward
    second.forward = lambda *args, **kwargs: original(*args, **kwargs)
    with watch(model) as record:
        model(tokens())
        copied = copy.deepcopy(first)
    assert record.names == ["decoder.0.self", "decoder.1.self"]
    assert not first._forward_pre_hooks
    assert copied(torch.zeros(1, 2, 30), (torch.ones(1, 2, 10), torch.zeros(1, 2, 10)), None)[0].shape == (1, 2, 30)


def test_blocks_of_a_picture_tokenizer_that_attend_by_themselves_are_named():
    model = copy.deepcopy(made("llama"))
    model.picture = ChameleonVQVAEEncoderAttnBlock(32)
    with pytest.warns(UserWarning, match=r"not recorded: picture \(ChameleonVQVAEEncoderAttnBlock\)"), watch(model):
        model(tokens())


class Stranger(nn.Module):
    """Takes the place of an attention, under a name that does not say so."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(30, 30)

    def forward(self, hidden_states: Tensor, **_: Any) -> Any:
        return self.linear(hidden_states), None


def test_another_module_in_the_place_of_an_attention_is_named():
    model = copy.deepcopy(made("llama"))
    model.model.layers[0].self_attn = Stranger()
    with pytest.warns(UserWarning, match=r"not recorded: model\.layers\.0\.self_attn \(Stranger\)"), watch(model):
        model(tokens())


def test_a_function_that_is_taken_by_subscript_is_wrapped_too_and_given_back():
    model, interface = made("llama"), omni.ALL_ATTENTION_FUNCTIONS
    sdpa = interface["sdpa"]
    with watch(model) as record:
        found = interface["sdpa"]
        model(tokens())
    assert found is not sdpa
    assert record.names == ["decoder.0.self", "decoder.1.self"]
    assert interface["sdpa"] is sdpa
    assert "__getitem__" not in vars(type(interface))


def test_a_model_that_takes_its_function_by_subscript_alone_is_refused_by_name():
    sizes = {"hidden_size": 21, "num_attention_heads": 3, "head_dim": 8, "num_hidden_layers": 2}
    config = transformers.models.qwen2_5_omni.configuration_qwen2_5_omni.Qwen2_5OmniDiTConfig(**sizes)
    model = copy.deepcopy(made("llama"))
    model.voice = omni.DiTAttention(config)
    with pytest.warns(UserWarning, match=r"not recorded: voice \(DiTAttention\)"), watch(model):
        model(tokens())
