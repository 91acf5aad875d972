"""Positions of queries and keys in Hugging Face models whose caches hold more than tokens: summaries, image keys."""

from typing import Any

import pytest
import torch
import transformers

from clearhead.errors import LensError
from clearhead.lens.analysis.hidden_tokens import hide
from clearhead.lens.capture.watch_context import watch
from clearhead.lens.record.attention_record import Record
from tests.lens.huggingface_zoo import assert_sees, tokens
from tests.model.checkpoints import shaken

NEW = 5


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def make_deepseek_v4() -> Any:
    """Three layers: a window, a window with one summary for every 5 tokens, one with one for every 2."""
    config = transformers.DeepseekV4Config(
        vocab_size=31,
        hidden_size=20,
        moe_intermediate_size=14,
        num_hidden_layers=3,
        num_attention_heads=4,
        head_dim=10,
        q_lora_rank=12,
        n_routed_experts=3,
        num_experts_per_tok=2,
        sliding_window=7,
        o_groups=2,
        o_lora_rank=6,
        index_n_heads=2,
        index_head_dim=8,
        index_topk=3,
        layer_types=["sliding_attention", "heavily_compressed_attention", "compressed_sparse_attention"],
        compress_rates={"compressed_sparse_attention": 2, "heavily_compressed_attention": 5},
        mlp_layer_types=["moe"] * 3,
        hc_mult=2,
        max_position_embeddings=64,
        partial_rotary_factor=0.4,
        experts_implementation="eager",
        pad_token_id=0,
    )
    return shaken(transformers.DeepseekV4ForCausalLM(config))


