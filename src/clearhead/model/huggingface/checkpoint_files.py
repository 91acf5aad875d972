"""The files of a Hugging Face checkpoint: tensors are read one at a time, and written atomically."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Shaped
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from clearhead.errors import CheckpointError
from clearhead.storage import flush_tree, move_into_place, temporary_folder

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class CheckpointTensors:
    """The tensors of one checkpoint by name, from one file or several, read lazily."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[Path, Any, str]] = {}

    @classmethod
    @contextmanager
    def open(cls, folder: Path) -> Iterator[CheckpointTensors]:
        tensors = cls()
        with ExitStack() as stack:
            for path in _weight_files(folder):
                try:
                    file = stack.enter_context(safe_open(path, "pt"))
                except (SafetensorError, OSError, ValueError) as error:
                    raise CheckpointError(
                        f"{path} is not a whole safetensors file ({error}); copy or save it again"
                    ) from error
                tensors._add(path, file)
            yield tensors

    def _add(self, path: Path, file: Any) -> None:
        for stored in file.keys():  # noqa: SIM118 (not a dict)
            # The first BERT checkpoints still call a norm's weight and bias by the paper's letters.
            name = stored.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
            if name in self._entries:
                other = self._entries[name][0].name
                raise CheckpointError(f"{path} holds {name}, which {other} holds too; save the checkpoint again")
            self._entries[name] = (path, file, stored)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        _, file, stored = self._entries[name]
        return tuple(file.get_slice(stored).get_shape())

    def dtype(self, name: str) -> torch.dtype:
        path, file, stored = self._entries[name]
        dtype = file.get_slice(stored).get_dtype()
        if dtype not in DTYPES:
            raise CheckpointError(
                f"{path}: {name} is stored as {dtype}; only {', '.join(DTYPES)} can be read, so save the "
                "checkpoint without quantisation"
            )
        return DTYPES[dtype]

    def read(self, name: str) -> Shaped[Tensor, "..."]:
        _, file, stored = self._entries[name]
        tensor: Tensor = file.get_tensor(stored)
        return tensor


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


def write(folder: Path, settings: Mapping[str, Any], tensors: dict[str, Shaped[Tensor, "..."]]) -> None:
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
