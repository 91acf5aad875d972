"""The JSON header of a record file: its dataclasses, `read_as`, which checks JSON against them, and kept q and k in it.

An integer in place of a tensor is its number in the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention.biases import Bias
from clearhead.attention.masks import MAX_TOKENS, Mask, State
from clearhead.errors import RecordError
from clearhead.lens.record.kept_inputs import KeptInputs, Step

TensorNumber = int
Fetch = Callable[[Any], Tensor]  # reads the tensor of this number
STATE_TENSORS = ("lengths", "ids", "query_ids", "tensor", "slopes", "table")  # fields of masks and biases


@dataclass
class StepHeader:
    """A `Step` of kept inputs."""

    first_query: int
    first_key: int
    queries: int
    keys: int
    mask: State | None
    bias: State | None


@dataclass
class KeptHeader:
    """`KeptInputs`."""

    q: TensorNumber
    k: TensorNumber
    scale: float | None
    scales: TensorNumber | None  # in place of `scale`: one of each head
    softcap: float | None
    sinks: TensorNumber | None
    lengths: TensorNumber
    whole_rows: bool  # whether the measured logsumexp is that of all queries of q
    parts: list[StepHeader]


@dataclass
class SightHeader:
    """A `Sight`."""

    name: str
    cross: bool
    heads: list[int]
    blocks: tuple[int, int]
    tokens: int | None
    inputs: list[int]
    sharing: int
    spans: list[tuple[str, int, int]]
    tensors: dict[str, TensorNumber]
    probes: dict[str, TensorNumber]
    kept: KeptHeader | None


@dataclass
class CallHeader:
    """A `Forward`."""

    ids: dict[str, TensorNumber]
    labels: dict[str, list[tuple[int, str]]]
    about: dict[str, Any]  # the known fields of `CallMetadata`
    sights: list[SightHeader]


@dataclass
class RecordHeader:
    """A `Record`."""

    format: int
    names: list[str]
    settings: dict[str, Any]
    expected_bytes: int
    calls: list[CallHeader]
    running: dict[str, dict[str, Any]]  # the heads and tensors of `RunningStatistics`
    checksums: list[int]  # CRC-32 of each tensor


def read_as(kind: Any, value: Any, name: str) -> Any:
    """A value of JSON as this type, checked with all its parts; RecordError if it does not fit.

    >>> read_as(tuple[str, float | None], ["▁a", None], "token")
    ('▁a', None)
    """
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is UnionType:  # with None
        return None if value is None else read_as(parts[0], value, name)
    if is_dataclass(kind) and isinstance(value, dict):
        types, needed = _field_types(kind)  # type: ignore[arg-type]
        if value.keys() <= types.keys() and needed <= value.keys():
            return kind(**{field: read_as(types[field], part, field) for field, part in value.items()})  # type: ignore[operator]
    elif origin is list and isinstance(value, list):
        return [read_as(parts[0], part, name) for part in value]
    elif origin is tuple and isinstance(value, list) and len(value) == len(parts):
        return tuple(read_as(*pair, name) for pair in zip(parts, value, strict=True))
    elif origin is dict and isinstance(value, dict):
        return {key: read_as(parts[1], part, f"{name} {key:.40}") for key, part in value.items()}
    elif kind is float and type(value) in (int, float):
        return float(value)
    elif type(value) is kind and (kind is not int or abs(value) <= MAX_TOKENS):
        return value
    raise RecordError(f"{name} must be {getattr(kind, '__name__', kind)}, got {value!r:.60}")


@cache
def _field_types(kind: type[Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """The types of a dataclass's fields, and which fields have no default."""
    needed = (field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING)
    return get_type_hints(kind), frozenset(needed)


def select_fields(kind: type[Any], value: Any, **others: Any) -> dict[str, Any]:
    """The fields of a header: attributes of a value with the same names, and others."""
    return {
        field.name: others[field.name] if field.name in others else getattr(value, field.name) for field in fields(kind)
    }


