"""GPT-2: a decoder with norms first and learned positions; its matrices have their inputs first."""

from __future__ import annotations

from collections.abc import Iterator

from clearhead.model.config import ModelConfig
from clearhead.model.huggingface.places import Place, inward, norm, output, outward, words
from clearhead.model.huggingface.plan import Plan, trunk_of
from clearhead.model.huggingface.settings import Settings
from clearhead.model.transformer import Decoder

HARMLESS = r"h\.\d+\.attn\.(masked_)?bias"  # the causal mask, kept as a table


def plan(settings: Settings, names: frozenset[str]) -> Plan:
    trunk = trunk_of(names, "transformer.")
    settings.only(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    width = settings.whole("n_embd")
    config = settings.model(
        vocabulary=settings.whole("vocab_size"),
        width=width,
        heads=settings.whole("n_head"),
        layers=settings.whole("n_layer"),
        feedforward=settings.whole("n_inner", 4 * width),
        activation=settings.activation("activation_function", "gelu_new"),
        norm_first=True,
        norm_epsilon=settings.number("layer_norm_epsilon", 1e-5),
        positions="learned",
        max_length=settings.whole("n_positions"),
        scale_embeddings=False,
        tie_embeddings=settings.truth("tie_word_embeddings", True),
        dropout=settings.number("resid_pdrop", 0.1),
        attention_dropout=settings.number("attn_pdrop", 0.1),
    )
    return Plan(Decoder, config, places(config, trunk), trunk, HARMLESS)


def places(config: ModelConfig, trunk: str) -> Iterator[Place]:
    yield words(f"{trunk}wte.weight", *(("lm_head.weight",) if config.tie_embeddings else ()))
    if not config.tie_embeddings:
        yield output("lm_head.weight")
    yield Place("decoder.positions.weight", (f"{trunk}wpe.weight",))
    for number in range(config.layers):
        ours, theirs = f"decoder.layers.{number}", f"{trunk}h.{number}"
        yield from norm(f"{ours}.self_norm", f"{theirs}.ln_1")
        yield from inward(f"{ours}.self_attention.to_qkv", f"{theirs}.attn.c_attn", layout="turned")
        yield from outward(f"{ours}.self_attention.to_out", f"{theirs}.attn.c_proj", layout="turned")
        yield from norm(f"{ours}.feedforward_norm", f"{theirs}.ln_2")
        yield from inward(f"{ours}.feedforward.up", f"{theirs}.mlp.c_fc", layout="turned")
        yield from outward(f"{ours}.feedforward.down", f"{theirs}.mlp.c_proj", layout="turned")
    yield from norm("decoder.final_norm", f"{trunk}ln_f")
