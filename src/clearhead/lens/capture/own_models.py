"""Observation of clearhead's own models: observers on their attentions, and hooks on their embeddings for token ids."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

from torch import Tensor, nn

from clearhead.attention import MultiHeadAttention, Seen
from clearhead.lens.capture import attachments
from clearhead.lens.capture.collector import Collector
from clearhead.lens.capture.compiled_graphs import (
    AttentionObserver,
    EncodedCall,
    GraphReceiver,
    Listener,
    is_recomputing,
    send_to_receiver,
)

KINDS = ("source", "target", "tokens")


@contextmanager
def observe_own_model(
    model: nn.Module, attentions: Mapping[str, MultiHeadAttention], collector: Collector
) -> Iterator[None]:
    """Within it the collector receives every call of these attentions, beside earlier observers."""
    readers = [part for part in model.modules() if _reads_tokens(part)]
    stacks = {model, *(stack for part in readers for stack in _find_stacks(part))}
    tracker = _PassTracker(collector)
    listeners = [
        ((attention, _choose_observer(attention)), _make_listener(name, attention, collector))
        for name, attention in attentions.items()
        if name in collector.settings.layers
    ]
    with (
        _listeners.using(listeners),
        _collectors.using([(part, collector) for part in readers]),
        attachments.inner_hooks.using([(module, tracker) for module in stacks]),
    ):
        try:
            yield
        finally:
            tracker.close(attachments.get_handled_exception() or attachments.UNKNOWN_EXCEPTION)


class _PassTracker(threading.local):
    """Tells a collector when a model begins and ends a forward pass, or a stack of it that is called by itself."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        # Each with the frame of its call, and with the exception that was handled before it.
        self.running: list[tuple[nn.Module, FrameType | None, BaseException | None]] = []

    def begin(self, module: nn.Module, *_: Any) -> None:
        if any(module is running or not attachments.is_running(call) for running, call, _ in self.running):
            self.close(attachments.UNKNOWN_EXCEPTION)
        if not self.running:
            self.collector.begin_pass()
        self.running.append((module, attachments.find_call_frame(), attachments.get_handled_exception()))

    def end(self, *_: Any) -> None:
        if not self.running:
            return
        handled = self.running.pop()[2]
        if not self.running:
            self.collector.end_pass(attachments.find_new_exception(handled))

    def close(self, error: BaseException | str) -> None:
        """Ends a pass that nobody has ended, because of an exception."""
        if self.running:
            self.running.clear()
            self.collector.end_pass(error)


_observers: weakref.WeakKeyDictionary[nn.Module, AttentionObserver] = weakref.WeakKeyDictionary()


def _choose_observer(attention: MultiHeadAttention) -> AttentionObserver:
    """The observer of an attention for all watches; a new one if another was set meanwhile, which may call it."""
    observer = _observers.setdefault(attention, AttentionObserver())
    return AttentionObserver() if observer.callbacks and attention.observer is not observer else observer


def _update_listeners(pair: tuple[MultiHeadAttention, AttentionObserver], listeners: tuple[Listener, ...]) -> None:
    attention, observer = pair
    observer.callbacks = listeners
    if listeners and attention.observer is not observer:
        observer.previous, attention.observer = attention.observer, observer
    elif not listeners and attention.observer is observer:
        attention.observer, observer.previous = observer.previous, None


_listeners = attachments.Attachments[tuple[MultiHeadAttention, AttentionObserver], Listener](_update_listeners)


def _make_listener(name: str, attention: MultiHeadAttention, collector: Collector) -> Listener:
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


class TokenReader(GraphReceiver[EncodedCall]):
    """Collects the token ids that enter the encoder or the decoder of a model."""

    def __init__(self) -> None:
        super().__init__(lambda encoded: encoded)
        self.collectors: tuple[Collector, ...] = ()
        self.hooks: list[Any] = []
        self._thread = threading.local()

    def attach(self, model: nn.Module) -> None:
        """Adds forward pre-hooks to the embeddings and to the layer stacks."""
        embeddings = [getattr(model, name, None) for name in ("vocabulary", "source_vocabulary")]
        stacks = _find_stacks(model)
        kinds = (0, 1) if len(stacks) == 2 else (2,)
        parts: list[tuple[nn.Module, int | None]] = [
            (embedding, None) for embedding in embeddings if isinstance(embedding, nn.Module)
        ]
        parts += zip(stacks, kinds, strict=True)
        self.hooks = [part.register_forward_pre_hook(partial(_report_tokens, self, kind)) for part, kind in parts]

    def receive(self, encoded: EncodedCall) -> None:
        if not encoded.numbers:
            self._thread.tokens = encoded.tensors[0]
            return
        tokens, self._thread.tokens = getattr(self._thread, "tokens", None), None
        for collector in self.collectors:
            collector.note_tokens(KINDS[encoded.numbers[0]], tokens)


def _report_tokens(reader: TokenReader, kind: int | None, module: nn.Module, args: tuple[Any, ...]) -> None:
    """A forward pre-hook: on an embedding it reports token ids, on a stack their kind (source, target or tokens)."""
    if kind is not None:
        send_to_receiver(reader, EncodedCall([], [kind], []))
    elif args:
        send_to_receiver(reader, EncodedCall([args[0].detach()], [], []))


def _find_stacks(model: nn.Module) -> list[nn.Module]:
    stacks = [getattr(model, name, None) for name in ("encoder", "decoder")]
    return [stack for stack in stacks if isinstance(stack, nn.Module)]


def _reads_tokens(part: nn.Module) -> bool:
    words = getattr(getattr(part, "vocabulary", None), "words", None)
    return isinstance(words, nn.Embedding) and (hasattr(part, "encoder") or hasattr(part, "decoder"))


_readers: weakref.WeakKeyDictionary[nn.Module, TokenReader] = weakref.WeakKeyDictionary()


def _update_reader(model: nn.Module, collectors: tuple[Collector, ...]) -> None:
    reader = _readers.setdefault(model, TokenReader())
    if not reader.collectors:
        reader.attach(model)
    reader.collectors = collectors
    if not collectors:
        for hook in reader.hooks:
            hook.remove()


_collectors = attachments.Attachments[nn.Module, Collector](_update_reader)