def describe_part(part: Any) -> dict[str, Any]:
    """The header of kept inputs, or the state of a mask or bias; may contain tensors, and more of these."""
    if isinstance(part, KeptInputs):
        is_tensor = isinstance(part.scale, Tensor)
        return select_fields(
            KeptHeader,
            part,
            scale=None if is_tensor else part.scale,
            scales=part.scale if is_tensor else None,
            whole_rows=part.logsumexp is not None,
            parts=[select_fields(StepHeader, step) for step in part.parts],
        )
    if not isinstance(part, (Mask, Bias)):
        raise TypeError(f"{part!r:.60} is no JSON")
    if (state := part.state()) is None:
        raise RecordError(
            f"{part!r} cannot be saved, only built-in masks, biases and bucket functions; record with keep='none'"
        )
    return state


def build_kept(
    header: KeptHeader, sizes: dict[str, int], logsumexp: Float[Tensor, "batch heads queries"] | None, fetch: Fetch
) -> KeptInputs:
    """The kept inputs of a header; `sizes` are those of the measures of this attention."""
    q, k, lengths = fetch(header.q), fetch(header.k), fetch(header.lengths)
    batch, heads = sizes["batch"], sizes["heads"]
    fits = q.ndim == k.ndim == 4 and q.is_floating_point() and q.dtype == k.dtype and q.shape[3] == k.shape[3]
    fits = fits and q.shape[:2] == (batch, heads) and k.shape[0] == batch and k.shape[2] <= sizes["keys"]
    if not fits or not k.shape[1] or heads % k.shape[1] or lengths.dtype != torch.int64 or lengths.shape != (batch,):
        raise RecordError(f"q {tuple(q.shape)} and k {tuple(k.shape)} do not match the record's other tensors")
    parts = tuple(_build_step(step, q, k, fetch) for step in header.parts)
    ends = [part.first_query + part.queries for part in parts]
    if sum(part.queries for part in parts) != q.shape[2] or ends[:-1] != [part.first_query for part in parts[1:]]:
        raise RecordError("the parts of q are not contiguous")
    if header.whole_rows and (logsumexp is None or logsumexp.shape[2] != q.shape[2]):
        raise RecordError("logsumexp must have one value for each query of q")
    sinks = None if header.sinks is None else fetch(header.sinks)
    if sinks is not None and (sinks.shape != (heads,) or not sinks.is_floating_point()):
        raise RecordError(f"sinks of shape {tuple(sinks.shape)} are invalid")
    if header.softcap is not None and not header.softcap > 0:
        raise RecordError(f"a softcap of {header.softcap} is invalid")
    scale = _read_scale(header, heads, fetch)
    return KeptInputs(q, k, scale, header.softcap, sinks, parts, lengths, logsumexp if header.whole_rows else None)


def _read_scale(header: KeptHeader, heads: int, fetch: Fetch) -> float | Tensor:
    if header.scales is None:
        if header.scale is None:
            raise RecordError("q and k have no scale")
        return header.scale
    scales = fetch(header.scales)
    if scales.shape not in ((heads, 1, 1), (1, 1, 1)) or not scales.is_floating_point():
        raise RecordError(f"scales of shape {tuple(scales.shape)} are invalid")
    return scales


def _build_step(header: StepHeader, q: Tensor, k: Tensor, fetch: Fetch) -> Step:
    first_query, first_key, queries, keys = header.first_query, header.first_key, header.queries, header.keys
    if min(first_query, first_key, queries, keys) < 0 or queries > q.shape[2] or first_key + keys > k.shape[2]:
        raise RecordError(f"a part of {queries} queries and {keys} keys lies outside of q and k")
    mask = None if header.mask is None else Mask.from_state(_state_from_json(header.mask, fetch))
    bias = None if header.bias is None else Bias.from_state(_state_from_json(header.bias, fetch))
    for part in (mask, bias):
        if part is not None:
            part.check(q.shape[0], q.shape[1], queries, keys)
    return Step(first_query, first_key, queries, keys, mask, bias)


def _state_from_json(content: State, fetch: Fetch) -> State:
    """A state with tensors in place of their numbers; Mask.from_state and Bias.from_state check the rest."""
    state = dict(content)
    for name, value in state.items():
        if name in STATE_TENSORS and value is not None:
            state[name] = fetch(value)
        elif name == "masks":
            state[name] = [_state_from_json(part, fetch) for part in value]
    return state
