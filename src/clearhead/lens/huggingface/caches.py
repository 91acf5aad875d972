"""What a Hugging Face cache knows: how many tokens it has seen, and when its samples change places."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

MOVES = ("reorder_cache", "batch_select_indices", "batch_repeat_interleave")


def cache_in(values: Iterable[Any]) -> Any | None:
    """The cache among these values, if there is one."""
    from transformers.cache_utils import Cache

    return next((value for value in values if isinstance(value, Cache)), None)


class Room(NamedTuple):
    """What a layer of a cache holds before a step."""

    length: int = 0  # tokens that it has seen
    slots: int | None = None  # places for keys, of a static one
    window: int | None = None  # of one that slides

    def explains(self, queries: int, keys: int) -> bool:
        """Whether it hands over so many keys, when so many more come in."""
        if self.slots is not None and keys in (self.slots, self.slots - 1 + queries):
            return True
        kept = self.length if self.window is None else min(self.length, self.window - 1)
        return keys in (kept + queries, self.length + queries)


def rooms(cache: Any) -> dict[int, Room]:
    """What each layer holds; layers that do not exist yet are not there.

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
        n: Room(found[n], getattr(layer, "max_cache_len", None), getattr(layer, "sliding_window", None))
        for n, layer in known.items()
    }


def length(cache: Any) -> int:
    return max((room.length for room in rooms(cache).values()), default=0)


class Listener:
    """Hears when the samples of caches change places, as beams do, until it is told to stop."""

    def __init__(self, moved: Callable[[Any, Tensor], None]) -> None:
        self.moved: Callable[[Any, Tensor], None] | None = moved
        self._put: list[tuple[weakref.ref[Any], str, Any, Any]] = []

    def listen(self, cache: Any) -> None:
        if any(known() is cache for known, *_ in self._put):
            return
        for name in MOVES:
            before = vars(cache).get(name)
            mine = self._heard(weakref.ref(cache), name, before or getattr(type(cache), name))
            vars(cache)[name] = mine
            self._put.append((weakref.ref(cache), name, mine, before))

    def stop(self) -> None:
        self.moved = None
        for known, name, mine, before in reversed(self._put):
            cache = known()
            if cache is not None and vars(cache).get(name) is mine:
                del vars(cache)[name]
                if before is not None:
                    vars(cache)[name] = before
        self._put.clear()

    def _heard(self, known: weakref.ref[Any], name: str, own: Callable[..., None]) -> Callable[[Any], None]:
        # It holds the cache weakly: one that held itself would not give back its memory at once.
        bound = own not in (getattr(type(known()), name),)

        def move(rows: Any) -> None:
            cache, batch = known(), samples(known())
            own(rows) if bound else own(cache, rows)
            if self.moved is not None and cache is not None:
                kept = torch.as_tensor(rows)
                if name == "batch_repeat_interleave":
                    kept = torch.arange(batch).repeat_interleave(kept)
                self.moved(cache, kept)

        return move


def samples(cache: Any) -> int:
    """How many samples a cache holds."""
    layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", ())
    keys = next((layer.keys for layer in layers if isinstance(getattr(layer, "keys", None), Tensor)), None)
    return 0 if keys is None else keys.shape[0]
