"""Checkpoints: everything that is needed to resume a run exactly, as safetensors, written atomically.

A checkpoint is a folder named after its step: `state.json` (the position), the tensors (weights, their average, the
optimiser's moments), `checksums.json`. The plan of batches, the learning rate and the random numbers of a step follow
from the seed and the step's number, so the position is enough to restore them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from clearhead.errors import CheckpointError
from clearhead.storage import atomic_folder, check_format, temporary_path, verify_checksums
from clearhead.train.processes import Processes

FORMAT = 1


class Checkpoints:
    """The checkpoints of one run; keeps the newest `keep`, the best, and the newest from an interruption."""

    def __init__(self, folder: Path, keep: int, processes: Processes) -> None:
        self.folder, self.keep, self.processes = folder, keep, processes

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdecimal())

    def planned_steps(self) -> list[int]:
        """The steps whose checkpoint was planned by the recipe, not caused by an interruption."""
        return [step for step in self.steps() if self._read_state(step).get("planned")]

    def path(self, step: int) -> Path:
        return self.folder / f"{step:08d}"

    def save(self, step: int, tensors: dict[str, Tensor], position: dict[str, Any], best: int | None) -> None:
        """Writes a checkpoint, then removes old ones."""
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
            self._remove_old(best)
        self.processes.wait()

    def load(self, step: int, tensors: dict[str, Tensor] | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors and the position of a checkpoint, after checking every byte of it.

        Sharded checkpoints are read into `tensors`, which have the current sharding.
        """
        path = self.path(step)
        try:
            verify_checksums(path)
        except CheckpointError as error:
            others = [other for other in self.steps() if other < step]
            remedy = f"delete that folder to go on from step {others[-1]}" if others else "start anew with --overwrite"
            raise CheckpointError(f"{error}; {remedy}") from None
        position = self._read_state(step)
        check_format(path / "state.json", position.pop("format", None), FORMAT)
        if (path / "state.safetensors").is_file():
            return load_file(path / "state.safetensors"), position
        return self._load_shards(path, tensors), position

    def _read_state(self, step: int) -> dict[str, Any]:
        """The values of state.json; empty if the checkpoint is damaged."""
        try:
            state = json.loads((self.path(step) / "state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def _remove_old(self, best: int | None) -> None:
        steps = self.steps()
        needed = {*self.planned_steps()[-self.keep :], steps[-1], best}
        for step in steps:
            if step not in needed:
                path = self.path(step)
                # renamed first: after a kill no half-deleted folder has a valid name
                gone = temporary_path(path, "old")
                path.rename(gone)
                shutil.rmtree(gone)
        for parts in self.folder.glob(".*.parts"):  # left by a process that was killed while saving
            shutil.rmtree(parts)

    def _save_shards(self, step: int, tensors: dict[str, Tensor], state: str) -> None:
        """Every process writes its shards, through PyTorch's safetensors storage."""
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
            raise CheckpointError(
                f"{path} was written by several processes (train.shard); resume it with torchrun and as many processes"
            )
        load(tensors, storage_reader=HuggingFaceStorageReader(path=str(path)))
        return tensors
