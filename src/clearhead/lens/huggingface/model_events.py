"""Callbacks from a running Hugging Face model: passes begin and end, beams and samples finish, caches are reordered.

Forward hooks are set on the model and on the models within it. Finished beams are read from a private method of
generate(): where that is missing or has changed, finished beams leave the record as dropped ones do. Samples that
finish before the others of a batch are read from the stopping criteria.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor, nn

from clearhead.lens.capture.compiled_graphs import exclude_from_graphs, registry_lock
from clearhead.lens.capture.forward_hooks import HookRegistry, PassCallbacks
from clearhead.lens.huggingface.method_observer import MethodObserver


@runtime_checkable
class ForwardCallbacks(PassCallbacks, Protocol):
    """The callbacks of one watch for the forward passes of a model."""

    def on_finished_beams(self, rows: frozenset[int]) -> None: ...
    def on_stopped(self, stopped: list[bool]) -> None: ...
    def on_generated(self, _: Any) -> None: ...
    def on_reorder(self, cache: Any, rows: Int[Tensor, " samples"]) -> None: ...


@contextmanager
def attach_callbacks(
    model: nn.Module, inner: Iterable[nn.Module], callbacks: ForwardCallbacks
) -> Iterator[ReorderListener]:
    """Within it, callbacks receive forward passes of a model and of models inside it, finished beams, and reorderings.

    Pass the classes of caches to the `listen` method of the listener that it yields.
    """
    listener = ReorderListener(callbacks.on_reorder)
    hooked = [(_whole, model), *((_within, module) for module in inner if module is not model)]
    for registry, module in hooked:
        registry.enter(module, callbacks)
    try:
        with (
            observe_finished_beams(callbacks.on_finished_beams),
            observe_stopped_samples(callbacks.on_stopped, callbacks.on_generated),
        ):
            yield listener
    finally:
        listener.stop()
        for registry, module in hooked:
            registry.leave(module, callbacks)


def _begin_within(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Does nothing while a graph is traced: inner modules have no pass of their own in a graph."""
    if not torch.compiler.is_compiling():
        _within.call_begin(module, args, kwargs)


