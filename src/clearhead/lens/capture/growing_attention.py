"""The measures of one attention, which grow step by step with a key-value cache and are sent to the CPU."""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention.call import Call
from clearhead.attention.call_slices import slice_queries
from clearhead.errors import LensError
from clearhead.lens.capture.growing_call import BatchHistory, Reorder, join_all_pieces, join_pieces
from clearhead.lens.capture.growing_sum import AttentionSums
from clearhead.lens.capture.host_transfer import ArrivingTensors, HostTransfer
from clearhead.lens.capture.input_keeper import InputKeeper
from clearhead.lens.capture.joint_measuring import JointMeasuring, Measuring, measure_together
from clearhead.lens.capture.waiting_steps import Norms, Part, WaitingSteps
from clearhead.lens.capture.watch_settings import MeasureDetail
from clearhead.lens.measures.definition import MeasureJob, Measures, Spans
from clearhead.lens.measures.measure_dispatch import measure_token_distance
from clearhead.lens.measures.selections import find_query_runs, locate_spans, shift_spans
from clearhead.lens.measures.visible_keys import compute_probe_weights, count_seeing_queries, count_visible_keys
from clearhead.lens.record.attention_views import Forward, Sight

SEES_NOTHING = {
    "logsumexp": -math.inf,
    "peak_key": -1,
    "top_keys": -1,
    "max_score": -math.inf,
}  # for a query that sees nothing; the others are 0
PER_QUERY = (
    *("logsumexp", "entropy", "peak", "peak_key", "distance", "first"),
    *("top_keys", "top_weights"),
)
CELLS = 2**24  # of a map that has to be measured finer than it is kept


class FirstPositions(NamedTuple):
    """The document positions of the first query and of the first key."""

    query: int
    key: int = 0
    tokens: int | None = None  # keys with a position; those after them are summaries of tokens. None: all keys


class _CallPart(NamedTuple):
    """Some queries of a call, to be measured together."""

    call: Call
    rows: range
    where: FirstPositions
    logsumexp: Float[Tensor, "batch heads queries"] | None  # of all queries of the call

    def start_at_first_row(self) -> _CallPart:
        """The same queries, of a call without those before and after them."""
        first, end = self.rows[0], self.rows[-1] + 1
        return _CallPart(
            slice_queries(self.call, first, end),
            range(0, end - first, self.rows.step),
            self.where._replace(query=self.where.query + first),
            None if self.logsumexp is None else self.logsumexp[:, :, first:end],
        )


