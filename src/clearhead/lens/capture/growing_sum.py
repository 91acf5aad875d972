"""GrowingSum: a sum of tensors whose last axes grow, as keys are added to a cache."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from jaxtyping import Int, Num
from torch import Tensor

from clearhead.lens.capture.growing_call import select_rows


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
