"""Masks and biases as JSON with references to tensors, and back with every field validated."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from clearhead.attention import biases, mask_kinds
from clearhead.attention.biases import Bias
from clearhead.attention.masks import Mask
from clearhead.errors import RecordError

Store = Callable[[Tensor], int]  # puts a tensor into the file, and says under which number
Fetch = Callable[[Any], Tensor]  # and gets it back
LARGEST = 2**40  # no text has more tokens
DENSE = 2**30  # cells of a mask of an unknown kind that may be written out


def mask_to_json(mask: Mask | None, store: Store, queries: int, keys: int) -> Any:
    """A mask as JSON; one of an unknown class is written as dense booleans."""
    if mask is None:
        return None
    if isinstance(mask, mask_kinds.Band):
        return {"kind": "band", "left": mask.left, "right": mask.right, "offset": mask.offset}
    if isinstance(mask, mask_kinds.Prefix):
        return {"kind": "prefix", "lengths": store(mask.lengths)}
    if isinstance(mask, mask_kinds.Padding):
        return {"kind": "padding", "lengths": store(mask.lengths), "side": mask.side, "queries": mask.hide_queries}
    if isinstance(mask, mask_kinds.Documents):
        others = None if mask.query_ids is None else store(mask.query_ids)
        return {"kind": "documents", "ids": store(mask.ids), "query_ids": others}
    if isinstance(mask, (mask_kinds.Both, mask_kinds.Either)):
        kind = "both" if isinstance(mask, mask_kinds.Both) else "either"
        return {"kind": kind, "masks": [mask_to_json(part, store, queries, keys) for part in mask.masks]}
    if not isinstance(mask, mask_kinds.Dense):
        if (mask.batch or 1) * (mask.heads or 1) * queries * keys > DENSE:
            raise RecordError(f"{mask!r} is too large to be written out; record it with keep='none'")
        mask = mask_kinds.Dense(mask.dense(queries, keys).cpu())
    return {"kind": "visible", "tensor": store(mask.seen)}


def mask_from_json(given: Any, fetch: Fetch, depth: int = 0) -> Mask | None:
    if given is None:
        return None
    kind = read_field(given, "kind", str)
    if kind == "band":
        left, right, offset = (read_integer(given, name, none=True) for name in ("left", "right", "offset"))
        return mask_kinds.Band(left, right, offset)
    if kind == "prefix":
        return mask_kinds.Prefix(_check_integers(fetch(given.get("lengths")), 1))
    if kind == "padding":
        side = read_field(given, "side", str)
        if side not in ("left", "right"):
            raise RecordError(f"padding on the {side!r} side makes no sense")
        lengths = _check_integers(fetch(given.get("lengths")), 1)
        return mask_kinds.Padding(lengths, side, read_field(given, "queries", bool))
    if kind == "documents":
        others = given.get("query_ids")
        ids = _check_integers(fetch(given.get("ids")), 2)
        return mask_kinds.Documents(ids, None if others is None else _check_integers(fetch(others), 2))
    if kind == "visible":
        seen = fetch(given.get("tensor"))
        if seen.dtype != torch.bool or seen.ndim != 4:
            raise RecordError(f"a mask of {seen.dtype} with {seen.ndim} axes makes no sense")
        return mask_kinds.Dense(seen)
    if kind in ("both", "either") and depth < 8:
        parts = [mask_from_json(part, fetch, depth + 1) for part in read_field(given, "masks", list)]
        masks = tuple(part for part in parts if part is not None)
        if len(masks) != len(parts) or len(masks) < 2 or (kind == "either" and len(masks) != 2):
            raise RecordError(f"a mask of {len(masks)} masks makes no sense")
        return mask_kinds.Both(masks) if kind == "both" else mask_kinds.Either(masks)
    raise RecordError(f"no mask is of the kind {kind!r}")


def bias_to_json(bias: Bias | None, store: Store, queries: int, keys: int) -> Any:
    """A bias as JSON; bucket functions of an unknown kind are tabulated, one row per distance."""
    if bias is None:
        return None
    if isinstance(bias, biases.Alibi):
        return {"kind": "alibi", "slopes": store(bias.parameter), "offset": bias.offset}
    if not isinstance(bias, biases.Relative):
        return {"kind": "dense", "tensor": store(biases.Dense(bias.dense(queries, keys)).parameter)}
    buckets = bias.buckets
    if isinstance(buckets, functools.partial) and buckets.func in (biases._t5, biases._clipped):
        name = "t5" if buckets.func is biases._t5 else "clipped"
        named = {"name": name, **buckets.keywords}
        return {"kind": "relative", "table": store(bias.parameter), "buckets": named, "offset": bias.offset}
    furthest = queries + keys + abs(bias.offset or 0)
    table = bias.parameter[buckets(torch.arange(-furthest, furthest + 1))]
    named = {"name": "clipped", "furthest": furthest}
    return {"kind": "relative", "table": store(table), "buckets": named, "offset": bias.offset}


def bias_from_json(given: Any, fetch: Fetch) -> Bias | None:
    if given is None:
        return None
    kind = read_field(given, "kind", str)
    if kind == "dense":
        return biases.Dense(_check_floats(fetch(given.get("tensor")), 4))
    offset = read_integer(given, "offset", none=True)
    if kind == "alibi":
        return biases.Alibi(_check_floats(fetch(given.get("slopes")), 1), offset)
    if kind == "relative":
        table = _check_floats(fetch(given.get("table")), 2)
        return biases.Relative(table, _read_buckets(read_field(given, "buckets", dict), len(table)), offset)
    raise RecordError(f"no bias is of the kind {kind!r}")


def _read_buckets(given: dict[str, Any], rows: int) -> Callable[[Tensor], Tensor]:
    name, furthest = read_field(given, "name", str), read_integer(given, "furthest")
    if name == "clipped" and furthest is not None and 2 * furthest + 1 == rows:
        return biases.clipped_distance(furthest)
    if name == "t5" and furthest is not None:
        count, both_ways = read_integer(given, "count") or 0, read_field(given, "both_ways", bool)
        exact = (count // 2 if both_ways else count) // 2
        if 0 < exact < furthest and count <= rows:
            return biases.t5_buckets(count, furthest, both_ways=both_ways)
    raise RecordError(f"buckets {given!r:.80} do not fit a table of {rows} rows")


def read_field(given: Any, name: str, kind: type[Any]) -> Any:
    """A value of a JSON object, checked for its type."""
    if not isinstance(given, dict) or not isinstance(given.get(name), kind):
        got = given.get(name) if isinstance(given, dict) else given
        raise RecordError(f"{name} must be a {kind.__name__}, got {got!r:.60}")
    return given[name]


def read_integer(given: Any, name: str, *, none: bool = False) -> int | None:
    """An integer within limits, or None if `none` allows it."""
    if none and isinstance(given, dict) and name in given and given[name] is None:
        return None
    number = read_field(given, name, int)
    if isinstance(number, bool) or abs(number) > LARGEST:
        raise RecordError(f"{name} is {number!r:.60}, which makes no sense")
    return int(number)


def _check_integers(tensor: Tensor, axes: int) -> Tensor:
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool or tensor.ndim != axes:
        raise RecordError(f"{tensor.dtype} with {tensor.ndim} axes, where whole numbers with {axes} are wanted")
    return tensor


def _check_floats(tensor: Tensor, axes: int) -> Tensor:
    if not tensor.is_floating_point() or tensor.ndim != axes:
        raise RecordError(f"{tensor.dtype} with {tensor.ndim} axes, where numbers with {axes} are wanted")
    return tensor