def _end_within(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    if not torch.compiler.is_compiling():
        _within.call_end(module, args, kwargs, output)


_exclude = exclude_from_graphs(
    "clearhead.watch follows forward passes outside of the graph: compile the model itself, not what calls it"
)


@_exclude
def _begin_whole(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    _whole.call_begin(module, args, kwargs)


@_exclude
def _end_whole(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    _whole.call_end(module, args, kwargs, output)


_within = HookRegistry(_begin_within, _end_within)
_whole = HookRegistry(_begin_whole, _end_whole)


class RunCounter:
    """A forward pre-hook that counts the runs of a module outside of compiled graphs."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.runs = module, 0

    def __call__(self, module: nn.Module, args: Any) -> None:
        if module is self.module and not torch.compiler.is_compiling():
            self.runs += 1

    @contextmanager
    def attach(self) -> Iterator[None]:
        handle = self.module.register_forward_pre_hook(self)
        try:
            yield
        finally:
            handle.remove()


METHOD = "_update_finished_beams"
FinishedCallback = Callable[[frozenset[int]], None]


@contextmanager
def observe_finished_beams(callback: FinishedCallback) -> Iterator[None]:
    """Within it, `callback` is called at every step of beam search with the rows of finished beams."""
    from transformers.generation.utils import GenerationMixin

    with _beams.observe(GenerationMixin, METHOD, callback):
        yield


@contextmanager
def observe_stopped_samples(
    on_stopped: Callable[[list[bool]], None], on_generated: Callable[[Any], None]
) -> Iterator[None]:
    """Within it, `on_stopped` gets of every step which samples are to stop, `on_generated` the end of a generate()."""
    from transformers.generation.stopping_criteria import StoppingCriteriaList
    from transformers.generation.utils import GenerationMixin

    with (
        _criteria.observe(StoppingCriteriaList, "__call__", on_stopped),
        _generations.observe(GenerationMixin, "generate", on_generated),
    ):
        yield


def _read_stopped(result: Any, **_: Any) -> list[bool]:
    """Which samples a step's stopping criteria end; empty if that is not known."""
    return result.tolist() if isinstance(result, Tensor) and result.ndim == 1 else []


def _find_finished_rows(
    result: Any, *, cur_len: int | None = None, decoder_prompt_len: int = 0, **_: Any
) -> frozenset[int]:
    """The rows of finished beams, from the beam indices and completion flags of generate()."""
    if cur_len is None or not isinstance(result, tuple) or len(result) != 4:
        return frozenset()
    _, _, beams, complete = result
    rows = beams[..., cur_len - decoder_prompt_len]
    return frozenset(rows.masked_fill(~complete, -1).flatten().tolist()) - {-1}


_beams = MethodObserver(_find_finished_rows)
_criteria = MethodObserver(_read_stopped)
_generations = MethodObserver(lambda result, **_: None)

REORDER_METHODS = ("reorder_cache", "batch_select_indices", "batch_repeat_interleave")
_patched: dict[tuple[type, str], PatchedMethod] = {}
_thread = threading.local()


class ReorderListener:
    """Reports when the samples of caches are reordered, as by beam search, until stopped.

    Methods are patched on the class, not on the cache: a copied cache must not report for the original.
    """

    def __init__(self, on_reorder: Callable[[Any, Int[Tensor, " samples"]], None]) -> None:
        self.on_reorder = on_reorder
        self._places: set[tuple[type, str]] = set()

    def listen(self, kind: type) -> None:
        """Also reports caches of this class."""
        for name in REORDER_METHODS:
            owner = next(parent for parent in kind.__mro__ if name in vars(parent))
            if (owner, name) not in self._places:
                self._places.add((owner, name))
                with registry_lock:
                    if (owner, name) not in _patched:
                        _patched[owner, name] = PatchedMethod(owner, name)
                    _patched[owner, name].listeners += (self,)

    def stop(self) -> None:
        for place in self._places:
            with registry_lock:
                patched = _patched[place]
                patched.listeners = tuple(one for one in patched.listeners if one is not self)
                if not patched.listeners:
                    patched.leave()
                    del _patched[place]
        self._places.clear()


class PatchedMethod:
    """A cache method that is patched to report the reordering it does."""

    def __init__(self, owner: type, name: str) -> None:
        self.owner, self.name, self.listeners = owner, name, tuple[ReorderListener, ...]()
        self.own: Callable[..., None] = vars(owner)[name]
        self.put = self._make_wrapper()
        setattr(owner, name, self.put)

    def leave(self) -> None:
        if vars(self.owner).get(self.name) is self.put:
            setattr(self.owner, self.name, self.own)

    def _make_wrapper(self) -> Callable[[Any, Any], None]:
        @functools.wraps(self.own)
        def reorder(cache: Any, rows: Any) -> None:
            inner = getattr(_thread, "reordering", None) is cache  # called by a class that builds on this one
            batch, before = count_samples(cache), getattr(_thread, "reordering", None)
            _thread.reordering = cache
            try:
                self.own(cache, rows)
            finally:
                _thread.reordering = before
            if not inner:
                self._notify(cache, torch.as_tensor(rows), batch)

        return reorder

    def _notify(self, cache: Any, rows: Tensor, batch: int) -> None:
        if self.name == "batch_repeat_interleave":
            rows = torch.arange(batch).repeat_interleave(rows)
        for listener in self.listeners:
            listener.on_reorder(cache, rows)


def count_samples(cache: Any) -> int:
    """The batch size of a cache; 0 if it is empty."""
    layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", ())
    keys = next((layer.keys for layer in layers if isinstance(getattr(layer, "keys", None), Tensor)), None)
    return 0 if keys is None else keys.shape[0]
