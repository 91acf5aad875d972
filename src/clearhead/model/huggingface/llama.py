"""Llama, Mistral, Qwen2: pre-norm decoders with RMSNorm, gated feed-forward, rotary positions, grouped-query heads."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from clearhead.attention.positions import SCALINGS
from clearhead.errors import CheckpointError
from clearhead.model.config import ModelConfig
from clearhead.model.huggingface import mapping
from clearhead.model.huggingface.config_json import REQUIRED, HuggingFaceConfig, write_fields
from clearhead.model.huggingface.mapping import CheckpointForm, CheckpointMapping, ParameterMapping
from clearhead.model.transformer import Decoder

HARMLESS = r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"  # computed anew from the base
LEAST_SCALING = 1e-9  # of numbers that are divided by
GATED = {"silu": "swiglu", "gelu": "geglu"}
KEYS = {
    "vocabulary": "vocab_size",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "layers": "num_hidden_layers",
    "feedforward": "intermediate_size",
    "activation": "hidden_act",
    "norm_epsilon": "rms_norm_eps",
    "tie_embeddings": "tie_word_embeddings",
    "attention_dropout": "attention_dropout",
}
SCALING_KEYS = {"default": (), "linear": SCALINGS["linear"], "llama3": SCALINGS["llama3"]}  # by rope_type


def map_checkpoint(settings: HuggingFaceConfig, names: frozenset[str]) -> CheckpointMapping:
    kind = settings.read_string("model_type")
    trunk = mapping.find_trunk(names, "model.")
    heads = settings.read_int("num_attention_heads")
    values = settings.read_fields(
        KEYS,
        # Llama's own default; Mistral and Qwen2 have others, and always write what they use
        kv_heads=heads if kind == "llama" or "num_key_value_heads" in settings.values else REQUIRED,
        head_dim=settings.read_int("hidden_size") // heads,
        activation="silu",
        norm_epsilon=1e-6,
        tie_embeddings=False,
        attention_dropout=0.0,
    )
    if values["activation"] not in GATED:
        raise settings.unsupported("hidden_act", "only silu and gelu can be read for a gated feed-forward")
    base, scaling = _read_rotary(settings)
    config = settings.make_config(
        **values
        | {
            "activation": GATED[values["activation"]],
            "tie_embeddings": values["tie_embeddings"] or _lacks_output(settings, names, trunk),
        },
        norm="rms",
        norm_first=True,
        bias=settings.read_bool("mlp_bias", False) if kind == "llama" else False,
        attention_bias=settings.read_bool("attention_bias", False) if kind == "llama" else kind == "qwen2",
        positions="rotary",
        rotary_base=base,
        rotary_scaling=scaling,
        window=_read_window(settings, kind),
        scale_embeddings=False,
        dropout=0.0,
    )
    return CheckpointMapping(Decoder, config, map_parameters(config, trunk, out_bias=kind == "llama"), trunk, HARMLESS)


def _lacks_output(settings: HuggingFaceConfig, names: frozenset[str], trunk: str) -> bool:
    """Whether the output layer was never saved: the model alone, or one with the head of another task."""
    if "lm_head.weight" in names or (trunk and all(name.startswith(trunk) for name in names)):
        return False
    warnings.warn(
        f"{settings.source}: this checkpoint has no output layer (lm_head.weight): logits() will use the "
        "embedding matrix and be meaningless; the hidden states are correct",
        stacklevel=4,
    )
    return True


def map_parameters(config: ModelConfig, trunk: str, *, out_bias: bool) -> Iterator[ParameterMapping]:
    """`out_bias`: whether the projection out of the heads has a bias where those into them have."""
    yield mapping.words(f"{trunk}embed_tokens.weight", *(("lm_head.weight",) if config.tie_embeddings else ()))
    if not config.tie_embeddings:
        yield mapping.output("lm_head.weight")
    biased, gate = bool(config.resolve().attention_bias), (config.feedforward, config.feedforward)
    for number in range(config.layers):
        ours, theirs = f"decoder.layers.{number}", f"{trunk}layers.{number}"
        yield from mapping.norm(f"{ours}.self_norm", f"{theirs}.input_layernorm", bias=False)
        heads = [f"{theirs}.self_attn.{part}_proj" for part in "qkv"]
        yield from mapping.linear_in(
            f"{ours}.self_attention.to_qkv", *heads, rows=mapping.count_head_rows(config), bias=biased
        )
        out = f"{ours}.self_attention.to_out"
        yield from mapping.linear_out(out, f"{theirs}.self_attn.o_proj", bias=biased and out_bias)
        if biased and not out_bias:
            yield ParameterMapping(f"{out}.bias", ())
        yield from mapping.norm(f"{ours}.feedforward_norm", f"{theirs}.post_attention_layernorm", bias=False)
        gated = [f"{theirs}.mlp.{part}_proj" for part in ("gate", "up")]
        yield from mapping.linear_in(f"{ours}.feedforward.up", *gated, rows=gate, bias=config.bias)
        yield from mapping.linear_out(f"{ours}.feedforward.down", f"{theirs}.mlp.down_proj", bias=config.bias)
    yield from mapping.norm("decoder.final_norm", f"{trunk}norm", bias=False)


def make_form(config: ModelConfig, max_length: int) -> CheckpointForm:
    """The form of a Llama, or of a Mistral if the configuration has a window."""
    rotary: dict[str, Any] = {"rope_theta": config.rotary_base, "rope_type": "default"}
    scaling = dict(config.rotary_scaling or {})
    if scaling:
        rotary |= {"rope_type": scaling.pop("type"), **scaling}
    format = "Llama" if config.window is None else "Mistral"
    settings = write_fields(config, KEYS) | {
        "architectures": [f"{format}ForCausalLM"],
        "model_type": format.lower(),
        "hidden_act": next((plain for plain, gated in GATED.items() if gated == config.activation), None),
        "max_position_embeddings": max_length,
        "rope_theta": config.rotary_base,  # where transformers before 5 look for it
        "rope_parameters": rotary,
    }
    if config.window is None:
        settings |= {"attention_bias": config.attention_bias, "mlp_bias": config.bias}
    else:
        settings["sliding_window"] = config.window
    names = frozenset(["model.embed_tokens.weight", "lm_head.weight"])
    return CheckpointForm(format, config, settings, names, map_checkpoint)


def _read_rotary(settings: HuggingFaceConfig) -> tuple[float, dict[str, float | str] | None]:
    """Base and scaling, as transformers 5 writes them (rope_parameters) or as before (rope_scaling)."""
    rotary = settings.read_group("rope_scaling" if settings.values.get("rope_scaling") else "rope_parameters")
    base = rotary.read_float("rope_theta", settings.read_float("rope_theta", 10000.0), least=1.0)
    kind = rotary.read_string("rope_type", rotary.read_string("type", "default"))
    if kind not in SCALING_KEYS:
        raise CheckpointError(
            f"{rotary.source}: rope_type={kind!r} has no counterpart in clearhead; "
            f"only {', '.join(SCALING_KEYS)} can be read"
        )
    settings.require(partial_rotary_factor=1.0)
    rotary.require(partial_rotary_factor=1.0)
    readable = {"rope_theta", "rope_type", "type", "partial_rotary_factor", *SCALING_KEYS["llama3"]}
    if unknown := sorted(set(rotary.values) - readable):
        raise rotary.unsupported(unknown[0], f"only {', '.join(sorted(readable))} can be read")
    if kind == "default":
        return base, None
    scaling: dict[str, float | str] = {"type": kind}
    for key in SCALING_KEYS[kind]:
        original = key == "original_max_position_embeddings"
        default = settings.values.get("max_position_embeddings", REQUIRED) if original else REQUIRED
        # transformers prefers the value outside rope_scaling.
        source = settings if original and settings.has(key) else rotary
        scaling[key] = source.read_float(key, default, least=LEAST_SCALING)
    return base, scaling


def _read_window(settings: HuggingFaceConfig, kind: str) -> int | None:
    """How many keys a token sees, itself included; None: all. It must be the same in all layers."""
    window: int | None = None
    # Absent and null differ: the first is Mistral's default of 4096, the second is no window.
    if kind == "mistral" and (settings.has("sliding_window") or "sliding_window" not in settings.values):
        window = settings.read_int("sliding_window", 4096)
    elif kind == "llama" and settings.has("sliding_window"):
        raise settings.unsupported("sliding_window", "Llama has none; is this another model_type?")
    elif kind == "qwen2":
        settings.require(use_sliding_window=False)
    layer = "full_attention" if window is None else "sliding_attention"
    layers = settings.values.get("layer_types")
    if layers is not None and (not isinstance(layers, list) or any(kind != layer for kind in layers)):
        raise settings.unsupported("layer_types", f"only {layer} in every layer can be read here")
    return window
