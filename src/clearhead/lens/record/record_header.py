"""The JSON header of a record file as dataclasses, and `read_as`, which checks JSON against such types.

An integer in place of a tensor is its number in the file.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from clearhead.attention.masks import MAX_TOKENS, State
from clearhead.errors import RecordError

TensorNumber = int


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
class RunningHeader:
    """`RunningStatistics`."""

    heads: list[int]
    counts: TensorNumber
    shifts: TensorNumber
    sums: TensorNumber
    squares: TensorNumber
    max_scores: TensorNumber


@dataclass
class RecordHeader:
    """A `Record`."""

    format: int
    names: list[str]
    settings: dict[str, Any]
    expected_bytes: int
    calls: list[CallHeader]
    running: dict[str, RunningHeader]
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
