"""Sums over queries, which grow as keys are added to a cache: GrowingSum of tensors, AttentionSums of one attention."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor

from clearhead.attention.call import Call
from clearhead.lens.capture.growing_call import BatchHistory, Reorder, select_rows
from clearhead.lens.measures.definition import choose_blocks, sum_blocks


class GrowingSum:
    """A sum (batch, heads, …) whose last axes grow; its buffer doubles when full, up to `most`.

    It is on the device of the first tensor that was added.

    >>> sums = GrowingSum()
    >>> sums.add(torch.ones(1, 1, 2), at=[0])
    >>> sums.add(torch.ones(1, 1, 2), at=[1])
    >>> sums.value
    tensor([[[1., 2., 1.]]])
    """

    def __init__(self, first: Num[Tensor, "batch heads ..."] | None = None, most: int | None = None) -> None:
        self.buffer, self.most = first, most
        self.sizes: tuple[int, ...] = () if first is None else tuple(first.shape[2:])

    @property
    def value(self) -> Num[Tensor, "batch heads ..."]:
        assert self.buffer is not None
        return self.buffer[(slice(None), slice(None), *(slice(0, size) for size in self.sizes))]

    def reserve(
        self, samples: Sequence[int], ends: Sequence[int], dtype: torch.dtype, device: torch.device | None = None
    ) -> None:
        """Grows the buffer to these sizes of the last axes, for this many samples and heads."""
        self.sizes = tuple(map(max, ends, self.sizes)) if self.sizes else tuple(ends)
        if self.buffer is None:
            self.buffer = torch.zeros(*samples, *self.sizes, dtype=dtype, device=device)
        elif any(map(operator.gt, self.sizes, self.buffer.shape[2:])):
            sizes = map(self._grow_size, self.sizes, self.buffer.shape[2:])
            self.buffer = pad_to(self.buffer, (*self.buffer.shape[:2], *sizes))

    def add(self, more: Num[Tensor, "batch heads ..."], at: Sequence[int], dtype: torch.dtype | None = None) -> None:
        """Adds `more` at offset `at`, one offset for each axis after the first two.

        The sums are of this dtype, if it is given with the first of them. The first may become the buffer itself.
        """
        if self.buffer is None and not any(at) and more.dtype == (dtype or more.dtype) and more.is_contiguous():
            self.buffer, self.sizes = more, tuple(more.shape[2:])
            return
        ends = tuple(map(operator.add, at, more.shape[2:]))
        self.reserve(more.shape[:2], ends, dtype or more.dtype, more.device)
        assert self.buffer is not None
        if self.buffer.shape[1] < more.shape[1]:  # where masks differ by head at some steps, and not at others
            self.buffer = self.buffer.expand(-1, more.shape[1], *self.buffer.shape[2:]).clone()
        place = self.buffer
        for axis, (start, size) in enumerate(zip(at, more.shape[2:], strict=True), start=2):
            place = place.narrow(axis, start, size)
        place.add_(more.to(place.device))

    def _grow_size(self, size: int, capacity: int) -> int:
        if size <= capacity:
            return capacity
        return max(size, 2 * capacity if self.most is None else min(2 * capacity, self.most))

    def select_rows(self, rows: Int[Tensor, " samples"]) -> None:
        if self.buffer is not None:
            self.buffer = select_rows(self.buffer, rows)


def pad_to(tensor: Num[Tensor, "..."], sizes: Sequence[int]) -> Num[Tensor, "..."]:
    """Pads a tensor with zeros to these sizes."""
    whole = tensor.new_zeros(*sizes)
    whole[tuple(slice(0, size) for size in tensor.shape)] = tensor
    return whole


class FinishedSums(NamedTuple):
    """The sums over queries of a sample that finished before the others."""

    received: Float[Tensor, "heads keys"]
    map: Float[Tensor, "heads rows columns"]
    seen_by: Int[Tensor, "heads keys"]
    blocks: tuple[int, int]  # of this map


class JoinedSums(NamedTuple):
    """The sums of all samples, in the order of the record."""

    received: Float[Tensor, "samples heads keys"]
    map: Float[Tensor, "samples heads rows columns"]
    seen_by: Int[Tensor, "samples #heads keys"]


class AttentionSums:
    """Of one attention: what each key receives, by how many queries it is seen, and the map of `pixels` × `pixels`.

    The map has rows of `blocks[0]` measured queries and columns of `blocks[1]` keys, which double when it is full.
    """

    def __init__(self, pixels: int) -> None:
        self.pixels, self.rows = pixels, 0  # rows: the number of queries so far
        self.blocks = (0, 0)  # until the first queries come, or without a map
        self.received, self.map, self.seen_by = GrowingSum(), GrowingSum(most=pixels), GrowingSum()
        self.finished: dict[int, FinishedSums] = {}  # by their place in the history

    def choose_blocks(self, queries: int, keys: int) -> None:
        """Chooses the blocks of the map, as if there were no more queries and keys than these."""
        if self.pixels and self.blocks == (0, 0):
            height, width = choose_blocks(queries, keys, self.pixels)
            self.blocks = (max(height, 1), max(width, 1))

    def add(
        self,
        received: Float[Tensor, "batch heads keys"],
        seen_by: Int[Tensor, "batch #heads keys"],
        drawn: Float[Tensor, "batch heads rows columns"],
        *,
        queries: int,
        first_key: int,
        fine: int,
        exact: torch.dtype,
    ) -> None:
        """Adds the sums of more queries, whose map `drawn` has columns of `fine` keys; `exact` is the dtype of sums."""
        height, width = self.blocks
        self.received.add(received, (first_key,), exact)
        self.seen_by.add(seen_by, (first_key,))
        if height:
            if fine != width:
                inset = first_key // fine % (width // fine)
                drawn = sum_blocks(torch.nn.functional.pad(drawn, (inset, 0)), width // fine, 3)
            self.map.add(drawn, (self.rows // height, first_key // width))
            self._shrink_map()
        self.rows += queries

    def reserve(self, call: Call, keys: int, exact: torch.dtype, dtype: torch.dtype) -> None:
        """Grows the sums to this number of keys, also where no measured query could see them."""
        device = call.q.device
        self.received.reserve(call.q.shape[:2], (keys,), exact, device)
        self.seen_by.reserve((len(call.q), 1), (keys,), torch.int32)
        height, width = self.blocks
        if height:
            self.map.reserve(call.q.shape[:2], (0, -(-keys // width)), dtype, device)
            self._shrink_map()

    def _shrink_map(self) -> None:
        """Doubles the block size of the map until it fits the pixel limit."""
        for axis in (0, 1):
            while self.map.sizes[axis] > self.pixels:
                self.map = GrowingSum(sum_blocks(self.map.value, 2, 2 + axis), most=self.pixels)
                height, width = self.blocks
                self.blocks = (height, 2 * width) if axis else (2 * height, width)

    def reorder(self, reorder: Reorder, first_number: int) -> None:
        """Reorders the samples; the sums of finished ones are stored under numbers from `first_number` on."""
        if self.received.buffer is None:
            return
        for number, row in enumerate(reorder.leaving, start=first_number):
            sums = (self.received.value, self._get_map(), self.seen_by.value)
            received, drawn, seen_by = (one[row].clone() for one in sums)
            self.finished[number] = FinishedSums(received, drawn, seen_by, self.blocks)
        for growing in (self.received, self.map, self.seen_by):
            growing.select_rows(reorder.rows)

    def _get_map(self) -> Tensor:
        value = self.received.value
        return self.map.value if self.map.buffer is not None else value.new_zeros(*value.shape[:2], 0, 0)

    def join(self, history: BatchHistory, dtype: torch.dtype) -> JoinedSums:
        """Copies of the sums of all samples, present and finished; `received` and `map` are of this dtype."""
        received, drawn = self.received.value.to(dtype, copy=True), self._get_map().to(dtype, copy=True)
        seen_by = self.seen_by.value.clone()
        if not history.finished:
            return JoinedSums(received, drawn, seen_by)
        all_received, all_drawn, all_seen_by = list(received), list(drawn), list(seen_by)
        nothing = FinishedSums(received[:0].sum(0), drawn[:0].sum(0), seen_by[:0].sum(0).int(), self.blocks)
        for number in range(len(history.finished)):
            one, pixels, seen, blocks = self.finished.get(number, nothing)
            for axis, (had, have) in enumerate(zip(blocks, self.blocks, strict=True)):
                pixels = sum_blocks(pixels, have // had, 1 + axis) if have != had else pixels
            all_received.append(pad_to(one.to(dtype), received.shape[1:]))
            all_drawn.append(pad_to(pixels.to(dtype), drawn.shape[1:]))
            all_seen_by.append(pad_to(seen.expand(seen_by.shape[1], -1), seen_by.shape[1:]))
        return JoinedSums(
            *(torch.stack([sums[path] for path in history.order]) for sums in (all_received, all_drawn, all_seen_by))
        )
