"""The model folder: config, weights, tokenizers, scores and card of a trained model, complete in itself.

Only an adapter folder is not complete: of its weights it holds what LoRA trained, and it names its base model.
"""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from clearhead.adapter_folder import ADAPTER, Adapter, Tensors, enter_run, read_merged
from clearhead.errors import CheckpointError, ConfigError
from clearhead.model import Model, ModelConfig
from clearhead.model.devices import empty_weights
from clearhead.model.weight_storage import load_weights, pack_tensors, pack_weights, unique_tensors, unpack_weights
from clearhead.storage import (
    CHECKSUMS,
    atomic_folder,
    check_format,
    read_json,
    restore_replaced,
    verify_checksums,
    write_json,
)
from clearhead.tasks import TASKS, Task
from clearhead.tasks.processor import AnyProcessor
from clearhead.text.corpora import SKIP

FORMAT, ADAPTER_FORMAT = 1, 2  # of a folder with a whole model, or with an adapter
CONFIG, WEIGHTS, METRICS, CARD, RECIPE = "config.json", "model.safetensors", "metrics.json", "README.md", "recipe.toml"
FIELDS = {"task": str, "model": dict, "settings": dict, "weights": str}


def write(
    folder: str | Path,
    *,
    task: Task,
    processor: AnyProcessor,
    model: nn.Module,
    metrics: dict[str, Any],
    card: str,
    recipe: str | None = None,
    weights: str = "float32",
    adapter: tuple[Adapter, Tensors] | None = None,
) -> None:
    """Writes a model folder: all of it or nothing. `weights` is how they are stored: float32, bfloat16 or int8.

    With an `adapter` only its tensors are stored, not those of the model, which has them merged.
    """
    tensors = pack_weights(model, weights) if adapter is None else pack_tensors(adapter[1], weights)
    config = {
        "format": FORMAT if adapter is None else ADAPTER_FORMAT,
        "clearhead": sys.modules["clearhead"].__version__,
        "task": task.name,
        "architecture": type(model).__name__,
        "model": processor.config.to_dict(),
        "weights": weights,
        "settings": processor.settings,
    }
    if adapter is not None:
        config["adapter"] = adapter[0].to_dict()
    with atomic_folder(folder, needs=sum(tensor.nbytes for tensor in tensors.values())) as fresh:
        processor.save(fresh)
        write_json(fresh / CONFIG, config)
        save_file(tensors, fresh / (WEIGHTS if adapter is None else ADAPTER), metadata={"format": "pt"})
        write_json(fresh / METRICS, metrics)
        (fresh / CARD).write_text(card, encoding="utf-8")
        if recipe is not None:
            (fresh / RECIPE).write_text(recipe, encoding="utf-8")


