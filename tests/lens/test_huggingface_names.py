"""Names of attentions from their paths, for any family."""

import re

import pytest
import torch
import transformers
from torch import nn
from transformers.models.llama.modeling_llama import LlamaAttention

from clearhead.lens.attention_names import find_by_path, suggest_attention
from clearhead.lens.capture.watch_context import watch
from clearhead.lens.huggingface import find_attentions, read_shapes
from clearhead.lens.huggingface.discovery import find_attending_modules
from tests.lens.huggingface_zoo import FAMILIES, WIDE, inputs, made, tokens
from tests.model.checkpoints import LLAMA, shaken

CONFIG = transformers.LlamaConfig(**LLAMA)


class Plain(nn.Module):
    """A place for others."""


def tree(*paths: str, causal: bool = True) -> nn.Module:
    """A module with an attention at each of these paths."""
    root = Plain()
    with torch.device("meta"):
        for path in paths:
            *above, last = path.split(".")
            place = root
            for part in above:
                if not hasattr(place, part):
                    place.add_module(part, Plain())
                place = getattr(place, part)
            attention = LlamaAttention(CONFIG, 0)
            attention.is_causal = causal
            place.add_module(last, attention)
    return root


NAMED = {
    "model.layers.0.self_attn model.layers.1.self_attn": "decoder.0.self decoder.1.self",
    "model.decoder.layers.7.encoder_attn": "decoder.7.cross",
    "decoder.block.3.layer.0.SelfAttention decoder.block.3.layer.1.EncDecAttention": "decoder.3.self decoder.3.cross",
    "encoder.block.0.layer.0.SelfAttention encoder.block.1.layer.0.SelfAttention": "encoder.0.self encoder.1.self",
    "encoder.layers.0.blocks.0.attention encoder.layers.1.blocks.1.attention": "encoder.0.0.self encoder.1.1.self",
    "text_model.encoder.layers.0.attn vision_model.encoder.layers.0.attn": "text.encoder.0.self vision.encoder.0.self",
    "encoder.bert.encoder.layer.2.self decoder.bert.encoder.layer.2.self": "encoder.2.self decoder.2.self",
    "left.layers.0.attn right.layers.0.attn": "left.decoder.0.self right.decoder.0.self",
    "decoder.0.cross_to_image decoder.0.cross_to_text": "decoder.0.cross_to_image decoder.0.cross_to_text",
    "a.layers.0.attn a.layers.1.attn b.layers.0.attn": "a.decoder.0.self a.decoder.1.self b.decoder.0.self",
    "_orig_mod.model.layers.0.self_attn": "decoder.0.self",
    "pooler.attention": "pooler.attention",
}


@pytest.mark.parametrize("paths", NAMED)
def test_a_path_names_the_stack_the_layer_and_the_kind(paths):
    assert list(find_attentions(tree(*paths.split()))) == NAMED[paths].split()


def test_what_has_no_stack_in_its_path_is_an_encoder_unless_it_is_causal():
    assert list(find_attentions(tree("layers.5.attention", causal=False))) == ["encoder.5.self"]
    assert list(find_attentions(tree("layers.5.attention"))) == ["decoder.5.self"]


def test_an_attention_by_itself_has_a_name_too():
    with torch.device("meta"):
        assert list(find_attentions(LlamaAttention(CONFIG, 0))) == ["attention"]
    assert find_attentions(nn.Linear(2, 3)) == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_path_of_a_module_leads_to_the_name_of_its_attention(family):
    attending = find_attending_modules(made(family))
    names = list(find_attentions(made(family)))
    for path, name in zip(attending, names, strict=True):
        assert suggest_attention(path, names) == f"did you mean {name!r}?"
        assert find_by_path(re.sub(r"\d", "7", path), names) is None


@torch.no_grad()
@pytest.mark.parametrize("family", [*FAMILIES, "DeepseekV2", "DeepseekV3"])
def test_sizes_are_known_before_anything_runs(family):
    if family in FAMILIES:
        model, given = made(family), inputs(family)
    else:
        sizes = {**WIDE, "num_attention_heads": 4, "hidden_size": 20, "moe_intermediate_size": 14, "q_lora_rank": 8}
        latent = {"kv_lora_rank": 6, "qk_rope_head_dim": 4, "qk_nope_head_dim": 10, "v_head_dim": 6}
        config = getattr(transformers, f"{family}Config")(**sizes, **latent, vocab_size=31, first_k_dense_replace=2)
        model, given = shaken(getattr(transformers, f"{family}ForCausalLM")(config)), {"input_ids": tokens()}
    with watch(model, keep="qk") as record:
        model(**given)
    shapes = read_shapes(model)
    for name in record.names:
        kept = record[name].kept
        assert shapes[name][:3] == (kept.q.shape[1], kept.k.shape[1], kept.q.shape[3])
