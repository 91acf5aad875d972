"""Key-value caches of transformers: what they hold, the positions of queries and keys that follow, reorderings."""

from __future__ import annotations

import functools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead.errors import LensError
from clearhead.lens.capture.compiled_graphs import registry_lock
from clearhead.lens.huggingface.arguments import Masks

REORDER_METHODS = ("reorder_cache", "batch_select_indices", "batch_repeat_interleave")
_patched: dict[tuple[type, str], PatchedMethod] = {}
_thread = threading.local()


def find_cache(values: Iterable[Any]) -> Any | None:
    """The transformers Cache among these values, or None."""
    from transformers.cache_utils import Cache

    return next((value for value in values if isinstance(value, Cache)), None)


class LayerCacheState(NamedTuple):
    """The state of one cache layer before a step."""

    length: int = 0  # tokens that it has seen
    slots: int | None = None  # places for keys, of a static one
    window: int | None = None  # of one that slides

    def explains(self, queries: int, keys: int) -> bool:
        """Whether this layer returns `keys` keys when `queries` new ones are added."""
        if self.slots is not None and keys in (self.slots, self.slots - 1 + queries):
            return True
        kept = self.length if self.window is None else min(self.length, self.window - 1)
        return keys in (kept + queries, self.length + queries)


def read_layer_states(cache: Any) -> dict[int, LayerCacheState]:
    """The state of each cache layer that exists.

    Of an encoder-decoder's cache, those of self-attention: a context is seen once.
    """
    layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", ())
    known = {n: layer for n, layer in enumerate(layers) if hasattr(layer, "get_seq_length")}
    found = {n: layer.get_seq_length() for n, layer in known.items()}
    tensors = [value for value in found.values() if isinstance(value, Tensor)]
    if tensors:  # a static cache counts on its device: fetched together, since each time waits for it
        numbers = iter(torch.stack([value.reshape(()).to(tensors[0].device) for value in tensors]).tolist())
        found = {n: next(numbers) if isinstance(value, Tensor) else value for n, value in found.items()}
    return {
        n: LayerCacheState(found[n], getattr(layer, "max_cache_len", None), getattr(layer, "sliding_window", None))
        for n, layer in known.items()
    }


class ReorderListener:
    """Reports when the samples of caches are reordered, as by beam search, until stopped.

    What it puts before a method is on the class: a cache may be copied, and the copy must not move the original.
    """

    def __init__(self, on_reorder: Callable[[Any, Tensor], None]) -> None:
        self.on_reorder = on_reorder
        self._places: set[tuple[type, str]] = set()

    def listen(self, cache: Any) -> None:
        for name in REORDER_METHODS:
            owner = next(kind for kind in type(cache).__mro__ if name in vars(kind))
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
        def move(cache: Any, rows: Any) -> None:
            inner = getattr(_thread, "moving", None) is cache  # called by a class that builds on this one
            batch, before = count_samples(cache), getattr(_thread, "moving", None)
            _thread.moving = cache
            try:
                self.own(cache, rows)
            finally:
                _thread.moving = before
            if not inner:
                self._notify(cache, torch.as_tensor(rows), batch)

        return move

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


class AttentionInfo(NamedTuple):
    """Static facts about an attention module."""

    name: str
    cross: bool
    grows: bool  # with a cache, if there is one
    out: Tensor | None  # the weight that merges its heads


class CacheGrowth:
    """Identifies a call that continues while its cache grows from pass to pass."""

    def __init__(self, cache: Any, length: int) -> None:
        self.cache, self.length = weakref.ref(cache), length
        self.counts: Counter[str] = Counter()  # of attentions that have no part in it


class ForwardPass:
    """A forward pass in progress, of the watched model or of a model inside it."""

    def __init__(
        self,
        module: nn.Module,
        cache: Any = None,
        layer_states: dict[int, LayerCacheState] | None = None,
        around: ForwardPass | None = None,
    ) -> None:
        self.module = module
        inherited = around if cache is None else None
        self.cache: Any = cache if inherited is None else inherited.cache
        self.layer_states: dict[int, LayerCacheState] = (
            layer_states or {} if inherited is None else inherited.layer_states
        )
        self.masks: Masks = {} if around is None else around.masks
        self.counts: Counter[str] = Counter() if around is None else around.counts
        self.growth: CacheGrowth | None = None if around is None else around.growth
        self.reads: bool = around is not None and around.reads  # tokens that are known, it or what is around it
        self.read: dict[str, Tensor | None] = {} if around is None else around.read  # by models in a wrapper

    @property
    def length(self) -> int:
        return count_seen_tokens(self.layer_states)

    def locate(self, layer: int | None, queries: int, keys: int, known: AttentionInfo) -> tuple[int, int, int]:
        """The document positions of the first query and the first key, and how many keys are real.

        A cache that slides hands over only its last keys, a static one also its empty slots.
        """
        state = self.layer_states.get(-1 if layer is None else layer, LayerCacheState())
        if not state.length and keys > queries:  # a layer may look at the keys of another
            filled = (one for one in self.layer_states.values() if one.length or not self.length)
            others = (one for one in filled if one.explains(queries, keys))
            state = next(others, state._replace(length=self.length))
        if known.cross:
            return state.length, 0, keys
        if self.cache is None or layer is None or (state.length and keys == queries):
            return max(0, keys - queries) if known.grows else 0, 0, keys
        total = state.length + queries
        if state.explains(queries, keys):
            return state.length, max(0, total - keys), min(keys, total)
        if state.length and known.grows:
            raise LensError(
                f"{known.name!r} looks at {keys} keys where its cache holds {state.length} and {queries} come in: at "
                "another sequence, too, or at summaries. It can be watched in one pass, but not while it generates"
            )
        return 0, 0, keys


def count_seen_tokens(held: Mapping[int, LayerCacheState]) -> int:
    """The number of tokens that a cache has seen: the maximum over its layers."""
    return max((state.length for state in held.values()), default=0)
