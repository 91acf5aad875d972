"""Who has switched off which heads: several may, nested or in different threads, and leave in any order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool
from torch import Tensor, nn

_lock = threading.RLock()
_muted: WeakKeyDictionary[nn.Module, list[Tensor]] = WeakKeyDictionary()


@contextmanager
def muting(
    heads: Mapping[nn.Module, Bool[Tensor, " heads"]], put: Callable[[nn.Module, Tensor | None], None]
) -> Iterator[None]:
    """Within it `put` has told each of these modules which heads are off, those of others included; None at the end."""
    with _lock:
        for module, chosen in heads.items():
            _muted.setdefault(module, []).append(chosen)
            put(module, _all(module))
    try:
        yield
    finally:
        with _lock:
            for module, chosen in heads.items():
                _muted[module] = [one for one in _muted[module] if one is not chosen]
                put(module, _all(module))


def _all(module: nn.Module) -> Tensor | None:
    several = _muted[module]
    if not several:
        return None
    device = next((one.device for one in module.parameters()), torch.device("cpu"))
    return reduce(torch.logical_or, several).to(device)
