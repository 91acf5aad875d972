"""KeyValueCache: keys and values kept between decoding steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.errors import ShapeError

Keys = Float[Tensor, "batch kv_heads tokens d"]
Values = Float[Tensor, "batch kv_heads tokens d_v"]
Pair = tuple[Keys, Values]
Rows = Int[Tensor, " samples"]


class _LayerBuffer:
    """Keys and values of one attention, with space to grow; doubled whenever it runs out.

    Stored as (batch, tokens, heads, width), so that each sample is contiguous, and quick to move.
    """

    def __init__(self, capacity: int | None) -> None:
        self.capacity, self.length = capacity, 0
        self.first_length = 0  # after the first step
        self.k: Tensor | None = None
        self.v: Tensor | None = None
        self.spare: tuple[Tensor | None, Tensor | None] = (None, None)  # where samples move when they are reordered

    def grow(self, k: Tensor, v: Tensor) -> Pair:
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        start, end = self.length, self.length + k.shape[1]
        if self.capacity is not None and end > self.capacity:
            raise ShapeError(
                f"the cache has room for {self.capacity} tokens and holds {start}: {k.shape[1]} more do not fit; "
                "increase capacity in KeyValueCache(capacity=…), or omit it"
            )
        if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
            # Written in place, the buffer could not be differentiated.
            self.k = k if self.k is None else torch.cat([self.k[:, :start], k], dim=1)
            self.v = v if self.v is None else torch.cat([self.v[:, :start], v], dim=1)
        else:
            self.k, self.v = self._write(self.k, k, end), self._write(self.v, v, end)
        self.length = end
        self.first_length = self.first_length if start else end
        return self.k[:, :end].transpose(1, 2), self.v[:, :end].transpose(1, 2)

    def _write(self, old: Tensor | None, new: Tensor, end: int) -> Tensor:
        if old is not None and old.shape[0] != new.shape[0]:
            raise ShapeError(f"the cache holds {old.shape[0]} samples, the step has {new.shape[0]}; reorder it first")
        if old is not None and old.is_inference() and not torch.is_inference_mode_enabled():
            old = old.clone()  # written under inference_mode, it could not be written to now
        if old is None or old.shape[1] < end:
            tokens = self.capacity or max(64, 1 << (end - 1).bit_length())
            larger = new.new_empty(new.shape[0], tokens, *new.shape[2:])
            if old is not None:
                larger[:, : self.length] = old[:, : self.length]
            old = larger
        old[:, self.length : end] = new
        return old

    def reorder(self, rows: Tensor) -> None:
        if self.k is None or self.v is None:
            return
        rows, old = rows.to(self.k.device), (self.k, self.v)
        self.k = self._gather_rows(self.k, self.spare[0], rows)
        self.v = self._gather_rows(self.v, self.spare[1], rows)
        self.spare = (None, None) if self.k.requires_grad or self.v.requires_grad else old

    def _gather_rows(self, old: Tensor, spare: Tensor | None, rows: Tensor) -> Tensor:
        """These samples of `old`: written over `spare`, where that is large enough, since new memory costs more."""
        if old.requires_grad:
            return old.index_select(0, rows)
        fits = spare is not None and len(spare) >= len(rows) and spare.shape[1:] == old.shape[1:]
        if spare is None or not fits or spare.is_inference() != torch.is_inference_mode_enabled():
            spare = old.new_empty(len(rows), *old.shape[1:])
        new = spare[: len(rows)]
        torch.index_select(old[:, : self.length], 0, rows, out=new[:, : self.length])
        return new


class KeyValueCache:
    """Keys and values of every layer from earlier decoding steps; pass the same object at every step.

    Without `capacity` it grows as needed; with it, memory for that many tokens is allocated once.

    >>> cache = KeyValueCache()
    >>> cache.length
    0
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity, self.beams = capacity, 1
        self._buffers: dict[Any, _LayerBuffer] = {}
        self._fixed: dict[Any, Pair] = {}
        # Called whenever samples move, with (rows, done); `done`: inputs that are not among the rows are finished.
        self.observers: list[Callable[[Rows, bool], None]] = []

    @property
    def length(self) -> int:
        return next((buffer.length for buffer in self._buffers.values()), 0)

    def length_of(self, owner: Any) -> int:
        """The number of tokens cached for one attention; within a step the layers differ."""
        return self._buffers[owner].length if owner in self._buffers else 0

    def first_length_of(self, owner: Any) -> int:
        """The number of tokens that one attention got in the first step, which is the prompt."""
        return self._buffers[owner].first_length if owner in self._buffers else 0

    def grow(
        self, owner: Any, k: Float[Tensor, "batch kv_heads new d"], v: Float[Tensor, "batch kv_heads new d_v"]
    ) -> Pair:
        """Add new keys and values of one attention, and get all of them."""
        buffer = self._buffers.setdefault(owner, _LayerBuffer(self.capacity))
        return buffer.grow(k, v)

    def once(self, owner: Any, make: Callable[[], Pair]) -> Pair:
        """Keys and values that never change, such as those of a context: made at the first step, then kept."""
        if owner not in self._fixed:
            self._fixed[owner] = make()
        return self._fixed[owner]

    def reorder(self, rows: Rows | Sequence[int]) -> None:
        """Keep these samples, in this order; one may occur several times, as beams do.

        The next reordering overwrites the memory that they leave: copy keys or values that you keep.
        """
        rows = torch.as_tensor(rows)
        self._move(rows, contexts=rows, done=False)

    def branch(self, rows: Rows, beams: int, contexts: Int[Tensor, " contexts"] | None = None) -> None:
        """Keep these samples as beams: each `beams` of them in a row share one sample of the context.

        The context is not copied for them. `contexts` are the samples of the context to keep; None keeps all.
        """
        self.beams = beams
        self._move(rows, contexts, done=contexts is not None)

    def _move(self, rows: Tensor, contexts: Tensor | None, done: bool) -> None:
        for buffer in self._buffers.values():
            buffer.reorder(rows)
        if contexts is not None:
            for owner, pair in self._fixed.items():
                k, v = (t.transpose(1, 2).index_select(0, contexts.to(t.device)).transpose(1, 2) for t in pair)
                self._fixed[owner] = (k, v)
        for observer in list(self.observers):
            observer(rows, done)

    def crop(self, n: int) -> None:
        """Forget all but the first `n` tokens; with 0 the context too, for a fresh start."""
        if not 0 <= n <= self.length:
            raise ShapeError(f"cannot crop to {n} tokens: the cache holds {self.length}")
        for buffer in self._buffers.values():
            buffer.length = min(buffer.length, n)
        if n == 0:
            self._fixed.clear()
            self.beams = 1

    def __deepcopy__(self, memo: dict[int, Any]) -> KeyValueCache:
        """Copies keys and values, but not the attentions that they belong to."""
        new = KeyValueCache(self.capacity)
        new.beams = self.beams
        new._buffers = {owner: copy.deepcopy(buffer, memo) for owner, buffer in self._buffers.items()}
        new._fixed = {owner: copy.deepcopy(pair, memo) for owner, pair in self._fixed.items()}
        return new
