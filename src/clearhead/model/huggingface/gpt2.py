"""GPT-2: a pre-norm decoder with learned positions; its weights are stored as (inputs, outputs)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clearhead.model.config import ModelConfig
from clearhead.model.huggingface.config_json import HuggingFaceConfig
from clearhead.model.huggingface.mapping import (
    CheckpointMapping,
    ParameterMapping,
    find_trunk,
    map_linear_in,
    map_linear_out,
    map_norm,
    map_output,
    map_words,
)
from clearhead.model.transformer import Decoder

# Values of ModelConfig that GPT-2 requires, and its names of activations.
REQUIRED = {
    "norm": "layer",
    "norm_first": True,
    "final_norm": True,
    "bias": True,
    "attention_bias": True,
    "positions": "learned",
    "window": None,
    "temperature": "fixed",
    "cross_attention": False,
    "segments": 0,
    "embedding_norm": False,
    "scale_embeddings": False,
    "logits_bias": False,
    "logits_transform": False,
}
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}
HARMLESS = r"h\.\d+\.attn\.(masked_)?bias"  # the causal mask, kept as a table


def map_checkpoint(settings: HuggingFaceConfig, names: frozenset[str]) -> CheckpointMapping:
    trunk = find_trunk(names, "transformer.")
    settings.require(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    width = settings.read_int("n_embd")
    config = settings.make_config(
        vocabulary=settings.read_int("vocab_size"),
        width=width,
        heads=settings.read_int("n_head"),
        layers=settings.read_int("n_layer"),
        feedforward=settings.read_int("n_inner", 4 * width),
        activation=settings.read_activation("activation_function", "gelu_new"),
        norm_first=True,
        norm_epsilon=settings.read_float("layer_norm_epsilon", 1e-5),
        positions="learned",
        max_length=settings.read_int("n_positions"),
        scale_embeddings=False,
        tie_embeddings=settings.read_bool("tie_word_embeddings", True),
        dropout=settings.read_float("resid_pdrop", 0.1),
        attention_dropout=settings.read_float("attn_pdrop", 0.1),
    )
    return CheckpointMapping(Decoder, config, map_parameters(config, trunk), trunk, HARMLESS)


def map_parameters(config: ModelConfig, trunk: str) -> Iterator[ParameterMapping]:
    yield map_words(f"{trunk}wte.weight", *(("lm_head.weight",) if config.tie_embeddings else ()))
    if not config.tie_embeddings:
        yield map_output("lm_head.weight")
    yield ParameterMapping("decoder.positions.weight", (f"{trunk}wpe.weight",))
    for number in range(config.layers):
        ours, theirs = f"decoder.layers.{number}", f"{trunk}h.{number}"
        yield from map_norm(f"{ours}.self_norm", f"{theirs}.ln_1")
        yield from map_linear_in(f"{ours}.self_attention.to_qkv", f"{theirs}.attn.c_attn", layout="transposed")
        yield from map_linear_out(f"{ours}.self_attention.to_out", f"{theirs}.attn.c_proj", layout="transposed")
        yield from map_norm(f"{ours}.feedforward_norm", f"{theirs}.ln_2")
        yield from map_linear_in(f"{ours}.feedforward.up", f"{theirs}.mlp.c_fc", layout="transposed")
        yield from map_linear_out(f"{ours}.feedforward.down", f"{theirs}.mlp.c_proj", layout="transposed")
    yield from map_norm("decoder.final_norm", f"{trunk}ln_f")


def make_settings(config: ModelConfig) -> dict[str, Any]:
    """The config.json of a GPT-2 with the sizes of this resolved configuration."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocabulary,
        "n_embd": config.width,
        "n_head": config.heads,
        "n_layer": config.layers,
        "n_inner": config.feedforward,
        "n_positions": config.max_length,
        "activation_function": ACTIVATIONS[config.activation],
        "layer_norm_epsilon": config.norm_epsilon,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
        "tie_word_embeddings": config.tie_embeddings,
    }
