"""KeyValueCache: keys and values kept between decoding steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from clearhead.errors import ShapeError

Pair = tuple[Tensor, Tensor]


class _Room:
    """Keys and values of one attention, with space to grow; doubled whenever it runs out."""

    def __init__(self, capacity: int | None) -> None:
        self.capacity, self.length = capacity, 0
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    def grow(self, k: Tensor, v: Tensor) -> Pair:
        start, end = self.length, self.length + k.shape[2]
        if self.capacity is not None and end > self.capacity:
            raise ShapeError(
                f"the cache has room for {self.capacity} tokens and holds {start}: {k.shape[2]} more do not fit; "
                "make it KeyValueCache(capacity=…) larger, or leave capacity out"
            )
        if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
            # Written in place, the room could not be differentiated.
            self.k = k if self.k is None else torch.cat([self.k[:, :, :start], k], dim=2)
            self.v = v if self.v is None else torch.cat([self.v[:, :, :start], v], dim=2)
        else:
            self.k, self.v = self._written(self.k, k, end), self._written(self.v, v, end)
        self.length = end
        return self.k[:, :, :end], self.v[:, :, :end]

    def _written(self, old: Tensor | None, new: Tensor, end: int) -> Tensor:
        if old is not None and old.shape[0] != new.shape[0]:
            raise ShapeError(f"the cache holds {old.shape[0]} samples, the step has {new.shape[0]}; reorder it first")
        if old is not None and old.is_inference() and not torch.is_inference_mode_enabled():
            old = old.clone()  # written under inference_mode, it could not be written to now
        if old is None or old.shape[2] < end:
            room = self.capacity or max(64, 1 << (end - 1).bit_length())
            larger = new.new_empty(new.shape[0], new.shape[1], room, new.shape[3])
            if old is not None:
                larger[:, :, : self.length] = old[:, :, : self.length]
            old = larger
        old[:, :, self.length : end] = new
        return old


class KeyValueCache:
    """What a decoder has already seen, layer by layer; pass the same one at every step.

    Without `capacity` it grows as needed; with it, room for that many tokens is taken once.

    >>> cache = KeyValueCache()
    >>> cache.length
    0
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self._rooms: dict[Any, _Room] = {}
        self._fixed: dict[Any, Pair] = {}

    @property
    def length(self) -> int:
        """How many tokens have gone through."""
        return next((room.length for room in self._rooms.values()), 0)

    def length_of(self, owner: Any) -> int:
        """How many tokens of one attention are held; within a step the layers differ."""
        return self._rooms[owner].length if owner in self._rooms else 0

    def grow(self, owner: Any, k: Tensor, v: Tensor) -> Pair:
        """Add new keys and values of one attention, and get all of them."""
        room = self._rooms.setdefault(owner, _Room(self.capacity))
        return room.grow(k, v)

    def once(self, owner: Any, make: Callable[[], Pair]) -> Pair:
        """Keys and values that never change, such as those of a context: made at the first step, then kept."""
        if owner not in self._fixed:
            self._fixed[owner] = make()
        return self._fixed[owner]

    def reorder(self, rows: Tensor | Sequence[int]) -> None:
        """Keep these samples, in this order; one may occur several times, as beams do."""
        rows = torch.as_tensor(rows)
        for room in self._rooms.values():
            if room.k is not None and room.v is not None:
                rows = rows.to(room.k.device)
                room.k, room.v = room.k.index_select(0, rows), room.v.index_select(0, rows)
        for owner, (k, v) in self._fixed.items():
            rows = rows.to(k.device)
            self._fixed[owner] = (k.index_select(0, rows), v.index_select(0, rows))

    def crop(self, n: int) -> None:
        """Forget all but the first `n` tokens; with 0 the context too, for a fresh start."""
        if not 0 <= n <= self.length:
            raise ShapeError(f"cannot crop to {n} tokens: the cache holds {self.length}")
        for room in self._rooms.values():
            room.length = min(room.length, n)
        if n == 0:
            self._fixed.clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> KeyValueCache:
        """What is held is copied; the attentions that it belongs to are not."""
        new = KeyValueCache(self.capacity)
        new._rooms = {owner: copy.deepcopy(room, memo) for owner, room in self._rooms.items()}
        new._fixed = {owner: copy.deepcopy(pair, memo) for owner, pair in self._fixed.items()}
        return new

    def __len__(self) -> int:
        return self.length

    def __bool__(self) -> bool:
        return True  # an empty cache is still a cache
