"""Kept q and k, with their masks and biases, as part of a record's header; checked on reading."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention.biases import Bias, Relative, clipped_distance
from clearhead.attention.masks import Mask, State
from clearhead.errors import RecordError
from clearhead.lens.record.kept_inputs import KeptInputs, Step
from clearhead.lens.record.record_header import KeptHeader, StepHeader

Store = Callable[[Tensor], int]  # puts a tensor into the file and returns its number
Fetch = Callable[[Any], Tensor]  # the inverse
STATE_TENSORS = ("lengths", "ids", "query_ids", "tensor", "slopes", "table")  # fields of masks and biases
MAX_DENSE_CELLS = 2**30  # of a mask without a state that may be written out


def kept_to_header(kept: KeptInputs, store: Store) -> KeptHeader:
    """The kept inputs of one attention, with tensors replaced by their numbers in the file."""
    return KeptHeader(
        q=store(kept.q),
        k=store(kept.k),
        scale=kept.scale if isinstance(kept.scale, float) else None,
        scales=store(kept.scale) if isinstance(kept.scale, Tensor) else None,
        softcap=kept.softcap,
        sinks=None if kept.sinks is None else store(kept.sinks),
        lengths=store(kept.lengths),
        whole_rows=kept.logsumexp is not None,
        parts=[_step_to_header(step, store) for step in kept.parts],
    )


def _step_to_header(step: Step, store: Store) -> StepHeader:
    mask = None if step.mask is None else _state_to_json(_mask_state(step.mask, step), store)
    bias = None if step.bias is None else _state_to_json(_bias_state(step.bias, step), store)
    return StepHeader(step.first_query, step.first_key, step.queries, step.keys, mask, bias)


def _mask_state(mask: Mask, step: Step) -> State:
    """The state of a mask; one of an unknown class is written as dense booleans."""
    state = mask.state()
    if state is None:
        if (mask.batch or 1) * (mask.heads or 1) * step.queries * step.keys > MAX_DENSE_CELLS:
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


def _state_to_json(state: State, store: Store) -> State:
    """A state with tensors replaced by their numbers in the file."""
    content = {}
    for name, value in state.items():
        content[name] = store(value) if isinstance(value, Tensor) else value
        if isinstance(value, list):
            content[name] = [_state_to_json(part, store) for part in value]
    return content


def build_kept(
    header: KeptHeader, sizes: dict[str, int], logsumexp: Float[Tensor, "batch heads queries"] | None, fetch: Fetch
) -> KeptInputs:
    """The inverse of `kept_to_header`; `sizes` are those of the measures of this attention."""
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
    """The inverse of `_state_to_json`; Mask.from_state and Bias.from_state check the rest."""
    state = dict(content)
    for name, value in state.items():
        if name in STATE_TENSORS and value is not None:
            state[name] = fetch(value)
        elif name == "masks":
            state[name] = [_state_from_json(part, fetch) for part in value]
    return state
