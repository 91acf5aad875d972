"""A call that grows with its key-value cache: the order of its samples over time, and its tokens."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from clearhead.lens.capture.host_transfer import ArrivingTensors
from clearhead.lens.record.attention_views import Forward, Pending, Sight


class Reorder(NamedTuple):
    """One reordering of a batch: sample n was row `rows[n]`; `leaving` rows are finished and stay in the record."""

    rows: Int[Tensor, " samples"]
    leaving: tuple[int, ...]


class BatchHistory:
    """All reorderings of a growing batch, and which row each sample of the final record had at each time.

    A sample of the record is a path through time: it ends in a sample of the last batch, in one of an input that was
    done before the others, or where a beam finished. `time` counts reorderings.

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
        found = [row]
        for time in range(self.time - 1, -1, -1):
            rows = self.reorders[time].rows
            before = rows[row.clamp(min=0)] if len(rows) else row
            row = torch.where(when == time, where, torch.where(row >= 0, before, -1))
            found.append(row)
        return found[::-1]


def join_all_pieces(
    pieces: Sequence[tuple[int, ArrivingTensors]],
    history: BatchHistory,
    fills: Mapping[str, int | float],
) -> dict[str, Shaped[Tensor, "samples _ _ ..."]]:
    """`join_pieces` of each measure; `fills` are the values of samples that had finished, where they are not 0."""
    return {
        name: join_pieces([(time, piece[name]) for time, piece in pieces], history, fills.get(name, 0))
        for name in pieces[0][1].names
    }


def join_pieces(
    pieces: Sequence[tuple[int, Shaped[Tensor, "_ _ _ ..."]]], history: BatchHistory, fill: int | float = 0
) -> Shaped[Tensor, "samples _ _ ..."]:
    """Concatenates (time, piece) pairs along the tokens, with samples in the order of the record."""
    heads = max(piece.shape[1] for _, piece in pieces)  # where masks differ by head at some steps, and not at others
    if not history.reorders:
        return _concatenate([piece for _, piece in pieces], heads)
    found = []
    for time, some in itertools.groupby(pieces, key=lambda pair: pair[0]):  # pieces between two reorderings together
        found.append(select_rows(_concatenate([piece for _, piece in some], heads), history.paths(time), fill))
    return _concatenate(found, heads)


def _concatenate(pieces: Sequence[Tensor], heads: int) -> Tensor:
    wide = [one if one.shape[1] == heads else one.expand(-1, heads, *one.shape[2:]) for one in pieces]
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
    chosen = tensor.index_select(0, rows.clamp(min=0))
    return chosen.masked_fill_((rows < 0).view(-1, *[1] * (tensor.ndim - 1)), fill)