class GrowingAttention:
    """The measures of one attention, extended step by step; `end` is the position after its last query."""

    def __init__(
        self,
        name: str,
        heads: tuple[int, ...],
        cross: bool,
        detail: MeasureDetail,
        history: BatchHistory,
        sharing: int = 1,
        transfer: HostTransfer | None = None,
        joint: JointMeasuring | None = None,
    ) -> None:
        self.name, self.heads, self.cross, self.detail, self.history = name, heads, cross, detail, history
        self.sharing = sharing  # how many heads share a key head
        self.transfer = HostTransfer() if transfer is None else transfer
        self.waiting, self.dtype = WaitingSteps(), torch.float32
        self.joint = JointMeasuring() if joint is None else joint
        self.waits_for_others = False  # until other attentions of its shape are measured, too
        self.spans: Spans | None = None  # by document position, once the first keys are known
        self.end = self.keys = 0
        self.tokens: int | None = None  # keys that are tokens, if not all are
        self.is_placeholder = False  # the last query, until the first sampled row exists
        self.pieces: list[tuple[int, ArrivingTensors]] = []  # measures of queries, with the time of each piece
        self.norms: list[tuple[int, ArrivingTensors]] = []
        self.positions: list[range] = []
        self.sums = AttentionSums(detail.pixels)
        self.keeper = InputKeeper(self.transfer) if detail.keep == "qk" else None
        self._sent_sums: ArrivingTensors | None = None  # the final ones, on their way to the CPU
        self._sight: Sight | None = None

    def continues_at(self, batch: int, first_query: int) -> bool:
        """Whether queries from this position follow directly on the last ones, with the same batch size."""
        return len(self.history.present) == batch and self.end == first_query

    def add(
        self,
        call: Call,
        where: FirstPositions,
        *,
        logsumexp: Float[Tensor, "batch heads queries"] | None = None,
        norms: Norms | None = None,
        grows: bool = False,
        appended: bool = False,
        joins: bool = False,
    ) -> None:
        """Measures the queries of one step and appends them; `norms` computes value norms for a slice of keys.

        `appended`: the keys are those of the step before and new ones, in memory that nobody will write to. Such steps
        may wait and be measured together. With `joins` the first step may wait for other attentions of its shape.
        """
        if self.waits_for_others:
            self.joint.flush()
        self._refuse_changed_keys()
        part = Part(call, where.query, logsumexp, norms)
        waits = appended and bool(self.pieces) and where[1:] == (0, None) and self.detail.measures_all_queries
        accepted = waits and self.waiting.accepts(part)
        if not accepted:
            self.measure_waiting()
            accepted = waits and self.waiting.accepts(part)
        self._sight = self._sent_sums = None
        self.end = where.query + call.q.shape[2]
        alone = norms is not None or where.tokens is not None or bool(self.pieces) or self.detail.has_own_probes
        if accepted:
            self.waiting.add(part)
        elif joins and not alone and self.joint.accepts(call):
            self.waits_for_others = True
            self.joint.add(
                call,
                (self.cross, where, grows, logsumexp is None),
                lambda copy: self._add(Part(copy, where.query, logsumexp), where, grows),  # lets go of the model's own
            )
        else:
            measure_together([self._add(part, where, grows)])

    @torch.inference_mode(False)
    @torch.no_grad()
    def measure_waiting(self) -> None:
        """Measures what waits to be measured together: with other attentions, and steps with each other."""
        if self.waits_for_others:
            self.joint.flush()
        self._refuse_changed_keys()
        for part in self.waiting.take():
            measure_together([self._add(part, FirstPositions(part.first_query), True)])

    def _refuse_changed_keys(self) -> None:
        if self.waiting.has_changed_keys():
            self.waiting = WaitingSteps()
            raise LensError(
                f"the cached keys of {self.name!r} were written to in place before their last steps were measured; "
                "assign changed keys as a new tensor, as in layer.keys = changed"
            )

    def _add(self, part: Part, where: FirstPositions, grows: bool) -> Measuring:
        """Yields the jobs of these queries, and appends what they measure."""
        call, _, logsumexp, norms = part
        queries, keys, time, self.dtype = call.q.shape[2], call.k.shape[2], self.history.time, _choose_dtype(call)
        if self.spans is None:
            self.spans = locate_spans(self.detail.spans or {}, where.key + keys)
        runs = self._find_runs(where.query, queries, grows)
        self.sums.choose_blocks(sum(map(len, runs)), where.key + keys)
        found, exact = [], torch.float64 if grows else self.dtype
        for run in runs:
            chosen = _CallPart(call, run, where, logsumexp)
            if self.detail.queries is not None:
                chosen = chosen.start_at_first_row()
            rows = chosen.rows
            while rows:
                some, rows = self._cut(rows, call, where)
                measured = yield from self._measure(chosen._replace(rows=some), exact)
                found.append(measured)
        found = found or [_make_empty_measures(call, self.detail)]
        joined = (
            found[0] if len(found) == 1 else {name: torch.cat([one[name] for one in found], 2) for name in found[0]}
        )
        self.sums.reserve(call, where.key + keys, exact, self.dtype)
        self.positions += [range(run.start + where.query, run.stop + where.query, run.step) for run in runs]
        self.pieces.append((time, self.transfer.send(joined)))
        new = slice(max(0, self.keys - where.key), keys)
        if norms is not None and (where.key + keys > self.keys or not self.norms):
            gap = max(0, where.key - self.keys)
            own = norms(new)
            own = torch.nn.functional.pad(own, (gap, 0)) if gap else own
            self.norms.append((time, self.transfer.send({"norms": own})))
        if self.keeper is not None:
            self.keeper.add(call, where.query, where.key, self.history)
        if where.tokens is not None:
            self.tokens = where.key + where.tokens
        self.keys = max(self.keys, where.key + keys)
        self.waits_for_others = False  # only now: other threads that need the results wait for the lock of `joint`

    def _find_runs(self, first: int, queries: int, grows: bool) -> list[range]:
        """The rows to measure of queries from position `first` on."""
        if self.detail.queries is not None:
            return find_query_runs(self.detail.queries, first, queries)
        if self.is_placeholder and queries:
            self._drop_placeholder()
        every = self.detail.every
        rows = range(-(first + 1) % every, queries, every)
        if not rows and (not grows or not self.sums.rows):
            rows = range(max(queries - 1, 0), queries)
            self.is_placeholder = grows and bool(rows)
        return [rows] if rows else []

    def _drop_placeholder(self) -> None:
        """Discards the placeholder query once a sampled one arrives."""
        self.is_placeholder, self.pieces, self.positions = False, [], []
        self.sums = AttentionSums(self.detail.pixels)

    def _cut(self, rows: range, call: Call, where: FirstPositions) -> tuple[range, range]:
        """Splits rows at the next edge of a map block: rows to measure together, and the rest."""
        height, width = self.sums.blocks
        count = len(rows)
        if height:
            count = -self.sums.rows % height or count
            if where.key % width:  # measured finer than it is kept
                count = min(count, height * max(1, CELLS // max(1, math.prod(call.q.shape[:2]) * call.k.shape[2])))
        return rows[:count], rows[count:]

    def _measure(self, part: _CallPart, exact: torch.dtype) -> Generator[MeasureJob, Measures, dict[str, Tensor]]:
        """Yields the job of these queries, adds its sums, and returns the measures of each query."""
        (call, rows, where, logsumexp), (height, width) = part, self.sums.blocks
        fine = math.gcd(where.key, width) if width else 0  # columns that begin where those of the map do
        chosen = None if logsumexp is None else logsumexp[:, :, rows.start : rows.stop : rows.step]
        spans = shift_spans(self.spans or {}, where.key)
        job = MeasureJob(call, rows, where.query - where.key, (height, fine), self.detail.top, True, chosen, spans)
        result = yield job
        assert result.max_score is not None
        found = {name: getattr(result, name) for name in PER_QUERY} | self._measure_probes(job, result, where)
        if where.tokens is not None:
            found["distance"] = measure_token_distance(job, where.tokens, result.logsumexp)
        found["max_score"] = result.max_score[..., None]
        if result.span_mass is not None:
            found["span_mass"] = result.span_mass
        found["visible"] = count_visible_keys(call, rows).int().expand(len(call.q), -1, -1)
        seen_by = count_seeing_queries(call, rows).int().expand(len(call.q), -1, -1)
        for name in ("peak_key", "top_keys"):
            keys = found[name].int()  # half the memory; a document has fewer than 2³¹ tokens
            found[name] = torch.where(keys >= 0, keys + where.key, keys) if where.key else keys
        assert result.received is not None
        found |= {"received": result.received, "map": result.map, "seen_by": seen_by}
        if self.history.stopped:
            stopped = torch.tensor(sorted(self.history.stopped))
            found = {
                name: one.index_fill(0, stopped.to(one.device), SEES_NOTHING.get(name, 0))
                for name, one in found.items()
            }
        self.sums.add(
            *(found.pop("received"), found.pop("seen_by"), found.pop("map")),
            queries=len(rows),
            first_key=where.key,
            fine=fine,
            exact=exact,
        )
        return found

    def _measure_probes(self, job: MeasureJob, result: Measures, where: FirstPositions) -> dict[str, Tensor]:
        """The weight of the key that each probe selects."""
        found: dict[str, Tensor] = {}
        for name, probe in (self.detail.probes or {}).items():
            positions = torch.tensor(job.rows, dtype=torch.long) + where.query
            keys = probe(positions).to(job.call.q.device)
            keys = torch.where(keys >= where.key, keys - where.key, -1).expand(job.call.q.shape[0], -1)
            found[f"probe {name}"] = compute_probe_weights(job.call, keys, result.logsumexp, rows=job.rows)
        return found

    def reorder(self, reorder: Reorder, first_number: int) -> None:
        """Reorders the sums; those of finished samples are stored under numbers from `first_number` on."""
        self._sight = self._sent_sums = None
        self.sums.reorder(reorder, first_number)

    @torch.inference_mode(False)
    def send_results(self) -> None:
        """Sends the sums so far to the CPU, after all others, without waiting for them."""
        self.measure_waiting()
        if self._sent_sums is None and self.pieces:
            self._sent_sums = self.transfer.send(self.sums.join(self.history, self.dtype)._asdict())

    @torch.inference_mode(False)
    def sight(self, forward: Forward) -> Sight:
        """The measures so far, as one Sight."""
        self.send_results()
        if self._sight is None:
            assert self._sent_sums is not None, "an attention is in a call as soon as it was measured"
            whole = join_all_pieces(self.pieces, self.history, SEES_NOTHING)
            norms = [(time, piece["norms"]) for time, piece in self.norms]
            kept = None
            if self.keeper is not None:
                kept = self.keeper.finish(
                    self.history, whole["logsumexp"] if self.detail.measures_all_queries else None
                )
            spans, per_query = dict(self.spans or {}), {name: whole[name] for name in PER_QUERY}
            self._sight = Sight(
                **per_query,
                received=self._sent_sums["received"],
                map=self._sent_sums["map"],
                max_score=torch.nn.functional.pad(whole["max_score"], (0, 1), value=-math.inf).amax(-1),
                span_mass=whole.get("span_mass"),
                span_names=tuple(spans),
                spans=spans,
                seen_by=self._sent_sums["seen_by"],
                sharing=self.sharing,
                name=self.name,
                cross=self.cross,
                heads=self.heads,
                queries=torch.tensor([*itertools.chain(*self.positions)], dtype=torch.long),
                blocks=self.sums.blocks,
                inputs=self.history.inputs,
                visible=whole["visible"],
                probes={name[6:]: whole[name] for name in whole if name.startswith("probe ")},
                norms=join_pieces(norms, self.history) if norms else None,
                kept=kept,
                tokens=self.tokens,
                forward=forward,
            )
        return self._sight


def _choose_dtype(call: Call) -> torch.dtype:
    return torch.promote_types(call.q.dtype, torch.float32)


def _make_empty_measures(call: Call, detail: MeasureDetail) -> dict[str, Tensor]:
    """Measures with zero queries."""
    empty = torch.zeros(*call.q.shape[:2], 0, dtype=_choose_dtype(call))
    tops = empty[..., None].expand(-1, -1, -1, detail.top)
    found = dict.fromkeys([*PER_QUERY, "max_score", *(f"probe {name}" for name in detail.probes or {})], empty)
    if detail.spans:
        found["span_mass"] = empty[..., None].expand(-1, -1, -1, len(detail.spans))
    return found | {"visible": empty[:, :1].int(), "peak_key": empty.int(), "top_keys": tops.int(), "top_weights": tops}