@dataclass(frozen=True)
class ModelFolder:
    """A model folder that was checked: known format, all files there, none changed except perhaps the card."""

    path: Path
    config: dict[str, Any]
    metrics: dict[str, Any]

    @classmethod
    def open(cls, path: str | Path) -> ModelFolder:
        """Of a run's folder, the model in it."""
        path = _find_model(Path(path))
        config = read_json(path / CONFIG)
        _check_config_format(path, config)
        try:
            listed = verify_checksums(path, editable={CARD})
        except CheckpointError as error:
            raise CheckpointError(f"{error}; copy the folder again") from None
        for name in (CONFIG, ADAPTER if "adapter" in config else WEIGHTS, METRICS):
            if name not in listed:
                raise CheckpointError(f"{path / CHECKSUMS} does not list {name}; copy the folder again")
        for name, kind in FIELDS.items():
            if not isinstance(config.get(name), kind):
                raise CheckpointError(
                    f"{path / CONFIG} says {name} = {config.get(name)!r}, which is invalid; copy the folder again"
                )
        return cls(path, config, read_json(path / METRICS))

    @property
    def task(self) -> Task:
        name = self.config["task"]
        if name not in TASKS:
            raise CheckpointError(
                f"{self.path} is a model for the task {name!r}; this clearhead knows {', '.join(TASKS)}, so upgrade it"
            )
        try:
            return TASKS[name].select(self.config["settings"].get("objective"))
        except ConfigError as error:
            raise CheckpointError(f"the settings of {self.path}: {error}") from None

    def processor(self) -> AnyProcessor:
        """The stored part of the task: tokenizers, labels, settings."""
        try:
            config = ModelConfig.from_dict(self.config["model"])
        except (ConfigError, TypeError) as error:
            raise CheckpointError(f"{self.path / CONFIG} describes no possible model: {error}") from error
        return self.task.processor.load(self.path, config, self.config["settings"])

    @property
    def adapter(self) -> Adapter | None:
        """The adapter that the folder holds instead of a whole model; None for a model."""
        return Adapter.from_dict(self.path, self.config["adapter"]) if "adapter" in self.config else None

    def model(
        self,
        device: str | torch.device = "cpu",
        *,
        processor: AnyProcessor | None = None,
        base: str | Path | None = None,
    ) -> Model:
        """The model with its weights in float32, however they are stored, in evaluation mode; adapters are merged.

        `processor` is what `processor()` returned, for those who have called it already. `base` is the folder of the
        model that an adapter belongs to, if it is no longer where it was.
        """
        processor = self.processor() if processor is None else processor
        try:
            with empty_weights():
                model = cast(Model, processor.build())
        except (RuntimeError, TypeError, ConfigError) as error:
            raise CheckpointError(f"{self.path / CONFIG} describes no possible model ({error})") from error
        adapter = self.adapter
        if adapter is None and base is not None:
            raise ConfigError(f"{self.path} is a whole model, not an adapter: it needs no base")
        tensors: Tensors | None = None
        if adapter is not None:
            merged = read_merged(self.path, adapter, base, _read_tensors)
            tensors = {name: merged[name] for name in unique_tensors(model) if name in merged}
        try:
            load_weights(model, unpack_weights(load_file(self.path / WEIGHTS)) if tensors is None else tensors)
        except (SafetensorError, CheckpointError) as error:
            stored = self.path / (WEIGHTS if adapter is None else ADAPTER)
            raise CheckpointError(f"{stored} does not hold this model: {error}") from error
        return model.to(device).eval()

    def columns(self) -> list[str] | dict[str, str] | None:
        """Where the training data had their columns, if its recipe says so: `data.columns`."""
        path = self.path / RECIPE
        try:
            columns = tomllib.loads(path.read_text(encoding="utf-8")).get("data", {}).get("columns")
        except (OSError, ValueError, AttributeError):  # without a recipe they are the task's
            return None
        if not isinstance(columns, list):
            return columns if isinstance(columns, dict) else None
        while columns and columns[-1] == SKIP:  # so that a file without these fields can be read, too
            columns = columns[:-1]
        return columns


def merge(path: str | Path, out: str | Path, *, base: str | Path | None = None) -> None:
    """Writes the model of an adapter folder as a whole model, complete in itself, with its scores and its card."""
    folder = ModelFolder.open(path)
    if folder.adapter is None:
        raise ConfigError(f"{folder.path} is a whole model already; only adapters are merged")
    processor = folder.processor()
    model = folder.model(processor=processor, base=base)
    card, recipe = ((folder.path / name).read_text(encoding="utf-8") for name in (CARD, RECIPE))
    scores = folder.metrics
    write(out, task=folder.task, processor=processor, model=model, metrics=scores, card=card, recipe=recipe)


def _read_tensors(path: Path) -> Tensors:
    return dict(ModelFolder.open(path).model().state_dict())


def _find_model(path: Path) -> Path:
    """The model folder: this one, or the one in this run's folder; else an error that says what the path is."""
    if path.is_file():
        raise CheckpointError(f"{path} is a file; a model is a folder")
    for folder in (path, path / "model"):
        restore_replaced(folder)
    folder = enter_run(path)
    if (folder / CONFIG).exists():
        return folder
    names = sorted(child.name for child in path.iterdir()) if path.is_dir() else []
    if not {"checkpoints", "report.txt"}.isdisjoint(names):
        raise CheckpointError(
            f"{path} is a training run that has not finished; repeat the clearhead train command that began the run, "
            "with --resume, to finish it"
        )
    if models := [name for name in names if (enter_run(path / name) / CONFIG).exists()]:
        raise CheckpointError(f"{path} holds {len(models)} models but is none; name one, such as {path / models[0]}")
    others = f", but {', '.join(names[:3])}{', …' if len(names) > 3 else ''}" if names else ""
    raise CheckpointError(f"{path} is no model folder: it holds no {CONFIG}{others}")


def _check_config_format(path: Path, config: dict[str, Any]) -> None:
    number = config.get("format")
    if number is None and ("model_type" in config or "architectures" in config):
        raise CheckpointError(
            f"{path} is a Hugging Face checkpoint; clearhead.from_huggingface({str(path)!r}) reads it"
        )
    check_format(path / CONFIG, number, ADAPTER_FORMAT if "adapter" in config else FORMAT)
