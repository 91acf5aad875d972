"""from_huggingface: reads a local Hugging Face checkpoint into one of our models."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Shaped
from safetensors import SafetensorError, safe_open
from torch import Tensor

from clearhead.errors import CheckpointError, ConfigError
from clearhead.model import Model
from clearhead.model.devices import empty_weights
from clearhead.model.huggingface import bert, gpt2, llama, marian
from clearhead.model.huggingface.config_json import CONFIG, UNSUPPORTED, HuggingFaceConfig
from clearhead.model.huggingface.mapping import CheckpointMapping, ParameterMapping

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# By model_type, the function that maps a checkpoint of this family to one of our models.
FAMILIES = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta"), bert.map_checkpoint),
    "gpt2": gpt2.map_checkpoint,
    **dict.fromkeys(("llama", "mistral", "qwen2"), llama.map_checkpoint),
    "marian": marian.map_checkpoint,
}


def from_huggingface(folder: str | Path) -> Model:
    """The model in a local Hugging Face checkpoint, in evaluation mode and at the checkpoint's precision.

    BERT, RoBERTa and XLM-RoBERTa give an Encoder, with the masked-word head if there is one, or a Classifier or
    TokenClassifier; GPT-2, Llama, Mistral and Qwen2 a Decoder; Marian an EncoderDecoder. Only config.json and
    safetensors files are read, one tensor at a time: no pickle, no network. Tensors of several precisions get the
    widest. What cannot be expressed is refused by name, and so is a tensor that the model has no use for. Only BERT's
    pooler and next-sentence head and tables that are computed anew are left out, and heads of other tasks with a
    warning.

    Positions are counted from 0 whatever the padding; with padding on the left pass `positions=`. Dropout is
    one number here, that of the residuals, and acts inside the feed-forward too.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is not a folder; checkpoints are read from this machine only, so download it first "
            "(hf download NAME --local-dir FOLDER)"
        )
    settings = HuggingFaceConfig.read(folder / CONFIG)
    kind = settings.read_string("model_type")
    if kind not in FAMILIES:
        raise settings.unsupported("model_type", f"only {', '.join(FAMILIES)} can be read")
    for key in UNSUPPORTED:
        if settings.values.get(key):
            raise settings.unsupported(key, "only checkpoints without it can be read")
    with _open_tensors(folder) as tensors:
        return _build_model(FAMILIES[kind](settings, frozenset(tensors)), tensors, folder)


def _build_model(mapping: CheckpointMapping, tensors: Stored, folder: Path) -> Model:
    mappings = _match_tensors(mapping, tensors, folder)
    try:
        with empty_weights():  # no memory before all is known to fit
            model = mapping.kind(mapping.config)
    except (ConfigError, RuntimeError, TypeError) as error:
        raise CheckpointError(f"{folder}: {CONFIG} describes no possible model ({error})") from error
    _check_shapes(mappings, model, tensors, folder)
    names = [name for parameter in mappings for name in parameter.theirs]
    model = (
        model.to(reduce(torch.promote_types, [tensors[name].dtype() for name in names])).to_empty(device="cpu").eval()
    )
    order = None if mapping.order is None else mapping.order(mapping.config.width)
    with torch.no_grad():
        for parameter in mappings:
            weights = model.get_parameter(parameter.ours)
            if not parameter.theirs:
                weights.zero_()
            for name, rows, _ in parameter.pieces(weights.shape):
                weights[rows].copy_(parameter.to_ours(tensors[name].read(), order))
            for name in parameter.copies:
                if not torch.equal(tensors[name].read(), tensors[parameter.theirs[0]].read()):
                    raise CheckpointError(
                        f"{folder}: {name} and {parameter.theirs[0]} differ, though {CONFIG} ties them; if they are "
                        "meant to differ, write tie_word_embeddings: false there"
                    )
    return model


def _match_tensors(mapping: CheckpointMapping, tensors: Stored, folder: Path) -> list[ParameterMapping]:
    """All parameter mappings, after checking that every tensor exists and none is left over."""
    mappings: list[ParameterMapping] = []
    for parameter in mapping.parameters:  # stops at the first that is missing, however many layers config.json has
        stored = tuple(name for name in parameter.theirs + parameter.copies if name in tensors)
        if parameter.copies and stored:  # tied weights are stored under at least one of their names
            parameter = replace(parameter, theirs=stored[:1], copies=stored[1:])
        for name in parameter.theirs:
            if name not in tensors:
                raise CheckpointError(f"{folder} lacks the tensor {name}, which {CONFIG} asks for")
        mappings.append(parameter)
    used = (parameter.theirs + parameter.copies for parameter in mappings)
    _check_unused(set(tensors).difference(*used), mapping, folder)
    return mappings


