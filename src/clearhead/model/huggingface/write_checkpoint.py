"""to_huggingface: writes our models as Hugging Face checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Shaped
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from clearhead.errors import CheckpointError
from clearhead.model import Model
from clearhead.model.config import FIELDS
from clearhead.model.devices import empty_weights
from clearhead.model.huggingface import bert, gpt2, llama, marian
from clearhead.model.huggingface.config_json import CONFIG, HuggingFaceConfig
from clearhead.model.huggingface.mapping import CheckpointForm
from clearhead.model.huggingface.read_checkpoint import WEIGHTS, format_names
from clearhead.model.lora import DOWN, UP
from clearhead.model.transformer import Decoder, Encoder, EncoderDecoder
from clearhead.storage import flush_tree, move_into_place, temporary_folder

UNCHECKED = ("dropout", "max_length")  # fields that need not be the same when a checkpoint is read back


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

    An Encoder of BERT's shape becomes a BertForMaskedLM if it has the masked-word head (`logits_transform`), else a
    BertModel, whose pooler hands on the first token but for its tanh. A TokenClassifier becomes a
    BertForTokenClassification, a Classifier with `pooling="first"` a BertForSequenceClassification, with `labels` as
    their names. An EncoderDecoder of the 2017 shape becomes a MarianMTModel, a Decoder a GPT2LMHeadModel (learned
    positions), LlamaForCausalLM (rotary) or MistralForCausalLM (rotary, with a window). What these formats cannot
    express is refused by name. Both files appear whole or not at all; others in the folder stay.

    `pad`, `eos` and `start` are token ids of padding, of the end, and of what a decoder begins with (by default the
    padding). `generate` needs them, the model does not. `max_length` is how many positions Marian makes sinusoids for,
    and what Llama is said to read at most; ours know no limit.
    """
    if not isinstance(model, (Encoder, Decoder, EncoderDecoder)):
        raise CheckpointError(f"a {type(model).__name__} cannot be written, only an Encoder, Decoder or EncoderDecoder")
    for name, token in (("pad", pad), ("eos", eos), ("start", start)):
        if token is not None and not 0 <= token < model.config.vocabulary:
            last = model.config.vocabulary - 1
            raise CheckpointError(f"{name}={token} is no token of this model; its vocabulary goes from 0 to {last}")
    form = _make_form(model, max_length, labels)
    tensors = _collect_tensors(model, form)
    settings = form.settings | {"pad_token_id": pad, "eos_token_id": eos}
    settings["dtype"] = str(model.vocabulary.words.weight.dtype).removeprefix("torch.")
    if isinstance(model, Decoder):
        settings["bos_token_id"] = eos if start is None else start
    elif isinstance(model, EncoderDecoder):
        settings["forced_eos_token_id"] = eos
        # Marian insists on a number: one outside the vocabulary fails, where any other would mislead
        settings["decoder_start_token_id"] = next((token for token in (start, pad) if token is not None), -1)
    else:
        _add_what_bert_repeats(tensors, settings["architectures"][0], model)
    _write(Path(folder), settings, tensors)


def _make_form(model: Model, max_length: int, labels: Sequence[str]) -> CheckpointForm:
    config = model.config.resolve()
    if isinstance(model, Encoder):
        return bert.make_form(model, labels)
    if isinstance(model, EncoderDecoder):
        return marian.make_form(config, max_length)
    return gpt2.make_form(config) if config.positions == "learned" else llama.make_form(config, max_length)


def _collect_tensors(model: Model, form: CheckpointForm) -> dict[str, Tensor]:
    """The tensors of the checkpoint by name. Refuses a model that would not come back the same when they are read."""
    mapping = form.read(HuggingFaceConfig(form.settings, f"a {form.format} checkpoint"), form.names)
    written = mapping.config.resolve()
    values = {name: getattr(form.config, name) for name in FIELDS if name not in UNCHECKED}
    if lacks := [f"{name}={value!r}" for name, value in values.items() if value != getattr(written, name)]:
        raise CheckpointError(f"a {form.format} checkpoint cannot express {', '.join(lacks)}")
    with empty_weights():
        shapes = {name: parameter.shape for name, parameter in mapping.kind(mapping.config).named_parameters()}
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    if unknown := [name for name in parameters if name not in shapes]:  # of a subclass, such as the steps of a CRF
        remedy = "; train the tagger with loss.crf = false" if "next_tag" in unknown else ""
        if unknown[0].endswith((DOWN, UP)):
            remedy = "; adapters are merged in a model that clearhead.load reads from its folder"
        raise CheckpointError(f"a Hugging Face checkpoint has no place for {format_names(unknown)}{remedy}")
    order = None if mapping.order is None else mapping.order(written.width)
    tensors = {}
    for parameter in mapping.parameters:
        weights = parameters.get(parameter.ours)
        if weights is None:  # only the format has it
            weights = model.vocabulary.words.weight.new_zeros(shapes[parameter.ours])
        for name, rows, _ in parameter.pieces(weights.shape):
            tensors[name] = parameter.to_theirs(weights[rows], order)
    return tensors


def _add_what_bert_repeats(tensors: dict[str, Tensor], architecture: str, model: Encoder) -> None:
    """Adds a pooler that hands on the first token, or the second copy of a bias."""
    if architecture == "BertModel":
        dtype, width = model.vocabulary.words.weight.dtype, model.config.width
        tensors["pooler.dense.weight"] = torch.eye(width, dtype=dtype)
        tensors["pooler.dense.bias"] = torch.zeros(width, dtype=dtype)
    elif architecture == "BertForMaskedLM" and not model.config.tie_embeddings:
        tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()


def _write(folder: Path, settings: Mapping[str, Any], tensors: dict[str, Shaped[Tensor, "..."]]) -> None:
    """Writes config.json and model.safetensors, both or neither.

    Both are finished in a temporary folder first. An old config.json is removed before the weights change, and the
    new one comes last: after an interruption no folder has the config of one model and the weights of another.
    """
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; name a folder to write into")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with temporary_folder(folder / WEIGHTS, needs=sum(tensor.nbytes for tensor in tensors.values())) as fresh:
            # transformers refuses files without this metadata
            save_file(tensors, fresh / WEIGHTS, metadata={"format": "pt"})
            (fresh / CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
            (fresh / WEIGHTS).chmod((fresh / CONFIG).stat().st_mode)  # safetensors lets only the owner read it
            flush_tree(fresh)
            (folder / CONFIG).unlink(missing_ok=True)
            move_into_place(fresh / WEIGHTS, folder / WEIGHTS)
            move_into_place(fresh / CONFIG, folder / CONFIG)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{folder} could not be written: {error}") from error
