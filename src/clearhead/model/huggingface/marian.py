"""Marian: the 2017 Transformer, with its sinusoids in another order.

Theirs are all sines, then all cosines; ours alternate, as in the paper. Sums over the width do not care in
which order they run, so a model is carried over by writing the features of every weight in the other order.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from clearhead.errors import CheckpointError
from clearhead.model.config import ModelConfig
from clearhead.model.huggingface import mapping
from clearhead.model.huggingface.config_json import HuggingFaceConfig, write_fields
from clearhead.model.huggingface.mapping import CheckpointForm, CheckpointMapping, ParameterMapping
from clearhead.model.transformer import EncoderDecoder

HARMLESS = r"(encoder|decoder)\.embed_positions\.weight"  # sinusoids, computed anew
KEYS = {
    "vocabulary": "vocab_size",
    "width": "d_model",
    "heads": "encoder_attention_heads",
    "layers": "encoder_layers",
    "decoder_layers": "decoder_layers",
    "feedforward": "encoder_ffn_dim",
    "activation": "activation_function",
    "scale_embeddings": "scale_embedding",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
}


def map_checkpoint(settings: HuggingFaceConfig, names: frozenset[str]) -> CheckpointMapping:
    trunk = mapping.find_trunk(names, "model.")
    settings.require(
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        is_encoder_decoder=True,
        is_decoder=False,
        normalize_before=False,
        normalize_embedding=False,
        add_final_layer_norm=False,
        static_position_embeddings=True,
    )
    for same in ("attention_heads", "ffn_dim"):
        if settings.read_int(f"decoder_{same}") != settings.read_int(f"encoder_{same}"):
            raise settings.unsupported(f"decoder_{same}", f"it must be the same as encoder_{same}")
    values = settings.read_fields(KEYS, activation="gelu", scale_embeddings=False, dropout=0.1, attention_dropout=0.0)
    settings.require(decoder_vocab_size=values["vocabulary"])
    if values["width"] % 2:
        raise CheckpointError(
            f"{settings.source}: d_model={values['width']} is odd; sinusoidal positions need an even width"
        )
    config = settings.make_config(**values, logits_bias="final_logits_bias" in names)
    return CheckpointMapping(EncoderDecoder, config, map_parameters(config, trunk), trunk, HARMLESS, feature_order)


def feature_order(width: int) -> Int[Tensor, " width"]:
    """Which of their features is ours: the first sine, the first cosine, the second sine, …

    >>> feature_order(6)
    tensor([0, 3, 1, 4, 2, 5])
    """
    return torch.arange(width, device="cpu").view(2, width // 2).T.flatten()


def map_parameters(config: ModelConfig, trunk: str) -> Iterator[ParameterMapping]:
    tied = [f"{trunk}{side}.embed_tokens.weight" for side in ("encoder", "decoder")]
    yield mapping.words(f"{trunk}shared.weight", *tied, "lm_head.weight")
    if config.logits_bias:
        yield ParameterMapping("vocabulary.bias", ("final_logits_bias",), layout="row")
    layers = config.layers if config.decoder_layers is None else config.decoder_layers
    for side, count in (("encoder", config.layers), ("decoder", layers)):
        for number in range(count):
            ours, theirs = f"{side}.layers.{number}", f"{trunk}{side}.layers.{number}"
            yield from _map_layer(config, ours, theirs, cross=side == "decoder")


def _map_layer(config: ModelConfig, ours: str, theirs: str, *, cross: bool) -> Iterator[ParameterMapping]:
    rows = mapping.count_head_rows(config)
    heads = [f"{theirs}.self_attn.{part}_proj" for part in "qkv"]
    yield from mapping.linear_in(f"{ours}.self_attention.to_qkv", *heads, rows=rows)
    yield from mapping.linear_out(f"{ours}.self_attention.to_out", f"{theirs}.self_attn.out_proj")
    yield from mapping.norm(f"{ours}.self_norm", f"{theirs}.self_attn_layer_norm")
    if cross:
        q, k, v = [f"{theirs}.encoder_attn.{part}_proj" for part in "qkv"]
        yield from mapping.linear_in(f"{ours}.cross_attention.to_q", q)
        yield from mapping.linear_in(f"{ours}.cross_attention.to_kv", k, v, rows=rows[1:])
        yield from mapping.linear_out(f"{ours}.cross_attention.to_out", f"{theirs}.encoder_attn.out_proj")
        yield from mapping.norm(f"{ours}.cross_norm", f"{theirs}.encoder_attn_layer_norm")
    yield from mapping.linear_in(f"{ours}.feedforward.up", f"{theirs}.fc1")
    yield from mapping.linear_out(f"{ours}.feedforward.down", f"{theirs}.fc2")
    yield from mapping.norm(f"{ours}.feedforward_norm", f"{theirs}.final_layer_norm")


def make_form(config: ModelConfig, max_length: int) -> CheckpointForm:
    """The form of a Marian, which always has a bias of the vocabulary's scores."""
    settings = write_fields(config, KEYS) | {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "decoder_vocab_size": config.vocabulary,
        "decoder_attention_heads": config.heads,
        "decoder_ffn_dim": config.feedforward,
        "activation_dropout": config.dropout,
        "max_position_embeddings": max_length,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
    }
    names = frozenset(["model.shared.weight", "final_logits_bias"])
    return CheckpointForm("Marian", config.change(logits_bias=True), settings, names, map_checkpoint)
