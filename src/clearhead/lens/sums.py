"""Sums: numbers that are added up at ever more places."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from clearhead.lens.moves import taken


class Sums:
    """(batch, heads, …), of which the last axes grow; the room for them doubles when it is used up, up to `most`.

    >>> import torch
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

    def add(self, more: Tensor, at: Sequence[int]) -> None:
        """Adds these numbers from the places `at` on, one for each axis after the first two."""
        ends = [start + size for start, size in zip(at, more.shape[2:], strict=True)]
        sizes = [max(pair) for pair in zip(ends, self.sizes or ends, strict=True)]
        if self.room is None:
            self.room = more.new_zeros(*more.shape[:2], *sizes)
        elif any(size > room for size, room in zip(sizes, self.room.shape[2:], strict=True)):
            room = [self._larger(size, old) for size, old in zip(sizes, self.room.shape[2:], strict=True)]
            self.room = widened(self.room, (*self.room.shape[:2], *room))
        self.sizes = tuple(sizes)
        place = tuple(slice(start, end) for start, end in zip(at, ends, strict=True))
        self.room[(slice(None), slice(None), *place)] += more

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
