"""Tensors of an attention that grow with its cache, while samples are reordered and finish.

BatchHistory has the samples, AttentionSums what is summed over queries.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Num, Shaped
from torch import Tensor

from clearhead.attention.call import Call
from clearhead.lens.capture.host_transfer import ArrivingTensors
from clearhead.lens.measures.definition import choose_blocks, sum_blocks


class Reorder(NamedTuple):
    """One reordering of a batch: sample n was row `rows[n]`; `leaving` rows are finished and stay in the record."""

    rows: Int[Tensor, " samples"]
    leaving: tuple[int, ...]


class BatchHistory:
    """All reorderings of a growing batch, and which row each sample of the final record had at each time.

    A sample of the record is a path through time. It ends in the last batch, where its input was done before the
    others, or where a beam finished. `time` counts reorderings.

    >>> history = BatchHistory(2)
    >>> _ = history.add([0, 0, 1, 1])  # two beams each
    >>> _ = history.add([3, 2], done=True)  # the first input is done; the beams of the second change places
    >>> history.inputs, [history.paths(time).tolist() for time in range(3)]
    ((0, 0, 1, 1), [[0, 0, 1, 1], [0, 1, 3, 2], [-1, -1, 0, 1]])
    """

    def __init__(self, batch: int) -> None:
        self.time, self.reorders = 0, list[Reorder]()
        self.present = list(range(batch))  # the input of each sample of the current batch
        self.finished: list[tuple[int, int, int]] = []  # input, time, row of each finished sample
        self.stopped: frozenset[int] = frozenset()  # rows that go on as padding: they see nothing
        self._paths: list[Tensor] | None = None

    def add(
        self, rows: Sequence[int] | Int[Tensor, " samples"], *, done: bool = False, finished: Collection[int] = ()
    ) -> Reorder:
        """Sample n becomes what rows[n] was; with `done` an input without any sample left is finished, not dropped.

        The samples in the rows of `finished` stay in the record as they are now, whether or not others go on from them.
        """
        rows = torch.as_tensor(rows).long().cpu().flatten()
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self.present):
            raise AssertionError(f"rows {rows.tolist()} must be from 0 to {len(self.present) - 1}")
        new = [self.present[row] for row in rows.tolist()]
        staying = set(new)
        leaving = [
            row for row, number in enumerate(self.present) if row in finished or (done and number not in staying)
        ]
        self.finished += [(self.present[row], self.time, row) for row in leaving]
        self.present, self._paths = new, None
        self.stopped = frozenset(n for n, row in enumerate(rows.tolist()) if row in self.stopped)
        self.reorders.append(Reorder(rows, tuple(leaving)))
        self.time += 1
        return self.reorders[-1]

    @property
    def inputs(self) -> tuple[int, ...]:
        """The input index of each sample of the record."""
        return tuple(self._ends()[path][0] for path in self.order)

    @property
    def order(self) -> list[int]:
        """Present samples, then finished ones; sorted by input if any have finished."""
        ends = self._ends()
        return sorted(range(len(ends)), key=lambda path: ends[path][0] if self.finished else path)

    def paths(self, time: int) -> Int[Tensor, " samples"]:
        """The row that each sample of the record had at this time; −1 if it had finished before."""
        if self._paths is None:
            self._paths = self._trace_paths()
        return self._paths[time]

    def _ends(self) -> list[tuple[int, int, int]]:
        return [(number, self.time, row) for row, number in enumerate(self.present)] + self.finished

    def _trace_paths(self) -> list[Tensor]:
        """The rows of every sample at every time, traced from the end back to the beginning."""
        ends = [self._ends()[path] for path in self.order]
        when, where = (torch.tensor([end[n] for end in ends], dtype=torch.long) for n in (1, 2))
        row = torch.where(when == self.time, where, -1)
        paths = [row]
        for time in range(self.time - 1, -1, -1):
            rows = self.reorders[time].rows
            before = rows[row.clamp(min=0)] if len(rows) else row
            row = torch.where(when == time, where, torch.where(row >= 0, before, -1))
            paths.append(row)
        return paths[::-1]


Pieces = Sequence[tuple[int, ArrivingTensors]]  # each with its time


def join_pieces(
    pieces: Pieces, name: str, history: BatchHistory, fill: int | float = 0
) -> Shaped[Tensor, "samples _ _ ..."]:
    """The pieces of a tensor, concatenated along the tokens, with samples in the order of the record.

    `fill` is the value of samples that had finished.
    """
    timed = [(time, piece[name]) for time, piece in pieces]
    heads = max(piece.shape[1] for _, piece in timed)  # where masks differ by head at some steps, and not at others
    if not history.reorders:
        return _concatenate([piece for _, piece in timed], heads)
    joined = []
    for time, group in itertools.groupby(timed, key=lambda pair: pair[0]):  # pieces between two reorderings together
        joined.append(select_rows(_concatenate([piece for _, piece in group], heads), history.paths(time), fill))
    return _concatenate(joined, heads)


def _concatenate(pieces: Sequence[Tensor], heads: int) -> Tensor:
    wide = [piece if piece.shape[1] == heads else piece.expand(-1, heads, *piece.shape[2:]) for piece in pieces]
    return torch.cat(wide, 2) if len(wide) > 1 else wide[0]


def select_rows(
    tensor: Shaped[Tensor, "batch ..."], rows: Int[Tensor, " samples"], fill: int | float = 0
) -> Shaped[Tensor, "samples ..."]:
    """Rows of a tensor, with `fill` where an index is −1; the tensor itself if nothing changes."""
    if len(rows) == len(tensor) and torch.equal(rows, torch.arange(len(rows))):
        return tensor
    if not len(tensor):
        return tensor.new_full((len(rows), *tensor.shape[1:]), fill)
    rows = rows.to(tensor.device)
    selected = tensor.index_select(0, rows.clamp(min=0))
    return selected.masked_fill_((rows < 0).view(-1, *[1] * (tensor.ndim - 1)), fill)


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
            more = [self._grow_size(*sizes) for sizes in zip(self.sizes, self.buffer.shape[2:], strict=True)]
            self.buffer = torch.nn.functional.pad(self.buffer, [edge for size in reversed(more) for edge in (0, size)])

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
        target = self.buffer[: len(more)]
        for axis, (start, size) in enumerate(zip(at, more.shape[2:], strict=True), start=2):
            target = target.narrow(axis, start, size)
        target.add_(more.to(target.device))

    def _grow_size(self, size: int, capacity: int) -> int:
        """By how much an axis of this capacity grows."""
        wanted = 2 * capacity if self.most is None else min(2 * capacity, self.most)
        return max(size, wanted) - capacity if size > capacity else 0

    def select_rows(self, rows: Int[Tensor, " samples"]) -> None:
        if self.buffer is not None:
            self.buffer = select_rows(self.buffer, rows)


class AttentionSums:
    """Of one attention: what each key receives, by how many queries it is seen, and the map of `pixels` × `pixels`.

    Rows are those of the samples that are present, then of finished ones, in the order in which they finished. The map
    has rows of `blocks[0]` measured queries and columns of `blocks[1]` keys, which double when it is full.
    """

    def __init__(self, pixels: int) -> None:
        self.pixels, self.rows = pixels, 0  # rows: the number of queries so far
        self.blocks = (0, 0)  # until the first queries come, or without a map
        self.received, self.map, self.seen_by = GrowingSum(), GrowingSum(most=pixels), GrowingSum()
        self.finished = 0  # rows of finished samples

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

    def reorder(self, reorder: Reorder) -> None:
        """Reorders the samples; the rows of those that finish are kept behind the others."""
        if self.received.buffer is None:
            return
        rows = len(self.received.buffer)
        finished = torch.arange(rows - self.finished, rows)
        order = torch.cat([reorder.rows, finished, torch.tensor(reorder.leaving, dtype=torch.long)])
        self.finished += len(reorder.leaving)
        for growing in (self.received, self.map, self.seen_by):
            growing.select_rows(order)

    def join(self, history: BatchHistory, dtype: torch.dtype) -> dict[str, Tensor]:
        """Copies of the sums of all samples, in the order of the record; `received` and `map` are of this dtype."""
        received, seen_by = self.received.value.to(dtype), self.seen_by.value
        drawn = received.new_zeros(*received.shape[:2], 0, 0) if self.map.buffer is None else self.map.value.to(dtype)
        sums = {"received": received, "map": drawn, "seen_by": seen_by}
        return {name: self._order_samples(tensor, history) for name, tensor in sums.items()}

    def _order_samples(self, sums: Tensor, history: BatchHistory) -> Tensor:
        """A copy in the order of the record, with zeros for samples that had finished before the attention began."""
        missing, present = len(history.finished) - self.finished, len(history.present)
        if missing:
            sums = torch.cat([sums[:present], sums.new_zeros(missing, *sums.shape[1:]), sums[present:]])
        return sums.index_select(0, torch.tensor(history.order, dtype=torch.long, device=sums.device))
