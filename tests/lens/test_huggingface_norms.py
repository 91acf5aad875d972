"""norms=True on Hugging Face models: the map that merges the heads is the right one, and comes right after them."""

import copy
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from clearhead.errors import LensError
from clearhead.lens.capture.watch_context import watch
from clearhead.lens.huggingface import find_attentions
from tests.lens.huggingface_zoo import FAMILIES, inputs, made, tokens, wrapped_attention
from tests.lens.test_output_projection import Adapter
from tests.model.checkpoints import shaken


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("family", FAMILIES)
def test_norms_are_those_of_what_each_head_adds_for_each_key(family):
    model, given = made(family), inputs(family)
    values, merged = {}, {}
    names = {module: name for name, module in find_attentions(model).items()}

    def note(attend: Any, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Any:
        out, weights = attend(module, q, k, v, *args, **kwargs)
        values[names[module]], merged[names[module]] = v, out.flatten(2)
        return out, weights

    # The map is found by what goes in: the only linear one that gets the very heads that came out.
    maps: dict[str, nn.Module] = {}

    def seek(module: nn.Module, args: tuple[Any, ...]) -> None:
        for name, heads in merged.items():
            if name not in maps and args[0].shape == heads.shape and torch.equal(args[0], heads):
                maps[name] = module

    hooks = [m.register_forward_pre_hook(seek) for m in model.modules() if type(m).__name__ in ("Linear", "Conv1D")]
    with wrapped_attention(model, note):
        model(**given)
    for hook in hooks:
        hook.remove()
    with watch(model, norms=True) as record:
        model(**given)
    assert maps.keys() == merged.keys()
    for name, linear in maps.items():
        weight = linear.weight if isinstance(linear, nn.Linear) else linear.weight.T
        heads = record[name].entropy.shape[1]
        v = values[name].repeat_interleave(heads // values[name].shape[1], 1)
        added = torch.einsum("bhkd,whd->bhkw", v, weight.unflatten(1, (heads, -1)))
        assert (record[name].norms - added.norm(dim=-1)).abs().max() < 1e-4


def test_a_family_with_a_gate_before_the_map_is_refused():
    sizes = {"vocab_size": 31, "hidden_size": 30, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 10}
    config = transformers.AfmoeConfig(**sizes, num_hidden_layers=1, intermediate_size=37, num_dense_layers=1)
    model = shaken(transformers.AfmoeModel(config))
    with pytest.raises(LensError, match=r"norms=True .*'decoder.0.self'.*AfmoeAttention.*Llama, Mistral"):
        watch(model, norms=True).__enter__()
    with watch(model) as record:
        model(tokens())
    assert record["decoder.0.self"].norms is None


def test_an_adapted_projection_is_refused_by_name():
    model = copy.deepcopy(made("llama"))
    attention = model.model.layers[1].self_attn
    attention.o_proj = Adapter(attention.o_proj)
    refused = pytest.raises(LensError, match=r"'decoder\.1\.self' is a Adapter .* merge_and_unload")
    with refused, watch(model, norms=True):
        model(tokens())


def test_a_projection_outside_of_what_is_watched_is_named():
    part = made("bert").encoder.layer[0].attention.self
    with pytest.raises(LensError, match="not in the watched BertSelfAttention; watch the model"):
        watch(part, norms=True).__enter__()
    assert isinstance(part, transformers.models.bert.modeling_bert.BertSelfAttention)