def _check_shapes(mappings: list[ParameterMapping], model: Model, tensors: Stored, folder: Path) -> None:
    parameters = dict(model.named_parameters())
    assert {mapping.ours for mapping in mappings} == set(parameters), "every parameter is mapped"
    for mapping in mappings:
        for name, _, shape in mapping.pieces(parameters[mapping.ours].shape):
            if tensors[name].shape() != shape:
                raise CheckpointError(
                    f"{folder}: {name} has shape {tensors[name].shape()}, but {CONFIG} asks for {shape}; "
                    "these two belong to different models"
                )


def _check_unused(left: Iterable[str], mapping: CheckpointMapping, folder: Path) -> None:
    """Refuses tensors that the model does not use, except harmless ones; warns about task heads."""
    left = sorted(name for name in left if not re.fullmatch(mapping.harmless, name.removeprefix(mapping.trunk)))
    inside = [name for name in left if name.startswith(mapping.trunk)]
    if inside:
        raise CheckpointError(
            f"{folder} holds {format_names(inside)}, which the model in {CONFIG} does not use; "
            "do both files belong to the same model?"
        )
    if left:
        warnings.warn(
            f"{folder}: {format_names(left)} ignored: only the base model is read, not its task head", stacklevel=5
        )


def format_names(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


class StoredTensor(NamedTuple):
    """A tensor in an open safetensors file; nothing is read before it is asked for."""

    path: Path
    file: Any
    name: str

    def shape(self) -> tuple[int, ...]:
        return tuple(self.file.get_slice(self.name).get_shape())

    def dtype(self) -> torch.dtype:
        dtype = self.file.get_slice(self.name).get_dtype()
        if dtype not in DTYPES:
            raise CheckpointError(
                f"{self.path}: {self.name} is stored as {dtype}; only {', '.join(DTYPES)} can be read, so save the "
                "checkpoint without quantisation"
            )
        return DTYPES[dtype]

    def read(self) -> Shaped[Tensor, "..."]:
        tensor: Tensor = self.file.get_tensor(self.name)
        return tensor


@contextmanager
def _open_tensors(folder: Path) -> Iterator[Stored]:
    """The tensors of a checkpoint by name, from one file or several."""
    tensors: Stored = {}
    with ExitStack() as stack:
        for path in _weight_files(folder):
            try:
                file = stack.enter_context(safe_open(path, "pt"))
            except (SafetensorError, OSError, ValueError) as error:
                raise CheckpointError(
                    f"{path} is not a whole safetensors file ({error}); copy or save it again"
                ) from error
            for stored in file.keys():  # noqa: SIM118 (not a dict)
                # The first BERT checkpoints still call a norm's weight and bias by the paper's letters.
                name = stored.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
                if name in tensors:
                    other = tensors[name].path.name
                    raise CheckpointError(f"{path} holds {name}, which {other} holds too; save the checkpoint again")
                tensors[name] = StoredTensor(path, file, stored)
        yield tensors


Stored = dict[str, StoredTensor]


def _weight_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        return _shards(folder)
    pickled = sorted(path.name for path in folder.glob("pytorch_model*"))
    if pickled:
        raise CheckpointError(
            f"{folder} holds its weights as {pickled[0]}, a pickle, which may run any code when it is read; "
            "load it where you trust it, and save it as safetensors: "
            "model.save_pretrained(folder, safe_serialization=True)"
        )
    raise CheckpointError(f"{folder} holds neither {WEIGHTS} nor {INDEX}; is this a checkpoint's folder?")


def _shards(folder: Path) -> list[Path]:
    """The files that an index names: plain names of files in the same folder, nothing else."""
    path = folder / INDEX
    try:
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(weight_map.values()))
    except (ValueError, RecursionError, OSError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} has no readable weight_map ({error!r}); save the checkpoint again") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or "\\" in name or not name.endswith(".safetensors"):
            raise CheckpointError(f"{path} names the file {name!r}; only safetensors files in the same folder are read")
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder / name} is missing, though {INDEX} names it; copy it there too")
    return [folder / name for name in names]
