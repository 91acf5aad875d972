"""The run folder, created or opened for resuming, and the checkpoints in it; files that no run wrote stay as they are.

A checkpoint has everything that is needed to resume a run exactly. It is a folder named after its step: `state.json`
(the position), the tensors (weights, their average, the optimizer's moments), `checksums.json`. The plan of batches,
the learning rate and the random numbers of a step follow from the seed and the step's number, so the position is enough
to restore them.
"""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from clearhead.errors import CheckpointError, ConfigError
from clearhead.storage import (
    TEMPORARY_MARK,
    atomic_file,
    atomic_folder,
    check_format,
    lock_folder,
    read_json,
    restore_replaced,
    temporary_path,
    verify_checksums,
)
from clearhead.tasks.settings import Section
from clearhead.train.fit import fill_from
from clearhead.train.processes import Processes
from clearhead.train.recipe import CHANGEABLE, Recipe, check_recipe, to_toml

FORMAT = 1  # of a checkpoint
HEADER = "# A run of clearhead, format 1: the whole recipe, defaults included.\n"
FILES = {
    *("recipe.toml", "report.txt", "start.json", "metrics.jsonl", "speed.jsonl", "loss.png", "tensorboard"),
    *("heads.jsonl", "heads.png", "roles.png", "task", "checkpoints", "model", "samples"),
}
BEGUN = {"checkpoints", "model"}  # a folder with one of these has a run that took its first steps


@contextmanager
def begin_run(where: Path, recipe: Recipe, held: ExitStack, *, resume: bool, overwrite: bool) -> Iterator[None]:
    """Context manager: prepares a run folder, and locks it until `held` is closed.

    After an error inside it, a new folder is removed, and an old run that was to be overwritten comes back.
    """
    made = not where.exists()
    restore_replaced(where / "model")
    inside, saved = _list_folder(where, resume), where / "recipe.toml"
    ours = saved.is_file() and saved.read_text(encoding="utf-8", errors="replace").startswith(HEADER)
    strange = [name for name in inside if not _belongs_to_run(name) or not (ours or name.startswith("."))]
    if strange and not (ours and resume):
        raise ConfigError(
            f"{where} contains {strange[0]}, which is not from a training run; choose another folder with --out"
        )
    where.mkdir(parents=True, exist_ok=True)
    _lock(where, held)
    begun = not BEGUN.isdisjoint(inside)  # else it ended before its first checkpoint
    aside = None
    if begun and resume:
        _refuse_changes(saved, recipe)
    elif begun and not overwrite:
        raise ConfigError(
            f"{where} already holds a run; --resume continues it, --overwrite replaces it, --out chooses another folder"
        )
    elif inside:  # nothing was trained yet, so nothing is resumed: a new recipe must not meet old tokenizers
        aside = temporary_path(where, "old")
        shutil.rmtree(aside, ignore_errors=True)
        where.rename(aside)
        where.mkdir()
        _lock(where, held)
    if not begun or overwrite:  # a run that is resumed keeps its files until all is known to be right
        save_recipe(where, recipe)
    try:
        yield
    except BaseException:
        if made or aside is not None:
            shutil.rmtree(where)
        if aside is not None:
            aside.rename(where)
        raise
    if aside is not None:
        shutil.rmtree(aside)


def save_recipe(where: Path, recipe: Recipe) -> None:
    """Writes the whole recipe into the run folder; its first line marks the folder as a run."""
    with atomic_file(where / "recipe.toml") as fresh:
        fresh.write_text(HEADER + to_toml(recipe), encoding="utf-8")


def fill_from_saved(where: Path, recipe: Recipe) -> Recipe:
    """Fills what a recipe leaves open with what was chosen for it when the run was started."""
    saved, begun = where / "recipe.toml", any((where / name).exists() for name in BEGUN)
    return fill_from(recipe, _read_saved(saved)) if begun and saved.is_file() else recipe


def _list_folder(where: Path, resume: bool) -> list[str]:
    if where.exists() and not where.is_dir():
        raise ConfigError(f"{where} is a file; choose another folder with --out")
    if where.is_dir():
        return sorted(path.name for path in where.iterdir())
    if resume:
        raise ConfigError(f"there is no run in {where} to go on with; leave --resume out to begin one")
    return []


def _lock(where: Path, held: ExitStack) -> None:
    try:
        descriptor = lock_folder(where)
    except BlockingIOError:
        raise ConfigError(f"another process is training in {where}; wait for it, or choose another --out") from None
    if descriptor is not None:
        held.callback(os.close, descriptor)


def _belongs_to_run(name: str) -> bool:
    """Whether a run writes a file of this name, temporary names included."""
    return name in FILES or (
        name.startswith(".") and name[1:].removesuffix(".replaced").split(TEMPORARY_MARK)[0] in FILES
    )


def _read_saved(saved: Path) -> Recipe:
    try:
        return check_recipe(tomllib.loads(saved.read_text(encoding="utf-8")), str(saved))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{saved} is damaged ({error}); start anew with --overwrite") from None


def _refuse_changes(saved: Path, recipe: Recipe) -> None:
    """Raises ConfigError if the recipe differs from the saved one in a setting that changes what is learned."""
    changed = []
    for name, value in _read_saved(saved):
        other = getattr(recipe, name, None)
        if name in ("about", "licence") or value == other or (isinstance(value, Section) and not value.learned):
            continue
        if not isinstance(value, Section) or not isinstance(other, Section):
            changed.append(name)
            continue
        free = {"train": CHANGEABLE, "data": {"test"}}.get(name, set())
        changed += [f"{name}.{key}" for key, old in value if getattr(other, key, None) != old and key not in free]
    if changed:
        raise ConfigError(
            f"{saved.parent} was started with another {', '.join(changed)}, which must not change on resume; "
            f"restore {'it' if len(changed) == 1 else 'them'}, or start again with --overwrite"
        )


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

    def load(self, step: int, tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
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
            return read_json(self.path(step) / "state.json")
        except CheckpointError:
            return {}

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

    def _load_shards(self, path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
        from torch.distributed.checkpoint.state_dict_loader import load

        load(tensors, storage_reader=HuggingFaceStorageReader(path=str(path)))
        return tensors
