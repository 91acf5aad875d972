"""The model folder: config, weights, tokenizers, scores and card of a trained model, complete in itself."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from clearhead.errors import CheckpointError, ConfigError
from clearhead.model import Model, ModelConfig
from clearhead.model.devices import empty_weights
from clearhead.model.packing import fill, packed, unpacked
from clearhead.storage import CHECKSUMS, atomic_folder, check_format, read_json, verify_checksums, write_json
from clearhead.tasks import TASKS, AnyTask

FORMAT = 1
CONFIG, WEIGHTS, METRICS, CARD, RECIPE = "config.json", "model.safetensors", "metrics.json", "README.md", "recipe.toml"
FIELDS = {"task": str, "architecture": str, "model": dict, "settings": dict, "weights": str}


def write(
    folder: str | Path,
    *,
    task: AnyTask,
    model: nn.Module,
    metrics: dict[str, Any],
    card: str,
    recipe: str | None = None,
    weights: str = "float32",
) -> None:
    """Writes a model folder: all of it or nothing. `weights` is how they are stored: float32, bfloat16 or int8."""
    with empty_weights():
        kind = type(task.build())
    if type(model) is not kind:
        raise ConfigError(f"{task.name} is a task for the bare {kind.__name__}, not for a {type(model).__name__}")
    tensors = packed(model, weights)
    config = {
        "format": FORMAT,
        "clearhead": sys.modules["clearhead"].__version__,
        "task": task.name,
        "architecture": kind.__name__,
        "model": task.config.to_dict(),
        "weights": weights,
        "settings": task.settings,
    }
    with atomic_folder(folder, needs=sum(tensor.nbytes for tensor in tensors.values())) as fresh:
        task.save(fresh)
        write_json(fresh / CONFIG, config)
        save_file(tensors, fresh / WEIGHTS, metadata={"format": "pt"})
        write_json(fresh / METRICS, metrics)
        (fresh / CARD).write_text(card, encoding="utf-8")
        if recipe is not None:
            (fresh / RECIPE).write_text(recipe, encoding="utf-8")


@dataclass(frozen=True)
class ModelFolder:
    """A model folder that was looked at: known format, all files there, none of them changed."""

    path: Path
    config: dict[str, Any]
    metrics: dict[str, Any]

    @classmethod
    def open(cls, path: str | Path) -> ModelFolder:
        """Of a run's folder, the model in it."""
        path = _model_in(Path(path))
        config = read_json(path / CONFIG)
        _check_config_format(path, config)
        try:
            listed = verify_checksums(path)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; copy the folder again") from None
        for name in (CONFIG, WEIGHTS, METRICS):
            if name not in listed:
                raise CheckpointError(f"{path / CHECKSUMS} does not list {name}; copy the folder again")
        for name, kind in FIELDS.items():
            if not isinstance(config.get(name), kind):
                raise CheckpointError(f"{path / CONFIG} says {name} = {config.get(name)!r}, which makes no sense")
        return cls(path, config, read_json(path / METRICS))

    def task(self) -> AnyTask:
        """What the model is for, with its tokenizers."""
        name = self.config["task"]
        if name not in TASKS:
            raise CheckpointError(
                f"{self.path} is a model for the task {name!r}; this clearhead knows {', '.join(TASKS)}, so upgrade it"
            )
        return TASKS[name].load(self.path, self._model_config(), self.config["settings"])

    def model(self, device: str | torch.device = "cpu", *, task: AnyTask | None = None) -> Model:
        """The model with its weights in float32, however they are stored, in evaluation mode.

        `task` is what `task()` returned, for those who have called it already.
        """
        task = self.task() if task is None else task
        try:
            with empty_weights():
                model: Model = task.build()
        except (RuntimeError, TypeError, ConfigError) as error:
            raise CheckpointError(f"{self.path / CONFIG} describes no possible model ({error})") from error
        if self.config["architecture"] != type(model).__name__:
            raise CheckpointError(
                f"{self.path / CONFIG} says architecture = {self.config['architecture']!r}, but {task.name} is a task "
                f"for {type(model).__name__}"
            )
        try:
            fill(model, unpacked(load_file(self.path / WEIGHTS)))
        except (SafetensorError, CheckpointError) as error:
            raise CheckpointError(f"{self.path / WEIGHTS} does not hold this model: {error}") from error
        return model.to(device).eval()

    def _model_config(self) -> ModelConfig:
        try:
            return ModelConfig.from_dict(self.config["model"])
        except (ConfigError, TypeError) as error:
            raise CheckpointError(f"{self.path / CONFIG} describes no possible model: {error}") from error


def _model_in(path: Path) -> Path:
    """The model's folder: this one, or the one in this run's folder."""
    if not path.is_dir():
        raise CheckpointError(f"{path} is a file; a model is a folder" if path.exists() else f"there is no {path}")
    if (path / CONFIG).exists():
        return path
    if (path / "model" / CONFIG).exists():
        return path / "model"
    if (path / RECIPE).exists() or (path / "checkpoints").exists():
        raise CheckpointError(
            f"{path} is a training run that has not finished; it goes on with the clearhead train command that "
            "began it, and --resume"
        )
    raise CheckpointError(f"{path} holds no {CONFIG}; is this a model's folder?")


def _check_config_format(path: Path, config: dict[str, Any]) -> None:
    found = config.get("format")
    if found is None and ("model_type" in config or "architectures" in config):
        raise CheckpointError(
            f"{path} is a Hugging Face checkpoint; clearhead.from_huggingface({str(path)!r}) reads it"
        )
    check_format(path / CONFIG, found, FORMAT)
