"""Document positions of a Hugging Face model's queries and keys: from what its cache held, and from masks."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.attention.masks import Mask
from clearhead.errors import LensError
from clearhead.lens.capture.attachments import find_call_frame, get_handled_exception
from clearhead.lens.huggingface.arguments import Masks
from clearhead.lens.huggingface.discovery import AttentionInfo
from clearhead.lens.measures.definition import find_band, locate_first_query


def find_cache(values: Iterable[Any]) -> Any | None:
    """The transformers Cache among these values, or None."""
    from transformers.cache_utils import Cache

    return next((value for value in values if isinstance(value, Cache)), None)


def list_outputs(output: Any) -> list[Any]:
    """The values that a model returns."""
    return list(output.values()) if isinstance(output, Mapping) else list(output) if isinstance(output, tuple) else []


def _get_layers(cache: Any) -> Sequence[Any]:
    """The layers of a cache, of an encoder-decoder's those of self-attention."""
    layers: Sequence[Any] = getattr(getattr(cache, "self_attention_cache", cache), "layers", ())
    return layers


def count_samples(cache: Any) -> int:
    """The batch size of a cache; 0 if it is empty."""
    keys = next((layer.keys for layer in _get_layers(cache) if isinstance(getattr(layer, "keys", None), Tensor)), None)
    return 0 if keys is None else keys.shape[0]


def read_layer_number(module: nn.Module) -> int | None:
    """The number of a module's cache layer; None where layers share a module, as Zamba's (None) and Zamba2's (−1)."""
    number = getattr(module, "layer_idx", None)
    return number if isinstance(number, int) and number >= 0 else None


class LayerCacheState(NamedTuple):
    """The state of one cache layer before a step."""

    length: int = 0  # tokens that it has seen
    slots: int | None = None  # of a static layer, which has them from the start
    window: int | None = None  # of a layer that slides

    def explains(self, queries: int, keys: int) -> bool:
        """Whether this layer returns `keys` keys when `queries` new ones are added."""
        if self.slots is not None and keys in (self.slots, self.slots - 1 + queries):
            return True
        held = self.length if self.window is None else min(self.length, self.window - 1)
        return keys in (held + queries, self.length + queries)


def read_layer_states(cache: Any) -> dict[int, LayerCacheState]:
    """The state of each cache layer that exists.

    Of an encoder-decoder's cache, those of self-attention: a context is seen once.
    """
    layers = {n: layer for n, layer in enumerate(_get_layers(cache)) if hasattr(layer, "get_seq_length")}
    lengths = {n: layer.get_seq_length() for n, layer in layers.items()}
    tensors = [length for length in lengths.values() if isinstance(length, Tensor)]
    if tensors:  # a static cache counts on its device: fetched together, since each time waits for it
        numbers = iter(torch.stack([length.reshape(()).to(tensors[0].device) for length in tensors]).tolist())
        lengths = {n: next(numbers) if isinstance(length, Tensor) else length for n, length in lengths.items()}
    return {
        n: LayerCacheState(lengths[n], getattr(layer, "max_cache_len", None), getattr(layer, "sliding_window", None))
        for n, layer in layers.items()
    }


def is_appended(cache: Any, layer: int | None, k: Float[Tensor, "batch kv_heads keys d"]) -> bool:
    """Whether these keys are those of a cache layer that never writes to memory again, but appends to a copy."""
    from transformers.cache_utils import DynamicLayer

    layers = _get_layers(cache)
    cached: Any = layers[layer] if layer is not None and layer < len(layers) else None
    return type(cached) is DynamicLayer and cached.keys is k


class Location(NamedTuple):
    """Where the queries and keys of an attention stand in the document; the first query is None where unknown."""

    first_query: int | None
    first_key: int
    keys: int  # how many are real


class CacheGrowth:
    """Identifies a call that continues while its cache grows from pass to pass."""

    def __init__(self, cache: Any, length: int) -> None:
        self.cache, self.length = weakref.ref(cache), length
        self.counts: Counter[str] = Counter()  # of attentions that have no part in it
        self.keys: dict[int, weakref.ref[Tensor]] = {}  # of each layer that appends, after the last step

    def has_replaced_keys(self) -> bool:
        """Whether somebody gave the cache other keys than the last step left in it."""
        layers = _get_layers(self.cache()) if self.keys else ()
        return any(n < len(layers) and layers[n].keys is not keys() for n, keys in self.keys.items())


