"""BERT, RoBERTa, XLM-RoBERTa: encoders with learned positions and a norm on the embeddings."""

from __future__ import annotations

from collections.abc import Iterator

from clearhead.errors import CheckpointError
from clearhead.model.config import ModelConfig
from clearhead.model.huggingface.places import Place, head_rows, inward, norm, outward, words
from clearhead.model.huggingface.plan import Plan, trunk_of
from clearhead.model.huggingface.settings import Settings
from clearhead.model.transformer import Encoder

HARMLESS = "|".join(
    (
        r"pooler\..*",  # of no use but for judging pairs of sentences, like the next
        r"cls\.seq_relationship\..*",
        r"embeddings\.(position|token_type)_ids",  # 0, 1, 2, … and zeros
        r"(cls\.predictions|lm_head)\.bias",  # where the decoder beside it has one, which is the one in use
    )
)


def plan(settings: Settings, names: frozenset[str]) -> Plan:
    kind = settings.word("model_type")
    trunk = trunk_of(names, "bert." if kind == "bert" else "roberta.")
    settings.only(is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
    masked = "cls.predictions.transform.dense.weight" if kind == "bert" else "lm_head.dense.weight"
    # RoBERTa's positions start after the padding token's id, ours at 0: the rows before are never used.
    skipped = 0 if kind == "bert" else settings.whole("pad_token_id", 1, least=0) + 1
    tied = settings.truth("tie_word_embeddings", True)
    config = settings.model(
        vocabulary=settings.whole("vocab_size"),
        width=settings.whole("hidden_size"),
        heads=settings.whole("num_attention_heads"),
        layers=settings.whole("num_hidden_layers"),
        feedforward=settings.whole("intermediate_size"),
        activation=settings.activation("hidden_act", "gelu"),
        norm_epsilon=settings.number("layer_norm_eps", 1e-12),
        positions="learned",
        max_length=settings.whole("max_position_embeddings") - skipped,
        segments=settings.whole("type_vocab_size", 2),
        embedding_norm=True,
        scale_embeddings=False,
        tie_embeddings=tied or masked not in names,
        logits_bias=masked in names,
        logits_transform=masked in names,
        dropout=settings.number("hidden_dropout_prob", 0.1),
        attention_dropout=settings.number("attention_probs_dropout_prob", 0.1),
    )
    if kind != "bert" and config.logits_transform and config.activation != "gelu":
        raise CheckpointError(
            f"{settings.source}: RoBERTa's vocabulary head always uses gelu, its layers use hidden_act="
            f"{settings.word('hidden_act')!r}; here both use the same"
        )
    head = "cls.predictions" if kind == "bert" else "lm_head"
    return Plan(Encoder, config, places(config, names, trunk, head, skipped), trunk, HARMLESS)


def places(config: ModelConfig, names: frozenset[str], trunk: str, head: str, skipped: int = 0) -> Iterator[Place]:
    copies = (f"{head}.decoder.weight",) if config.tie_embeddings else ()
    yield words(f"{trunk}embeddings.word_embeddings.weight", *copies)
    table = f"{trunk}embeddings.position_embeddings.weight"
    yield Place("encoder.positions.weight", (table,), skipped=skipped)
    if config.segments:
        yield Place("encoder.segments.weight", (f"{trunk}embeddings.token_type_embeddings.weight",))
    yield from norm("encoder.embedding_norm", f"{trunk}embeddings.LayerNorm")
    for number in range(config.layers):
        yield from _layer(config, f"encoder.layers.{number}", f"{trunk}encoder.layer.{number}")
    if config.logits_transform:
        yield from _head(config, names, head)


def _layer(config: ModelConfig, ours: str, theirs: str) -> Iterator[Place]:
    heads = [f"{theirs}.attention.self.{part}" for part in ("query", "key", "value")]
    yield from inward(f"{ours}.self_attention.to_qkv", *heads, rows=head_rows(config))
    yield from outward(f"{ours}.self_attention.to_out", f"{theirs}.attention.output.dense")
    yield from norm(f"{ours}.self_norm", f"{theirs}.attention.output.LayerNorm")
    yield from inward(f"{ours}.feedforward.up", f"{theirs}.intermediate.dense")
    yield from outward(f"{ours}.feedforward.down", f"{theirs}.output.dense")
    yield from norm(f"{ours}.feedforward_norm", f"{theirs}.output.LayerNorm")


def _head(config: ModelConfig, names: frozenset[str], head: str) -> Iterator[Place]:
    bert = head == "cls.predictions"
    yield from outward("vocabulary.transform", f"{head}.transform.dense" if bert else f"{head}.dense")
    yield from norm("vocabulary.transform_norm", f"{head}.transform.LayerNorm" if bert else f"{head}.layer_norm")
    if not config.tie_embeddings:
        yield Place("vocabulary.output.weight", (f"{head}.decoder.weight",))
    if not config.logits_bias:
        return
    if config.tie_embeddings:
        yield Place("vocabulary.bias", (f"{head}.bias",), copies=(f"{head}.decoder.bias",))
    else:  # where both are kept, the decoder's is the one in use
        used = f"{head}.decoder.bias" if f"{head}.decoder.bias" in names else f"{head}.bias"
        yield Place("vocabulary.bias", (used,))
