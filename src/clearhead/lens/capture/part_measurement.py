"""PartMeasurement: the measures of some queries of one attention, job by job; InputKeeper: q and k of all of them."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.attention.call import Call
from clearhead.attention.masks import Mask
from clearhead.lens.capture.growing_tensors import AttentionSums, BatchHistory, join_pieces, select_rows
from clearhead.lens.capture.host_transfer import ArrivingTensors, HostTransfer
from clearhead.lens.measures.definition import MeasureJob, Measures
from clearhead.lens.measures.measure_dispatch import measure_token_distance
from clearhead.lens.measures.selections import find_query_runs, locate_spans, shift_spans
from clearhead.lens.measures.visible_keys import compute_probe_weights, count_seeing_queries, count_visible_keys
from clearhead.lens.record.kept_inputs import KeptInputs, Step, join_steps

if TYPE_CHECKING:
    from clearhead.lens.capture.growing_call import GrowingAttention

Norms = Callable[[slice], Float[Tensor, "batch heads keys"]]  # of the values, for a slice of keys

# For a query that sees nothing; the others are 0.
SEES_NOTHING = {"logsumexp": -math.inf, "peak_key": -1, "top_keys": -1, "max_score": -math.inf}
PER_QUERY = ("logsumexp", "entropy", "peak", "peak_key", "distance", "first", "top_keys", "top_weights")
FINE_MAP_CELLS = 2**24  # most cells of a map that has to be measured finer than it is kept


class Part(NamedTuple):
    """Queries of one attention that are measured together, with their keys and the document positions of both."""

    call: Call
    first_query: int  # position of the first query of the call
    first_key: int = 0
    tokens: int | None = None  # keys with a position; those after them are summaries of tokens. None: all keys
    logsumexp: Float[Tensor, "batch heads queries"] | None = None
    norms: Norms | None = None
    grows: bool = False  # with a cache
    appended: bool = False  # keys are those of the part before and new ones, in memory that nobody will write to


class PartMeasurement:
    """A part of an attention that is being measured: its jobs one after the other, then `finish` files the results."""

    def __init__(self, attention: GrowingAttention, part: Part) -> None:
        self.attention, self.part, self.time = attention, part, attention.history.time
        call, keys = part.call, part.first_key + part.call.k.shape[2]
        attention.dtype = torch.promote_types(call.q.dtype, torch.float32)
        self.exact = torch.float64 if part.grows else attention.dtype  # of sums
        if attention.spans is None:
            attention.spans = locate_spans(attention.detail.spans or {}, keys)
        self.runs = self._find_runs()
        attention.sums.choose_blocks(sum(map(len, self.runs)), keys)
        self.remaining = self.runs or [range(0)]
        self.measured: list[dict[str, Tensor]] = []

    def _find_runs(self) -> list[range]:
        """The rows of the part that are to be measured."""
        attention, detail = self.attention, self.attention.detail
        first, queries = self.part.first_query, self.part.call.q.shape[2]
        if detail.queries is not None:
            return find_query_runs(detail.queries, first, queries)
        if attention.is_placeholder and queries:  # a sampled query may replace it
            attention.is_placeholder, attention.pieces, attention.positions = False, [], []
            attention.sums = AttentionSums(detail.pixels)
        rows = range(-(first + 1) % detail.every, queries, detail.every)
        if not rows and (not self.part.grows or not attention.sums.rows):
            rows = range(max(queries - 1, 0), queries)
            attention.is_placeholder = self.part.grows and bool(rows)
        return [rows] if rows else []

    def next_job(self) -> MeasureJob | None:
        """The next queries as a job, up to the next edge of a block of the map; None if there are no more."""
        if not self.remaining:
            return None
        part, (run, *self.remaining) = self.part, self.remaining
        (height, width), count = self.attention.sums.blocks, len(run)
        if height:
            count = -self.attention.sums.rows % height or count
            if part.first_key % width:  # measured finer than it is kept
                cells = math.prod(part.call.q.shape[:2]) * part.call.k.shape[2]
                count = min(count, height * max(1, FINE_MAP_CELLS // max(1, cells)))
        rows = run[:count]
        if run[count:]:
            self.remaining.insert(0, run[count:])
        blocks = (height, math.gcd(part.first_key, width) if width else 0)  # columns begin where those of the map do
        logsumexp = None if part.logsumexp is None else part.logsumexp[:, :, rows.start : rows.stop : rows.step]
        spans = shift_spans(self.attention.spans or {}, part.first_key)
        offset, top = part.first_query - part.first_key, self.attention.detail.top
        job = MeasureJob(part.call, rows, offset, blocks, top, True, logsumexp, spans)
        self.job = job if self.attention.detail.queries is None else job.start_at_first_row()
        return self.job

    def add(self, result: Measures) -> None:
        job, part = self.job, self.part
        call, rows, first_key = job.call, job.rows, part.first_key
        assert result.max_score is not None
        assert result.received is not None
        measured = {name: getattr(result, name) for name in PER_QUERY} | self._measure_probes(result)
        if part.tokens is not None:
            measured["distance"] = measure_token_distance(job, part.tokens, result.logsumexp)
        measured["max_score"] = result.max_score[..., None]
        if result.span_mass is not None:
            measured["span_mass"] = result.span_mass
        measured["visible"] = count_visible_keys(call, rows).int().expand(len(call.q), -1, -1)
        for name in ("peak_key", "top_keys"):
            keys = measured[name].int()  # half the memory; a document has fewer than 2³¹ tokens
            measured[name] = torch.where(keys >= 0, keys + first_key, keys) if first_key else keys
        seen_by = count_seeing_queries(call, rows).int().expand(len(call.q), -1, -1)
        measured |= {"received": result.received, "seen_by": seen_by, "map": result.map}
        if self.attention.history.stopped:
            stopped = torch.tensor(sorted(self.attention.history.stopped))
            measured = {
                name: tensor.index_fill(0, stopped.to(tensor.device), SEES_NOTHING.get(name, 0))
                for name, tensor in measured.items()
            }
        self.attention.sums.add(
            *(measured.pop(name) for name in ("received", "seen_by", "map")),
            queries=len(rows),
            first_key=first_key,
            fine=job.blocks[1],
            exact=self.exact,
        )
        self.measured.append(measured)

    def _measure_probes(self, result: Measures) -> dict[str, Tensor]:
        """The weight of the key that each probe selects."""
        weights: dict[str, Tensor] = {}
        for name, probe in (self.attention.detail.probes or {}).items():
            positions = torch.tensor(self.job.rows, dtype=torch.long) + self.job.offset + self.part.first_key
            keys = probe(positions).to(self.job.call.q.device)
            keys = torch.where(keys >= self.part.first_key, keys - self.part.first_key, -1)
            weights[f"probe {name}"] = compute_probe_weights(self.job.call, keys, result.logsumexp, self.job.rows)
        return weights

    def finish(self) -> None:
        """Appends what was measured to the attention."""
        attention, part = self.attention, self.part
        call, first_key, first_query = part.call, part.first_key, part.first_query
        end = first_key + call.k.shape[2]
        first, *more = self.measured
        joined = {name: torch.cat([measures[name] for measures in self.measured], 2) for name in first if more} or first
        attention.sums.reserve(call, end, self.exact, attention.dtype)
        attention.positions += [range(run.start + first_query, run.stop + first_query, run.step) for run in self.runs]
        attention.pieces.append((self.time, attention.transfer.send(joined)))
        if part.norms is not None and (end > attention.keys or not attention.norms):
            norms, gap = part.norms(slice(max(0, attention.keys - first_key), None)), max(0, first_key - attention.keys)
            norms = torch.nn.functional.pad(norms, (gap, 0)) if gap else norms
            attention.norms.append((self.time, attention.transfer.send({"norms": norms})))
        if attention.keeper is not None:
            attention.keeper.add(call, first_query, first_key, attention.history)
        if part.tokens is not None:
            attention.tokens = first_key + part.tokens
        attention.keys = max(attention.keys, end)


class InputKeeper:
    """Collects the inputs of a growing attention and sends them to the CPU, each key once."""

    def __init__(self, transfer: HostTransfer) -> None:
        self.transfer = transfer
        self.q: list[tuple[int, ArrivingTensors]] = []  # with the time of each
        self.k: list[tuple[int, ArrivingTensors]] = []
        self.parts: list[tuple[int, Step]] = []
        self.stopped: list[frozenset[int]] = []  # rows of each part that had stopped
        self.keys = 0

    def add(self, call: Call, first_query: int, first_key: int, history: BatchHistory) -> None:
        time = history.time
        self.stopped.append(history.stopped)
        queries, keys = call.q.shape[2], call.k.shape[2]
        self.q.append((time, self._send("q", call.q)))
        if first_key + keys > self.keys or not self.k:
            gap = max(0, first_key - self.keys)  # keys that a sliding cache dropped before the watch began
            new = call.k[:, :, max(0, self.keys - first_key) :]
            self.k.append((time, self._send("k", torch.nn.functional.pad(new, (0, 0, gap, 0)) if gap else new)))
            self.keys = first_key + keys
        mask = None if call.mask is None else _copy_mask(call.mask)
        bias = None if call.bias is None else call.bias.replace(_copy_to_host(call.bias.parameter))
        self.parts.append((time, Step(first_query, first_key, queries, keys, mask, bias)))
        if len(self.parts) == 1:
            scale = _copy_to_host(call.scale) if isinstance(call.scale, Tensor) else call.scale
            self.constants = (scale, call.softcap, None if call.sinks is None else _copy_to_host(call.sinks))

    def _send(self, name: str, tensor: Tensor) -> ArrivingTensors:
        """Copied on its device first: caches overwrite what they return."""
        return self.transfer.send({name: tensor.detach().clone(memory_format=torch.contiguous_format)})

    def finish(self, history: BatchHistory, logsumexp: Float[Tensor, "samples heads queries"] | None) -> KeptInputs:
        """The KeptInputs, with samples in the order of the record."""
        q, k = join_pieces(self.q, "q", history), join_pieces(self.k, "k", history)
        lengths = torch.zeros(len(q), dtype=torch.long)
        for (time, part), stopped in zip(self.parts, self.stopped, strict=True):
            rows = history.paths(time)
            lengths += ((rows >= 0) & ~torch.isin(rows, torch.tensor(sorted(stopped)))) * part.queries
        parts = tuple(_select_samples(part, history.paths(time)) for time, part in self.parts)
        together = join_steps(parts, q.shape[2], k.shape[2], dense=False)
        if len(parts) > 1 and together is not None:
            parts = (Step(parts[0].first_query, 0, q.shape[2], k.shape[2], *together),)
        return KeptInputs(q, k, *self.constants, parts, lengths, logsumexp)


def _select_samples(step: Step, rows: Int[Tensor, " samples"]) -> Step:
    """The same step for these samples; −1 marks a sample that had finished."""
    present = None if bool((rows >= 0).all()) else rows >= 0
    rows, mask, bias = rows.clamp(min=0), step.mask, step.bias
    if mask is not None:
        mask = mask.map(lambda tensor: select_rows(tensor, rows) if len(tensor) > 1 else tensor)
    if bias is not None and bias.batch > 1:
        bias = bias.replace(select_rows(bias.parameter, rows))
    return step._replace(mask=mask, bias=bias, present=present)


_copies: weakref.WeakKeyDictionary[Mask, tuple[list[int], Mask]] = weakref.WeakKeyDictionary()


def _copy_mask(mask: Mask) -> Mask:
    """A copy of a mask, shared by all layers that use it."""
    if any(tensor.is_inference() for tensor in mask.tensors()):
        return mask.map(_copy_to_host)  # inference tensors have no version counter
    changes = [tensor._version for tensor in mask.tensors()]
    if mask not in _copies or _copies[mask][0] != changes:
        _copies[mask] = (changes, mask.map(_copy_to_host))
    return _copies[mask][1]


def _copy_to_host(tensor: Tensor) -> Tensor:
    """A CPU copy that shares no memory: caches overwrite what they return."""
    return tensor.detach().to("cpu", copy=True).contiguous()
