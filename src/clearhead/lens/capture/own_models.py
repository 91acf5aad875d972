"""Observation of clearhead's own models: observers on their attentions, and hooks on their embeddings for token ids."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.attention import MultiHeadAttention, Seen
from clearhead.lens.capture.collector import Collector
from clearhead.lens.capture.compiled_graphs import (
    AttentionObserver,
    EncodedCall,
    GraphReceiver,
    is_recomputing,
    registry_lock,
    send_to_receiver,
)
from clearhead.lens.capture.forward_hooks import (
    UNKNOWN_EXCEPTION,
    HookRegistry,
    find_new_exception,
    get_handled_exception,
)

KINDS = ("source", "target", "tokens")
_observers: weakref.WeakKeyDictionary[nn.Module, AttentionObserver] = weakref.WeakKeyDictionary()
_readers: weakref.WeakKeyDictionary[nn.Module, TokenReader] = weakref.WeakKeyDictionary()


@contextmanager
def observe_own_model(
    model: nn.Module, attentions: Mapping[str, MultiHeadAttention], collector: Collector
) -> Iterator[None]:
    """Within it the collector receives every call of these attentions, beside earlier observers."""
    with ExitStack() as stack:
        for name, attention in attentions.items():
            if name in collector.settings.layers:
                stack.enter_context(_attach_observer(attention, _make_listener(name, attention, collector)))
        parts = [part for part in model.modules() if _reads_tokens(part)]
        for part in parts:
            stack.enter_context(_attach_reader(part, collector))
        stack.enter_context(_track_passes({model, *(one for part in parts for one in _find_stacks(part))}, collector))
        yield


class _PassTracker:
    """Tells a collector when a model begins and ends a forward pass, or a stack of it that is called by itself."""

    def __init__(self, collector: Collector) -> None:
        self.collector, self._thread = collector, threading.local()

    @property
    def _open(self) -> list[tuple[nn.Module, BaseException | None]]:
        """The modules that run, each with the exception that was handled before."""
        if not hasattr(self._thread, "open"):
            self._thread.open = []
        modules: list[tuple[nn.Module, BaseException | None]] = self._thread.open
        return modules

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if any(module is one for one, _ in self._open):
            self.close(UNKNOWN_EXCEPTION)
        if not self._open:
            self.collector.begin_pass()
        self._open.append((module, get_handled_exception()))

    def end(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if not self._open:
            return
        _, handled = self._open.pop()
        if not self._open:
            self.collector.end_pass(find_new_exception(handled))

    def close(self, error: BaseException | str) -> None:
        """Ends a pass that nobody has ended, because of an exception."""
        if self._open:
            self._open.clear()
            self.collector.end_pass(error)


@contextmanager
def _track_passes(modules: Collection[nn.Module], collector: Collector) -> Iterator[None]:
    tracker = _PassTracker(collector)
    for module in modules:
        _passes.enter(module, tracker)
    try:
        yield
    finally:
        for module in modules:
            _passes.leave(module, tracker)
        tracker.close(get_handled_exception() or UNKNOWN_EXCEPTION)


def _begin_pass(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Does nothing while a graph is traced."""
    if not torch.compiler.is_compiling():
        _passes.call_begin(module, args, kwargs)


