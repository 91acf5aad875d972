"""What a Hugging Face cache knows: how many tokens it has seen, and when its samples change places."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead.lens.capture.compiled_graphs import lock

MOVES = ("reorder_cache", "batch_select_indices", "batch_repeat_interleave")
_heard: dict[tuple[type, str], Heard] = {}
_here = threading.local()


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


class Listener:
    """Hears when the samples of caches change places, as beams do, until it is told to stop.

    What it puts before a method is on the class: a cache may be copied, and the copy must not move the original.
    """

    def __init__(self, moved: Callable[[Any, Tensor], None]) -> None:
        self.moved = moved
        self._places: set[tuple[type, str]] = set()

    def listen(self, cache: Any) -> None:
        for name in MOVES:
            owner = next(kind for kind in type(cache).__mro__ if name in vars(kind))
            if (owner, name) not in self._places:
                self._places.add((owner, name))
                with lock:
                    if (owner, name) not in _heard:
                        _heard[owner, name] = Heard(owner, name)
                    _heard[owner, name].listeners += (self,)

    def stop(self) -> None:
        for place in self._places:
            with lock:
                heard = _heard[place]
                heard.listeners = tuple(one for one in heard.listeners if one is not self)
                if not heard.listeners:
                    heard.leave()
                    del _heard[place]
        self._places.clear()


class Heard:
    """A method of a class of caches that tells of the moves that it makes."""

    def __init__(self, owner: type, name: str) -> None:
        self.owner, self.name, self.listeners = owner, name, tuple[Listener, ...]()
        self.own: Callable[..., None] = vars(owner)[name]
        self.put = self._telling()
        setattr(owner, name, self.put)

    def leave(self) -> None:
        if vars(self.owner).get(self.name) is self.put:
            setattr(self.owner, self.name, self.own)

    def _telling(self) -> Callable[[Any, Any], None]:
        @functools.wraps(self.own)
        def move(cache: Any, rows: Any) -> None:
            inner = getattr(_here, "moving", None) is cache  # called by a class that builds on this one
            batch, before = samples(cache), getattr(_here, "moving", None)
            _here.moving = cache
            try:
                self.own(cache, rows)
            finally:
                _here.moving = before
            if not inner:
                self._tell(cache, torch.as_tensor(rows), batch)

        return move

    def _tell(self, cache: Any, rows: Tensor, batch: int) -> None:
        if self.name == "batch_repeat_interleave":
            rows = torch.arange(batch).repeat_interleave(rows)
        for listener in self.listeners:
            listener.moved(cache, rows)


def samples(cache: Any) -> int:
    """How many samples a cache holds."""
    layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", ())
    keys = next((layer.keys for layer in layers if isinstance(getattr(layer, "keys", None), Tensor)), None)
    return 0 if keys is None else keys.shape[0]
