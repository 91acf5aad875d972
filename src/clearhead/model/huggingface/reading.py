"""from_huggingface: a local checkpoint into one of our models."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from dataclasses import replace
from functools import reduce
from pathlib import Path

import torch

from clearhead.errors import CheckpointError, ConfigError
from clearhead.model.huggingface import bert, gpt2, llama, marian
from clearhead.model.huggingface.files import CONFIG, Tensors
from clearhead.model.huggingface.places import Place
from clearhead.model.huggingface.plan import Model, Plan
from clearhead.model.huggingface.settings import Settings

FAMILIES = {
    "bert": bert.plan,
    "roberta": bert.plan,
    "xlm-roberta": bert.plan,
    "gpt2": gpt2.plan,
    "llama": llama.plan,
    "mistral": llama.plan,
    "qwen2": llama.plan,
    "marian": marian.plan,
}


def from_huggingface(folder: str | Path) -> Model:
    """The model in a local Hugging Face checkpoint, in evaluation mode and at the checkpoint's precision.

    BERT, RoBERTa and XLM-RoBERTa give an Encoder, with the masked-word head where the checkpoint has one
    (without it, `logits` are products with the word vectors); GPT-2, Llama, Mistral and Qwen2 a Decoder;
    Marian an EncoderDecoder. Only config.json and safetensors files are read, one tensor at a time: no
    pickle, no network. Where tensors differ in precision, the model has the widest.

    What cannot be expressed is refused by name, and so is a tensor that the model has no use for. Two
    exceptions: BERT's pooler and next-sentence head are left out, like tables that are computed anew; and
    heads for tasks (a classifier) are left out with a warning that names them.

    Positions are counted from 0 whatever the padding; with padding on the left pass `positions=`. Dropout is
    one number here, that of the residuals, and acts inside the feed-forward too.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is not a folder; checkpoints are read from this machine only, so download it first "
            "(hf download NAME --local-dir FOLDER)"
        )
    settings = Settings.read(folder / CONFIG)
    kind = settings.word("model_type")
    if kind not in FAMILIES:
        raise settings.refusal("model_type", f"only {', '.join(FAMILIES)} can be read")
    settings.refuse_foreign()
    with Tensors.open(folder) as tensors:
        return _fill(FAMILIES[kind](settings, frozenset(tensors)), tensors, folder)


def _fill(plan: Plan, tensors: Tensors, folder: Path) -> Model:
    places = _found(plan, tensors, folder)
    try:
        with torch.device("meta"):  # no memory before all is known to fit
            model = plan.kind(plan.config)
    except (ConfigError, RuntimeError, TypeError) as error:
        raise CheckpointError(f"{folder}: {CONFIG} describes no possible model ({error})") from error
    _check_shapes(places, model, tensors, folder)
    names = [name for place in places for name in place.theirs]
    model = model.to(reduce(torch.promote_types, map(tensors.dtype, names))).to_empty(device="cpu").eval()
    order = None if plan.order is None else plan.order(plan.config.width)
    with torch.no_grad():
        for place in places:
            parameter = model.get_parameter(place.ours)
            if not place.theirs:
                parameter.zero_()
            for name, rows, _ in place.pieces(parameter.shape):
                parameter[rows].copy_(place.ours_of(tensors.read(name), order))
            _compare_copies(place, tensors, folder)
    return model


def _found(plan: Plan, tensors: Tensors, folder: Path) -> list[Place]:
    """All places, if every tensor is there and none is left over."""
    places: list[Place] = []
    for place in plan.places:  # stops at the first that is missing, however many layers config.json asks for
        place = _from_a_copy(place, tensors)
        for name in place.theirs:
            if name not in tensors:
                raise CheckpointError(f"{folder} lacks the tensor {name}, which {CONFIG} asks for")
        places.append(place)
    _account_for(set(tensors).difference(*(place.theirs + place.copies for place in places)), plan, folder)
    return places


def _from_a_copy(place: Place, tensors: Tensors) -> Place:
    """Tied weights are kept under any one of their names."""
    kept = tuple(name for name in place.theirs + place.copies if name in tensors)
    return replace(place, theirs=kept[:1], copies=kept[1:]) if place.copies and kept else place


def _check_shapes(places: list[Place], model: Model, tensors: Tensors, folder: Path) -> None:
    parameters = dict(model.named_parameters())
    assert {place.ours for place in places} == set(parameters), "every parameter has its place"
    for place in places:
        for name, _, shape in place.pieces(parameters[place.ours].shape):
            if tensors.shape(name) != shape:
                raise CheckpointError(
                    f"{folder}: {name} has shape {tensors.shape(name)}, but {CONFIG} asks for {shape}; "
                    "these two belong to different models"
                )


def _compare_copies(place: Place, tensors: Tensors, folder: Path) -> None:
    for name in place.copies:
        if not torch.equal(tensors.read(name), tensors.read(place.theirs[0])):
            raise CheckpointError(
                f"{folder}: {name} and {place.theirs[0]} differ, though {CONFIG} ties them; if they are "
                "meant to differ, write tie_word_embeddings: false there"
            )


def _account_for(left: Iterable[str], plan: Plan, folder: Path) -> None:
    """Refuses tensors that the model has no use for, but for harmless ones; warns of heads for tasks."""
    left = sorted(name for name in left if not re.fullmatch(plan.harmless, name.removeprefix(plan.trunk)))
    inside = [name for name in left if name.startswith(plan.trunk)]
    if inside:
        raise CheckpointError(f"{folder} holds {_some(inside)}, which the model that {CONFIG} describes has no use for")
    if left:
        warnings.warn(
            f"{folder}: {_some(left)} left out; the model without its task is read",
            stacklevel=5,
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
