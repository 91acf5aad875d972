"""One watch of a Hugging Face model: its forward passes, their tokens, and the caches that grow from pass to pass.

Finished beams are read from a private method of generate(): where that is missing or has changed, they leave the record
as dropped beams do. Samples that finish before the others of a batch are read from the stopping criteria.
"""

from __future__ import annotations

import functools
import threading
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.errors import LensError
from clearhead.lens.capture.attachments import (
    UNKNOWN_EXCEPTION,
    find_new_exception,
    get_handled_exception,
    inner_hooks,
    is_running,
    observe_method,
    whole_hooks,
)
from clearhead.lens.capture.collector import Collector, refuse_unmeasurable
from clearhead.lens.capture.compiled_graphs import is_recomputing
from clearhead.lens.huggingface import cache_positions
from clearhead.lens.huggingface.arguments import AttentionArguments, list_parameters, to_seen
from clearhead.lens.huggingface.discovery import REMEDY, describe_attentions, describe_modules, find_unseen_modules
from clearhead.lens.huggingface.interposition import observe_modules, replaces_forward

FINISHED_BEAMS_METHOD = "_update_finished_beams"  # of generate()
REORDER_METHODS = ("reorder_cache", "batch_select_indices", "batch_repeat_interleave")  # of caches


class _ThreadState(threading.local):
    """What a watch knows of the forward passes of one thread."""

    last_growth: cache_positions.CacheGrowth | None = None  # of the last pass that ended
    finished_beams: frozenset[int] = frozenset()  # rows, before the next reordering of the cache

    def __init__(self) -> None:
        self.frames: list[cache_positions.ForwardPass] = []  # in progress, the outermost first
        self.growths: dict[int, cache_positions.CacheGrowth] = {}  # by the id of the cache