class GrowingCall(Forward):
    """A recorded call that later forward passes with the same key-value cache extend."""

    def __init__(self) -> None:
        super().__init__()
        self.history: BatchHistory | None = None  # of what grows with the cache
        self.cache: Callable[[], object | None] | None = None
        self._pending_reorders: list[tuple[Tensor, bool, Collection[int]]] = []  # applied when the next query arrives
        self._tokens: dict[str, list[tuple[int, int, Tensor]]] = {}  # time, position, numbers

    def bind(self, cache: object, batch: int | None) -> None:
        """Ties the call to a cache; with a batch size, its attentions grow. Our KeyValueCache reports reorderings."""
        if batch is not None and self.history is None:
            self.history = BatchHistory(batch)
        if self.cache is not None:
            return
        self.cache = weakref.ref(cache)
        if hasattr(cache, "observers"):
            cache.observers.append(self.reorder)

    def reorder(
        self, rows: Sequence[int] | Int[Tensor, " samples"], done: bool = False, finished: Collection[int] = ()
    ) -> None:
        """Sample n is now what rows[n] was; with `done` an input without samples is finished, not dropped.

        What was in the rows of `finished` stays in the record. It takes effect with the next query: a beam search
        reorders once more after its last query, which would remove the beams that were just completed.
        """
        if self.history is not None:
            with torch.inference_mode(False):  # whose tensors could not be changed later
                self._pending_reorders.append((torch.as_tensor(rows).clone(), done, finished))

    def finish_samples(self, stopped: Sequence[bool] | None) -> None:
        """Marks rows that stopped: what follows in them is padding. None: a new generation begins in all rows."""
        history = self.history
        if history is None or (stopped is not None and len(stopped) != len(history.present)):
            return
        new = frozenset[int]() if stopped is None else history.stopped.union(n for n, end in enumerate(stopped) if end)
        if new != history.stopped:
            self.measure_waiting()
            history.stopped = new

    def measure_waiting(self) -> None:
        """Measures the decoding steps that wait to be measured together, because samples or keys change."""
        for part in self._growing_parts():
            if part.history is self.history:
                part.measure_waiting()

    def _growing_parts(self) -> list[Pending]:
        return [part for part in self.sights.values() if not isinstance(part, Sight)]

    def apply_reorders(self) -> None:
        """Applies pending reorderings, because a query arrives."""
        for rows, done, finished in self._pending_reorders:
            assert self.history is not None
            with torch.inference_mode(False):
                self.measure_waiting()
                first_number = len(self.history.finished)
                reorder = self.history.add(rows, done=done, finished=finished)
                for part in self._growing_parts():
                    if part.history is self.history:
                        part.reorder(reorder, first_number)
        self._pending_reorders.clear()

    def add_ids(self, kind: str, numbers: Int[Tensor, "batch tokens"], position: int) -> None:
        """Appends token ids; the first stands at this position."""
        time = 0 if self.history is None else self.history.time
        pieces = self._tokens.setdefault(kind, [])
        if kind == "source":
            pieces.clear()
        if not pieces or position >= pieces[-1][1] + pieces[-1][2].shape[1]:
            own = numbers.detach().to("cpu", torch.long, copy=True)
            if self.history is not None and self.history.stopped and kind != "source":
                own[sorted(self.history.stopped)] = -1
            pieces.append((time, position, own))

    def forget_ids(self, kind: str) -> None:
        self._tokens.pop(kind, None)

    def inherit(self, other: GrowingCall, position: int) -> None:
        """Copies the tokens before a position from a call whose cache was cropped to it."""
        for kind, numbers in other.ids.items():
            self.add_ids(kind, numbers if kind == "source" else numbers[:, :position], 0)

    @property
    def ids(self) -> dict[str, Int[Tensor, "batch tokens"]]:
        return {kind: self._join_tokens(pieces, kind != "source") for kind, pieces in self._tokens.items()} | self._ids

    def _join_tokens(self, pieces: list[tuple[int, int, Tensor]], reorders: bool) -> Tensor:
        found: list[Tensor] = []
        end = 0
        for time, position, numbers in pieces:
            if reorders and self.history is not None:
                numbers = select_rows(numbers, self.history.paths(time), -1)
            found.append(torch.nn.functional.pad(numbers, (position - end, 0), value=-1))
            end = position + numbers.shape[1]
        return torch.cat(found, 1)

    @torch.inference_mode(False)
    def close(self) -> None:
        """Turns every attention into its final Sight and releases the cache."""
        self.release()
        self._ids = self.ids
        self.send_results()
        # An attention without pieces is one whose measurement failed.
        parts = {name: part for name, part in self.sights.items() if isinstance(part, Sight) or part.pieces}
        self.sights = {name: part if isinstance(part, Sight) else part.sight(self) for name, part in parts.items()}
        self.history, self._tokens, self._pending_reorders = None, {}, []

    @torch.inference_mode(False)
    def send_results(self) -> None:
        """Sends all that is still on a GPU to the CPU, without waiting for it."""
        for part in self._growing_parts():
            part.send_results()

    def release(self) -> None:
        """Stops following the cache."""
        cache = None if self.cache is None else self.cache()
        if cache is not None and hasattr(cache, "observers"):
            cache.observers.remove(self.reorder)
        self.cache = None
