"""The model folder: raw text in, raw text out, with nothing else at hand; written whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.overrides import TorchFunctionMode

from clearhead.errors import CheckpointError, ConfigError, DiskFullError
from clearhead.model import Decoder, Encoder, EncoderDecoder, ModelConfig
from clearhead.model.packing import fill, packed, unpacked
from clearhead.tasks import TASKS
from clearhead.tasks.task import Task

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
CONFIG, WEIGHTS, METRICS, CARD, RECIPE = "config.json", "model.safetensors", "metrics.json", "README.md", "recipe.toml"
CHECKSUMS = "checksums.json"
MARK = ".tmp-clearhead-"  # in the names of folders that are being written
FIELDS = {"task": str, "architecture": str, "model": dict, "settings": dict, "weights": str}


def write(
    folder: str | Path,
    *,
    task: Task,
    model: nn.Module,
    metrics: dict[str, Any],
    card: str,
    recipe: str | None = None,
    weights: str = "float32",
) -> None:
    """Writes a model folder: all of it or nothing. `weights` is how they are stored: float32, bfloat16 or int8."""
    if not isinstance(model, task.architecture):
        kind = task.architecture.__name__
        raise ConfigError(f"{task.name} is a task for the bare {kind}, not for a {type(model).__name__}")
    tensors = packed(model, weights)
    config = {
        "format": FORMAT,
        "clearhead": sys.modules["clearhead"].__version__,
        "task": task.name,
        "architecture": task.architecture.__name__,
        "model": task.config.to_dict(),
        "weights": weights,
        "settings": task.settings,
    }
    with fresh_folder(folder, needs=sum(tensor.nbytes for tensor in tensors.values())) as fresh:
        task.save(fresh)
        _write_json(fresh / CONFIG, config)
        save_file(tensors, fresh / WEIGHTS, metadata={"format": "pt"})
        _write_json(fresh / METRICS, metrics)
        (fresh / CARD).write_text(card, encoding="utf-8")
        if recipe is not None:
            (fresh / RECIPE).write_text(recipe, encoding="utf-8")


class _NoRandomNumbers(TorchFunctionMode):
    """Weights that are about to be read need no first values; on the meta device these would even cost seconds."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__module__", "") == "torch.nn.init" or function in (
            torch.Tensor.normal_,
            torch.Tensor.uniform_,
        ):
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


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
        config = _read_json(path / CONFIG)
        _check_format(path, config)
        try:
            listed = verify(path)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; copy the folder again") from None
        for name in (CONFIG, WEIGHTS, METRICS):
            if name not in listed:
                raise CheckpointError(f"{path / CHECKSUMS} does not list {name}; copy the folder again")
        for name, kind in FIELDS.items():
            if not isinstance(config.get(name), kind):
                raise CheckpointError(f"{path / CONFIG} says {name} = {config.get(name)!r}, which makes no sense")
        return cls(path, config, _read_json(path / METRICS))

    def task(self) -> Task:
        """What the model is for, with its tokenizers."""
        return self._kind().load(self.path, self._model_config(), self.config["settings"])

    def model(self, device: str | torch.device = "cpu") -> Encoder | Decoder | EncoderDecoder:
        """The model with its weights in float32, however they are stored, in evaluation mode."""
        kind, config = self._kind().architecture, self._model_config()
        try:
            with torch.device("meta"), _NoRandomNumbers():
                model = kind(config)
        except (RuntimeError, TypeError) as error:
            raise CheckpointError(f"{self.path / CONFIG} describes no possible model ({error})") from error
        try:
            fill(model, unpacked(load_file(self.path / WEIGHTS)))
        except (SafetensorError, CheckpointError) as error:
            raise CheckpointError(f"{self.path / WEIGHTS} does not hold this model: {error}") from error
        return model.to(device).eval()

    def _kind(self) -> type[Task]:
        name, architecture = self.config["task"], self.config["architecture"]
        if name not in TASKS:
            raise CheckpointError(
                f"{self.path} is a model for the task {name!r}; this clearhead knows {', '.join(TASKS)}, so upgrade it"
            )
        if architecture != TASKS[name].architecture.__name__:
            raise CheckpointError(
                f"{self.path / CONFIG} says architecture = {architecture!r}, but {name} is a task for "
                f"{TASKS[name].architecture.__name__}"
            )
        return TASKS[name]

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


def _check_format(path: Path, config: dict[str, Any]) -> None:
    found = config.get("format")
    if found is None and ("model_type" in config or "architectures" in config):
        raise CheckpointError(
            f"{path} is a Hugging Face checkpoint; clearhead.from_huggingface({str(path)!r}) reads it"
        )
    if type(found) is int and found > FORMAT:
        raise CheckpointError(
            f"{path} was written by a newer clearhead (format {found}; this one reads {FORMAT}); upgrade"
        )
    if type(found) is not int or found != FORMAT:
        raise CheckpointError(f"{path / CONFIG} says format = {found!r}; this clearhead reads {FORMAT}")