@pytest.mark.parametrize("use_cache", [True, False])
def test_keys_that_summarise_tokens_follow_them_and_have_no_text(use_cache, tmp_path):
    model, given = make_deepseek_v4(), tokens(13)
    with watch(model) as record:
        out = model(given, output_attentions=True, use_cache=use_cache)
    record.label(lambda number: f"t{number}")
    record.save(tmp_path / "v4.record")
    for one in (record, Record.load(tmp_path / "v4.record")):
        for name, weights, summaries in zip(one.names, out.attentions, (0, 13 // 5, 13 // 2), strict=True):
            sight = one[name]
            assert sight.queries.tolist() == list(range(13))
            assert sight.keys == 13 + summaries
            assert torch.allclose(sight.map, weights, atol=1e-6)
            apart = (torch.arange(13)[:, None] - torch.arange(13)).abs()
            assert torch.allclose(sight.distance, (weights[..., :13] * apart).sum(-1), atol=1e-5)
            assert [sight.text(1, key) for key in range(13)] == [f"t{number}" for number in given[1].tolist()]
            assert [sight.text(1, key) for key in range(13, sight.keys)] == [None] * summaries


def test_a_generation_over_summaries_is_refused_by_name():
    model = make_deepseek_v4()
    with pytest.raises(LensError, match=r"'decoder\.1\.self' attends to 9 keys.*summaries"), watch(model):
        model.generate(tokens(13), max_new_tokens=3, do_sample=False)


def make_mllama() -> Any:
    """Text layers 1 and 3 attend to a picture, and keep its keys in the cache that holds the text's."""
    text = {
        "vocab_size": 31,
        "hidden_size": 24,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 30,
        "cross_attention_layers": [1, 3],
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": None,
        "max_position_embeddings": 64,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }
    vision = {
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_global_layers": 1,
        "attention_heads": 2,
        "intermediate_size": 16,
        "vision_output_dim": 24,
        "image_size": 10,
        "patch_size": 5,
        "max_num_tiles": 2,
        "intermediate_layers_indices": [0],
        "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
    }
    config = transformers.MllamaConfig(vision_config=vision, text_config=text, image_token_index=29)
    return shaken(transformers.MllamaForConditionalGeneration(config))


def test_image_keys_in_the_cache_of_a_text_do_not_move_its_tokens():
    model, drawn = make_mllama(), torch.Generator().manual_seed(5)
    picture = {
        "pixel_values": torch.randn(2, 1, 2, 3, 10, 10, generator=drawn),
        "aspect_ratio_ids": torch.ones(2, 1, dtype=torch.long),
        "aspect_ratio_mask": torch.tensor([[[1, 0]]] * 2),
    }
    text = torch.cat([torch.full((2, 1), 29), tokens(7)[:2]], 1)
    visible = torch.ones(2, 8, 1, 2, dtype=torch.long)
    with watch(model) as record:
        model.generate(text, **picture, cross_attention_mask=visible, max_new_tokens=NEW, do_sample=False)
    (call,) = record.calls
    ids = call.ids["tokens"]
    assert ids.shape == (2, 8 + NEW - 1)
    model.set_attn_implementation("eager")
    visible = torch.ones(2, 8 + NEW - 1, 1, 2, dtype=torch.long)
    whole = model(ids, **picture, cross_attention_mask=visible, output_attentions=True)
    names = [name for name in record.names if name.startswith("language")]
    assert names == [f"language.decoder.{n}.{'cross' if n % 2 else 'self'}" for n in range(4)]
    for name, weights in zip(names, whole.attentions, strict=True):
        assert_sees(call[name], weights)


ZAMBA = {
    "vocab_size": 31,
    "hidden_size": 16,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 30,
    "mamba_d_state": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": None,
}
LAYERS = ["mamba", "mamba", "hybrid"] * 2


def make_zamba() -> Any:
    """One attention with shared weights, which has no layer number of its own, among Mamba layers."""
    own = {"attention_hidden_size": 32, "attention_head_dim": 8, "attn_layer_period": 3, "attn_layer_offset": 1}
    config = transformers.ZambaConfig(**ZAMBA, **own, n_mamba_heads=2, mamba_dt_rank=2)
    return shaken(transformers.ZambaForCausalLM(config))


def make_zamba2() -> Any:
    """The same, but all attentions have the layer number −1."""
    config = transformers.Zamba2Config(**ZAMBA, layers_block_type=LAYERS, mamba_ngroups=1, n_mamba_heads=4)
    return shaken(transformers.Zamba2ForCausalLM(config))


@pytest.mark.parametrize("make", [make_zamba, make_zamba2])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_layers_without_a_number_of_their_own_grow_with_any_cache(make, cache):
    model = make()
    with watch(model) as record:
        model.generate(tokens(11), max_new_tokens=NEW, do_sample=False, cache_implementation=cache)
    (call,) = record.calls
    model.set_attn_implementation("eager")
    whole = model(call.ids["tokens"], output_attentions=True)
    for name, weights in zip(call.names, whole.attentions, strict=True):
        assert_sees(call[name], weights, within=1e-4)  # Mamba's own steps and its one pass differ by 5e-6


@pytest.mark.parametrize("use_cache", [True, False])
def test_one_pass_of_layers_that_all_have_the_number_minus_one_is_recorded(use_cache):
    model = make_zamba2()
    with watch(model) as record:
        model(tokens(11), use_cache=use_cache)
    model.set_attn_implementation("eager")
    whole = model(tokens(11), output_attentions=True, use_cache=False)
    for name, weights in zip(record.names, whole.attentions, strict=True):
        assert_sees(record[name], weights, within=1e-4)  # Mamba's chunks and eager attention add up to 1e-5


def make_t5gemma2() -> Any:
    """Its decoder attends to its own text and to the encoder's in one softmax."""
    words = {"vocab_size": 31, "hidden_size": 24, "intermediate_size": 37, "head_dim": 10, "query_pre_attn_scalar": 10}
    words |= {"num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1, "sliding_window": 5}
    words |= {"layer_types": ["sliding_attention", "full_attention"], "pad_token_id": 0}
    eyes = {"hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 1, "intermediate_size": 17}
    eyes |= {"image_size": 10, "patch_size": 5, "vision_use_head": False, "model_type": "siglip_vision_model"}
    marks = {"image_token_index": 30, "boi_token_index": 28, "eoi_token_index": 29, "mm_tokens_per_image": 4}
    encoder = {"text_config": words, "vision_config": eyes, **marks}
    return shaken(
        transformers.T5Gemma2ForConditionalGeneration(transformers.T5Gemma2Config(encoder=encoder, decoder=words))
    )


def test_one_softmax_over_two_texts_is_recorded_and_a_cache_of_it_refused_with_the_reason():
    model, source, target = make_t5gemma2(), tokens(11), tokens(7)
    model.set_attn_implementation("eager")
    for queries in (7, 1):
        given = {"input_ids": source, "decoder_input_ids": target[:, :queries]}
        out = model(**given, output_attentions=True)
        with watch(model, layers="decoder.*") as record:
            model(**given)
        for layer in range(2):
            weights = torch.cat([out.decoder_attentions[layer], out.cross_attentions[layer]], -1)
            sight = record[f"decoder.{layer}.self"]
            assert sight.queries.tolist() == list(range(queries))
            torch.testing.assert_close(sight.map, weights)
            apart = (torch.arange(queries)[:, None] - torch.arange(queries)).abs()
            torch.testing.assert_close(sight.distance, (weights[..., :queries] * apart).sum(-1))
    with watch(model, layers="decoder.*") as record:
        model.generate(source, max_new_tokens=3, use_cache=False)
    assert record.calls[-1]["decoder.0.self"].keys == 11 + 3
    reason = "'decoder.0.self' attends to its own text and to the encoder's in one softmax.*use_cache=False"
    with pytest.raises(LensError, match=reason), watch(model, layers="decoder.*"):
        model.generate(source, max_new_tokens=3)
    with pytest.raises(LensError, match="to target and source in one softmax, so 'source'"), hide(model, {"source": 1}):
        pass
    with hide(model, {"decoder.0.self": [1, 7 + 2]}), watch(model, layers="decoder.0.self", pixels=64) as record:
        model(**given | {"decoder_input_ids": target})
    assert (record["decoder.0.self"].map[..., [1, 7 + 2]] == 0).all()
