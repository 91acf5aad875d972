"""Forward passes of a watched Hugging Face model: tokens, cache growth, positions and beam reorderings."""

from __future__ import annotations

import functools
import inspect
import threading
import warnings
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from clearhead.errors import LensError
from clearhead.lens.capture.collector import Collector, refuse_unmeasurable
from clearhead.lens.capture.compiled_graphs import is_recomputing
from clearhead.lens.capture.forward_hooks import UNKNOWN_EXCEPTION, find_new_exception, get_handled_exception
from clearhead.lens.huggingface.arguments import UNKNOWN, AttentionArguments, to_seen
from clearhead.lens.huggingface.cache_positions import (
    CacheGrowth,
    ForwardPass,
    LayerCacheState,
    count_seen_tokens,
    find_cache,
    find_context_layers,
    is_appended,
    list_outputs,
    place_by_mask,
    read_layer_number,
    read_layer_states,
)
from clearhead.lens.huggingface.discovery import (
    REMEDY,
    describe_attentions,
    describe_modules,
    find_unseen_modules,
)
from clearhead.lens.huggingface.interface_usage import replaces_forward
from clearhead.lens.huggingface.interposition import observe_modules
from clearhead.lens.huggingface.model_events import ReorderListener, RunCounter, attach_callbacks
from clearhead.lens.huggingface.verification import find_reading


