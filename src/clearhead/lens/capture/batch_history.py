"""Moves: what becomes of the samples of a growing call while beams branch, change places, and leave."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Move(NamedTuple):
    """Sample n is what rows[n] was. What the rows of `leaving` saw stays in the record; other rows are dropped."""

    rows: Tensor
    leaving: tuple[int, ...]


class Moves:
    """All moves of a call, and from which sample of which time the samples of its record come.

    A sample of the record is a path through time: it ends in a sample that is there at the end, in one of an input
    that was done before the others, or where a beam finished. `time` counts moves: before the first it is 0.

    >>> moves = Moves(2)
    >>> _ = moves.add([0, 0, 1, 1])  # two beams each
    >>> _ = moves.add([3, 2], done=True)  # the first input is done; the beams of the second change places
    >>> moves.inputs, [moves.paths(time).tolist() for time in range(3)]
    ((0, 0, 1, 1), [[0, 0, 1, 1], [0, 1, 3, 2], [-1, -1, 0, 1]])
    """

    def __init__(self, batch: int) -> None:
        self.moves: list[Move] = []
        self.here = list(range(batch))  # the input of each sample that is there now
        self.gone: list[tuple[int, int, int]] = []  # input, time, row of each sample that has left
        self._paths: list[Tensor] | None = None

    @property
    def time(self) -> int:
        return len(self.moves)

    def add(self, rows: Sequence[int] | Tensor, *, done: bool = False, finished: Collection[int] = ()) -> Move:
        """Sample n becomes what rows[n] was; with `done` an input that has no sample any more is done, not dropped.

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
        self.moves.append(Move(rows, tuple(leaving)))
        return self.moves[-1]

    @property
    def inputs(self) -> tuple[int, ...]:
        """Of each sample of the record, the number of its input."""
        return tuple(self._ends()[path][0] for path in self.order)

    @property
    def order(self) -> list[int]:
        """The samples that are there, then those that have left; if there are any, in the order of their inputs."""
        ends = self._ends()
        return sorted(range(len(ends)), key=lambda path: ends[path][0] if self.gone else path)

    def paths(self, time: int) -> Tensor:
        """Which row each sample of the record had at this time; −1 if it had left before."""
        if self._paths is None:
            self._paths = self._walked()
        return self._paths[time]

    def _ends(self) -> list[tuple[int, int, int]]:
        return [(number, self.time, row) for row, number in enumerate(self.here)] + self.gone

    def _walked(self) -> list[Tensor]:
        """All paths, from their ends back to the beginning."""
        ends = [self._ends()[path] for path in self.order]
        when, where = (torch.tensor([end[n] for end in ends], dtype=torch.long) for n in (1, 2))
        row = torch.where(when == self.time, where, -1)
        found = [row]
        for time in range(self.time - 1, -1, -1):
            rows = self.moves[time].rows
            before = rows[row.clamp(min=0)] if len(rows) else row
            row = torch.where(when == time, where, torch.where(row >= 0, before, -1))
            found.append(row)
        return found[::-1]


def put_together(pieces: Sequence[tuple[int, Tensor]], moves: Moves, fill: int | float = 0) -> Tensor:
    """Pieces (batch, heads, tokens, …) that came at these times, one after the other, for the samples of the record."""
    heads = max(piece.shape[1] for _, piece in pieces)  # where masks differ by head at some steps, and not at others
    if not moves.moves:
        return _joined([piece for _, piece in pieces], heads)
    found = []
    for time, some in itertools.groupby(pieces, key=lambda pair: pair[0]):  # those between two moves at once
        found.append(taken(_joined([piece for _, piece in some], heads), moves.paths(time), fill))
    return _joined(found, heads)


def _joined(pieces: Sequence[Tensor], heads: int) -> Tensor:
    wide = [one if one.shape[1] == heads else one.expand(-1, heads, *one.shape[2:]) for one in pieces]
    return torch.cat(wide, 2) if len(wide) > 1 else wide[0]


def taken(tensor: Tensor, rows: Tensor, fill: int | float = 0) -> Tensor:
    """These samples of a tensor, filled where a row is −1; the tensor itself if nothing changes."""
    if len(rows) == len(tensor) and torch.equal(rows, torch.arange(len(rows))):
        return tensor
    if not len(tensor):
        return tensor.new_full((len(rows), *tensor.shape[1:]), fill)
    chosen = tensor.index_select(0, rows.clamp(min=0))
    chosen[rows < 0] = fill
    return chosen
