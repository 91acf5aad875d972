"""BERT, RoBERTa, XLM-RoBERTa: encoders with learned positions and a norm on the embeddings; optional label head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from clearhead.errors import CheckpointError
from clearhead.model.config import Labels, ModelConfig
from clearhead.model.huggingface import mapping
from clearhead.model.huggingface.config_json import HuggingFaceConfig, write_fields
from clearhead.model.huggingface.mapping import CheckpointForm, CheckpointMapping, ParameterMapping
from clearhead.model.output_heads import Classifier, TokenClassifier
from clearhead.model.transformer import Encoder

KEYS = {
    "vocabulary": "vocab_size",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "layers": "num_hidden_layers",
    "feedforward": "intermediate_size",
    "activation": "hidden_act",
    "norm_epsilon": "layer_norm_eps",
    "max_length": "max_position_embeddings",
    "segments": "type_vocab_size",
    "tie_embeddings": "tie_word_embeddings",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
HARMLESS = "|".join(
    (
        r"pooler\..*",  # of no use but for judging pairs of sentences, like the next
        r"cls\.seq_relationship\..*",
        r"embeddings\.(position|token_type)_ids",  # 0, 1, 2, … and zeros
        r"(cls\.predictions|lm_head)\.bias",  # where the decoder beside it has one, which is the one in use
    )
)
BERT_HEAD, ROBERTA_HEAD = "cls.predictions", "lm_head"  # prefixes of the masked-word heads


def map_checkpoint(settings: HuggingFaceConfig, names: frozenset[str]) -> CheckpointMapping:
    bert = settings.read_string("model_type") == "bert"
    trunk = mapping.find_trunk(names, "bert." if bert else "roberta.")
    settings.require(is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
    values = settings.read_fields(
        KEYS, activation="gelu", norm_epsilon=1e-12, segments=2, tie_embeddings=True, dropout=0.1, attention_dropout=0.1
    )
    # RoBERTa's positions start after the padding token's id, ours at 0: the rows before are never used.
    skipped = 0 if bert else settings.read_int("pad_token_id", 1, least=0) + 1
    task, labels = _read_task(settings, names)
    masked = (f"{BERT_HEAD}.transform.dense.weight" if bert else f"{ROBERTA_HEAD}.dense.weight") in names
    masked = masked and labels is None
    config = settings.make_config(
        **values
        | {"max_length": values["max_length"] - skipped, "tie_embeddings": values["tie_embeddings"] or not masked},
        labels=None if labels is None else Labels(labels, pooling="first" if task is Classifier else "mean"),
        positions="learned",
        embedding_norm=True,
        scale_embeddings=False,
        logits_bias=masked,
        logits_transform=masked,
    )
    if not bert and masked and config.activation != "gelu":
        raise CheckpointError(
            f"{settings.source}: RoBERTa's vocabulary head always uses gelu, its layers use hidden_act="
            f"{settings.read_string('hidden_act')!r}; clearhead needs the same for both"
        )
    pooler, classifier = ("bert.pooler.dense", "classifier") if bert else ("classifier.dense", "classifier.out_proj")
    parameters = chain(
        _map_parameters(config, names, trunk, BERT_HEAD if bert else ROBERTA_HEAD, skipped),
        _map_label_head(config, pooler, classifier),
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


def _map_label_head(config: ModelConfig, pooler: str, classifier: str) -> Iterator[ParameterMapping]:
    """The layers of a Classifier or TokenClassifier; none for an Encoder."""
    if config.labels is None:
        return
    if config.labels.pooling == "first":
        yield from mapping.linear_in("pooler", pooler)
    else:
        classifier = "classifier"
    yield from mapping.linear_in("to_labels", classifier)


def _map_parameters(
    config: ModelConfig, names: frozenset[str], trunk: str, head: str, skipped: int
) -> Iterator[ParameterMapping]:
    copies = (f"{head}.decoder.weight",) if config.tie_embeddings else ()
    yield mapping.words(f"{trunk}embeddings.word_embeddings.weight", *copies)
    table = f"{trunk}embeddings.position_embeddings.weight"
    yield ParameterMapping("encoder.positions.weight", (table,), skipped=skipped)
    if config.segments:
        yield ParameterMapping("encoder.segments.weight", (f"{trunk}embeddings.token_type_embeddings.weight",))
    yield from mapping.norm("encoder.embedding_norm", f"{trunk}embeddings.LayerNorm")
    for number in range(config.layers):
        yield from _map_layer(config, f"encoder.layers.{number}", f"{trunk}encoder.layer.{number}")
    if config.logits_transform:
        yield from _map_head(config, names, head)


def _map_layer(config: ModelConfig, ours: str, theirs: str) -> Iterator[ParameterMapping]:
    heads = [f"{theirs}.attention.self.{part}" for part in ("query", "key", "value")]
    yield from mapping.linear_in(f"{ours}.self_attention.to_qkv", *heads, rows=mapping.count_head_rows(config))
    yield from mapping.linear_out(f"{ours}.self_attention.to_out", f"{theirs}.attention.output.dense")
    yield from mapping.norm(f"{ours}.self_norm", f"{theirs}.attention.output.LayerNorm")
    yield from mapping.linear_in(f"{ours}.feedforward.up", f"{theirs}.intermediate.dense")
    yield from mapping.linear_out(f"{ours}.feedforward.down", f"{theirs}.output.dense")
    yield from mapping.norm(f"{ours}.feedforward_norm", f"{theirs}.output.LayerNorm")


def _map_head(config: ModelConfig, names: frozenset[str], head: str) -> Iterator[ParameterMapping]:
    bert = head == BERT_HEAD
    yield from mapping.linear_out("vocabulary.transform", f"{head}.transform.dense" if bert else f"{head}.dense")
    yield from mapping.norm(
        "vocabulary.transform_norm", f"{head}.transform.LayerNorm" if bert else f"{head}.layer_norm"
    )
    if not config.tie_embeddings:
        yield ParameterMapping("vocabulary.output.weight", (f"{head}.decoder.weight",))
    if config.tie_embeddings:
        yield ParameterMapping("vocabulary.bias", (f"{head}.bias",), copies=(f"{head}.decoder.bias",))
    else:  # where both are kept, the decoder's is the one in use
        used = f"{head}.decoder.bias" if f"{head}.decoder.bias" in names else f"{head}.bias"
        yield ParameterMapping("vocabulary.bias", (used,))


def make_form(model: Encoder, labels: Sequence[str]) -> CheckpointForm:
    """The form of a BERT: BERT always has segments, and a bias of the vocabulary's scores in its masked-word head."""
    config, names = model.config.resolve(), frozenset[str]()
    config, architecture = config.change(segments=config.segments or 1), "BertModel"
    if isinstance(model, (Classifier, TokenClassifier)):
        architecture = f"BertFor{'Sequence' if isinstance(model, Classifier) else 'Token'}Classification"
        names = frozenset(["bert.embeddings.word_embeddings.weight", "classifier.weight"])
    elif config.logits_transform:
        config, architecture = config.change(logits_bias=True), "BertForMaskedLM"
        names = frozenset(["bert.embeddings.word_embeddings.weight", f"{BERT_HEAD}.transform.dense.weight"])
    settings = write_fields(config, KEYS) | {"architectures": [architecture], "model_type": "bert"}
    if count := config.label_count:
        names_of_labels = list(labels) or [f"LABEL_{number}" for number in range(count)]
        if len(names_of_labels) != count:
            raise CheckpointError(f"labels= names {len(names_of_labels)} labels, but the model has {count}")
        settings["id2label"] = dict(enumerate(names_of_labels))
        settings["label2id"] = {name: number for number, name in enumerate(names_of_labels)}
    return CheckpointForm("BERT", config, settings, names, map_checkpoint)
