"""What an attention sees, spelled as tensors and numbers, and read again: all that an operator can be given."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor

from clearhead.attention import Seen
from clearhead.attention import biases as bias_kinds
from clearhead.attention import mask_kinds as kinds
from clearhead.attention.biases import Bias
from clearhead.attention.masks import Mask
from clearhead.errors import LensError

NONE = -(2**40)  # a number that stands for None
BAND, PREFIX, PADDING, DOCUMENTS, DENSE, BOTH, EITHER = range(1, 8)
ALIBI, RELATIVE, FULL = range(1, 4)
CLIPPED, T5 = range(2)


class Spelled(NamedTuple):
    tensors: list[Tensor]
    numbers: list[int]
    floats: list[float]


def spelled(seen: Seen) -> Spelled:
    """Everything but the cache. It runs while a graph is compiled, so it is plain to a fault."""
    tensors, numbers, floats = [seen.q.detach(), seen.k.detach(), seen.v.detach()], [int(seen.cross)], []
    for value in (seen.scale, seen.softcap):
        if isinstance(value, Tensor):
            numbers.append(2)
            tensors.append(value.detach())
        elif value is None:
            numbers.append(0)
        else:
            numbers.append(1)
            floats.append(float(value))
    for tensor in (seen.sinks, seen.logsumexp):
        numbers.append(0 if tensor is None else 1)
        if tensor is not None:
            tensors.append(tensor.detach())
    if seen.mask is None:
        numbers.append(0)
    else:
        _spell_mask(seen.mask, tensors, numbers)
    if seen.bias is None:
        numbers.append(0)
    else:
        _spell_bias(seen.bias, tensors, numbers)
    return Spelled(tensors, numbers, floats)


def read(given: Spelled) -> Seen:
    """The same as it was spelled."""
    tensors, numbers, floats = iter(given.tensors), iter(given.numbers), iter(given.floats)
    q, k, v, cross = next(tensors), next(tensors), next(tensors), bool(next(numbers))
    options: list[Any] = []
    for _ in range(2):
        kind = next(numbers)
        options.append(next(tensors) if kind == 2 else next(floats) if kind else None)
    for _ in range(2):
        options.append(next(tensors) if next(numbers) else None)
    scale, softcap, sinks, logsumexp = options
    mask = _read_mask(tensors, numbers)
    bias = _read_bias(tensors, numbers)
    return Seen(q, k, v, mask, scale, bias, softcap, sinks, logsumexp, cross=cross)


def _spell_mask(mask: Mask, tensors: list[Tensor], numbers: list[int]) -> None:
    if isinstance(mask, kinds.Band):
        numbers.append(BAND)
        for value in (mask.left, mask.right, mask.offset):
            numbers.append(NONE if value is None else value)
    elif isinstance(mask, kinds.Prefix):
        numbers.append(PREFIX)
        tensors.append(mask.lengths)
    elif isinstance(mask, kinds.Padding):
        numbers.extend([PADDING, int(mask.side == "left"), int(mask.hide_queries)])
        tensors.append(mask.lengths)
    elif isinstance(mask, kinds.Documents):
        numbers.extend([DOCUMENTS, int(mask.query_ids is not None)])
        tensors.extend(mask.tensors())
    elif isinstance(mask, kinds.Dense):
        numbers.append(DENSE)
        tensors.append(mask.seen)
    elif isinstance(mask, (kinds.Both, kinds.Either)):
        numbers.extend([BOTH if isinstance(mask, kinds.Both) else EITHER, len(mask.masks)])
        for part in mask.masks:
            _spell_mask(part, tensors, numbers)
    else:
        raise LensError(f"a compiled model cannot be watched with a mask of your own kind, {type(mask).__name__}")


def _read_mask(tensors: Iterator[Tensor], numbers: Iterator[int]) -> Mask | None:
    kind = next(numbers)
    if kind == BAND:
        left, right, offset = (None if (value := next(numbers)) == NONE else value for _ in range(3))
        return kinds.Band(left, right, offset)
    if kind == PREFIX:
        return kinds.Prefix(next(tensors))
    if kind == PADDING:
        return kinds.Padding(next(tensors), "left" if next(numbers) else "right", bool(next(numbers)))
    if kind == DOCUMENTS:
        return kinds.Documents(next(tensors), next(tensors) if next(numbers) else None)
    if kind == DENSE:
        return kinds.Dense(next(tensors))
    if kind in (BOTH, EITHER):
        parts = [_read_mask(tensors, numbers) for _ in range(next(numbers))]
        masks = tuple(part for part in parts if part is not None)
        return kinds.Both(masks) if kind == BOTH else kinds.Either(masks)
    return None


def _spell_bias(bias: Bias, tensors: list[Tensor], numbers: list[int]) -> None:
    tensors.append(bias.parameter.detach())
    offset = NONE if bias.offset is None else bias.offset
    if isinstance(bias, bias_kinds.Alibi):
        numbers.extend([ALIBI, offset])
    elif isinstance(bias, bias_kinds.Relative):
        numbers.extend([RELATIVE, offset])
        spell_buckets(bias.buckets, numbers)
    elif isinstance(bias, bias_kinds.Dense):
        numbers.append(FULL)
    else:
        raise LensError(f"a compiled model cannot be watched with a bias of your own kind, {type(bias).__name__}")


def _read_bias(tensors: Iterator[Tensor], numbers: Iterator[int]) -> Bias | None:
    kind = next(numbers)
    if kind == FULL:
        return bias_kinds.Dense(next(tensors))
    if kind not in (ALIBI, RELATIVE):
        return None
    parameter = next(tensors)
    offset = None if (value := next(numbers)) == NONE else value
    if kind == ALIBI:
        return bias_kinds.Alibi(parameter, offset)
    return bias_kinds.Relative(parameter, _read_buckets(numbers), offset)


def spell_buckets(buckets: Callable[[Tensor], Tensor], numbers: list[int]) -> None:
    if isinstance(buckets, functools.partial) and buckets.func is bias_kinds._clipped:
        numbers.extend([CLIPPED, buckets.keywords["furthest"]])
    elif isinstance(buckets, functools.partial) and buckets.func is bias_kinds._t5:
        given = buckets.keywords
        numbers.extend([T5, given["count"], given["furthest"], int(given["both_ways"])])
    else:
        raise LensError("a compiled model cannot be watched with buckets of your own; t5_buckets can be")


def _read_buckets(numbers: Iterator[int]) -> Callable[[Tensor], Tensor]:
    if next(numbers) == CLIPPED:
        return bias_kinds.clipped_distance(next(numbers))
    return bias_kinds.t5_buckets(next(numbers), next(numbers), both_ways=bool(next(numbers)))