@contextmanager
def fresh_folder(path: str | Path, *, needs: int | None = None) -> Iterator[Path]:
    """A temporary folder beside `path` that becomes `path` at the end of the block.

    By then its files are listed in checksums.json and are on the disk. Whatever happens before (an error, a kill,
    a power cut), there is no `path`, or an empty one as before. What dead runs left beside it is removed.
    `needs`, in bytes, is for the error message of a full disk.
    """
    path, final = Path(path), Path(path).resolve()
    _refuse_taken(final, path)
    final.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(final.parent)
    temporary = final.with_name(f".{final.name}{MARK}{secrets.token_hex(4)}")
    temporary.mkdir()
    lock = locked(temporary)
    try:
        yield temporary
        _at("written")
        files = _checksums(temporary)
        _write_json(temporary / CHECKSUMS, {"format": FORMAT, "files": files})
        for name in files:  # safetensors makes files that only their owner may read
            (temporary / name).chmod((temporary / CHECKSUMS).stat().st_mode)
        _at("before fsync")
        for inside in (*temporary.rglob("*"), temporary):
            _flush(inside)
        _at("before rename")
        _refuse_taken(final, path)
        temporary.rename(final)
        _at("after rename")
        _flush(final.parent)
    except (OSError, SafetensorError) as error:
        if not _is_full(error):
            raise
        needed = _size(needs) if needs else f"more than {_size(_bytes_in(temporary))}"
        shutil.rmtree(temporary, ignore_errors=True)
        free = _size(shutil.disk_usage(final.parent).free)
        raise DiskFullError(
            f"the disk is full: {path} needs {needed}, and {free} are free; make room, or name another place"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _refuse_taken(final: Path, path: Path) -> None:
    if final.exists() and not (final.is_dir() and not any(final.iterdir())):
        raise CheckpointError(f"{path} exists already; name another folder, or remove it first")


def verify(path: str | Path) -> set[str]:
    """Checks every file that a folder's checksums.json lists, and returns their names."""
    path = Path(path)
    if not (path / CHECKSUMS).is_file():
        raise CheckpointError(f"{path / CHECKSUMS} is missing, so nothing says that {path} is whole")
    content = _read_json(path / CHECKSUMS)
    files = content.get("files")
    if content.get("format") != FORMAT or not isinstance(files, dict):
        raise CheckpointError(f"{path / CHECKSUMS} is not a list of checksums in format {FORMAT}")
    for name, checksum in files.items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise CheckpointError(f"{path / CHECKSUMS} lists {name!r}, which is not in this folder")
        if not (path / name).is_file():
            raise CheckpointError(f"{path / name} is missing, though {CHECKSUMS} lists it")
        if _checksum(path / name) != checksum:
            raise CheckpointError(f"{path / name} is not what was written: its checksum is not the one in {CHECKSUMS}")
    return set(files)


def _checksums(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): _checksum(path) for path in files}


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remove_leftovers(parent: Path) -> None:
    """Removes what runs that were killed left in this folder. One that is alive holds a lock on its own."""
    for leftover in parent.glob(f".*{MARK}*"):
        try:
            lock = locked(leftover)
        except BlockingIOError:
            continue
        shutil.rmtree(leftover, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def locked(folder: Path) -> int | None:
    """A lock on a folder for as long as this process lives; None where the system has no such locks."""
    if fcntl is None:
        return None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:  # some network file systems
        os.close(descriptor)
        return None
    return descriptor


def _flush(path: Path) -> None:
    """Waits until a file, or a folder's list of names, is on the disk."""
    if os.name == "nt":
        return  # no folder can be flushed there, and a file only by who may write it
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_full(error: Exception) -> bool:
    """Safetensors tells it in words only."""
    codes = (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "errno", None) in codes or any(f"(os error {code})" in str(error) for code in codes)


def _bytes_in(folder: Path) -> int:
    total = 0
    with suppress(OSError):
        total = sum(path.stat().st_size for path in folder.rglob("*"))
    return total


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not readable JSON ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, where names and values are wanted")
    return content


_passed: Counter[str] = Counter()


def _at(point: str) -> None:
    """For tests: dies here as in a power cut if CLEARHEAD_KILL_AT is "POINT", or "POINT:n" the n-th time."""
    wanted, _, times = os.environ.get("CLEARHEAD_KILL_AT", "").partition(":")
    if point == wanted:
        _passed[point] += 1
        if _passed[point] == int(times or 1):
            os.kill(os.getpid(), signal.SIGKILL)
