"""measure(): checks the inputs, chooses the fastest method that can do the job, and runs it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention.biases import Dense
from clearhead.attention.call import AnyBias, Call, Scale, check_call
from clearhead.attention.masks import Mask
from clearhead.errors import BackendError, DeviceError, ShapeError
from clearhead.formatting import suggest_name
from clearhead.lens.measures import one_query, tiled
from clearhead.lens.measures.definition import (
    MAX_TOP,
    MeasureJob,
    Measures,
    check_counts,
    choose_blocks,
    locate_first_query,
    measure_by_definition,
    sum_blocks,
)
from clearhead.lens.measures.kernels import launch
from clearhead.lens.measures.selections import Queries, check_queries, check_spans, find_query_runs, locate_spans


class Method(NamedTuple):
    """A way to measure."""

    run: Callable[[MeasureJob], Measures]
    explain_refusal: Callable[[MeasureJob], str | None] = lambda job: None  # why it cannot do a job


def _explain_several_queries(job: MeasureJob) -> str | None:
    if len(job.rows) == 1 and job.call.k.shape[2]:
        return None
    return f"it measures one query with its keys, not {len(job.rows)} with {job.call.k.shape[2]}"


METHODS = {
    "defined": Method(measure_by_definition),
    "single": Method(one_query.run, _explain_several_queries),
    "tiled": Method(tiled.run),
    "compiled": Method(tiled.run_compiled, tiled.explain_compiled_refusal),
    "triton": Method(launch.run, launch.explain_refusal),
}
BACKENDS = ("auto", *METHODS)
NUMBA_FROM_SCORES = 2**18  # from which on numba is loaded


def measure(
    q: Float[Tensor, "batch heads queries d"],
    k: Float[Tensor, "batch kv_heads keys d"],
    mask: Mask | None = None,
    *,
    scale: Scale | None = None,
    bias: AnyBias | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
    pixels: int = 256,
    top: int = 8,
    received: bool = True,
    every: int = 1,
    queries: Queries | int | None = None,
    spans: Mapping[str, slice] | None = None,
    offset: int | None = None,
    logsumexp: Float[Tensor, "batch heads queries"] | None = None,
    backend: str = "auto",
) -> Measures:
    """Statistics of the attention weights per query, key and head, in O(n) memory, without building the weights.

    Query `i` is at the position of key `offset + i`; by default, the mask's offset, or else the one that aligns the
    last query and key. With `every=16` one query in sixteen is measured, those at positions 15, 31, …; `map` and
    `received` are then sums over these. `queries` are some rows of q, a slice or numbers, and the only ones measured,
    in increasing order: the cost is theirs. `spans` are named slices of keys, whose weights are summed: `mass`.
    `pixels=0`, `top=0` and `received=False` skip those measures. The `logsumexp` of a fused attention kernel saves a
    pass.

    >>> x = torch.eye(3)[None, None] * 9
    >>> seen = measure(x, x, Mask.causal(), scale=1.0, top=2)
    >>> seen.peak_key[0, 0].tolist(), seen.top_keys[0, 0].tolist()
    ([0, 1, 2], [[0, -1], [1, 0], [2, 0]])
    >>> last = measure(x * 0, x, Mask.causal(), queries=slice(-1, None), spans={"first two": slice(0, 2)})
    >>> last.mass["first two"]
    tensor([[[0.6667]]])
    """
    call = check_call(q, k, None, mask, scale=scale, bias=bias, softcap=softcap, sinks=sinks)
    detail: dict[str, Any] = {"pixels": pixels, "top": top, "received": received, "every": every, "spans": spans}
    job = plan_job(call, **detail, offset=offset, logsumexp=logsumexp)
    if queries is None:
        measures = run_job(job, backend)
    elif every != 1:
        raise ShapeError(f"queries= and every={every} exclude each other: a slice may have a step")
    else:
        selected = check_queries(queries, ShapeError)
        if not isinstance(selected, slice) and not all(-q.shape[2] <= row < q.shape[2] for row in selected):
            raise ShapeError(f"there are {q.shape[2]} queries, numbered from 0; got {list(selected)}")
        measures = _run_query_runs(job, find_query_runs(selected, 0, q.shape[2]), pixels, backend)
    # int64 can index; the kernels write int32.
    return replace(measures, peak_key=measures.peak_key.long(), top_keys=measures.top_keys.long())


def plan_job(
    call: Call,
    *,
    pixels: int = 256,
    top: int = 8,
    received: bool = True,
    every: int = 1,
    spans: Mapping[str, slice] | None = None,
    offset: int | None = None,
    logsumexp: Float[Tensor, "batch heads queries"] | None = None,
) -> MeasureJob:
    """The arguments of measure() as a job, checked."""
    check_counts(ShapeError, pixels=pixels)
    check_counts(ShapeError, most=MAX_TOP, top=top)
    check_counts(ShapeError, least=1, every=every)
    if offset is not None and (isinstance(offset, bool) or not isinstance(offset, int)):
        raise ShapeError(f"offset must be a whole number, the position of the first query, got {offset!r}")
    queries, keys = call.q.shape[2], call.k.shape[2]
    start = locate_first_query(call.mask, queries, keys) if offset is None else offset
    rows = range(-(start + 1) % every, queries, every)
    if logsumexp is not None:
        if logsumexp.shape != call.q.shape[:3]:
            raise ShapeError(f"logsumexp must be {tuple(call.q.shape[:3])}, got {tuple(logsumexp.shape)}")
        if logsumexp.device != call.q.device:
            raise DeviceError(f"logsumexp is on {logsumexp.device}, q on {call.q.device}; move it with .to(q.device)")
        logsumexp = logsumexp[:, :, rows.start :: every]
    located = locate_spans(check_spans(spans or {}, ShapeError), keys)
    return MeasureJob(call, rows, start, choose_blocks(len(rows), keys, pixels), top, received, logsumexp, located)


def _run_query_runs(job: MeasureJob, runs: list[range], pixels: int, backend: str) -> Measures:
    """Measures some queries of a job, given as ranges in increasing order, and joins the results."""
    height, width = choose_blocks(sum(map(len, runs)), job.call.k.shape[2], pixels)
    results = []
    for run in runs or [range(0)]:
        logsumexp = None if job.logsumexp is None else job.logsumexp[:, :, run.start : run.stop : run.step]
        blocks = (height, width) if len(runs) < 2 else (min(height, 1), width)
        part = job._replace(rows=run, logsumexp=logsumexp, blocks=blocks).start_at_first_row()
        results.append(run_job(part, backend))
    return results[0] if len(results) == 1 else _join_measures(results, height)


def _join_measures(results: list[Measures], height: int) -> Measures:
    """The measures of several groups of queries as one; `height` of the joined rows of the map are one pixel."""
    joined: dict[str, Any] = {}
    for field in fields(Measures):
        parts = [getattr(measures, field.name) for measures in results]
        if not isinstance(parts[0], Tensor):
            joined[field.name] = parts[0]
        elif field.name == "received":
            joined["received"] = torch.stack(parts).sum(0)
        elif field.name == "max_score":
            joined["max_score"] = torch.stack(parts).amax(0)
        else:
            joined[field.name] = torch.cat(parts, 2)
    return Measures(**joined | {"map": sum_blocks(joined["map"], height, 2)})


def run_job(job: MeasureJob, backend: str = "auto") -> Measures:
    """Runs a job by the named method, or by the fastest available."""
    if job.call.q.is_meta:
        raise DeviceError("q and k are on the meta device, which holds no values to measure")
    if backend == "auto":
        backend = _choose_method(job)
    elif backend not in BACKENDS:
        raise BackendError(f"unknown backend {backend!r} of measure(); {suggest_name(backend, BACKENDS)}")
    elif (reason := METHODS[backend].explain_refusal(job)) is not None:
        raise BackendError(f"{backend!r} cannot measure this: {reason}; 'auto' would take {_choose_method(job)!r}")
    with torch.no_grad(), torch.autocast(job.call.q.device.type, enabled=False):
        return METHODS[backend].run(job)


def _choose_method(job: MeasureJob) -> str:
    """The fastest method that can do a job."""
    if (job.call.q.is_cuda or "TRITON_INTERPRET" in os.environ) and launch.explain_refusal(job) is None:
        return "triton"
    if _explain_several_queries(job) is None:
        return "single"
    scores = math.prod(job.call.q.shape[:2]) * len(job.rows) * job.call.k.shape[2]
    return "compiled" if scores >= NUMBA_FROM_SCORES and tiled.explain_compiled_refusal(job) is None else "tiled"


def measure_token_distance(
    job: MeasureJob, tokens: int, logsumexp: Float[Tensor, "batch heads rows"]
) -> Float[Tensor, "batch heads rows"]:
    """Σ w |position of query − position of key| over the first keys only, with weights normalised over all keys."""
    call = job.call
    mask = None if call.mask is None else Mask.visible(call.mask.dense(*call.sizes[2:])[..., :tokens])
    bias = None if call.bias is None else Dense(call.bias.dense(*call.sizes[2:])[..., :tokens])
    first = call._replace(k=call.k[:, :, :tokens], v=call.v[:, :, :tokens], mask=mask, bias=bias)
    measures = run_job(job._replace(call=first, blocks=(0, 0), top=0, received=False, logsumexp=None, spans={}))
    share = (measures.logsumexp - logsumexp).exp().masked_fill(logsumexp == -math.inf, 0.0)
    return measures.distance * share
