"""Collector: receives every observed attention, measures it, and files it in a call of the Record."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Mapping

import torch
from jaxtyping import Int, Shaped
from torch import Tensor, nn

from clearhead.attention import Seen
from clearhead.attention.call import Call, check_call, slice_heads
from clearhead.errors import LensError
from clearhead.lens.analysis.norms import make_value_norms
from clearhead.lens.attention_names import unwrap_model
from clearhead.lens.capture import watch_settings
from clearhead.lens.capture.growing_call import GrowingAttention, GrowingCall
from clearhead.lens.capture.growing_tensors import BatchHistory
from clearhead.lens.capture.host_transfer import HostTransfer
from clearhead.lens.capture.measure_queue import MeasureQueue
from clearhead.lens.capture.part_measurement import Norms, Part
from clearhead.lens.measures.definition import locate_first_query
from clearhead.lens.record.attention_record import Record

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
    growing cache begins a new call.
    """

    def __init__(self, settings: watch_settings.WatchSettings, record: Record, model: nn.Module | None = None) -> None:
        self.settings, self.record, self.model = settings, record, model
        self.thread, self.warned = threading.get_ident(), False
        self.ran = False  # whether any attention was recorded
        self.interruptions: Counter[str] = Counter()  # how many recorded passes each exception ended
        self.transfer = HostTransfer()
        self.queue = MeasureQueue()
        self._current: dict[int, GrowingCall] = {}  # the call of each thread
        self._thread, self._lock = _ThreadState(), threading.RLock()
        self._calls: dict[int, GrowingCall] = {}  # by the id of the cache that they follow

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
            growing = [call.growing for call in self.record.calls if isinstance(call.growing, GrowingCall)]
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

    def find_call(self, cache: object) -> GrowingCall | None:
        """The call that grows with this cache."""
        call = self._calls.get(id(cache))
        return call if call is not None and call.cache is not None and call.cache() is cache else None

    def begin(
        self, *, growing: object | None = None, ids: Mapping[str, Int[Tensor, "batch tokens"]] | None = None
    ) -> None:
        """A forward pass of this thread begins; `growing` identifies the cache that it continues.

        `ids` are the token numbers that go in: of "source" and "target", or of "tokens".
        """
        state = self._thread
        self.begin_pass()
        source = {} if growing is None or state.ids is None else state.ids  # of an encoder that ran before
        state.begun, state.growing, state.ids = True, growing, {**source, **(ids or {})}
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
                call.forward.about.interrupted = text
                call.release()
            self._calls = {key: call for key, call in self._calls.items() if call not in calls}
            self._current = {thread: call for thread, call in self._current.items() if call not in calls}

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

    def watches_thread(self) -> bool:
        """Whether this thread is recorded: its own; others unless `own_thread` is set or they watch for themselves."""
        thread = threading.get_ident()
        if thread == self.thread or self.settings.own_thread:
            return thread == self.thread
        model = unwrap_model(self.model)
        return all(unwrap_model(other.model) is not model for other in _collectors.get(thread, ()))

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
        not reordered with its samples. If it is `appended`, its keys and values are those of the step before and
        new ones. Nobody will write to them, so it can be measured later. `out` is the output projection, for norms.
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
                running = self.find_call(growing)
                before = None if running is None else running.attentions.get(name)
                first_query = 0 if before is None else before.end
            elif first_query is None:
                first_query = first_key + locate_first_query(call.mask, call.q.shape[2], call.k.shape[2])
            sharing = whole.q.shape[1] // whole.k.shape[1]
            attention = self._find_attention(name, call, first_query, growing, cross, static, sharing)
            grows = growing is not None and not static
            logsumexp = seen.logsumexp if self.settings.heads is None else None
            norms = self._make_norms(name, whole, out) if self.settings.detail.norms else None
            attention.add(Part(call, first_query, first_key, tokens, logsumexp, norms, grows, appended and grows))

    def _make_norms(self, name: str, call: Call, out: nn.Module | None) -> Norms:
        if out is None:
            raise LensError(f"norms=True needs the output projection of {name!r}, which is not known; omit norms")
        heads = slice(None) if self.settings.heads is None else list(self.settings.heads)
        norms = make_value_norms(out, call.q.shape[1], name)
        return lambda keys: norms(call.v[:, :, keys])[:, heads]

    def _find_attention(
        self, name: str, seen: Call, first_query: int, growing: object | None, cross: bool, static: bool, sharing: int
    ) -> GrowingAttention:
        """The GrowingAttention that this attention continues, or a new one in a current or new call."""
        with self._lock:
            running = self.find_call(growing)
            if running is not None and not static:
                running.apply_reorders()
            current = list(self._current.values())
            call, name = self._choose_call(name, seen, first_query, growing)
            if growing is not None and (call.cache is None or (call.history is None and not static)):
                if call.cache is None:
                    self._calls[id(growing)] = call
                call.bind(growing, None if static else seen.q.shape[0])
            if name not in call.attentions:
                history = call.history
                if growing is None or static or history is None or len(history.present) != seen.q.shape[0]:
                    history = BatchHistory(seen.q.shape[0])  # not reordered with the cache
                heads = self.settings.heads or tuple(range(seen.q.shape[1]))
                attention = GrowingAttention(
                    *(name, heads, cross, self.settings.detail, history, sharing, self.transfer, self.queue)
                )
                call.attentions[name] = call.forward.sights[name] = attention
            self._thread.call = self._current[threading.get_ident()] = call
            extended = self._thread.extended
            if extended is not None and call not in extended:
                extended.append(call)
            if call not in current and self.settings.detail.keep == "statistics":
                self._reduce_calls([call, *self._current.values()])
            self.ran = True
        self._add_ids(call, name, seen, first_query)
        return call.attentions[name]

    def _reduce_calls(self, running: Collection[GrowingCall]) -> None:
        """Reduces all calls to statistics but those that are running, or that may go on because their cache exists."""
        for forward in list(self.record.calls):
            growing = forward.growing
            if isinstance(growing, GrowingCall):
                if growing.may_grow or growing in running:
                    continue
                growing.close()
            self.record.reduce(forward)
        self._calls = {key: call for key, call in self._calls.items() if call.may_grow}

    def _add_ids(self, call: GrowingCall, name: str, seen: Call, first_query: int) -> None:
        """Files pending token ids with this call; ids that do not match its queries stay pending."""
        waiting = self._thread.ids or {}
        reading = "encoder" in name.split(".")
        for kind, numbers in list(waiting.items()):
            fits = numbers.shape == (seen.q.shape[0], seen.q.shape[2]) and not (kind == "target" and reading)
            if kind == "source" or fits:
                call.add_ids(kind, numbers, 0 if kind == "source" else first_query)
                del waiting[kind]

    def _choose_call(self, name: str, seen: Call, first_query: int, growing: object | None) -> tuple[GrowingCall, str]:
        """The call to which an attention belongs, and its name in this call."""
        running = self.find_call(growing)
        if running is not None:
            part = running.attentions.get(name)
            cleared = all(call is not running.forward for call in reversed(self.record.calls))  # by the user
            if not cleared and (part is None or part.continues_at(seen.q.shape[0], first_query)):
                return running, name
            running.release()  # or the cache was cropped: from this position on it is another text
            call = self._new_call(seen)
            call.inherit(running, first_query)
            return call, name
        current = self._thread.call
        if growing is not None and current is not None and current.cache is not None:
            current = None
        if current is not None and self._thread.begun and growing is None and name in current.attentions:
            count = sum(other.partition(":")[0] == name for other in current.attentions)
            return current, f"{name}:{count + 1}"  # a layer that is used several times
        if current is None or name in current.attentions:
            current = self._new_call(seen)
        return current, name

    def _new_call(self, seen: Call) -> GrowingCall:
        self.queue.flush_layers()  # of the call before
        call, (batch, heads, queries, d) = GrowingCall(), seen.q.shape
        shape, keys = watch_settings.AttentionShape(heads, seen.k.shape[1], d, seen.q.itemsize), seen.k.shape[2]
        expected = len(self.settings.layers) * watch_settings.estimate_bytes(
            self.settings.detail, shape, batch, queries, keys
        )
        self.record.expected_bytes += expected
        if self.settings.detail.keep == "qk":
            expected += watch_settings.count_dense_bytes(seen)
            what = f"keeping q and k of {len(self.settings.layers)} attentions over {keys:,} tokens"
            self.warned = self.warned or watch_settings.warn_if_large(expected, what)
        self.record.calls.append(call.forward)
        return call


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


def describe_exception(error: BaseException) -> str:
    """The class of an exception and the first line of its message.

    >>> describe_exception(IndexError("index out of range in self"))
    'IndexError: index out of range in self'
    """
    message = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {message[:200]}" if message else type(error).__name__