class ForwardPass:
    """A forward pass in progress, of the watched model or of a model inside it."""

    def __init__(
        self,
        module: nn.Module,
        cache: Any = None,
        layer_states: dict[int, LayerCacheState] | None = None,
        around: ForwardPass | None = None,
    ) -> None:
        self.module, self.handled, self.call = module, get_handled_exception(), find_call_frame()
        inherited = around if cache is None else None
        self.cache: Any = cache if inherited is None else inherited.cache
        self.layer_states: dict[int, LayerCacheState] = (
            layer_states or {} if inherited is None else inherited.layer_states
        )
        self.length = count_seen_tokens(self.layer_states)
        self.masks: Masks = {} if around is None else around.masks
        self.counts: Counter[str] = Counter() if around is None else around.counts
        self.growth: CacheGrowth | None = None if around is None else around.growth
        self.reads: bool = around is not None and around.reads  # tokens that are known, it or what is around it
        self.read: dict[str, Tensor | None] = {} if around is None else around.read  # by models in a wrapper

    def locate(self, layer: int | None, queries: int, keys: int, info: AttentionInfo) -> Location:
        """The document positions of the first query and the first key, and how many keys are real.

        A cache that slides hands over only its last keys, a static one also its empty slots. Without a cache the
        position is left open: the mask decides (`place_by_mask`).
        """
        if info.cross:
            return Location(self.length, 0, keys)
        state = self._find_state(layer, queries, keys, info)
        if info.joint:
            if self.length or (state is not None and state.slots is not None):
                raise LensError(
                    f"{info.name!r} attends to its own text and to the encoder's in one softmax: of its {keys} keys "
                    "the encoder's come last, and a cache puts new ones before them, so that positions would move; "
                    "call generate(…, use_cache=False), or run one forward pass over source and answer"
                )
            return Location(None, 0, keys)
        if self.cache is None or state is None or (state.length and keys == queries):
            return Location(None if info.grows else 0, 0, keys)
        total = state.length + queries
        if state.explains(queries, keys):
            return Location(state.length, max(0, total - keys), min(keys, total))
        if state.length and info.grows:
            raise LensError(
                f"{info.name!r} attends to {keys} keys, but {state.length} cached and {queries} new tokens are "
                f"{total}: some keys are summaries of tokens, or dropped, so positions are unknown; "
                "watch a single forward pass instead of generate()"
            )
        return Location(None if info.grows else 0, 0, keys)

    def _find_state(self, layer: int | None, queries: int, keys: int, info: AttentionInfo) -> LayerCacheState | None:
        """The cache state that belongs to a layer; a shared one has no number, and one may use the keys of another."""
        if layer is None and not info.grows:
            return None
        state = self.layer_states.get(-1 if layer is None else layer, LayerCacheState())
        if state.length or (keys == queries and layer is not None):
            return state
        filled = [other for other in self.layer_states.values() if other.length or not self.length]
        shared = next((other for other in filled if other.explains(queries, keys)), None)
        return state._replace(length=self.length) if shared is None and layer is not None else shared


def place_by_mask(mask: Mask | None, queries: int, keys: int) -> tuple[int, int | None]:
    """The position of the first query if no cache gives it, and how many keys are tokens (None: all).

    A causal mask or a window has a position for each query. In a mask of no such form, keys beyond the queries are
    summaries of tokens, as DeepSeek-V4 appends them: the queries begin at the first key.
    """
    if keys <= queries:
        return 0, None
    if mask is None or find_band(mask) is not None:
        return max(0, locate_first_query(mask, queries, keys)), None
    return 0, queries


def count_seen_tokens(held: Mapping[int, LayerCacheState]) -> int:
    """The number of tokens that a cache has seen: the maximum over its layers."""
    return max((state.length for state in held.values()), default=0)


def find_context_layers(infos: Mapping[nn.Module, AttentionInfo]) -> frozenset[int]:
    """The cache layers that hold only keys of another text or picture, as Mllama's do."""
    numbers: dict[bool, set[int]] = {True: set(), False: set()}
    for module, info in infos.items():
        layer = read_layer_number(module)
        if layer is not None and (info.cross or info.grows):
            numbers[info.cross].add(layer)
    return frozenset(numbers[True] - numbers[False])
