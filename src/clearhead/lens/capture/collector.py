"""Collector: receives every observed attention, measures it, and files it in a call of the Record."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from jaxtyping import Int, Shaped
from torch import Tensor, nn

from clearhead.attention import Mask, Seen
from clearhead.attention.call import Call, check_call
from clearhead.attention.call_slices import slice_heads
from clearhead.errors import LensError
from clearhead.formatting import format_bytes
from clearhead.lens.attention_names import unwrap_model
from clearhead.lens.capture.forward_hooks import describe_exception
from clearhead.lens.capture.growing_attention import FirstPositions, GrowingAttention
from clearhead.lens.capture.growing_call import BatchHistory, GrowingCall
from clearhead.lens.capture.host_transfer import HostTransfer
from clearhead.lens.capture.joint_measuring import JointMeasuring
from clearhead.lens.capture.output_projection import make_value_norms
from clearhead.lens.capture.watch_settings import (
    Sizes,
    WatchSettings,
    count_dense_bytes,
    estimate_bytes,
    warn_if_large,
)
from clearhead.lens.measures.definition import locate_first_query
from clearhead.lens.record.attention_record import Record
from clearhead.lens.record.attention_views import Forward

log = logging.getLogger(__name__)
_collectors: dict[int, list[Collector]] = {}  # by the thread that watches
_lock = threading.RLock()


class _ThreadState(threading.local):
    """A collector's state per thread."""

    call: GrowingCall | None = None
    extended: list[GrowingCall] | None = None  # the calls that the pass in progress was part of, if one is
    growing: object | None = None  # the cache of the pass that has begun
    begun: bool = False
    ids: dict[str, Tensor] | None = None  # token numbers that went in, and belong to the call of the next attention