class ForwardTracker:
    """Reports every forward pass and every attention of a model to a collector."""

    listener: ReorderListener  # while hooks are attached

    def __init__(self, model: nn.Module, collector: Collector) -> None:
        self.model, self.collector = model, collector
        settings = collector.settings
        self.known = describe_attentions(model, settings.layers if settings.detail.norms else ())
        self.models = _find_models(model)
        self.layers = _find_layer_numbers(self.models, self.known)
        self.context_layers = find_context_layers(self.known)
        self.unseen = find_unseen_modules(model, self.known)
        self.passes, self.refusal = 0, ""
        self.attentions_seen = set[nn.Module]()
        self.run_counters = [RunCounter(module) for module in self.known if replaces_forward(module)]
        self.cache_kinds = set[type]()
        self._thread = threading.local()

    @contextmanager
    def track(self) -> Iterator[None]:
        """Attaches all hooks and wrappers, and removes them at the end."""
        with (
            attach_callbacks(self.model, self.models, self) as self.listener,
            observe_modules(list(self.known), self.on_attention),
            ExitStack() as stack,
        ):
            for counter in self.run_counters:
                stack.enter_context(counter.attach())
            try:
                yield
            finally:
                self._drop_frames(0, get_handled_exception() or UNKNOWN_EXCEPTION)
        if self.refusal:  # raised before, but perhaps in a thread of transformers that caught it
            raise LensError(self.refusal)
        if self.passes and not self.attentions_seen:
            self._raise_if_none_took_part()
        self._warn_of_replaced()

    def _warn_of_replaced(self) -> None:
        """Names the attentions whose own forward ran without the interface."""
        ran = [one.module for one in self.run_counters if one.runs and one.module not in self.attentions_seen]
        watched = {self.known[module].name: module for module in ran}
        if names := [name for name in watched if name in self.collector.settings.layers]:
            warnings.warn(
                f"the forward of these attentions of {type(self.model).__name__} was replaced by one without Hugging "
                "Face's attention interface; they are not recorded: "
                f"{describe_modules({name: watched[name] for name in names})}",
                stacklevel=6,
            )

    def _raise_if_none_took_part(self) -> None:
        name, known = type(self.model).__name__, next(iter(self.known.values())).name
        others = (
            f"; other modules compute attention without it: {describe_modules(self.unseen)}. {REMEDY}"
            if self.unseen
            else ", and no other attention was found in it"
        )
        raise LensError(
            f"{name} ran, but none of its {len(self.known)} attentions ({known}, …) called Hugging Face's attention "
            f"interface{others}"
        )

    def on_attention(self, module: nn.Module, got: AttentionArguments) -> None:
        """Callback for every attention function call: finds its positions and passes it to the collector."""
        known, frame = self.known[module], self._frames[-1] if self._frames else ForwardPass(module)
        if is_recomputing() or not self.collector.watches_thread():
            return
        if got.refusal:
            self.refusal = got.refusal
            raise LensError(got.refusal)
        refuse_unmeasurable(got.q, known.name)
        self.attentions_seen.add(module)
        layer = read_layer_number(module)
        where = frame.locate(layer, got.q.shape[2], got.k.shape[2], known)
        if got.kind == UNKNOWN:
            seen = find_reading(got, where.keys, frame.masks, known.name)
        else:
            seen = to_seen(got, where.keys, frame.masks)
        first_query, tokens = where.first_query, None
        if known.joint:
            first_query, tokens = 0, got.q.shape[2]
        elif first_query is None:
            first_query, tokens = place_by_mask(seen.mask, seen.q.shape[2], seen.k.shape[2])
        counts = frame.counts if known.grows or frame.growth is None else frame.growth.counts
        appended = is_appended(frame.cache, layer, got.k)
        if appended and layer is not None and frame.growth is not None:
            frame.growth.keys[layer] = weakref.ref(got.k)
        counts[known.name] += 1
        times = counts[known.name]
        self.collector.record_attention(
            known.name if times == 1 else f"{known.name}:{times}",
            seen,
            first_query=first_query,
            first_key=where.first_key,
            tokens=tokens,
            cross=known.cross,
            static=not known.grows,
            appended=appended,
            out=known.out,
        )

    @property
    def _frames(self) -> list[ForwardPass]:
        if not hasattr(self._thread, "frames"):
            self._thread.frames, self._thread.growths = [], {}
        frames: list[ForwardPass] = self._thread.frames
        return frames

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        frames, named = self._frames, _name_arguments(type(getattr(module, "_orig_mod", module)), args, kwargs)
        for n, frame in enumerate(frames):
            if module is self.model or frame.module is module:  # of a pass that was interrupted
                self._drop_frames(n, UNKNOWN_EXCEPTION)
                break
        cache = find_cache(named.values())
        states = self._read_states(cache, before=True, coming=named.get("hidden_states"))
        frame = ForwardPass(module, cache, states, frames[-1] if frames else None)
        vectors = named.get("inputs_embeds") is not None and not frame.reads
        around = self.models and module not in self.models and not hasattr(module, "_orig_mod")  # not a model itself
        ids = {} if frame.reads or around else self._find_token_ids(module, named)
        frame.reads = frame.reads or bool(ids)
        if not frames:
            self.passes += 1
            frame.growth = self._find_growth(module, cache, frame, named)
            if frame.growth is not None and frame.growth.has_replaced_keys():
                self.collector.measure_waiting(frame.growth)
            self.collector.begin(growing=frame.growth, ids=ids)
        else:
            self._note_inner_tokens(frame, {"vectors": None} if vectors and not ids else ids)
        if frame.growth is not None and cache is not None:
            self._listen(cache)
        frames.append(frame)

    def _drop_frames(self, first: int, error: BaseException | str) -> None:
        """Ends passes that nobody has ended, because of an exception."""
        if self._frames and not first:
            self.collector.end(error)
        del self._frames[first:]

    def _listen(self, cache: Any) -> None:
        """Reports reorderings of this cache, and of all of its class."""
        if type(cache) not in self.cache_kinds:
            self.cache_kinds.add(type(cache))
            self.listener.listen(type(cache))

    def _note_inner_tokens(self, frame: ForwardPass, ids: Mapping[str, Tensor | None]) -> None:
        """Notes the tokens of a model inside a wrapper; drops them if the pass reads several texts."""
        read, mixed = frame.read, False
        for kind, numbers in ids.items():
            if kind not in read:
                read[kind] = None if numbers is None else numbers.clone()  # the wrapper may change it
                self.collector.note_tokens(kind, read[kind])
            elif not frame.length:
                mixed = mixed or not _are_equal(read[kind], numbers)
        if mixed or (len(read) > 1 and read.keys() & {"tokens", "vectors"}):
            for kind in read:
                read[kind] = None
                self.collector.forget_tokens(kind)

    def end(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if not self._frames:
            return
        frame = self._frames.pop()
        if self._frames:
            return
        error = find_new_exception(frame.handled)
        if error is not None:  # the cache may hold this step in some layers alone
            self.collector.end(error)
            return
        self._thread.last_growth = frame.growth
        cache = find_cache(list_outputs(output)) if frame.cache is None else frame.cache
        if frame.growth is not None and cache is not None:
            frame.growth.cache, frame.growth.length = weakref.ref(cache), count_seen_tokens(self._read_states(cache))
            alive = {key: one for key, one in self._thread.growths.items() if one.cache() is not None}
            self._thread.growths = {**alive, id(cache): frame.growth}
            self._listen(cache)
        self.collector.end()

    def _read_states(
        self, cache: Any, *, before: bool = False, coming: Tensor | None = None
    ) -> dict[int, LayerCacheState]:
        """Cache states of the watched layers; `before` a pass, other layers may already hold the tokens `coming`.

        All have, if a layer by itself has no entry in the cache: it uses the keys of one before it. A layer that does
        not know its number (Zamba) holds as few tokens as any, since it has not run.
        """
        held = {n: state for n, state in read_layer_states(cache).items() if n not in self.context_layers}
        if before and held and self.layers is not None and not self.layers:
            length = min(state.length for state in held.values())
            return {n: state._replace(length=length) for n, state in held.items()}
        own = {n: state for n, state in held.items() if not self.layers or n in self.layers}
        if own or not held:
            return own
        new = 0 if coming is None else coming.shape[-2]
        return {n: state._replace(length=max(0, state.length - new)) for n, state in held.items()}

    def _find_growth(
        self, module: nn.Module, cache: Any, frame: ForwardPass, named: Mapping[str, Any]
    ) -> CacheGrowth | None:
        """The CacheGrowth that this pass continues, a new one, or None if no cache is used."""
        length = frame.length
        known: CacheGrowth | None = self._thread.growths.get(id(cache))
        if cache is not None and known is not None and known.cache() is cache and known.length == length and length:
            return known
        if cache is not None:
            return CacheGrowth(cache, length)
        keeps = named.get("use_cache")
        keeps = getattr(getattr(module, "config", None), "use_cache", True) if keeps is None else keeps
        return CacheGrowth(self, 0) if keeps and True in self._find_growth_kinds(module) else None

    def _find_growth_kinds(self, module: nn.Module) -> set[bool]:
        """Which values `grows` has among the attentions of a module."""
        return {self.known[part].grows for part in module.modules() if part in self.known}

    def _find_token_ids(self, module: nn.Module, named: Mapping[str, Any]) -> dict[str, Tensor]:
        """The token ids of a pass: "source" and "target" for encoder-decoders, else "tokens"."""
        whole = self.models.get(module) or next(iter(self.models.values()), module)
        both = getattr(getattr(whole, "config", None), "is_encoder_decoder", False)
        source, target = named.get("input_ids"), named.get("decoder_input_ids")
        if both and target is None and named.get("labels") is not None:
            shift = getattr(module, "prepare_decoder_input_ids_from_labels", None)
            target = None if shift is None else shift(labels=named["labels"])
        kind: Any = type(module)
        if (
            both
            and "decoder_input_ids" not in _get_signature(kind).parameters
            and self._find_growth_kinds(module) == {True}
        ):
            source, target = None, source  # the decoder by itself
        found = {"source" if both else "tokens": source, "target": target}
        return {kind: ids for kind, ids in found.items() if isinstance(ids, Tensor) and ids.ndim == 2}

    def on_finished_beams(self, rows: frozenset[int]) -> None:
        """Callback: beams finished in these rows, before the next reordering of this thread's cache."""
        self._thread.finished_beams = rows

    def on_stopped(self, stopped: list[bool]) -> None:
        """Callback: these samples of a batch end with this step; what goes on in their rows is padding."""
        growth: CacheGrowth | None = getattr(self._thread, "last_growth", None)
        if growth is not None and self.collector.watches_thread():
            self.collector.finish_samples(stopped, growth)

    def on_generated(self, _: Any) -> None:
        """Callback: a generate() is over, so what continues its cache begins anew."""
        growth: CacheGrowth | None = getattr(self._thread, "last_growth", None)
        if growth is not None:
            self.collector.finish_samples(None, growth)

    def on_reorder(self, cache: Any, rows: Int[Tensor, " samples"]) -> None:
        """Callback: a cache was reordered, so the call that grows with it is, too."""
        finished: frozenset[int] = getattr(self._thread, "finished_beams", frozenset())
        self._thread.finished_beams = frozenset()
        growth: CacheGrowth | None = self._thread.growths.get(id(cache)) if self._frames is not None else None
        if growth is not None and growth.cache() is cache:
            self.collector.reorder(rows, growth, finished)


@contextmanager
def observe_model(model: nn.Module, collector: Collector) -> Iterator[None]:
    """Within it the collector receives every attention call of the model."""
    tracker = ForwardTracker(model, collector)
    if tracker.layers is not None and type(model).forward is nn.Module.forward:
        raise LensError(
            f"a {type(model).__name__} is never called itself, so its forward passes cannot be recorded; "
            "watch the model that it belongs to, and choose some of its attentions with layers="
        )
    if tracker.unseen:
        warnings.warn(
            f"not all attentions of {type(model).__name__} go through Hugging Face's attention interface; these are "
            f"not recorded: {describe_modules(tracker.unseen)}",
            stacklevel=5,
        )
    with tracker.track():
        yield


def _find_models(model: nn.Module) -> dict[nn.Module, nn.Module]:
    """Every PreTrainedModel inside a model, mapped to the outermost one that contains it."""
    from transformers import PreTrainedModel

    found: dict[nn.Module, nn.Module] = {}
    for module in model.modules():
        if isinstance(module, PreTrainedModel) and module not in found:
            found |= {part: module for part in module.modules() if isinstance(part, PreTrainedModel)}
    return found


def _find_layer_numbers(wholes: Collection[nn.Module], attending: Iterable[nn.Module]) -> frozenset[int] | None:
    """The layer indices in a part of a model; none if its layers do not know theirs; None for a complete model."""
    if wholes:
        return None
    numbers = {read_layer_number(module) for module in attending}
    return frozenset(number for number in numbers if number is not None)


def _are_equal(some: Tensor | None, others: Tensor | None) -> bool:
    if some is None or others is None:
        return some is others
    return some.device == others.device and torch.equal(some, others)


@functools.cache
def _get_signature(kind: type) -> inspect.Signature:
    return inspect.signature(kind.forward)  # type: ignore[attr-defined]


def _name_arguments(kind: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a forward pass by name."""
    if not args:
        return kwargs
    names = list(_get_signature(kind).parameters)[1:]
    return {**dict(zip([*names, *map(str, range(len(args)))], args, strict=False)), **kwargs}
