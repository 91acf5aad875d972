"""The exceptions that clearhead raises.

ClearheadError
├── ShapeError         sizes that do not fit together
├── DtypeError         dtypes that do not fit together
├── DeviceError        tensors on different devices
├── MaskError          something that is not a mask where one is needed
├── BackendError       an unknown backend, or one that cannot do what was asked
├── ConfigError        invalid settings, options or arguments
├── CheckpointError    a model folder or checkpoint that cannot be read or written
│   └── DiskFullError  no room for what is being written
├── LensError          a layer, head or measure that is not there, or a model that cannot be watched
├── RecordError        a record that cannot be read, or does not hold what it is asked for
├── DataError          a file of examples with something wrong in it
├── DecodeError        invalid decoding options, or scores of a model that are NaN or infinite
├── TrainingError      a training run that cannot go on
└── PackageError       a package that is needed and not installed
"""

import importlib
from typing import Any


class ClearheadError(Exception):
    """Base class of all exceptions here; each subclass also inherits the matching built-in, such as ValueError."""


class ShapeError(ClearheadError, ValueError):
    pass


class DtypeError(ClearheadError, TypeError):
    pass


class DeviceError(ClearheadError, ValueError):
    pass


class MaskError(ClearheadError, TypeError):
    pass


class BackendError(ClearheadError, ValueError):
    pass


class ConfigError(ClearheadError, ValueError):
    pass


class CheckpointError(ClearheadError, ValueError):
    pass


class DiskFullError(CheckpointError):
    pass


class DecodeError(ClearheadError, ValueError):
    pass


class TrainingError(ClearheadError, RuntimeError):
    pass


class DataError(ClearheadError, ValueError):
    pass


class LensError(ClearheadError, ValueError):
    pass


class RecordError(ClearheadError, ValueError):
    pass


class PackageError(ClearheadError, ImportError):
    pass


def out_of_memory(error: BaseException) -> bool:
    """Whether there was no room; PyTorch has a class of its own for GPUs only."""
    phrases = ("out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in phrases)
    )


def import_extra(module: str, purpose: str, extra: str, *, package: str = "") -> Any:
    """A module that only an extra of clearhead installs; without it a PackageError that says what needs it.

    `package` is its name on PyPI, where that is another one.
    """
    name = module.split(".")[0]
    try:
        importlib.import_module(name)
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != name:
            raise
        missing = f"{purpose} needs the package {package or name}, which is not installed"
        raise PackageError(f"{missing}; pip install 'clearhead[{extra}]'") from None
