"""What a function was given, as an operator of a compiled graph can take it: tensors and numbers, and back."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from clearhead.lens.capture.spelling import NONE, Spelled
from clearhead.lens.huggingface.arguments import Given

WAYS = ("sdpa", "eager", "flash", "flex")
OPTIONAL = ("mask", "bias", "sinks", "positions", "starts", "key_starts")


def spelled(got: Given) -> Spelled:
    """It runs while a graph is compiled, so it is plain."""
    tensors = [got.q.detach(), got.k.detach(), got.v.detach()]
    numbers = [WAYS.index(got.way), int(got.causal), NONE if got.window is None else got.window]
    floats = []
    for value in (got.scale, got.softcap):
        numbers.append(2 if isinstance(value, Tensor) else 0 if value is None else 1)
        if isinstance(value, Tensor):
            tensors.append(value.detach())
        elif value is not None:
            floats.append(float(value))
    for tensor in (got.mask, got.bias, got.sinks, got.positions, got.starts, got.key_starts):
        numbers.append(0 if tensor is None else 1)
        if tensor is not None:
            tensors.append(tensor.detach())
    return Spelled(tensors, numbers, floats)


def read(given: Spelled) -> Given:
    """The same as it was spelled."""
    tensors, numbers, floats = iter(given.tensors), iter(given.numbers), iter(given.floats)
    q, k, v = next(tensors), next(tensors), next(tensors)
    way, causal, window = WAYS[next(numbers)], bool(next(numbers)), next(numbers)
    kinds = (next(numbers), next(numbers))
    scale, softcap = (None if not kind else next(floats) if kind == 1 else next(tensors) for kind in kinds)
    optional: dict[str, Any] = {name: next(tensors) if next(numbers) else None for name in OPTIONAL}
    assert not isinstance(softcap, Tensor)
    return Given(
        way, q, k, v, scale=scale, causal=causal, softcap=softcap, window=None if window == NONE else window, **optional
    )