def _end_pass(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    if not torch.compiler.is_compiling():
        _passes.call_end(module, args, kwargs, output)


_passes = HookRegistry(_begin_pass, _end_pass)


@contextmanager
def _attach_observer(attention: MultiHeadAttention, listener: Callable[[Seen], None]) -> Iterator[None]:
    with registry_lock:
        observer = _observers.get(attention)
        if observer is None or (observer.listeners and attention.observer is not observer):
            # Also if another observer was set meanwhile, which may call the one before it.
            observer = AttentionObserver()
            _observers.setdefault(attention, observer)
        if attention.observer is not observer:
            observer.previous, attention.observer = attention.observer, observer
        observer.listeners = (*observer.listeners, listener)
    try:
        yield
    finally:
        with registry_lock:
            observer.listeners = tuple(one for one in observer.listeners if one is not listener)
            if not observer.listeners and attention.observer is observer:
                attention.observer, observer.previous = observer.previous, None


def _make_listener(name: str, attention: MultiHeadAttention, collector: Collector) -> Callable[[Seen], None]:
    def listen(seen: Seen) -> None:
        if is_recomputing():
            return
        first_query, cache = None, seen.cache
        if seen.cross and cache is not None:
            seen = split_beams(seen, cache.beams)
            written = cache.length - seen.q.shape[2]  # the first layer has taken this step's tokens already
            first_query = written if written >= 0 else None
        collector.record_attention(name, seen, first_query=first_query, cross=seen.cross, out=attention.to_out)

    return listen


def split_beams(seen: Seen, beams: int) -> Seen:
    """Undoes the folding of beams: beams that share a context were queries of one sample, and become samples."""
    if beams == 1:
        return seen

    def apart(tensor: Tensor) -> Tensor:
        """(batch, heads, beams · queries, …) → (batch · beams, heads, queries, …)"""
        samples: Tensor = tensor.unflatten(2, (beams, -1)).transpose(1, 2).flatten(0, 1)
        return samples

    def of_mask(tensor: Tensor) -> Tensor:
        if tensor.ndim == 4 and tensor.shape[2] > 1:
            return apart(tensor.expand(len(seen.k), -1, -1, -1))
        return tensor.repeat_interleave(beams, 0) if len(tensor) > 1 else tensor

    return seen._replace(
        q=apart(seen.q),
        k=seen.k.repeat_interleave(beams, 0),
        v=seen.v.repeat_interleave(beams, 0),
        mask=None if seen.mask is None else seen.mask.map(of_mask),
        logsumexp=None if seen.logsumexp is None else apart(seen.logsumexp),
    )


class TokenReader(GraphReceiver):
    """Collects the token ids that enter the encoder or the decoder of a model."""

    def __init__(self) -> None:
        super().__init__()
        self.collectors: tuple[Collector, ...] = ()
        self.hooks: list[Any] = []
        self._thread = threading.local()

    def attach(self, model: nn.Module) -> None:
        """Adds forward pre-hooks to the embeddings and to the layer stacks."""
        places = [getattr(model, name, None) for name in ("vocabulary", "source_vocabulary")]
        stacks = _find_stacks(model)
        kinds = (0, 1) if len(stacks) == 2 else (2,)
        hooked = [(place, _TokenHook(self, None)) for place in places if isinstance(place, nn.Module)]
        hooked += [(stack, _TokenHook(self, kind)) for stack, kind in zip(stacks, kinds, strict=True)]
        self.hooks = [part.register_forward_pre_hook(hook) for part, hook in hooked]

    def receive(self, given: EncodedCall) -> None:
        if not given.numbers:
            self._thread.tokens = given.tensors[0] if given.tensors else None
            return
        tokens, self._thread.tokens = getattr(self._thread, "tokens", None), None
        for collector in self.collectors:
            collector.note_tokens(KINDS[given.numbers[0]], tokens)


class _TokenHook:
    """A forward pre-hook: on an embedding it reports token ids, on a stack their kind (source, target or tokens)."""

    def __init__(self, reader: TokenReader, kind: int | None) -> None:
        self.reader, self.kind = reader, kind

    def __call__(self, module: nn.Module, given: tuple[Any, ...]) -> None:
        if self.kind is not None:
            send_to_receiver(self.reader, EncodedCall([], [self.kind], []))
        elif given:
            send_to_receiver(self.reader, EncodedCall([given[0].detach()], [], []))


def _find_stacks(model: nn.Module) -> list[nn.Module]:
    """The encoder and the decoder of a model, those that it has."""
    stacks = [getattr(model, name, None) for name in ("encoder", "decoder")]
    return [stack for stack in stacks if isinstance(stack, nn.Module)]


def _reads_tokens(part: nn.Module) -> bool:
    words = getattr(getattr(part, "vocabulary", None), "words", None)
    return isinstance(words, nn.Embedding) and (hasattr(part, "encoder") or hasattr(part, "decoder"))


@contextmanager
def _attach_reader(model: nn.Module, collector: Collector) -> Iterator[None]:
    with registry_lock:
        reader = _readers.setdefault(model, TokenReader())
        if not reader.collectors:
            reader.attach(model)
        reader.collectors = (*reader.collectors, collector)
    try:
        yield
    finally:
        with registry_lock:
            reader.collectors = tuple(one for one in reader.collectors if one is not collector)
            if not reader.collectors:
                for hook in reader.hooks:
                    hook.remove()
