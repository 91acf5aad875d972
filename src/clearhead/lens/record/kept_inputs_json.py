"""Kept q and k, with their masks and biases, as JSON in which each tensor is a number; checked on reading."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention.biases import Bias, Relative, clipped_distance
from clearhead.attention.masks import Mask, State
from clearhead.errors import RecordError
from clearhead.lens.record.kept_inputs import KeptInputs, Step
from clearhead.lens.record.record_fields import Fetch, Store, read_field, read_integer

STATE_TENSORS = ("lengths", "ids", "query_ids", "tensor", "slopes", "table")  # fields of masks and biases
DENSE = 2**30  # cells of a mask without a state that may be written out


def kept_to_json(kept: KeptInputs, store: Store) -> dict[str, Any]:
    """The kept inputs of one attention, with tensors replaced by their numbers in the file."""
    return {
        "q": store(kept.q),
        "k": store(kept.k),
        "scale": kept.scale if isinstance(kept.scale, float) else None,
        "scales": store(kept.scale) if isinstance(kept.scale, Tensor) else None,
        "softcap": kept.softcap,
        "sinks": None if kept.sinks is None else store(kept.sinks),
        "lengths": store(kept.lengths),
        "whole_rows": kept.logsumexp is not None,
        "parts": [
            {
                "first_query": part.first_query,
                "first_key": part.first_key,
                "queries": part.queries,
                "keys": part.keys,
                "mask": None if part.mask is None else _state_to_json(_mask_state(part.mask, part), store),
                "bias": None if part.bias is None else _state_to_json(_bias_state(part.bias, part), store),
            }
            for part in kept.parts
        ],
    }


def _mask_state(mask: Mask, step: Step) -> State:
    """The state of a mask; one of an unknown class is written as dense booleans."""
    state = mask.state()
    if state is None:
        if (mask.batch or 1) * (mask.heads or 1) * step.queries * step.keys > DENSE:
            raise RecordError(f"{mask!r} is too large to be written out; record it with keep='none'")
        state = Mask.visible(mask.dense(step.queries, step.keys).cpu()).state()
    assert state is not None
    return state


def _bias_state(bias: Bias, step: Step) -> State:
    """The state of a bias; bucket functions of an unknown kind are tabulated, one row per distance."""
    state = bias.state()
    if state is None and isinstance(bias, Relative):
        furthest = step.queries + step.keys + abs(bias.offset or 0)
        table = bias.parameter[bias.buckets(torch.arange(-furthest, furthest + 1))]
        state = Relative(table, clipped_distance(furthest), bias.offset).state()
    return {"kind": "dense", "tensor": bias.dense(step.queries, step.keys)} if state is None else state


def _state_to_json(state: State, store: Store) -> dict[str, Any]:
    """A state with tensors replaced by their numbers in the file."""
    found = {}
    for name, value in state.items():
        found[name] = store(value) if isinstance(value, Tensor) else value
        if isinstance(value, list):
            found[name] = [_state_to_json(one, store) for one in value]
    return found


def build_kept(
    given: Any, sizes: dict[str, int], logsumexp: Float[Tensor, "batch heads queries"] | None, fetch: Fetch
) -> KeptInputs:
    """The inverse of `kept_to_json`; `sizes` are those of the measures of this attention."""
    q, k, lengths = (fetch(read_field(given, name, int)) for name in ("q", "k", "lengths"))
    batch, heads = sizes["batch"], sizes["heads"]
    fits = q.ndim == k.ndim == 4 and q.is_floating_point() and q.dtype == k.dtype and q.shape[3] == k.shape[3]
    fits = fits and q.shape[:2] == (batch, heads) and k.shape[0] == batch and k.shape[2] <= sizes["keys"]
    if not fits or not k.shape[1] or heads % k.shape[1] or lengths.dtype != torch.int64 or lengths.shape != (batch,):
        raise RecordError(f"q {tuple(q.shape)} and k {tuple(k.shape)} do not match the record's other tensors")
    parts = tuple(_build_step(one, q, k, fetch) for one in read_field(given, "parts", list))
    ends = [part.first_query + part.queries for part in parts]
    if sum(part.queries for part in parts) != q.shape[2] or ends[:-1] != [part.first_query for part in parts[1:]]:
        raise RecordError("the parts of q are not contiguous")
    whole_rows = read_field(given, "whole_rows", bool)
    if whole_rows and (logsumexp is None or logsumexp.shape[2] != q.shape[2]):
        raise RecordError("logsumexp must have one value for each query of q")
    scale, softcap = _read_scale(given, heads, fetch), given.get("softcap")
    sinks = None if given.get("sinks") is None else fetch(given["sinks"])
    if (sinks is not None and (sinks.shape != (heads,) or not sinks.is_floating_point())) or not (
        softcap is None or (isinstance(softcap, (float, int)) and softcap > 0)
    ):
        raise RecordError("its sinks or its softcap are invalid")
    softcap = None if softcap is None else float(softcap)
    return KeptInputs(q, k, scale, softcap, sinks, parts, lengths, logsumexp if whole_rows else None)


def _read_scale(given: Any, heads: int, fetch: Fetch) -> float | Tensor:
    if given.get("scales") is None:
        return float(read_field(given, "scale", float))
    scales = fetch(given["scales"])
    if scales.shape not in ((heads, 1, 1), (1, 1, 1)) or not scales.is_floating_point():
        raise RecordError(f"scales of shape {tuple(scales.shape)} are invalid")
    return scales


def _build_step(given: Any, q: Tensor, k: Tensor, fetch: Fetch) -> Step:
    numbers = [read_integer(given, name) for name in ("first_query", "first_key", "queries", "keys")]
    first_query, first_key, queries, keys = numbers
    if min(numbers) < 0 or queries > q.shape[2] or first_key + keys > k.shape[2]:
        raise RecordError(f"a part of {queries} queries and {keys} keys lies outside of q and k")
    states = [None if given.get(name) is None else _state_from_json(given[name], fetch) for name in ("mask", "bias")]
    mask = None if states[0] is None else Mask.from_state(states[0])
    bias = None if states[1] is None else Bias.from_state(states[1])
    for one in (mask, bias):
        if one is not None:
            one.check(q.shape[0], q.shape[1], queries, keys)
    return Step(first_query, first_key, queries, keys, mask, bias)


def _state_from_json(given: Any, fetch: Fetch) -> State:
    """The inverse of `_state_to_json`; Mask.from_state and Bias.from_state check the rest."""
    found = dict(given)
    for name, value in found.items():
        if name in STATE_TENSORS and value is not None:
            found[name] = fetch(value)
        elif name == "masks":
            found[name] = [_state_from_json(one, fetch) for one in value]
    return found
