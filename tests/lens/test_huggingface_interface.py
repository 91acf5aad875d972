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

from clearhead.lens.analysis.ablation import ablate
from clearhead.lens.capture.watch_context import watch
from tests.lens.huggingface_zoo import made, tokens
from tests.model.checkpoints import shaken


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


class TwoLayers(nn.Module):
    """Two attentions of Qwen2.5-Omni's DiT, which take their function as ALL_ATTENTION_FUNCTIONS[name]."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"hidden_size": 21, "num_attention_heads": 3, "head_dim": 8, "num_hidden_layers": 2}
        self.config = transformers.models.qwen2_5_omni.configuration_qwen2_5_omni.Qwen2_5OmniDiTConfig(**sizes)
        self.config._attn_implementation = "sdpa"
        self.layers = nn.ModuleList([omni.DiTAttention(self.config) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, (torch.ones(1, x.shape[1], 8), torch.zeros(1, x.shape[1], 8)))
        return x


def test_a_function_that_is_taken_by_subscript_is_observed():
    model, x = shaken(TwoLayers()), torch.randn(2, 7, 21)
    interface = omni.ALL_ATTENTION_FUNCTIONS
    before, own = model(x), interface["sdpa"]
    with watch(model) as record:
        assert torch.equal(model(x), before)
        with ablate(model, {"encoder.0.self": [0, 1, 2]}):
            changed = model(x)
    assert not torch.equal(changed, before)
    assert [call.names for call in record.calls] == [["encoder.0.self", "encoder.1.self"]] * 2
    assert torch.allclose(record.calls[0]["encoder.0.self"].map.sum(-1), torch.ones(2, 3, 7), atol=1e-5)
    assert interface["sdpa"] is own
    assert "__getitem__" not in vars(type(interface))