class ForwardTracker:
    """Reports every forward pass and every attention of a model to a collector."""

    def __init__(self, model: nn.Module, collector: Collector) -> None:
        self.model, self.collector = model, collector
        settings = collector.settings
        self.infos = describe_attentions(model, settings.layers if settings.detail.norms else ())
        self.models = _find_models(model)
        self.context_layers = cache_positions.find_context_layers(self.infos)
        self.unseen = find_unseen_modules(model, self.infos)
        self.passes, self.refusal = 0, ""
        self.attentions_seen = set[nn.Module]()
        self.attentions_run = set[nn.Module]()  # of those whose forward may not use the interface
        self._thread = _ThreadState()

    @contextmanager
    def track(self) -> Iterator[None]:
        """Attaches all hooks and wrappers, and removes them at the end."""
        with ExitStack() as stack:
            stack.enter_context(whole_hooks.using([(self.model, self)]))
            stack.enter_context(inner_hooks.using([(part, self) for part in self.models if part is not self.model]))
            self._observe_generation(stack)
            stack.enter_context(observe_modules(list(self.infos), self.on_attention))
            for module in filter(replaces_forward, self.infos):
                stack.callback(module.register_forward_pre_hook(self._note_run).remove)
            try:
                yield
            finally:
                self._drop_frames(0, get_handled_exception() or UNKNOWN_EXCEPTION)
        if self.refusal:  # raised before, but perhaps in a thread of transformers that caught it
            raise LensError(self.refusal)
        if self.passes and not self.attentions_seen:
            self._raise_if_none_took_part()

    def _observe_generation(self, stack: ExitStack) -> None:
        """Follows finished beams and samples, and reordered caches.

        Methods are patched on the class, not on the cache: a copied cache must not report for the original.
        """
        from transformers.cache_utils import Cache
        from transformers.generation.stopping_criteria import StoppingCriteriaList
        from transformers.generation.utils import GenerationMixin

        stack.enter_context(observe_method(GenerationMixin, FINISHED_BEAMS_METHOD, self.on_finished_beams))
        stack.enter_context(observe_method(GenerationMixin, "generate", self.on_generated))
        stack.enter_context(observe_method(StoppingCriteriaList, "__call__", self.on_stopped))
        for kind in _list_subclasses(Cache):
            for name in REORDER_METHODS:
                if name in vars(kind):
                    stack.enter_context(observe_method(kind, name, functools.partial(self.on_reorder, name)))

    def _note_run(self, module: nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling():
            self.attentions_run.add(module)

    def find_replaced(self) -> dict[str, nn.Module]:
        """The watched attentions whose own forward ran without the interface."""
        ran = {self.infos[module].name: module for module in self.attentions_run - self.attentions_seen}
        return {name: ran[name] for name in self.collector.settings.layers if name in ran}

    def _raise_if_none_took_part(self) -> None:
        name, first = type(self.model).__name__, next(iter(self.infos.values())).name
        others = (
            f"; other modules compute attention without it: {describe_modules(self.unseen)}. {REMEDY}"
            if self.unseen
            else ", and no other attention was found in it"
        )
        raise LensError(
            f"{name} ran, but none of its {len(self.infos)} attentions ({first}, …) called Hugging Face's attention "
            f"interface{others}"
        )

    def on_attention(self, module: nn.Module, arguments: AttentionArguments) -> None:
        """Callback for every attention function call: finds its positions and passes it to the collector."""
        if is_recomputing() or not self.collector.watches_thread():
            return
        if arguments.refusal:
            self.refusal = f"{self.infos[module].name!r} cannot be recorded: {arguments.refusal}"
            raise LensError(self.refusal)
        info, frames = self.infos[module], self._thread.frames
        frame = frames[-1] if frames else cache_positions.ForwardPass(module)
        refuse_unmeasurable(arguments.q, info.name)
        self.attentions_seen.add(module)
        layer, queries = cache_positions.read_layer_number(module), arguments.q.shape[2]
        where = frame.locate(layer, queries, arguments.k.shape[2], info)
        seen = to_seen(arguments, where.keys, frame.masks)
        first_query, tokens = where.first_query, None
        if info.joint:
            first_query, tokens = 0, queries
        elif first_query is None:
            first_query, tokens = cache_positions.place_by_mask(seen.mask, queries, seen.k.shape[2])
        counts = frame.counts if info.grows or frame.growth is None else frame.growth.counts
        appended = cache_positions.is_appended(frame.cache, layer, arguments.k)
        if appended and layer is not None and frame.growth is not None:
            frame.growth.keys[layer] = weakref.ref(arguments.k)
        counts[info.name] += 1
        times = counts[info.name]
        self.collector.record_attention(
            info.name if times == 1 else f"{info.name}:{times}",
            seen,
            first_query=first_query,
            first_key=where.first_key,
            tokens=tokens,
            cross=info.cross,
            static=not info.grows,
            appended=appended,
            out=info.out,
        )

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        frames, named = self._thread.frames, _name_arguments(type(getattr(module, "_orig_mod", module)), args, kwargs)
        for n, frame in enumerate(frames):
            if module is self.model or frame.module is module or not is_running(frame.call):  # it was interrupted
                self._drop_frames(n, UNKNOWN_EXCEPTION)
                break
        cache = cache_positions.find_cache(named.values())
        states = self._read_states(cache)
        if not self.models and not states.keys() <= set(map(cache_positions.read_layer_number, self.infos)):
            raise LensError(
                f"a {type(module).__name__} cannot be watched by itself with a cache that other layers fill, too: "
                "watch the model that it belongs to, and choose some of its attentions with layers="
            )
        frame = cache_positions.ForwardPass(module, cache, states, frames[-1] if frames else None)
        vectors = named.get("inputs_embeds") is not None and not frame.reads
        around = self.models and module not in self.models and not hasattr(module, "_orig_mod")  # not a model itself
        ids = {} if frame.reads or around else self._find_token_ids(module, named)
        frame.reads = frame.reads or bool(ids)
        if not frames:
            self.passes += 1
            frame.growth = self._find_growth(module, cache, frame, named)
            call = self.collector.find_call(frame.growth)
            if call is not None and frame.growth is not None and frame.growth.has_replaced_keys():
                call.measure_waiting()
            self.collector.begin(growing=frame.growth, ids=ids)
        else:
            self._note_inner_tokens(frame, {"vectors": None} if vectors and not ids else ids)
        frames.append(frame)

    def _drop_frames(self, first: int, error: BaseException | str) -> None:
        """Ends passes that nobody has ended, because of an exception."""
        if self._thread.frames and not first:
            self.collector.end(error)
        del self._thread.frames[first:]

    def _note_inner_tokens(self, frame: cache_positions.ForwardPass, ids: Mapping[str, Tensor | None]) -> None:
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
        thread = self._thread
        frame = thread.frames.pop() if thread.frames else None
        if frame is None or thread.frames:
            return
        error = find_new_exception(frame.handled)
        if error is not None:  # the cache may hold this step in some layers alone
            self.collector.end(error)
            return
        thread.last_growth = frame.growth
        cache = cache_positions.find_cache(cache_positions.list_outputs(output)) if frame.cache is None else frame.cache
        if frame.growth is not None and cache is not None:
            frame.growth.cache, frame.growth.length = (
                weakref.ref(cache),
                cache_positions.count_seen_tokens(self._read_states(cache)),
            )
            alive = {key: growth for key, growth in thread.growths.items() if growth.cache() is not None}
            thread.growths = {**alive, id(cache): frame.growth}
        self.collector.end()

    def _read_states(self, cache: Any) -> dict[int, cache_positions.LayerCacheState]:
        """The state of each cache layer that holds keys of the text itself."""
        return {
            n: state for n, state in cache_positions.read_layer_states(cache).items() if n not in self.context_layers
        }

    def _find_growth(
        self, module: nn.Module, cache: Any, frame: cache_positions.ForwardPass, named: Mapping[str, Any]
    ) -> cache_positions.CacheGrowth | None:
        """The CacheGrowth that this pass continues, a new one, or None if no cache is used."""
        if cache is not None:
            growth = self._thread.growths.get(id(cache))
            grows = growth is not None and growth.cache() is cache and growth.length == frame.length > 0
            return growth if grows else cache_positions.CacheGrowth(cache, frame.length)
        keeps = named.get("use_cache")
        keeps = getattr(getattr(module, "config", None), "use_cache", True) if keeps is None else keeps
        return cache_positions.CacheGrowth(self, 0) if keeps and True in self._find_growth_kinds(module) else None

    def _find_growth_kinds(self, module: nn.Module) -> set[bool]:
        """Which values `grows` has among the attentions of a module."""
        return {self.infos[part].grows for part in module.modules() if part in self.infos}

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
            and "decoder_input_ids" not in list_parameters(kind.forward)
            and self._find_growth_kinds(module) == {True}
        ):
            source, target = None, source  # the decoder by itself
        texts = {"source" if both else "tokens": source, "target": target}
        return {kind: ids for kind, ids in texts.items() if isinstance(ids, Tensor) and ids.ndim == 2}

    def on_finished_beams(self, result: Any, *_: Any, **kwargs: Any) -> None:
        """Callback at every step of beam search: some beams may have finished."""
        self._thread.finished_beams = find_finished_rows(result, **kwargs)

    def on_stopped(self, result: Any, *_: Any, **__: Any) -> None:
        """Callback of the stopping criteria: samples end with this step; what goes on in their rows is padding."""
        call = self.collector.find_call(self._thread.last_growth)
        readable = isinstance(result, Tensor) and result.ndim == 1
        if call is not None and readable and self.collector.watches_thread():
            call.finish_samples(result.tolist())

    def on_generated(self, *_: Any, **__: Any) -> None:
        """Callback: a generate() is over, so what continues its cache begins anew."""
        if (call := self.collector.find_call(self._thread.last_growth)) is not None:
            call.finish_samples(None)

    def on_reorder(self, name: str, _: None, cache: Any, *args: Any, **kwargs: Any) -> None:
        """Callback: a cache was reordered by the method of this name, so the call that grows with it is, too."""
        growth = self._thread.growths.get(id(cache))
        call = self.collector.find_call(growth)
        if call is None or growth is None or growth.cache() is not cache:  # such as a cache inside another one
            return
        (rows,) = (*args, *kwargs.values())
        if name == "batch_repeat_interleave":
            rows = torch.arange(cache_positions.count_samples(cache) // rows).repeat_interleave(rows)
        finished, self._thread.finished_beams = self._thread.finished_beams, frozenset()
        call.reorder(rows, finished=finished)


@contextmanager
def observe_model(model: nn.Module, collector: Collector) -> Iterator[None]:
    """Within it the collector receives every attention call of the model."""
    tracker = ForwardTracker(model, collector)
    if not tracker.models and type(model).forward is nn.Module.forward:
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
    if replaced := tracker.find_replaced():
        warnings.warn(
            f"the forward of these attentions of {type(model).__name__} was replaced by one without Hugging "
            f"Face's attention interface; they are not recorded: {describe_modules(replaced)}",
            stacklevel=5,
        )


def find_finished_rows(
    result: Any, *, cur_len: int | None = None, decoder_prompt_len: int = 0, **_: Any
) -> frozenset[int]:
    """The rows of finished beams, from the beam indices and completion flags of generate()."""
    if cur_len is None or not isinstance(result, tuple) or len(result) != 4:
        return frozenset()
    _, _, beams, complete = result
    rows = beams[..., cur_len - decoder_prompt_len]
    return frozenset(rows.masked_fill(~complete, -1).flatten().tolist()) - {-1}


def _list_subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(_list_subclasses, kind.__subclasses__()))


def _find_models(model: nn.Module) -> dict[nn.Module, nn.Module]:
    """Every PreTrainedModel inside a model, mapped to the outermost one that contains it."""
    from transformers import PreTrainedModel

    models: dict[nn.Module, nn.Module] = {}
    for module in model.modules():
        if isinstance(module, PreTrainedModel) and module not in models:
            models |= {part: module for part in module.modules() if isinstance(part, PreTrainedModel)}
    return models


def _are_equal(numbers: Tensor | None, others: Tensor | None) -> bool:
    if numbers is None or others is None:
        return numbers is others
    return numbers.device == others.device and torch.equal(numbers, others)


def _name_arguments(kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a forward pass by name."""
    if not args:
        return kwargs
    names = list_parameters(kind.forward)[1:]
    return {**dict(zip([*names, *map(str, range(len(args)))], args, strict=False)), **kwargs}
