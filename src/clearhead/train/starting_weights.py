"""Reads the trained weights that a run starts from: one of our model folders, or a Hugging Face checkpoint."""

from __future__ import annotations

import warnings
from pathlib import Path

import clearhead.shipped as shipped
from clearhead.errors import CheckpointError, ConfigError
from clearhead.model.huggingface import from_huggingface
from clearhead.model_folder import CONFIG, ModelFolder
from clearhead.storage import read_json
from clearhead.tasks.pretrained import Pretrained
from clearhead.text import Tokenizer


def read_pretrained(name: str, base: Path) -> Pretrained:
    """The model in a folder, which is relative to the recipe's folder or to the current one, or a shipped model."""
    folder = _find_folder(name, base)
    if not (folder / CONFIG).is_file():
        raise ConfigError(f"train.init_from: the folder {folder} contains no model: it has no {CONFIG}")
    try:
        if "model_type" in read_json(folder / CONFIG):
            return _read_huggingface(folder)
        return _read_own(folder)
    except CheckpointError as error:
        raise CheckpointError(f"train.init_from: {error}") from error


def _find_folder(name: str, base: Path) -> Path:
    given = Path(name).expanduser()
    for folder in (base / given, given, shipped.model(name.removeprefix("shipped:"))):
        if folder is not None and folder.is_dir():
            return folder / "model" if not (folder / CONFIG).exists() and (folder / "model").is_dir() else folder
    raise ConfigError(
        f"train.init_from: there is no folder {name}; weights are read from this machine only, so download them first "
        "(hf download NAME --local-dir FOLDER)"
    )


def _read_huggingface(folder: Path) -> Pretrained:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # heads of other tasks are left out: the run says so itself
        model = from_huggingface(folder).float()
    given = read_json(folder / CONFIG).get("id2label")
    labels = tuple(map(str, given.values())) if isinstance(given, dict) and model.config.labels is not None else ()
    return Pretrained(folder, model.config, Tokenizer.from_huggingface(folder), model.state_dict(), labels)


def _read_own(folder: Path) -> Pretrained:
    opened = ModelFolder.open(folder)
    processor = opened.processor()
    tokenizer = processor.tokenizer
    if tokenizer is None:
        two = " with two tokenizers" if processor.inputs.kind == "text" else ""
        kind = f"{opened.task.name}{two}"
        raise CheckpointError(f"a run cannot start from {folder}, a model for {kind}; choose another folder")
    model = opened.model(processor=processor)
    labels = opened.config["settings"].get("labels", ())
    return Pretrained(folder, model.config, tokenizer, model.state_dict(), tuple(labels))
