"""Fields of the JSON header of a record file, and its tensors: read with their types, ranges and shapes checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor

from clearhead.attention.masks import LARGEST
from clearhead.errors import RecordError

Store = Callable[[Tensor], int]  # puts a tensor into the file and returns its number
Fetch = Callable[[Any], Tensor]  # the inverse


def read_field(given: Any, name: str, kind: type[Any]) -> Any:
    """A value of a JSON object, checked for its type."""
    if not isinstance(given, dict) or not isinstance(given.get(name), kind):
        got = given.get(name) if isinstance(given, dict) else given
        raise RecordError(f"{name} must be a {kind.__name__}, got {got!r:.60}")
    return given[name]


def read_integer(given: Any, name: str) -> int:
    """An integer of a JSON object, within limits."""
    number = read_field(given, name, int)
    if isinstance(number, bool) or abs(number) > LARGEST:
        raise RecordError(f"{name} is {number!r:.60}, which is invalid")
    return int(number)


def read_numbers(given: dict[str, Any], name: str, count: int) -> tuple[int, ...]:
    """A list of so many integers of a JSON object, none of them negative."""
    values = read_field(given, name, list)
    if len(values) != count or not all(type(value) is int and 0 <= value < 2**40 for value in values):
        raise RecordError(f"{name} must be {count} numbers, got {values!r:.60}")
    return tuple(values)


def check_tensor(
    tensor: Shaped[Tensor, "..."], axes: str, sizes: dict[str, int], name: str, whole_numbers: bool
) -> Shaped[Tensor, "..."]:
    """The tensor, if its dtype and shape agree with those read before."""
    wanted = (torch.int32, torch.int64) if whole_numbers else (torch.float32, torch.float64)
    names = axes.split()
    fits = tensor.dtype in wanted and tensor.ndim == len(names)
    for axis, size in zip(names, tensor.shape, strict=False):
        fits = fits and (axis == "any" or sizes.setdefault(axis, size) == size)
    if not fits:
        raise RecordError(
            f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)}, which does not match the record's other tensors"
        )
    return tensor
