"""Checkpoints: everything a run needs to go on exactly where it was, as safetensors, whole or not at all.

A checkpoint is a folder named after its step: `state.json` (the position), the tensors (weights, their average, the
optimiser's moments), `checksums.json`. The plan of batches, the learning rate and the random numbers of a step follow
from the seed and the step's number, so the position says all about them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from clearhead.errors import CheckpointError
from clearhead.storage import atomic_folder, check_format, temporary_path, verify_checksums
from clearhead.train.processes import Processes

FORMAT = 1
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # what AdamW remembers of each weight


class Checkpoints:
    """The checkpoints of one run: the newest `keep`, the best, and that of an interruption until the next."""

    def __init__(self, folder: Path, keep: int, processes: Processes) -> None:
        self.folder, self.keep, self.processes = folder, keep, processes

    def steps(self) -> list[int]:
        """The steps that have one, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdecimal())

    def planned(self) -> list[int]:
        """Those of them that a run without interruptions has as well."""
        return [step for step in self.steps() if self._state(step).get("planned")]

    def path(self, step: int) -> Path:
        return self.folder / f"{step:08d}"

    def save(self, step: int, tensors: dict[str, Tensor], position: dict[str, Any], best: int | None) -> None:
        """Writes one, then removes those that are neither new nor the best."""
        state = json.dumps({"format": FORMAT, **position}, indent=1)
        if any(isinstance(tensor, DTensor) for tensor in tensors.values()):
            self._save_shards(step, tensors, state)
        elif self.processes.first:
            self.folder.mkdir(parents=True, exist_ok=True)
            with atomic_folder(self.path(step), needs=sum(tensor.nbytes for tensor in tensors.values())) as fresh:
                save_file(
                    {name: tensor.detach().contiguous() for name, tensor in tensors.items()},
                    fresh / "state.safetensors",
                )
                (fresh / "state.json").write_text(state, encoding="utf-8")
        if self.processes.first:
            self._tidy(best)
        self.processes.wait()

    def load(self, step: int, tensors: dict[str, Tensor] | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors and the position of a checkpoint, after checking every byte of it.

        Shards are read into `tensors`, which say how they are spread now.
        """
        path = self.path(step)
        try:
            verify_checksums(path)
        except CheckpointError as error:
            others = [other for other in self.steps() if other < step]
            remedy = f"delete that folder to go on from step {others[-1]}" if others else "start anew with --overwrite"
            raise CheckpointError(f"{error}; {remedy}") from None
        position = self._state(step)
        check_format(path / "state.json", position.pop("format", None), FORMAT)
        if (path / "state.safetensors").is_file():
            return load_file(path / "state.safetensors"), position
        return self._load_shards(path, tensors), position

    def _state(self, step: int) -> dict[str, Any]:
        """What was written beside the tensors; of a damaged checkpoint, nothing."""
        try:
            state = json.loads((self.path(step) / "state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def _tidy(self, best: int | None) -> None:
        steps = self.steps()
        kept = {*self.planned()[-self.keep :], steps[-1], best}
        for step in steps:
            if step not in kept:
                path = self.path(step)
                gone = temporary_path(path, "old")  # whole or not there: a kill may come while it goes
                path.rename(gone)
                shutil.rmtree(gone)
        for parts in self.folder.glob(".*.parts"):  # of a save that was killed
            shutil.rmtree(parts)

    def _save_shards(self, step: int, tensors: dict[str, Tensor], state: str) -> None:
        """Every process writes its part, through PyTorch's own safetensors storage."""
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        parts = self.folder / f".{self.path(step).name}.parts"
        if self.processes.first:
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(parts, ignore_errors=True)
            parts.mkdir()
        self.processes.wait()
        save(tensors, storage_writer=HuggingFaceStorageWriter(path=str(parts), save_distributed=True))
        self.processes.wait()
        if self.processes.first:
            with atomic_folder(self.path(step)) as fresh:
                for file in parts.iterdir():
                    file.rename(fresh / file.name)
                (fresh / "state.json").write_text(state, encoding="utf-8")
            parts.rmdir()

    def _load_shards(self, path: Path, tensors: dict[str, Tensor] | None) -> dict[str, Tensor]:
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
        from torch.distributed.checkpoint.state_dict_loader import load

        if tensors is None:
            raise CheckpointError(f"{path} was written by several processes (train.shard); go on with several")
        load(tensors, storage_reader=HuggingFaceStorageReader(path=str(path)))
        return tensors


def gathered(model: nn.Module, optimizer: torch.optim.Optimizer, average: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights, their average and the optimiser's moments in one flat dict."""
    tensors = {f"model.{name}": parameter.detach() for name, parameter in model.named_parameters()}
    tensors |= {f"average.{name}": tensor for name, tensor in average.items()}
    for name, parameter in model.named_parameters():
        for moment, value in optimizer.state[parameter].items():
            tensors[f"optimizer.{name}.{moment}"] = value
    return tensors


@torch.no_grad()
def restore(
    tensors: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer, average: dict[str, Tensor]
) -> None:
    """Puts them back where they came from."""
    for name, parameter in model.named_parameters():
        parameter.copy_(_found(tensors, f"model.{name}", parameter))
        if name in average:
            average[name].copy_(_found(tensors, f"average.{name}", parameter))
        state = {moment: tensors.get(f"optimizer.{name}.{moment}") for moment in MOMENTS}
        optimizer.state[parameter] = {
            moment: value.to(parameter.device) for moment, value in state.items() if value is not None
        }


def averaged(tensors: Callable[[int], dict[str, Tensor]], steps: list[int]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints."""
    total: dict[str, Tensor] = {}
    for step in steps:
        for name, tensor in tensors(step).items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: tensor / len(steps) for name, tensor in total.items()}


def _found(tensors: dict[str, Tensor], name: str, like: Tensor) -> Tensor:
    tensor = tensors.get(name)
    if tensor is None or tensor.shape != like.shape:
        got = "nothing" if tensor is None else tuple(tensor.shape)
        raise CheckpointError(
            f"the checkpoint's {name} is {got}, the model's {tuple(like.shape)}; was the recipe changed?"
        )
    return tensor
