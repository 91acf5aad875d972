"""A call that grows with its key-value cache: its samples and tokens, and the measures of each attention."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Collection, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from clearhead.lens.capture.growing_tensors import AttentionSums, BatchHistory, Reorder, join_pieces, select_rows
from clearhead.lens.capture.host_transfer import ArrivingTensors, HostTransfer
from clearhead.lens.capture.measure_queue import MeasureQueue
from clearhead.lens.capture.part_measurement import PER_QUERY, SEES_NOTHING, InputKeeper, Part
from clearhead.lens.capture.watch_settings import MeasureDetail
from clearhead.lens.measures.definition import Spans
from clearhead.lens.record.attention_views import Forward, Sight


class GrowingCall:
    """A call of the record while it is recorded: later forward passes with the same key-value cache extend it."""

    def __init__(self) -> None:
        self.forward = Forward()
        self.forward.growing = self
        self.attentions: dict[str, GrowingAttention] = {}
        self.history: BatchHistory | None = None  # of what grows with the cache
        self.cache: Callable[[], object | None] | None = None
        self._pending_reorders: list[tuple[Tensor, bool, Collection[int]]] = []  # applied when the next query arrives
        self._tokens: dict[str, list[tuple[int, int, Tensor]]] = {}  # time, position, numbers

    @property
    def may_grow(self) -> bool:
        """Whether the cache that it follows still exists."""
        return self.cache is not None and self.cache() is not None

    def bind(self, cache: object, batch: int | None) -> None:
        """Ties the call to a cache; with a batch size, its attentions grow. Our KeyValueCache reports reorderings."""
        if batch is not None and self.history is None:
            self.history = BatchHistory(batch)
        if self.cache is not None:
            return
        self.cache = weakref.ref(cache)
        if hasattr(cache, "observers"):
            cache.observers.append(self.reorder)

    def reorder(
        self, rows: Sequence[int] | Int[Tensor, " samples"], done: bool = False, finished: Collection[int] = ()
    ) -> None:
        """Sample n is now what rows[n] was; with `done` an input without samples is finished, not dropped.

        What was in the rows of `finished` stays in the record. It takes effect with the next query: a beam search
        reorders once more after its last query, which would remove the beams that were just completed.
        """
        if self.history is not None:
            with torch.inference_mode(False):  # whose tensors could not be changed later
                self._pending_reorders.append((torch.as_tensor(rows).clone(), done, finished))

    def finish_samples(self, stopped: Sequence[bool] | None) -> None:
        """Marks rows that stopped: what follows in them is padding. None: a new generation begins in all rows."""
        history = self.history
        if history is None or (stopped is not None and len(stopped) != len(history.present)):
            return
        new = frozenset[int]() if stopped is None else history.stopped.union(n for n, end in enumerate(stopped) if end)
        if new != history.stopped:
            self.measure_waiting()
            history.stopped = new

    def measure_waiting(self) -> None:
        """Measures the decoding steps that wait to be measured together, because samples or keys change."""
        for attention in self._reordered_attentions():
            attention.queue.flush(attention)

    def _reordered_attentions(self) -> list[GrowingAttention]:
        return [attention for attention in self.attentions.values() if attention.history is self.history]

    def apply_reorders(self) -> None:
        """Applies pending reorderings, because a query arrives."""
        for rows, done, finished in self._pending_reorders:
            assert self.history is not None
            with torch.inference_mode(False):
                self.measure_waiting()
                reorder = self.history.add(rows, done=done, finished=finished)
                for attention in self._reordered_attentions():
                    attention.reorder(reorder)
        self._pending_reorders.clear()

    def add_ids(self, kind: str, numbers: Int[Tensor, "batch tokens"], position: int) -> None:
        """Appends token ids; the first stands at this position."""
        time = 0 if self.history is None else self.history.time
        pieces = self._tokens.setdefault(kind, [])
        if kind == "source":
            pieces.clear()
        if not pieces or position >= pieces[-1][1] + pieces[-1][2].shape[1]:
            copy = numbers.detach().to("cpu", torch.long, copy=True)
            if self.history is not None and self.history.stopped and kind != "source":
                copy[sorted(self.history.stopped)] = -1
            pieces.append((time, position, copy))

    def forget_ids(self, kind: str) -> None:
        self._tokens.pop(kind, None)

    def inherit(self, other: GrowingCall, position: int) -> None:
        """Copies the tokens before a position from a call whose cache was cropped to it."""
        for kind, numbers in other.forward.ids.items():
            self.add_ids(kind, numbers if kind == "source" else numbers[:, :position], 0)

    def join_ids(self) -> dict[str, Int[Tensor, "batch tokens"]]:
        return {kind: self._join_tokens(pieces, kind != "source") for kind, pieces in self._tokens.items()}

    def _join_tokens(self, pieces: list[tuple[int, int, Tensor]], reorders: bool) -> Tensor:
        parts: list[Tensor] = []
        end = 0
        for time, position, numbers in pieces:
            if reorders and self.history is not None:
                numbers = select_rows(numbers, self.history.paths(time), -1)
            parts.append(torch.nn.functional.pad(numbers, (position - end, 0), value=-1))
            end = position + numbers.shape[1]
        return torch.cat(parts, 1)

    @torch.inference_mode(False)
    def close(self) -> None:
        """Turns every attention into its final Sight and releases the cache."""
        self.release()
        self.send_results()
        # An attention without pieces is one whose measurement failed.
        sights = {name: part.sight(self.forward) for name, part in self.attentions.items() if part.pieces}
        self.forward.end_recording(sights)

    @torch.inference_mode(False)
    def send_results(self) -> None:
        """Sends all that is still on a GPU to the CPU, without waiting for it."""
        for attention in self.attentions.values():
            attention.send_results()

    def release(self) -> None:
        """Stops following the cache."""
        cache = None if self.cache is None else self.cache()
        if cache is not None and hasattr(cache, "observers"):
            cache.observers.remove(self.reorder)
        self.cache = None


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
        queue: MeasureQueue | None = None,
    ) -> None:
        self.name, self.heads, self.cross, self.detail, self.history = name, heads, cross, detail, history
        self.sharing = sharing  # how many heads share a key head
        self.transfer, self.queue = transfer or HostTransfer(), queue or MeasureQueue()
        self.dtype = torch.float32
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

    def add(self, part: Part) -> None:
        """Appends the queries of one step; they may wait in the queue to be measured together with others."""
        self.queue.add(self, part)
        self._sight = self._sent_sums = None
        self.end = part.first_query + part.call.q.shape[2]

    def reorder(self, reorder: Reorder) -> None:
        self._sight = self._sent_sums = None
        self.sums.reorder(reorder)

    @torch.inference_mode(False)
    def send_results(self) -> None:
        """Sends the sums so far to the CPU, after all others, without waiting for them."""
        self.queue.flush(self)
        if self._sent_sums is None and self.pieces:
            self._sent_sums = self.transfer.send(self.sums.join(self.history, self.dtype))

    @torch.inference_mode(False)
    def sight(self, forward: Forward) -> Sight:
        """The measures so far, as one Sight."""
        self.send_results()
        if self._sight is None:
            assert self._sent_sums is not None, "an attention is in a call as soon as it was measured"
            names = self.pieces[0][1].tensors
            whole = {name: join_pieces(self.pieces, name, self.history, SEES_NOTHING.get(name, 0)) for name in names}
            logsumexp = whole["logsumexp"] if self.detail.measures_all_queries else None
            spans = dict(self.spans or {})
            self._sight = Sight(
                **{name: whole[name] for name in PER_QUERY},
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
                norms=join_pieces(self.norms, "norms", self.history) if self.norms else None,
                kept=None if self.keeper is None else self.keeper.finish(self.history, logsumexp),
                tokens=self.tokens,
                forward=forward,
            )
        return self._sight
