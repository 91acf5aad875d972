"""The device of a model, and models whose weights have no memory yet (meta device)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from clearhead.errors import ConfigError


def resolve_device(device: str, local: int = 0) -> torch.device:
    """The device of this name; `auto` is a GPU if there is one. A device that does not exist is refused.

    `local` is which GPU an unnumbered "cuda" means.

    >>> resolve_device("cpu")
    device(type='cpu')
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        resolved = torch.device(device)
    except RuntimeError:
        raise ConfigError(f"{device!r} is no device; choose auto, cpu or cuda") from None
    usable = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if (resolved.index or 0) >= usable.get(resolved.type, 1):
        raise ConfigError(f"{device} was asked for, but PyTorch can use no such device here; choose auto or cpu")
    return torch.device("cuda", local) if resolved.type == "cuda" and resolved.index is None else resolved


@contextmanager
def empty_weights() -> Iterator[None]:
    """Context manager: models built within it are on the meta device, with shapes but without values.

    >>> with empty_weights():
    ...     torch.nn.Linear(1000, 1000).weight.device
    device(type='meta')
    """
    with torch.device("meta"), _SkipInitialisation():
        yield


class _SkipInitialisation(TorchFunctionMode):
    """Skips random initialisation, which has no effect on the meta device but would cost seconds."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        draws = getattr(function, "__module__", "") == "torch.nn.init"
        if draws or function in (torch.Tensor.normal_, torch.Tensor.uniform_):
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)
