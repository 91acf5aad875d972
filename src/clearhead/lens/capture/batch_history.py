"""The samples of a growing call over time: beams branch, change places and finish; sums follow them."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Reorder(NamedTuple):
    """One reordering of a batch: sample n was row `rows[n]`; `leaving` rows are finished and stay in the record."""

    rows: Tensor
    leaving: tuple[int, ...]


class BatchHistory:
    """All reorderings of a growing batch, and which row each sample of the final record had at each time.

    A sample of the record is a path through time: it ends in a sample that is there at the end, in one of an input
    that was done before the others, or where a beam finished. `time` counts moves: before the first it is 0.

    >>> history = BatchHistory(2)
    >>> _ = history.add([0, 0, 1, 1])  # two beams each
    >>> _ = history.add([3, 2], done=True)  # the first input is done; the beams of the second change places
    >>> history.inputs, [history.paths(time).tolist() for time in range(3)]
    ((0, 0, 1, 1), [[0, 0, 1, 1], [0, 1, 3, 2], [-1, -1, 0, 1]])
    """

    def __init__(self, batch: int) -> None:
        self.reorders: list[Reorder] = []
        self.here = list(range(batch))  # the input of each sample that is there now
        self.gone: list[tuple[int, int, int]] = []  # input, time, row of each sample that has left
        self._paths: list[Tensor] | None = None

    @property
    def time(self) -> int:
        return len(self.reorders)

    def add(self, rows: Sequence[int] | Tensor, *, done: bool = False, finished: Collection[int] = ()) -> Reorder:
        """Sample n becomes what rows[n] was; with `done` an input without any sample left is finished, not dropped.

        The samples in the rows of `finished` stay in the record as they are now, whether or not others go on from them.
        """
        rows = torch.as_tensor(rows).long().cpu().flatten()
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self.here):
            raise AssertionError(f"rows {rows.tolist()} of {len(self.here)} samples")
        new = [self.here[row] for row in rows.tolist()]
        staying = set(new)
        leaving = [row for row, number in enumerate(self.here) if row in finished or (done and number not in staying)]
        self.gone += [(self.here[row], self.time, row) for row in leaving]
        self.here, self._paths = new, None
        self.reorders.append(Reorder(rows, tuple(leaving)))
        return self.reorders[-1]

    @property
    def inputs(self) -> tuple[int, ...]:
        """The input index of each sample of the record."""
        return tuple(self._ends()[path][0] for path in self.order)

    @property
    def order(self) -> list[int]:
        """Present samples, then finished ones; sorted by input if any have finished."""
        ends = self._ends()
        return sorted(range(len(ends)), key=lambda path: ends[path][0] if self.gone else path)

    def paths(self, time: int) -> Tensor:
        """The row that each sample of the record had at this time; −1 if it had finished before."""
        if self._paths is None:
            self._paths = self._trace_paths()
        return self._paths[time]

    def _ends(self) -> list[tuple[int, int, int]]:
        return [(number, self.time, row) for row, number in enumerate(self.here)] + self.gone

    def _trace_paths(self) -> list[Tensor]:
        """The rows of every sample at every time, traced from the end back to the beginning."""
        ends = [self._ends()[path] for path in self.order]
        when, where = (torch.tensor([end[n] for end in ends], dtype=torch.long) for n in (1, 2))
        row = torch.where(when == self.time, where, -1)
        found = [row]
        for time in range(self.time - 1, -1, -1):
            rows = self.reorders[time].rows
            before = rows[row.clamp(min=0)] if len(rows) else row
            row = torch.where(when == time, where, torch.where(row >= 0, before, -1))
            found.append(row)
        return found[::-1]


def join_pieces(pieces: Sequence[tuple[int, Tensor]], history: BatchHistory, fill: int | float = 0) -> Tensor:
    """Concatenates (time, piece) pairs of shape (batch, heads, tokens, …), with rows in the order of the record."""
    heads = max(piece.shape[1] for _, piece in pieces)  # where masks differ by head at some steps, and not at others
    if not history.reorders:
        return _concatenate([piece for _, piece in pieces], heads)
    found = []
    for time, some in itertools.groupby(pieces, key=lambda pair: pair[0]):  # those between two moves at once
        found.append(select_rows(_concatenate([piece for _, piece in some], heads), history.paths(time), fill))
    return _concatenate(found, heads)


def _concatenate(pieces: Sequence[Tensor], heads: int) -> Tensor:
    wide = [one if one.shape[1] == heads else one.expand(-1, heads, *one.shape[2:]) for one in pieces]
    return torch.cat(wide, 2) if len(wide) > 1 else wide[0]


def select_rows(tensor: Tensor, rows: Tensor, fill: int | float = 0) -> Tensor:
    """Rows of a tensor, with `fill` where an index is −1; the tensor itself if nothing changes."""
    if len(rows) == len(tensor) and torch.equal(rows, torch.arange(len(rows))):
        return tensor
    if not len(tensor):
        return tensor.new_full((len(rows), *tensor.shape[1:]), fill)
    chosen = tensor.index_select(0, rows.clamp(min=0))
    chosen[rows < 0] = fill
    return chosen


class GrowingSum:
    """A sum (batch, heads, …) whose last axes grow; its buffer doubles when full, up to `most`.

    >>> sums = GrowingSum()
    >>> sums.add(torch.ones(1, 1, 2), at=[0])
    >>> sums.add(torch.ones(1, 1, 2), at=[1])
    >>> sums.value
    tensor([[[1., 2., 1.]]])
    """

    def __init__(self, first: Tensor | None = None, most: int | None = None) -> None:
        self.buffer, self.most = first, most
        self.sizes: tuple[int, ...] = () if first is None else tuple(first.shape[2:])

    @property
    def value(self) -> Tensor:
        assert self.buffer is not None
        return self.buffer[(slice(None), slice(None), *(slice(0, size) for size in self.sizes))]

    def reserve(self, samples: Sequence[int], ends: Sequence[int], dtype: torch.dtype) -> None:
        """Grows the buffer to these sizes of the last axes, for this many samples and heads."""
        self.sizes = tuple(map(max, ends, self.sizes)) if self.sizes else tuple(ends)
        if self.buffer is None:
            self.buffer = torch.zeros(*samples, *self.sizes, dtype=dtype)
        elif any(map(operator.gt, self.sizes, self.buffer.shape[2:])):
            room = map(self._grow_size, self.sizes, self.buffer.shape[2:])
            self.buffer = pad_to(self.buffer, (*self.buffer.shape[:2], *room))

    def add(self, more: Tensor, at: Sequence[int], dtype: torch.dtype | None = None) -> None:
        """Adds `more` at offset `at`, one offset for each axis after the first two.

        The sums are of this dtype, if it is given with the first of them.
        """
        self.reserve(more.shape[:2], tuple(map(operator.add, at, more.shape[2:])), dtype or more.dtype)
        place = self.buffer
        assert place is not None
        for axis, (start, size) in enumerate(zip(at, more.shape[2:], strict=True), start=2):
            place = place.narrow(axis, start, size)
        place.add_(more)

    def _grow_size(self, size: int, room: int) -> int:
        if size <= room:
            return room
        return max(size, 2 * room if self.most is None else min(2 * room, self.most))

    def select_rows(self, rows: Tensor) -> None:
        if self.buffer is not None:
            self.buffer = select_rows(self.buffer, rows)


def pad_to(tensor: Tensor, sizes: Sequence[int]) -> Tensor:
    """Pads a tensor with zeros to these sizes."""
    whole = tensor.new_zeros(*sizes)
    whole[tuple(slice(0, size) for size in tensor.shape)] = tensor
    return whole
