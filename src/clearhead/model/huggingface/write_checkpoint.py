"""to_huggingface: writes our models as Hugging Face checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead.errors import CheckpointError
from clearhead.model.config import Labels, ModelConfig
from clearhead.model.huggingface import bert, gpt2, llama, marian
from clearhead.model.huggingface.checkpoint_files import write
from clearhead.model.huggingface.mapping import Model, ParameterMapping
from clearhead.model.lora import DOWN, UP
from clearhead.model.output_heads import Classifier, PooledEncoder, TokenClassifier
from clearhead.model.transformer import Decoder, Encoder, EncoderDecoder

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "silu": "silu"}

# Values that both formats require.
COMMON = {
    "norm": "layer",
    "norm_first": False,
    "final_norm": False,
    "bias": True,
    "attention_bias": True,
    "window": None,
    "encoder_window": None,
    "patches": None,
    "sound": None,
    "temperature": "fixed",
}
BERT = {**COMMON, "positions": "learned", "embedding_norm": True, "scale_embeddings": False}
MARIAN = {
    **COMMON,
    "positions": "sinusoidal",
    "source_vocabulary": None,
    "embedding_norm": False,
    "segments": 0,
    "tie_embeddings": True,
    "logits_transform": False,
    "copying": False,
    "norm_epsilon": marian.NORM_EPSILON,
}


def to_huggingface(
    model: Model,
    folder: str | Path,
    *,
    pad: int | None = None,
    eos: int | None = None,
    start: int | None = None,
    max_length: int = 1024,
    labels: Sequence[str] = (),
) -> None:
    """Writes config.json and model.safetensors such that transformers loads the same model.

    An Encoder of BERT's shape becomes a BertForMaskedLM if it has the masked-word head (`logits_transform`),
    else a BertModel; that one has a pooler, which ours has not, so one is written that hands on the first
    token, but for its tanh. A TokenClassifier becomes a BertForTokenClassification, a Classifier with
    `pooling="first"` a BertForSequenceClassification, with `labels` as their names. An EncoderDecoder of the
    2017 shape becomes a MarianMTModel. A Decoder with learned positions becomes a GPT2LMHeadModel, one with rotary
    positions a LlamaForCausalLM (a MistralForCausalLM, if it has a window). Both files appear whole or not at all;
    others in the folder stay. What these formats cannot express is refused by name.

    `pad`, `eos` and `start` are token ids: of padding, of the end, and of what a decoder begins with (the
    padding, as Marian does, by default). Without them the model computes the same, but `generate` needs
    them. `max_length` is how many positions Marian makes sinusoids for, and what Llama is said to read at most; ours
    know no limit.
    """
    if isinstance(model, Encoder):
        settings, tensors = _convert_bert(model, labels)
    elif isinstance(model, Decoder):
        settings, tensors = _convert_decoder(model, max_length)
        settings["bos_token_id"] = eos if start is None else start
    elif isinstance(model, EncoderDecoder):
        settings, tensors = _convert_marian(model, max_length)
        settings["forced_eos_token_id"] = eos
        # Marian insists on a number: one outside the vocabulary fails, where any other would mislead
        settings["decoder_start_token_id"] = next((token for token in (start, pad) if token is not None), -1)
    else:
        raise CheckpointError(
            f"a {type(model).__name__} cannot be written; only an Encoder (as BERT), a Decoder (as GPT-2 or Llama) "
            "and an EncoderDecoder (as Marian) can"
        )
    for name, token in (("pad", pad), ("eos", eos), ("start", start)):
        if token is not None and not 0 <= token < model.config.vocabulary:
            last = model.config.vocabulary - 1
            raise CheckpointError(f"{name}={token} is no token of this model; its vocabulary goes from 0 to {last}")
    settings |= {"pad_token_id": pad, "eos_token_id": eos}
    settings["dtype"] = str(model.vocabulary.words.weight.dtype).removeprefix("torch.")
    write(Path(folder), settings, tensors)


def _convert_bert(model: Encoder, labels: Sequence[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config, width = model.config.resolve(), model.config.width
    masked = config.logits_transform
    required = {**BERT, **_plain_heads(config)} | ({} if masked else {"logits_bias": False, "tie_embeddings": True})
    architecture = "BertForMaskedLM" if masked else "BertModel"
    if isinstance(model, (Classifier, TokenClassifier)):
        whole = isinstance(model, Classifier)
        required["labels"] = Labels(config.label_count, pooling="first" if whole else "mean")
        architecture = "BertForSequenceClassification" if whole else "BertForTokenClassification"
    elif isinstance(model, PooledEncoder) and config.labels is not None:
        raise CheckpointError("BERT cannot hold the label scores of a PooledEncoder; use Classifier, pooling='first'")
    _check_expressible(config, "BERT", required)
    trunk = "" if architecture == "BertModel" else "bert."
    mappings = chain(
        bert.map_parameters(config, frozenset(), trunk, "cls.predictions"), bert.map_label_head(config, *bert.POOLED)
    )
    tensors = _collect_tensors(model, list(mappings), None)
    like = model.vocabulary.words.weight.detach()
    if not config.segments:
        tensors[f"{trunk}embeddings.token_type_embeddings.weight"] = like.new_zeros(1, width).cpu()
    if architecture == "BertModel":
        tensors["pooler.dense.weight"] = torch.eye(width, dtype=like.dtype)
        tensors["pooler.dense.bias"] = torch.zeros(width, dtype=like.dtype)
    elif masked:
        bias = tensors.setdefault("cls.predictions.bias", torch.zeros(config.vocabulary, dtype=like.dtype))
        if not config.tie_embeddings:
            tensors["cls.predictions.decoder.bias"] = bias.clone()
    return {
        **_name_labels(config, labels),
        "architectures": [architecture],
        "model_type": "bert",
        "vocab_size": config.vocabulary,
        "hidden_size": width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.feedforward,
        "hidden_act": ACTIVATIONS[config.activation],
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "max_position_embeddings": config.max_length,
        "type_vocab_size": config.segments or 1,
        "layer_norm_eps": config.norm_epsilon,
        "tie_word_embeddings": config.tie_embeddings,
    }, tensors


def _name_labels(config: ModelConfig, labels: Sequence[str]) -> dict[str, Any]:
    if config.labels is None:
        return {}
    count = config.label_count
    names = list(labels) or [f"LABEL_{number}" for number in range(count)]
    if len(names) != count:
        raise CheckpointError(f"labels= names {len(names)} labels, but the model has {count}")
    return {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}


def _convert_decoder(model: Decoder, max_length: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = model.config.resolve()
    if config.positions == "learned":
        _check_expressible(config, "GPT-2", {**gpt2.REQUIRED, **_plain_heads(config)}, gpt2.ACTIVATIONS)
        mappings = list(gpt2.map_parameters(config, "transformer."))
        return gpt2.make_settings(config), _collect_tensors(model, mappings, None)
    name = "Llama" if config.window is None else "Mistral"
    required = {**llama.EXPRESSIBLE, "value_head_dim": config.head_dim}
    if config.window is not None:
        required |= {"bias": False, "attention_bias": False}
    _check_expressible(config, name, required, llama.ACTIVATIONS)
    mappings = list(llama.map_parameters(config, "model.", out_bias=True))
    return llama.make_settings(config, max_length), _collect_tensors(model, mappings, None)


def _convert_marian(model: EncoderDecoder, max_length: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = model.config.resolve()
    _check_expressible(config, "Marian", {**MARIAN, **_plain_heads(config)})
    order = marian.feature_order(config.width).to(model.vocabulary.words.weight.device)
    tensors = _collect_tensors(model, list(marian.map_parameters(config, "model.")), order)
    if not config.logits_bias:
        zeros = model.vocabulary.words.weight.detach().new_zeros(1, config.vocabulary)
        tensors["final_logits_bias"] = zeros.cpu()
    settings: dict[str, Any] = {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "vocab_size": config.vocabulary,
        "decoder_vocab_size": config.vocabulary,
        "d_model": config.width,
        "encoder_layers": config.layers,
        "decoder_layers": config.decoder_layers,
        "activation_function": ACTIVATIONS[config.activation],
        "dropout": config.dropout,
        "activation_dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "max_position_embeddings": max_length,
        "scale_embedding": config.scale_embeddings,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
    }
    for side in ("encoder", "decoder"):
        settings |= {f"{side}_attention_heads": config.heads, f"{side}_ffn_dim": config.feedforward}
    return settings, tensors


def _check_expressible(
    config: ModelConfig, name: str, required: dict[str, Any], activations: dict[str, str] = ACTIVATIONS
) -> None:
    """Refuses, by the names of ModelConfig, what the other format cannot express."""
    wanted = {key: getattr(config, key) for key in required}
    lacks = [f"{key}={value!r}" for key, value in wanted.items() if value != required[key]]
    if config.activation not in activations:
        lacks.append(f"activation={config.activation!r}")
    if lacks:
        raise CheckpointError(f"a {name} checkpoint cannot express {', '.join(lacks)}")


def _plain_heads(config: ModelConfig) -> dict[str, Any]:
    """The sizes of heads in formats that have no setting for them."""
    head_dim = config.width / config.heads
    return {"kv_heads": config.heads, "head_dim": head_dim, "value_head_dim": head_dim}


def _collect_tensors(model: Model, mappings: list[ParameterMapping], order: Tensor | None) -> dict[str, Tensor]:
    parameters = dict(model.named_parameters())
    mapped = {mapping.ours for mapping in mappings}
    if unknown := [name for name in parameters if name not in mapped]:  # of a subclass, such as the steps of a CRF
        remedy = "; train the tagger with loss.crf = false" if "next_tag" in unknown else ""
        if unknown[0].endswith((DOWN, UP)):
            remedy = "; merge the adapters first: clearhead.model.lora.merge_adapters(model)"
        listed = ", ".join(unknown[:4]) + (f" and {len(unknown) - 4} more" if len(unknown) > 4 else "")
        raise CheckpointError(f"a Hugging Face checkpoint has no place for {listed}{remedy}")
    assert mapped == set(parameters), "every parameter is mapped"
    return {
        name: mapping.to_theirs(parameters[mapping.ours][rows], order)
        for mapping in mappings
        for name, rows, _ in mapping.pieces(parameters[mapping.ours].shape)
    }
