"""Adapter folders: a model folder that holds only what LoRA trained, and the base model that it is added to.

`config.json` has the key `adapter`: rank, scale, and the base model by its path and the checksums of its files.
`adapter.safetensors` holds the low-rank matrices and the weights that were trained in full, such as an output head.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Shaped
from safetensors.torch import load_file
from torch import Tensor

import clearhead.shipped as shipped
from clearhead.errors import CheckpointError, ConfigError
from clearhead.model import Model
from clearhead.model.huggingface import from_huggingface
from clearhead.model.lora import merge_tensors
from clearhead.model.weight_storage import unpack_weights
from clearhead.storage import file_checksum, read_json

ADAPTER, CONFIG, WEIGHTS, SHARDS = "adapter.safetensors", "config.json", "model.safetensors", "model-*.safetensors"

Tensors = dict[str, Shaped[Tensor, "..."]]


@dataclass(frozen=True)
class Adapter:
    """What `config.json` says about an adapter: its sizes, and which base model it belongs to."""

    rank: int
    alpha: float
    on: list[str]  # "attention", "feedforward"
    base: str  # the base model's folder, or shipped:NAME
    relative: str | None  # the same folder, relative to the adapter's
    files: dict[str, str]  # SHA-256 of the base model's config.json and weights

    @property
    def scale(self) -> float:
        """The factor of what the low-rank matrices add."""
        return self.alpha / self.rank

    @classmethod
    def from_dict(cls, path: Path, values: Any) -> Adapter:
        """From the `adapter` in the config.json of a folder."""
        kinds: dict[str, Any] = {"rank": int, "alpha": (int, float), "on": list, "base": str, "files": dict}
        whole = isinstance(values, dict) and all(isinstance(values.get(key), kind) for key, kind in kinds.items())
        if not whole or values["rank"] < 1 or not values["files"]:
            raise CheckpointError(f"{path / CONFIG} does not say which model it adapts; copy the folder again")
        return cls(**{key: values.get(key) for key in (*kinds, "relative")})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def find_base(self, folder: Path, base: str | Path | None = None) -> Path:
        """The folder of the base model: `base`, or where it was in training; its checksums must be the same."""
        changed = None
        if base is not None and not Path(base).is_dir():
            raise ConfigError(f"there is no folder {base}")
        for candidate in self._list_places(folder) if base is None else [enter_run(Path(base))]:
            if not (candidate / CONFIG).is_file():
                continue
            if (problem := self.find_difference(candidate)) is None:
                return candidate
            changed = f"{candidate} is not the model that {folder} was trained with: {problem}"
        remedy = (
            f"name that model's folder by --base FOLDER, or merge: clearhead merge {folder} --base FOLDER --out NEW"
        )
        if changed is not None:
            raise CheckpointError(f"{changed}; {remedy}")
        raise CheckpointError(
            f"{folder} is an adapter of the model in {base or self.base}, which is not there; {remedy}"
        )

    def find_difference(self, base: Path) -> str | None:
        """The first file of a folder that is not as it was when the adapter was trained; None if all are."""
        for name, checksum in self.files.items():
            if Path(name).name != name or not (base / name).is_file():
                return f"it has no {name}"
            if file_checksum(base / name) != checksum:
                return f"{name} has another checksum"
        return None

    def _list_places(self, folder: Path) -> list[Path]:
        """Where the base model may be: a shipped model, beside the adapter as in training, or where it was."""
        if self.base.startswith(shipped.PREFIX):
            model = shipped.model(self.base.removeprefix(shipped.PREFIX))
            return [] if model is None else [model]
        places = [] if self.relative is None else [Path(os.path.normpath(folder.resolve() / self.relative))]
        return [*places, Path(self.base)]


def enter_run(folder: Path) -> Path:
    """The model's folder, where a run's folder was given."""
    return folder / "model" if not (folder / CONFIG).exists() and (folder / "model").is_dir() else folder


def describe_base(base: Path, folder: Path, *, rank: int, alpha: float, on: list[str]) -> Adapter:
    """The adapter of a base model that will be stored in `folder`."""
    base = base.resolve()
    files = {name: file_checksum(base / name) for name in [CONFIG, *_weight_files(base)]}
    if shipped.model(base.name) is not None and shipped.model(base.name) == base:
        return Adapter(rank, alpha, on, f"{shipped.PREFIX}{base.name}", None, files)
    try:
        relative = os.path.relpath(base, folder.resolve())
    except ValueError:  # on another drive of Windows
        relative = None
    return Adapter(rank, alpha, on, str(base), relative, files)


def read_merged(
    folder: Path, adapter: Adapter, base: str | Path | None, read_own: Callable[[Path], Mapping[str, Tensor]]
) -> Tensors:
    """All tensors of an adapted model by name, the adapter merged into the weights of its base.

    `read_own` reads the tensors of a model folder of ours; Hugging Face checkpoints are read here.
    """
    base_folder = adapter.find_base(folder, base)
    foreign = "model_type" in read_json(base_folder / CONFIG)
    tensors = read_huggingface(base_folder).state_dict() if foreign else read_own(base_folder)
    return merge_tensors(tensors, unpack_weights(load_file(folder / ADAPTER)), adapter.scale)


def read_huggingface(folder: Path) -> Model:
    """A Hugging Face checkpoint in float32, without warnings about heads of other tasks: training says what it took."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return from_huggingface(folder).float()


def _weight_files(base: Path) -> list[str]:
    for name in (ADAPTER, WEIGHTS):
        if (base / name).is_file():
            return [name]
    return sorted(path.name for path in base.glob(SHARDS))
