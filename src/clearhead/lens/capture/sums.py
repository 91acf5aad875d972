"""Sums: numbers that are added up at ever more places."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.lens.capture.batch_history import taken


class Sums:
    """(batch, heads, …), of which the last axes grow; the room for them doubles when it is used up, up to `most`.

    >>> sums = Sums()
    >>> sums.add(torch.ones(1, 1, 2), at=[0])
    >>> sums.add(torch.ones(1, 1, 2), at=[1])
    >>> sums.value
    tensor([[[1., 2., 1.]]])
    """

    def __init__(self, first: Tensor | None = None, most: int | None = None) -> None:
        self.room, self.most = first, most
        self.sizes: tuple[int, ...] = () if first is None else tuple(first.shape[2:])

    @property
    def value(self) -> Tensor:
        assert self.room is not None
        return self.room[(slice(None), slice(None), *(slice(0, size) for size in self.sizes))]

    def reach(self, samples: Sequence[int], ends: Sequence[int], dtype: torch.dtype) -> None:
        """Makes room up to these places, for so many samples and heads."""
        self.sizes = tuple(map(max, ends, self.sizes)) if self.sizes else tuple(ends)
        if self.room is None:
            self.room = torch.zeros(*samples, *self.sizes, dtype=dtype)
        elif any(map(operator.gt, self.sizes, self.room.shape[2:])):
            room = map(self._larger, self.sizes, self.room.shape[2:])
            self.room = widened(self.room, (*self.room.shape[:2], *room))

    def add(self, more: Tensor, at: Sequence[int], dtype: torch.dtype | None = None) -> None:
        """Adds these numbers from the places `at` on, one for each axis after the first two.

        The sums are of this dtype, if it is given with the first of them.
        """
        self.reach(more.shape[:2], tuple(map(operator.add, at, more.shape[2:])), dtype or more.dtype)
        place = self.room
        assert place is not None
        for axis, (start, size) in enumerate(zip(at, more.shape[2:], strict=True), start=2):
            place = place.narrow(axis, start, size)
        place.add_(more)

    def _larger(self, size: int, room: int) -> int:
        if size <= room:
            return room
        return max(size, 2 * room if self.most is None else min(2 * room, self.most))

    def move(self, rows: Tensor) -> None:
        if self.room is not None:
            self.room = taken(self.room, rows)


def widened(tensor: Tensor, sizes: Sequence[int]) -> Tensor:
    """With zeros up to these sizes."""
    whole = tensor.new_zeros(*sizes)
    whole[tuple(slice(0, size) for size in tensor.shape)] = tensor
    return whole