class Collector:
    """One watch: `record_attention` is called for every attention, from any thread, and fills the record.

    A forward pass may be announced with `begin` and `end`. Where it is not, an attention that runs again without a
    growing cache begins a new call. Threads that watch the same model themselves are left to their own watch;
    with `settings.own_thread` all other threads are ignored.
    """

    def __init__(self, settings: WatchSettings, record: Record, model: nn.Module | None = None) -> None:
        self.settings, self.record, self.model = settings, record, model
        self.thread, self.warned = threading.get_ident(), False
        self.ran = False  # whether any attention was recorded
        self.interruptions: Counter[str] = Counter()  # how many recorded passes each exception ended
        self.transfer = HostTransfer(settings.device_budget)
        self.joint = JointMeasuring(settings.device_budget)
        self._current: dict[int, GrowingCall] = {}  # the call of each thread
        self._thread, self._lock = _ThreadState(), threading.RLock()
        self._counted: weakref.WeakSet[Mask] = weakref.WeakSet()  # masks that layers share are kept once
        self._calls: dict[int, tuple[Callable[[], object | None], GrowingCall]] = {}  # of caches, by their ids

    def __enter__(self) -> Collector:
        with _lock:
            _collectors.setdefault(self.thread, []).append(self)
        return self

    def __exit__(self, *_: object) -> None:
        with _lock:
            _collectors[self.thread].remove(self)
            if not _collectors[self.thread]:
                del _collectors[self.thread]
        with self._lock:
            growing = [call for call in self.record.calls if isinstance(call, GrowingCall)]
            try:
                for call in growing:
                    call.send_results()
            finally:  # what could be measured stays in the record
                for call in growing:
                    call.close()
                self.record.calls[:] = [call for call in self.record.calls if call.sights]
            if self.settings.detail.keep == "statistics":
                self._reduce_calls([])
            self._calls.clear()

    def begin(
        self, *, growing: object | None = None, ids: Mapping[str, Int[Tensor, "batch tokens"]] | None = None
    ) -> None:
        """A forward pass of this thread begins; `growing` identifies the cache that it continues.

        `ids` are the token numbers that go in: of "source" and "target", or of "tokens".
        """
        state = self._thread
        self.begin_pass()
        kept = {} if growing is None or state.ids is None else state.ids  # the source of an encoder that ran before
        state.begun, state.growing, state.ids = True, growing, {**kept, **(ids or {})}
        if growing is None or (state.call is not None and state.call.cache is not None):
            state.call = None

    def end(self, error: BaseException | str | None = None) -> None:
        """The forward pass is over; later passes join its call only through its cache, and not if it raised `error`.

        A source that no watched attention has claimed, of an encoder by itself, waits for the decoder's first pass.
        """
        self.end_pass(error)
        waiting = self._thread.ids or {}
        source = {kind: numbers.clone() for kind, numbers in waiting.items() if kind == "source"}
        self._thread.begun, self._thread.growing, self._thread.ids = False, None, source or None

    def begin_pass(self) -> None:
        """A forward pass of this thread begins, of which `end_pass` will say whether it raised."""
        self._thread.extended = []

    def end_pass(self, error: BaseException | str | None = None) -> None:
        """The pass is over. If it raised, the calls that it was part of are marked, and no later pass joins them."""
        state, (calls, self._thread.extended) = self._thread, (self._thread.extended or [], None)
        if error is None or not calls:
            return
        state.call = state.ids = None
        text = error if isinstance(error, str) else describe_exception(error)
        with self._lock:
            self.interruptions[text] += 1
            for call in calls:
                call.about.interrupted = text
                call.release()
            ended = {id(call) for call in calls}
            self._calls = {key: known for key, known in self._calls.items() if id(known[1]) not in ended}
            self._current = {thread: call for thread, call in self._current.items() if id(call) not in ended}

    def note_tokens(self, kind: str, ids: Int[Tensor, "..."] | None) -> None:
        """Token ids of a pass without `begin`: they belong to the next attention."""
        waiting = {} if self._thread.ids is None or kind == "source" else dict(self._thread.ids)
        waiting.pop(kind, None)
        self._thread.ids = waiting if ids is None else {**waiting, kind: ids}

    def forget_tokens(self, kind: str) -> None:
        """Drops the token ids of the current pass, because they are ambiguous."""
        (self._thread.ids or {}).pop(kind, None)
        if self._thread.call is not None:
            self._thread.call.forget_ids(kind)

    def reorder(
        self,
        rows: Sequence[int] | Int[Tensor, " samples"],
        growing: object | None = None,
        finished: Collection[int] = (),
    ) -> None:
        """Reorders the samples of the call that grows with this cache, or of the latest call.

        Sample n is what rows[n] was. Beams that were completed in the rows of `finished` stay in the record.
        """
        known = self._calls.get(id(growing))
        call = self._thread.call if growing is None else known[1] if known and known[0]() is growing else None
        if call is not None:
            call.reorder(rows, finished=finished)

    def finish_samples(self, stopped: Sequence[bool] | None, growing: object) -> None:
        """Samples that end here, in the call that grows with this cache; None: what follows begins anew in all."""
        known = self._calls.get(id(growing))
        if known is not None and known[0]() is growing:
            known[1].finish_samples(stopped)

    def measure_waiting(self, growing: object) -> None:
        """Measures the steps that wait in the call that grows with this cache, because its keys will change."""
        known = self._calls.get(id(growing))
        if known is not None and known[0]() is growing:
            known[1].measure_waiting()

    def watches_thread(self) -> bool:
        """Whether this thread is recorded: its own; others unless `own_thread` is set or they watch for themselves."""
        thread = threading.get_ident()
        if thread == self.thread or self.settings.own_thread:
            return thread == self.thread
        own = unwrap_model(self.model)
        return all(unwrap_model(one.model) is not own for one in _collectors.get(thread, ()))

    def record_attention(
        self,
        name: str,
        seen: Seen,
        *,
        first_query: int | None = None,
        first_key: int = 0,
        tokens: int | None = None,
        cross: bool = False,
        static: bool = False,
        appended: bool = False,
        out: nn.Module | None = None,
    ) -> None:
        """Measures one attention on its device and sends the results to the CPU.

        `first_query` and `first_key` are the document positions of the first of each; `tokens` is how many keys have
        one (None: all), where later keys are summaries. A `static` attention has no part in a cache that grows, and is
        not reordered with its samples. `appended`: its keys and values are those of the step before and new ones, in
        memory that nobody will write to, so that it can be measured later. `out` is the output projection, for norms.
        """
        if name.partition(":")[0] not in self.settings.layers or not self.watches_thread():
            return
        refuse_unmeasurable(seen.q, name)
        with torch.inference_mode(False), torch.no_grad():
            q, k, v, mask, scale, bias, softcap, sinks, *_ = seen
            whole = check_call(q, k, v, mask, scale=scale, bias=bias, softcap=softcap, sinks=sinks)
            call = slice_heads(whole, self.settings.heads)
            growing = self._thread.growing if seen.cache is None else seen.cache
            if first_query is None and cross:
                first_query = self._find_next_position(name, growing)
            elif first_query is None:
                first_query = first_key + locate_first_query(call.mask, call.q.shape[2], call.k.shape[2])
            sharing = whole.q.shape[1] // whole.k.shape[1]
            attention = self._find_attention(name, call, first_query, growing, cross, static, sharing)
            with self._lock:
                # Not with the call: dense masks and biases differ by layer and step.
                self.record.expected_bytes += self._count_new_dense_bytes(call)
            attention.add(
                call,
                FirstPositions(first_query, first_key, tokens),
                logsumexp=seen.logsumexp if self.settings.heads is None else None,
                norms=self._make_norms(name, whole, out),
                grows=growing is not None and not static,
                appended=appended and growing is not None and not static,
                joins=True,
            )

    def _make_norms(self, name: str, call: Call, out: nn.Module | None) -> Callable[[slice], Tensor] | None:
        if not self.settings.detail.norms:
            return None
        if out is None:
            raise LensError(f"norms=True needs the output projection of {name!r}, which is not known; omit norms")
        chosen = slice(None) if self.settings.heads is None else list(self.settings.heads)
        norms = make_value_norms(out, call.q.shape[1], name)
        return lambda keys: norms(call.v[:, :, keys])[:, chosen]

    def _find_attention(
        self, name: str, call: Call, first_query: int, growing: object | None, cross: bool, static: bool, sharing: int
    ) -> GrowingAttention:
        """The GrowingAttention that this attention continues, or a new one in a current or new call."""
        with self._lock:
            known = self._calls.get(id(growing))
            if known is not None and known[0]() is growing and not static:
                known[1].apply_reorders()
            current = list(self._current.values())
            forward, name = self._find_call(name, call, first_query, growing)
            if growing is not None and (forward.cache is None or (forward.history is None and not static)):
                if forward.cache is None:
                    self._calls[id(growing)] = (weakref.ref(growing), forward)
                forward.bind(growing, None if static else call.q.shape[0])
            if name not in forward.sights:
                history = forward.history
                if growing is None or static or history is None or len(history.present) != call.q.shape[0]:
                    history = BatchHistory(call.q.shape[0])  # not reordered with the cache
                heads = self.settings.heads or tuple(range(call.q.shape[1]))
                forward.sights[name] = GrowingAttention(
                    *(name, heads, cross, self.settings.detail, history, sharing, self.transfer, self.joint)
                )
            self._thread.call = self._current[threading.get_ident()] = forward
            extended = self._thread.extended
            if extended is not None and forward not in extended:
                extended.append(forward)
            if forward not in current and self.settings.detail.keep == "statistics":
                self._reduce_calls([forward, *self._current.values()])
            self.ran = True
        self._add_ids(forward, name, call, first_query)
        part = forward.sights[name]
        assert isinstance(part, GrowingAttention)
        return part

    def _reduce_calls(self, running: Sequence[Forward]) -> None:
        """Reduces all calls to statistics but those that are running, or that may go on because their cache exists."""
        for call in list(self.record.calls):
            grows = isinstance(call, GrowingCall) and call.cache is not None and call.cache() is not None
            if not grows and not any(call is one for one in running):
                if isinstance(call, GrowingCall):
                    call.close()
                self.record.reduce(call)
        self._calls = {key: (cache, call) for key, (cache, call) in self._calls.items() if cache() is not None}

    def _find_next_position(self, name: str, growing: object | None) -> int:
        """The next query position of a cross-attention whose caller gave none."""
        known = self._calls.get(id(growing))
        part = known[1].sights.get(name) if known is not None and known[0]() is growing else None
        return part.end if isinstance(part, GrowingAttention) else 0

    def _add_ids(self, forward: GrowingCall, name: str, call: Call, first_query: int) -> None:
        """Files pending token ids with this call; ids that do not match its queries stay pending."""
        waiting = self._thread.ids or {}
        reading = "encoder" in name.split(".")
        for kind, numbers in list(waiting.items()):
            fits = numbers.shape == (call.q.shape[0], call.q.shape[2]) and not (kind == "target" and reading)
            if kind == "source" or fits:
                forward.add_ids(kind, numbers, 0 if kind == "source" else first_query)
                del waiting[kind]

    def _find_call(self, name: str, call: Call, first_query: int, growing: object | None) -> tuple[GrowingCall, str]:
        """The call to which an attention belongs, and its name in this call."""
        known = self._calls.get(id(growing))
        if growing is not None and known is not None and known[0]() is growing:
            part = known[1].sights.get(name)
            cleared = all(one is not known[1] for one in reversed(self.record.calls))  # by the user
            continues = isinstance(part, GrowingAttention) and part.continues_at(call.q.shape[0], first_query)
            if not cleared and (part is None or continues):
                return known[1], name
            known[1].release()  # or the cache was cropped: from this position on it is another text
            forward = self._new_call(call)
            forward.inherit(known[1], first_query)
            return forward, name
        current = self._thread.call
        if growing is not None and current is not None and current.cache is not None:
            current = None
        if current is not None and self._thread.begun and growing is None and name in current.sights:
            count = sum(other.partition(":")[0] == name for other in current.sights)
            return current, f"{name}:{count + 1}"  # a layer that is used several times
        if current is None or name in current.sights:
            current = self._new_call(call)
        return current, name

    def _new_call(self, call: Call) -> GrowingCall:
        self.joint.flush()  # of the call before
        forward, (batch, heads, queries, d) = GrowingCall(), call.q.shape
        sizes = Sizes(batch, heads, call.k.shape[1], d, queries, call.k.shape[2], call.q.itemsize)
        expected = len(self.settings.layers) * estimate_bytes(self.settings.detail, sizes)
        self.record.expected_bytes += expected
        if self.settings.detail.keep == "qk":
            expected += count_dense_bytes(call)
            what = f"keeping q and k of {len(self.settings.layers)} attentions over {sizes.keys:,} tokens"
            log.info("%s will take about %s of memory", what, format_bytes(expected))
            self.warned = self.warned or warn_if_large(expected, what)
        self.record.calls.append(forward)
        return forward

    def _count_new_dense_bytes(self, call: Call) -> int:
        """The bytes of this mask and bias if they are dense; 0 for a mask that is already kept."""
        if self.settings.detail.keep != "qk":
            return 0
        if call.mask is None or call.mask in self._counted:
            return count_dense_bytes(call._replace(mask=None))
        if not any(tensor.is_inference() for tensor in call.mask.tensors()):  # of those every layer has a copy
            self._counted.add(call.mask)
        return count_dense_bytes(call)


def refuse_unmeasurable(q: Shaped[Tensor, "..."], name: str) -> None:
    """Raises LensError where there are no numbers: on the meta device, in CUDA graph capture, inside torch.vmap."""
    if torch._C._functorch.is_batchedtensor(q):
        raise LensError(
            f"{name!r} runs inside torch.vmap, where a tensor stands for many; give the model a batch instead while it "
            "is watched"
        )
    if q.is_meta:
        raise LensError(f"{name!r} runs on the meta device, where there are no numbers to measure")
    if q.is_cuda and torch.cuda.is_current_stream_capturing():
        raise LensError(
            f"{name!r} is being captured into a CUDA graph, whose replays would not be measured; "
            "watch the model outside of the graph"
        )
