"""GPT-2: a pre-norm decoder with learned positions; its weights are stored as (inputs, outputs)."""

from __future__ import annotations

from collections.abc import Iterator

from clearhead.model.config import ModelConfig
from clearhead.model.huggingface import mapping
from clearhead.model.huggingface.config_json import HuggingFaceConfig, write_fields
from clearhead.model.huggingface.mapping import CheckpointForm, CheckpointMapping, ParameterMapping
from clearhead.model.transformer import Decoder

KEYS = {
    "vocabulary": "vocab_size",
    "width": "n_embd",
    "heads": "n_head",
    "layers": "n_layer",
    "feedforward": "n_inner",
    "activation": "activation_function",
    "norm_epsilon": "layer_norm_epsilon",
    "max_length": "n_positions",
    "tie_embeddings": "tie_word_embeddings",
    "dropout": "resid_pdrop",
    "attention_dropout": "attn_pdrop",
}
HARMLESS = r"h\.\d+\.attn\.(masked_)?bias"  # the causal mask, kept as a table


def map_checkpoint(settings: HuggingFaceConfig, names: frozenset[str]) -> CheckpointMapping:
    trunk = mapping.find_trunk(names, "transformer.")
    settings.require(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    values = settings.read_fields(
        KEYS,
        feedforward=4 * settings.read_int("n_embd"),
        activation="gelu_new",
        norm_epsilon=1e-5,
        tie_embeddings=True,
        dropout=0.1,
        attention_dropout=0.1,
    )
    config = settings.make_config(**values, norm_first=True, positions="learned", scale_embeddings=False)
    return CheckpointMapping(Decoder, config, map_parameters(config, trunk), trunk, HARMLESS)


def map_parameters(config: ModelConfig, trunk: str) -> Iterator[ParameterMapping]:
    yield mapping.words(f"{trunk}wte.weight", *(("lm_head.weight",) if config.tie_embeddings else ()))
    if not config.tie_embeddings:
        yield mapping.output("lm_head.weight")
    yield ParameterMapping("decoder.positions.weight", (f"{trunk}wpe.weight",))
    for number in range(config.layers):
        ours, theirs = f"decoder.layers.{number}", f"{trunk}h.{number}"
        yield from mapping.norm(f"{ours}.self_norm", f"{theirs}.ln_1")
        yield from mapping.linear_in(f"{ours}.self_attention.to_qkv", f"{theirs}.attn.c_attn", layout="transposed")
        yield from mapping.linear_out(f"{ours}.self_attention.to_out", f"{theirs}.attn.c_proj", layout="transposed")
        yield from mapping.norm(f"{ours}.feedforward_norm", f"{theirs}.ln_2")
        yield from mapping.linear_in(f"{ours}.feedforward.up", f"{theirs}.mlp.c_fc", layout="transposed")
        yield from mapping.linear_out(f"{ours}.feedforward.down", f"{theirs}.mlp.c_proj", layout="transposed")
    yield from mapping.norm("decoder.final_norm", f"{trunk}ln_f")


def make_form(config: ModelConfig) -> CheckpointForm:
    settings = write_fields(config, KEYS) | {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "embd_pdrop": config.dropout,
    }
    if config.activation == "gelu_tanh":
        settings["activation_function"] = "gelu_new"  # GPT-2's own name
    return CheckpointForm("GPT-2", config, settings, frozenset(["transformer.wte.weight"]), map_checkpoint)
