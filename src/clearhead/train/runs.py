"""The run folder: opened for a new run or an old one, never at the cost of somebody else's files."""

from __future__ import annotations

import os
import shutil
import tomllib
from contextlib import ExitStack
from pathlib import Path

from clearhead.errors import CheckpointError, ConfigError
from clearhead.storage import TEMPORARY_MARK, atomic_file, lock_folder, temporary_path
from clearhead.train.recipe import Recipe, checked, to_toml

HEADER = "# A run of clearhead, format 1: the whole recipe, defaults included.\n"
FILES = (
    "recipe.toml",
    "report.txt",
    "task",
    "checkpoints",
    "metrics.jsonl",
    "speed.jsonl",
    "loss.png",
    "heads.jsonl",
    "heads.png",
    "tensorboard",
    "model",
)
# What may differ when a run goes on: the length of the run, and what is kept or shown of it.
CHANGEABLE = {"steps", "minutes", "keep", "patience", "tensorboard", "weights", "save_every", "heads_every"}


def open_run(where: Path, recipe: Recipe, held: ExitStack, *, resume: bool, overwrite: bool) -> Path | None:
    """Makes a folder ready, locked until `held` is closed. An old run that is to be overwritten is set aside: there."""
    inside, saved = _looked_into(where, resume), where / "recipe.toml"
    ours = saved.is_file() and saved.read_text(encoding="utf-8", errors="replace").startswith(HEADER)
    strange = [name for name in inside if not _of_a_run(name) or not (ours or name.startswith("."))]
    if strange and not (ours and resume):
        raise ConfigError(f"{where} holds something that no run wrote ({strange[0]}); choose another folder with --out")
    where.mkdir(parents=True, exist_ok=True)
    _lock(where, held)
    begun = "checkpoints" in inside or "model" in inside  # else it ended before its first checkpoint
    aside = None
    if begun and resume:
        _same_recipe(saved, recipe)
    elif begun and not overwrite:
        raise ConfigError(
            f"{where} holds a run already; --resume goes on with it, --overwrite starts anew, --out goes elsewhere"
        )
    elif inside and not resume:
        aside = temporary_path(where, "old")
        shutil.rmtree(aside, ignore_errors=True)
        where.rename(aside)
        where.mkdir()
        _lock(where, held)
    with atomic_file(saved) as fresh:
        fresh.write_text(HEADER + to_toml(recipe), encoding="utf-8")
    return aside


def put_back(where: Path, aside: Path | None) -> None:
    """The old run, in place of one that could not begin."""
    if aside is not None:
        shutil.rmtree(where)
        aside.rename(where)


def _looked_into(where: Path, resume: bool) -> list[str]:
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


def _of_a_run(name: str) -> bool:
    """Whether a run writes a file of this name, or while it is being written."""
    return name in FILES or (name.startswith(".") and name[1:].split(TEMPORARY_MARK)[0] in FILES)


def _same_recipe(saved: Path, recipe: Recipe) -> None:
    try:
        before = checked(tomllib.loads(saved.read_text(encoding="utf-8")), str(saved)).model_dump()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{saved} is damaged ({error}); start anew with --overwrite") from None
    now = recipe.model_dump()
    changed = [key for key in before if key not in ("train", "about", "licence") and before[key] != now[key]]
    changed += [
        f"train.{key}" for key, value in before["train"].items() if now["train"][key] != value and key not in CHANGEABLE
    ]
    if changed:
        raise ConfigError(
            f"{saved.parent} was begun with another {', '.join(changed)}; a run goes on exactly, or not at all: "
            f"restore {'it' if len(changed) == 1 else 'them'}, or start anew with --overwrite"
        )
