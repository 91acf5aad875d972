"""Collector: takes what attentions see, measures it at once, and sorts it into the calls of a Record."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.attention import Seen
from clearhead.attention.inputs import Call, checked
from clearhead.lens.growing import Detail, Growing
from clearhead.lens.measures import first_position
from clearhead.lens.record import Forward, Record


class Settings(NamedTuple):
    """What watch() was asked for, checked: names of the layers, numbers of the heads (None: all), and the detail."""

    layers: tuple[str, ...]
    heads: tuple[int, ...] | None = None
    detail: Detail = Detail()


class _Open(Forward):
    """A call that may go on."""

    def __init__(self, growing: object | None = None) -> None:
        super().__init__()
        self.growing = growing


class Collector:
    """One watch: `take` is told of every attention, in any thread; what it makes of them goes to the record.

    A forward pass may be announced with `begin` and `end`. Where it is not, an attention that is met again without a
    cache that goes on begins a new call.
    """

    def __init__(self, settings: Settings, record: Record, names: Sequence[str]) -> None:
        self.settings, self.record, self.names = settings, record, list(names)
        self._lock = threading.RLock()
        self._here = threading.local()

    def begin(self, *, growing: object | None = None, ids: Mapping[str, Tensor] | None = None) -> None:
        """A forward pass of this thread begins. `growing` is the cache that it goes on with.

        `ids` are the token numbers that go in: of "source" and "target", or of "tokens".
        """
        last: _Open | None = getattr(self._here, "call", None)
        if last is None or growing is None or last.growing is not growing:
            self._here.call = None
        self._here.growing, self._here.ids = growing, dict(ids or {})

    def end(self) -> None:
        """It is over; only one that grows may go on."""
        if getattr(self._here, "growing", None) is None:
            self._here.call = None

    def take(
        self,
        name: str,
        seen: Seen,
        *,
        first_query: int | None = None,
        first_key: int = 0,
        cross: bool = False,
        out: Tensor | None = None,
    ) -> None:
        """One attention: measured at once on its device, the results to the CPU.

        `first_query` and `first_key` are the document positions of the first of each. `out` is the weight that
        merges the heads, (width, heads · d_v), for the norms of values.
        Ignored while autograd recomputes a layer for gradient checkpointing.
        """
        if name not in self.settings.layers or recomputing():
            return
        with torch.inference_mode(False), torch.no_grad():
            call = of_heads(
                checked(
                    seen.q,
                    seen.k,
                    seen.v,
                    seen.mask,
                    scale=seen.scale,
                    bias=seen.bias,
                    softcap=seen.softcap,
                    sinks=seen.sinks,
                ),
                self.settings.heads,
            )
            queries, keys = call.q.shape[2], call.k.shape[2]
            if first_query is None:
                first_query = 0 if cross else first_position(call.mask, queries, keys) + first_key
            growing = getattr(self._here, "growing", None) if seen.cache is None else seen.cache
            part = self._part(name, call, first_query, growing, cross)
            part.add(call, first_query, first_key, seen.logsumexp, growing is not None)

    def _part(self, name: str, call: Call, first_query: int, growing: object | None, cross: bool) -> Growing:
        """Where it belongs: a part of this thread's call that goes on, a new part of it, or one of a new call."""
        current: _Open | None = getattr(self._here, "call", None)
        if current is not None and name in current:
            part = current.sights[name]
            assert isinstance(part, Growing)
            if growing is None or current.growing is not growing or not part.goes_on(call.q.shape[0], first_query):
                current = None
        if current is None:
            current = self._here.call = _Open(growing)
            with self._lock:
                self.record.calls.append(current)
        if current.growing is None:
            current.growing = growing
        if name not in current:
            heads = self.settings.heads or tuple(range(call.q.shape[1]))
            current.sights[name] = Growing(name, heads, cross, self.settings.detail)
        part = current.sights[name]
        assert isinstance(part, Growing)
        return part

    def moved(self, rows: Tensor) -> None:
        """The samples of the growing call changed places: sample n is what rows[n] was."""
        raise NotImplementedError


def recomputing() -> bool:
    """Whether this is autograd going backward: then a forward pass is only repeated, for gradient checkpointing."""
    return bool(torch._C._current_graph_task_id() != -1)


def of_heads(call: Call, heads: Sequence[int] | None) -> Call:
    """The same attention with some of its heads."""
    if heads is None:
        return call
    chosen = torch.tensor(heads, dtype=torch.long, device=call.q.device)
    group = call.q.shape[1] // call.k.shape[1]

    def of(tensor: Tensor, axis: int) -> Tensor:
        return tensor.index_select(axis, chosen) if tensor.shape[axis] > 1 else tensor

    mask = call.mask if call.mask is None else call.mask.map(lambda t: of(t, 1) if t.ndim == 4 else t)
    bias = call.bias
    if bias is not None and bias.heads > 1:
        axis = 0 if bias.parameter.ndim == 1 else 1
        bias = bias.replace(of(bias.parameter, axis))
    return call._replace(
        q=call.q.index_select(1, chosen),
        k=call.k.index_select(1, chosen // group),
        v=call.v.index_select(1, chosen // group),
        mask=mask,
        bias=bias,
        scale=of(call.scale, 0) if isinstance(call.scale, Tensor) else call.scale,
        sinks=None if call.sinks is None else call.sinks.index_select(0, chosen),
    )
