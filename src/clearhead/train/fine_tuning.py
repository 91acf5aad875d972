"""Fine-tuning: trained weights are copied into a new model, LoRA adapters are added, and `start.json` records both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clearhead.adapter_folder import Adapter, describe_base
from clearhead.errors import CheckpointError
from clearhead.model import Model
from clearhead.model.lora import add_adapters
from clearhead.storage import atomic_file, check_format, read_json, write_json
from clearhead.tasks.pretrained import TRUNK, Pretrained, Transfer
from clearhead.train.recipe import Train

START, FORMAT = "start.json", 1


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


def record_start(where: Path, start: Pretrained, transfer: Transfer, train: Train) -> None:
    """Writes start.json into a run's folder: which parameters were taken, new and left, and the base of adapters."""
    names: dict[str, Any] = {kind: list(sizes) for kind, sizes in transfer._asdict().items()}
    content = {"format": FORMAT, "init_from": train.init_from, **names}
    if train.lora_rank:
        sizes: dict[str, Any] = {"rank": train.lora_rank, "alpha": train.lora_alpha, "on": list(train.lora_on)}
        content["adapter"] = describe_base(start.folder, where / "model", **sizes).to_dict()
    with atomic_file(where / START) as fresh:
        write_json(fresh, content)


def read_new(where: Path) -> list[str]:
    """The parameters of a run that did not come from trained weights; none for a run that started from random ones."""
    return [] if not (where / START).is_file() else list(_read_start(where)["new"])


def read_adapter(where: Path) -> Adapter | None:
    """The adapter that a run trains; None if it trains the weights themselves."""
    found = None if not (where / START).is_file() else _read_start(where).get("adapter")
    return None if found is None else Adapter.from_dict(where / "model", found)


def check_base(where: Path, start: Pretrained) -> None:
    """Refuses to resume a run with adapters if the weights that it started from have changed since."""
    adapter = read_adapter(where)
    if adapter is not None and (problem := adapter.find_difference(start.folder)):
        raise CheckpointError(
            f"train.init_from: {start.folder} is not as it was when the run began: {problem}; restore it, or start anew"
        )


def _read_start(where: Path) -> dict[str, Any]:
    content = read_json(where / START)
    check_format(where / START, content.get("format"), FORMAT)
    return content
