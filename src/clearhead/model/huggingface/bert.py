"""BERT, RoBERTa, XLM-RoBERTa: encoders with learned positions and a norm on the embeddings; optional label head."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from clearhead.errors import CheckpointError
from clearhead.model.config import Labels, ModelConfig
from clearhead.model.huggingface.config_json import HuggingFaceConfig
from clearhead.model.huggingface.mapping import (
    CheckpointMapping,
    ParameterMapping,
    count_head_rows,
    find_trunk,
    map_linear_in,
    map_linear_out,
    map_norm,
    map_words,
)
from clearhead.model.output_heads import Classifier, TokenClassifier
from clearhead.model.transformer import Encoder

HARMLESS = "|".join(
    (
        r"pooler\..*",  # of no use but for judging pairs of sentences, like the next
        r"cls\.seq_relationship\..*",
        r"embeddings\.(position|token_type)_ids",  # 0, 1, 2, … and zeros
        r"(cls\.predictions|lm_head)\.bias",  # where the decoder beside it has one, which is the one in use
    )
)


POOLED = ("bert.pooler.dense", "classifier")  # BERT's names of the two layers that score a whole text


def map_checkpoint(settings: HuggingFaceConfig, names: frozenset[str]) -> CheckpointMapping:
    kind = settings.read_string("model_type")
    trunk = find_trunk(names, "bert." if kind == "bert" else "roberta.")
    settings.require(is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
    masked = "cls.predictions.transform.dense.weight" if kind == "bert" else "lm_head.dense.weight"
    # RoBERTa's positions start after the padding token's id, ours at 0: the rows before are never used.
    skipped = 0 if kind == "bert" else settings.read_int("pad_token_id", 1, least=0) + 1
    tied = settings.read_bool("tie_word_embeddings", True)
    task, labels = _read_task(settings, names)
    config = settings.make_config(
        labels=None if labels is None else Labels(labels, pooling="first" if task is Classifier else "mean"),
        vocabulary=settings.read_int("vocab_size"),
        width=settings.read_int("hidden_size"),
        heads=settings.read_int("num_attention_heads"),
        layers=settings.read_int("num_hidden_layers"),
        feedforward=settings.read_int("intermediate_size"),
        activation=settings.read_activation("hidden_act", "gelu"),
        norm_epsilon=settings.read_float("layer_norm_eps", 1e-12),
        positions="learned",
        max_length=settings.read_int("max_position_embeddings") - skipped,
        segments=settings.read_int("type_vocab_size", 2),
        embedding_norm=True,
        scale_embeddings=False,
        tie_embeddings=tied or masked not in names or labels is not None,
        logits_bias=masked in names and labels is None,
        logits_transform=masked in names and labels is None,
        dropout=settings.read_float("hidden_dropout_prob", 0.1),
        attention_dropout=settings.read_float("attention_probs_dropout_prob", 0.1),
    )
    if kind != "bert" and config.logits_transform and config.activation != "gelu":
        raise CheckpointError(
            f"{settings.source}: RoBERTa's vocabulary head always uses gelu, its layers use hidden_act="
            f"{settings.read_string('hidden_act')!r}; clearhead needs the same for both"
        )
    head = "cls.predictions" if kind == "bert" else "lm_head"
    parameters = chain(
        map_parameters(config, names, trunk, head, skipped),
        map_label_head(config, *(("classifier.dense", "classifier.out_proj") if kind != "bert" else POOLED)),
    )
    return CheckpointMapping(task, config, parameters, trunk, HARMLESS)


def _read_task(settings: HuggingFaceConfig, names: frozenset[str]) -> tuple[type[Encoder], int | None]:
    """Which of our encoders the checkpoint is, by its architecture, and how many labels it has."""
    architectures = settings.values.get("architectures")
    architecture = architectures[0] if isinstance(architectures, list) and architectures else ""
    tasks = {"ForTokenClassification": TokenClassifier, "ForSequenceClassification": Classifier}
    task = next((kind for ending, kind in tasks.items() if str(architecture).endswith(ending)), Encoder)
    if task is Encoder or not any(name.startswith("classifier.") for name in names):
        return Encoder, None
    labels = settings.values.get("id2label")
    return task, len(labels) if isinstance(labels, dict) and labels else settings.read_int("num_labels", 2)


def map_label_head(config: ModelConfig, pooler: str, classifier: str) -> Iterator[ParameterMapping]:
    """The layers of a Classifier or TokenClassifier; none for an Encoder."""
    if config.labels is None:
        return
    if config.labels.pooling == "first":
        yield from map_linear_in("pooler", pooler)
    else:
        classifier = "classifier"
    yield from map_linear_in("to_labels", classifier)


def map_parameters(
    config: ModelConfig, names: frozenset[str], trunk: str, head: str, skipped: int = 0
) -> Iterator[ParameterMapping]:
    copies = (f"{head}.decoder.weight",) if config.tie_embeddings else ()
    yield map_words(f"{trunk}embeddings.word_embeddings.weight", *copies)
    table = f"{trunk}embeddings.position_embeddings.weight"
    yield ParameterMapping("encoder.positions.weight", (table,), skipped=skipped)
    if config.segments:
        yield ParameterMapping("encoder.segments.weight", (f"{trunk}embeddings.token_type_embeddings.weight",))
    yield from map_norm("encoder.embedding_norm", f"{trunk}embeddings.LayerNorm")
    for number in range(config.layers):
        yield from _map_layer(config, f"encoder.layers.{number}", f"{trunk}encoder.layer.{number}")
    if config.logits_transform:
        yield from _map_head(config, names, head)


def _map_layer(config: ModelConfig, ours: str, theirs: str) -> Iterator[ParameterMapping]:
    heads = [f"{theirs}.attention.self.{part}" for part in ("query", "key", "value")]
    yield from map_linear_in(f"{ours}.self_attention.to_qkv", *heads, rows=count_head_rows(config))
    yield from map_linear_out(f"{ours}.self_attention.to_out", f"{theirs}.attention.output.dense")
    yield from map_norm(f"{ours}.self_norm", f"{theirs}.attention.output.LayerNorm")
    yield from map_linear_in(f"{ours}.feedforward.up", f"{theirs}.intermediate.dense")
    yield from map_linear_out(f"{ours}.feedforward.down", f"{theirs}.output.dense")
    yield from map_norm(f"{ours}.feedforward_norm", f"{theirs}.output.LayerNorm")


def _map_head(config: ModelConfig, names: frozenset[str], head: str) -> Iterator[ParameterMapping]:
    bert = head == "cls.predictions"
    yield from map_linear_out("vocabulary.transform", f"{head}.transform.dense" if bert else f"{head}.dense")
    yield from map_norm("vocabulary.transform_norm", f"{head}.transform.LayerNorm" if bert else f"{head}.layer_norm")
    if not config.tie_embeddings:
        yield ParameterMapping("vocabulary.output.weight", (f"{head}.decoder.weight",))
    if not config.logits_bias:
        return
    if config.tie_embeddings:
        yield ParameterMapping("vocabulary.bias", (f"{head}.bias",), copies=(f"{head}.decoder.bias",))
    else:  # where both are kept, the decoder's is the one in use
        used = f"{head}.decoder.bias" if f"{head}.decoder.bias" in names else f"{head}.bias"
        yield ParameterMapping("vocabulary.bias", (used,))
