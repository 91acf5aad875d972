"""The measures of one attention, which grow step by step with a key-value cache and are copied to the CPU."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from clearhead.attention.biases import Dense
from clearhead.attention.call import Call
from clearhead.attention.masks import Mask
from clearhead.lens.capture.growing_call import (
    BatchHistory,
    InputKeeper,
    Reorder,
    join_all_pieces,
    join_pieces,
    select_rows,
)
from clearhead.lens.capture.watch_settings import MeasureDetail
from clearhead.lens.measures.definition import MeasureJob, Measures, choose_blocks, sum_blocks
from clearhead.lens.measures.measure_dispatch import run_job
from clearhead.lens.measures.visible_keys import compute_probe_weights, count_visible_keys
from clearhead.lens.record.attention_views import Forward, Sight

SEES_NOTHING = {
    "logsumexp": -math.inf,
    "peak_key": -1,
    "top_keys": -1,
}  # for a query that sees nothing; the others are 0
PER_QUERY = [one.name for one in fields(Measures) if one.name not in ("received", "map")]
CELLS = 2**24  # of a map that has to be measured finer than it is kept
SMALL = 2**18  # numbers: smaller tensors are packed into one copy, since each copy waits for the GPU
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of a number


class FirstPositions(NamedTuple):
    """The document positions of the first query and of the first key."""

    query: int
    key: int = 0
    tokens: int | None = None  # keys with a position; those after them are summaries of tokens. None: all keys


class GrowingAttention:
    """The measures of one attention, extended step by step; `end` is the position after its last query."""

    def __init__(
        self, name: str, heads: tuple[int, ...], cross: bool, detail: MeasureDetail, history: BatchHistory
    ) -> None:
        self.name, self.heads, self.cross, self.detail, self.history = name, heads, cross, detail, history
        self.end = self.rows = self.keys = 0
        self.tokens: int | None = None  # keys that are tokens, if not all are
        self.is_placeholder = False  # the last query, until the first sampled row exists
        self.pieces: list[tuple[int, dict[str, Tensor]]] = []  # measures of queries, with the time of each piece
        self.norms: list[tuple[int, Tensor]] = []
        self.positions: list[range] = []
        self.blocks: tuple[int, int] | None = None
        self.received, self.map = GrowingSum(), GrowingSum(most=detail.pixels)
        self.finished: dict[int, tuple[Tensor, Tensor, tuple[int, int]]] = {}  # sums of samples that are done
        self.keeper = InputKeeper() if detail.keep == "qk" else None
        self._sight: Sight | None = None

    def continues_at(self, batch: int, first_query: int) -> bool:
        """Whether queries from this position follow directly on the last ones, with the same batch size."""
        return len(self.history.present) == batch and self.end == first_query

    def add(
        self,
        call: Call,
        where: FirstPositions,
        *,
        logsumexp: Float[Tensor, "batch heads queries"] | None = None,
        norms: Callable[[slice], Float[Tensor, "batch heads keys"]] | None = None,
        grows: bool = False,
    ) -> None:
        """Measures the queries of one step and appends them; `norms` computes value norms for a slice of keys."""
        queries, keys, every, time = call.q.shape[2], call.k.shape[2], self.detail.every, self.history.time
        rows = range(-(where.query + 1) % every, queries, every)
        if self.is_placeholder and queries:
            self._drop_placeholder()
        if not rows and (not grows or not self.rows):
            rows = range(max(queries - 1, 0), queries)
            self.is_placeholder = grows and bool(rows)
        if self.blocks is None:
            height, width = choose_blocks(len(rows), where.key + keys, self.detail.pixels)
            self.blocks = (max(height, 1), max(width, 1)) if self.detail.pixels else (0, 0)
        positions = range(rows.start + where.query, rows.stop + where.query, rows.step)
        found, exact = [], torch.float64 if grows else _choose_dtype(call)
        while rows:
            part, rows = self._cut(rows, call, where)
            found.append(self._measure(call, part, where, logsumexp, exact))
        found = found or [_make_empty_measures(call, self.detail)]
        joined = (
            found[0] if len(found) == 1 else {name: torch.cat([one[name] for one in found], 2) for name in found[0]}
        )
        self._reserve(call, where.key + keys, exact)
        self.positions.append(positions)
        self.pieces.append((time, joined))
        new = slice(max(0, self.keys - where.key), keys)
        if norms is not None and (where.key + keys > self.keys or not self.norms):
            gap = max(0, where.key - self.keys)
            own = norms(new).cpu()
            self.norms.append((time, torch.nn.functional.pad(own, (gap, 0)) if gap else own))
        if self.keeper is not None:
            self.keeper.add(call, where.query, where.key, self.history)
        if where.tokens is not None:
            self.tokens = where.key + where.tokens
        self.keys, self.end, self._sight = max(self.keys, where.key + keys), where.query + queries, None

    def _drop_placeholder(self) -> None:
        """Discards the placeholder query once a sampled one arrives."""
        self.is_placeholder, self.rows, self.blocks = False, 0, None
        self.pieces, self.positions, self.finished = [], [], {}
        self.received, self.map = GrowingSum(), GrowingSum(most=self.detail.pixels)

    def _reserve(self, call: Call, keys: int, exact: torch.dtype) -> None:
        """Grows the sums to this number of keys, also where no measured query could see them."""
        self.received.reserve(call.q.shape[:2], (keys,), exact)
        height, width = self.blocks or (0, 0)
        if height:
            self.map.reserve(call.q.shape[:2], (0, -(-keys // width)), _choose_dtype(call))
            self._shrink()

    def _cut(self, rows: range, call: Call, where: FirstPositions) -> tuple[range, range]:
        """Splits rows at the next edge of a map block: rows to measure together, and the rest."""
        height, width = self.blocks or (0, 0)
        count = len(rows)
        if height:
            count = -self.rows % height or count
            if where.key % width:  # measured finer than it is kept
                count = min(count, height * max(1, CELLS // max(1, math.prod(call.q.shape[:2]) * call.k.shape[2])))
        return rows[:count], rows[count:]

    def _measure(
        self, call: Call, rows: range, where: FirstPositions, logsumexp: Tensor | None, exact: torch.dtype
    ) -> dict[str, Tensor]:
        assert self.blocks is not None
        height, width = self.blocks
        fine = math.gcd(where.key, width) if width else 0  # columns that begin where those of the map do
        chosen = None if logsumexp is None else logsumexp[:, :, rows.start : rows.stop : rows.step]
        job = MeasureJob(call, rows, where.query - where.key, (height, fine), self.detail.top, True, chosen)
        result = run_job(job)
        found = {name: getattr(result, name) for name in PER_QUERY} | self._measure_probes(job, result, where)
        if where.tokens is not None:
            found["distance"] = _measure_token_distance(job, where.tokens, result.logsumexp)
        found["visible"] = count_visible_keys(call, rows).int().expand(len(call.q), -1, -1)
        for name in ("peak_key", "top_keys"):
            keys = found[name].int()  # half the memory; a document has fewer than 2³¹ tokens
            found[name] = torch.where(keys >= 0, keys + where.key, keys) if where.key else keys
        assert result.received is not None
        found = to_host({**found, "received": result.received, "map": result.map})
        if self.history.stopped:
            stopped = torch.tensor(sorted(self.history.stopped))
            found = {name: one.index_fill(0, stopped, SEES_NOTHING.get(name, 0)) for name, one in found.items()}
        self.received.add(found.pop("received"), (where.key,), exact)
        pixels = found.pop("map")
        if height:
            if fine != width:
                inset = where.key // fine % (width // fine)
                pixels = sum_blocks(torch.nn.functional.pad(pixels, (inset, 0)), width // fine, 3)
            self.map.add(pixels, (self.rows // height, where.key // width))
            self._shrink()
        self.rows += len(rows)
        return found

    def _shrink(self) -> None:
        """Doubles the block size of the map until it fits the pixel limit."""
        assert self.blocks is not None
        for axis in (0, 1):
            while self.map.sizes[axis] > self.detail.pixels:
                self.map = GrowingSum(sum_blocks(self.map.value, 2, 2 + axis), most=self.detail.pixels)
                height, width = self.blocks
                self.blocks = (height, 2 * width) if axis else (2 * height, width)

    def _measure_probes(self, job: MeasureJob, result: Measures, where: FirstPositions) -> dict[str, Tensor]:
        """The weight of the key that each probe selects."""
        found: dict[str, Tensor] = {}
        for name, probe in (self.detail.probes or {}).items():
            positions = torch.tensor(job.rows, dtype=torch.long) + where.query
            keys = probe(positions).to(job.call.q.device)
            keys = torch.where(keys >= where.key, keys - where.key, -1).expand(job.call.q.shape[0], -1)
            found[f"probe {name}"] = compute_probe_weights(job.call, keys, result.logsumexp, rows=job.rows)
        return found

    def reorder(self, reorder: Reorder, first_number: int) -> None:
        """Reorders the sums; those of finished samples are stored under numbers from `first_number` on."""
        self._sight = None
        if self.received.buffer is None:
            return
        for number, row in enumerate(reorder.leaving, start=first_number):
            sums = self.received.value[row].clone(), self._current_map()[row].clone()
            self.finished[number] = (*sums, self.blocks or (0, 0))
        self.received.select_rows(reorder.rows)
        self.map.select_rows(reorder.rows)

    def _current_map(self) -> Tensor:
        value = self.received.value
        return self.map.value if self.map.buffer is not None else value.new_zeros(*value.shape[:2], 0, 0)

    @torch.inference_mode(False)
    def sight(self, forward: Forward) -> Sight:
        """The measures so far, as one Sight."""
        if self._sight is None:
            whole = join_all_pieces(self.pieces, self.history, SEES_NOTHING)
            received, drawn = self._join_sums()
            kept = None
            if self.keeper is not None:
                kept = self.keeper.finish(self.history, whole["logsumexp"] if self.detail.every == 1 else None)
            self._sight = Sight(
                **{name: whole[name] for name in PER_QUERY},
                received=received,
                map=drawn,
                name=self.name,
                cross=self.cross,
                heads=self.heads,
                queries=torch.tensor([*itertools.chain(*self.positions)], dtype=torch.long),
                blocks=self.blocks or (0, 0),
                inputs=self.history.inputs,
                visible=whole["visible"],
                probes={name[6:]: whole[name] for name in whole if name.startswith("probe ")},
                norms=join_pieces(self.norms, self.history) if self.norms else None,
                kept=kept,
                tokens=self.tokens,
                forward=forward,
            )
        return self._sight

    def _join_sums(self) -> tuple[Tensor, Tensor]:
        """`received` and `map` of all samples, in the order of the record."""
        dtype = self.pieces[0][1]["entropy"].dtype
        received, drawn = self.received.value.to(dtype, copy=True), self._current_map().to(dtype, copy=True)
        if not self.history.finished:
            return received, drawn
        all_received, all_drawn = list(received), list(drawn)
        for number in range(len(self.history.finished)):
            one, pixels, blocks = self.finished.get(
                number, (received[:0].sum(0), drawn[:0].sum(0), self.blocks or (0, 0))
            )
            for axis, (had, have) in enumerate(zip(blocks, self.blocks or (0, 0), strict=True)):
                pixels = sum_blocks(pixels, have // had, 1 + axis) if have != had else pixels
            all_received.append(pad_to(one.to(dtype), received.shape[1:]))
            all_drawn.append(pad_to(pixels.to(dtype), drawn.shape[1:]))
        order = self.history.order
        return torch.stack([all_received[path] for path in order]), torch.stack([all_drawn[path] for path in order])


def _measure_token_distance(job: MeasureJob, tokens: int, logsumexp: Tensor) -> Tensor:
    """Σ w |position of query − position of key| over the first keys only, with weights normalised over all keys."""
    call = job.call
    mask = None if call.mask is None else Mask.visible(call.mask.dense(*call.sizes[2:])[..., :tokens])
    bias = None if call.bias is None else Dense(call.bias.dense(*call.sizes[2:])[..., :tokens])
    first = call._replace(k=call.k[:, :, :tokens], v=call.v[:, :, :tokens], mask=mask, bias=bias)
    found = run_job(job._replace(call=first, blocks=(0, 0), top=0, received=False, logsumexp=None))
    share = (found.logsumexp - logsumexp).exp().masked_fill(logsumexp == -math.inf, 0.0)
    return found.distance * share


def _choose_dtype(call: Call) -> torch.dtype:
    return torch.promote_types(call.q.dtype, torch.float32)


def _make_empty_measures(call: Call, detail: MeasureDetail) -> dict[str, Tensor]:
    """Measures with zero queries."""
    empty = torch.zeros(*call.q.shape[:2], 0, dtype=_choose_dtype(call))
    tops = empty[..., None].expand(-1, -1, -1, detail.top)
    found = dict.fromkeys([*PER_QUERY, *(f"probe {name}" for name in detail.probes or {})], empty)
    return found | {"visible": empty[:, :1].int(), "peak_key": empty.int(), "top_keys": tops.int(), "top_weights": tops}


class GrowingSum:
    """A sum (batch, heads, …) whose last axes grow; its buffer doubles when full, up to `most`.

    >>> sums = GrowingSum()
    >>> sums.add(torch.ones(1, 1, 2), at=[0])
    >>> sums.add(torch.ones(1, 1, 2), at=[1])
    >>> sums.value
    tensor([[[1., 2., 1.]]])
    """

    def __init__(self, first: Float[Tensor, "batch heads ..."] | None = None, most: int | None = None) -> None:
        self.buffer, self.most = first, most
        self.sizes: tuple[int, ...] = () if first is None else tuple(first.shape[2:])

    @property
    def value(self) -> Float[Tensor, "batch heads ..."]:
        assert self.buffer is not None
        return self.buffer[(slice(None), slice(None), *(slice(0, size) for size in self.sizes))]

    def reserve(self, samples: Sequence[int], ends: Sequence[int], dtype: torch.dtype) -> None:
        """Grows the buffer to these sizes of the last axes, for this many samples and heads."""
        self.sizes = tuple(map(max, ends, self.sizes)) if self.sizes else tuple(ends)
        if self.buffer is None:
            self.buffer = torch.zeros(*samples, *self.sizes, dtype=dtype)
        elif any(map(operator.gt, self.sizes, self.buffer.shape[2:])):
            sizes = map(self._grow_size, self.sizes, self.buffer.shape[2:])
            self.buffer = pad_to(self.buffer, (*self.buffer.shape[:2], *sizes))

    def add(self, more: Float[Tensor, "batch heads ..."], at: Sequence[int], dtype: torch.dtype | None = None) -> None:
        """Adds `more` at offset `at`, one offset for each axis after the first two.

        The sums are of this dtype, if it is given with the first of them.
        """
        self.reserve(more.shape[:2], tuple(map(operator.add, at, more.shape[2:])), dtype or more.dtype)
        place = self.buffer
        assert place is not None
        for axis, (start, size) in enumerate(zip(at, more.shape[2:], strict=True), start=2):
            place = place.narrow(axis, start, size)
        place.add_(more)

    def _grow_size(self, size: int, capacity: int) -> int:
        if size <= capacity:
            return capacity
        return max(size, 2 * capacity if self.most is None else min(2 * capacity, self.most))

    def select_rows(self, rows: Int[Tensor, " samples"]) -> None:
        if self.buffer is not None:
            self.buffer = select_rows(self.buffer, rows)


def pad_to(tensor: Float[Tensor, "..."], sizes: Sequence[int]) -> Float[Tensor, "..."]:
    """Pads a tensor with zeros to these sizes."""
    whole = tensor.new_zeros(*sizes)
    whole[tuple(slice(0, size) for size in tensor.shape)] = tensor
    return whole


def to_host(tensors: Mapping[str, Shaped[Tensor, "..."]]) -> dict[str, Shaped[Tensor, "..."]]:
    """Copies tensors to the CPU, small ones packed by element size."""
    small = {name: one for name, one in tensors.items() if one.is_cuda and one.numel() <= SMALL}
    together: dict[str, Tensor] = {}
    for size in {one.itemsize for one in small.values()}:
        together |= copy_packed({name: one for name, one in small.items() if one.itemsize == size})
    return {name: together[name] if name in together else one.cpu() for name, one in tensors.items()}


def copy_packed(tensors: Mapping[str, Shaped[Tensor, "..."]]) -> dict[str, Shaped[Tensor, "..."]]:
    """Copies tensors of one element size in a single transfer; each result owns its memory.

    >>> copy_packed({"a": torch.ones(2), "b": torch.tensor([[3]], dtype=torch.int32)})
    {'a': tensor([1., 1.]), 'b': tensor([[3]], dtype=torch.int32)}
    """
    row = torch.cat([one.view(BITS[one.itemsize]).flatten() for one in tensors.values()]).cpu()
    pieces = row.split([one.numel() for one in tensors.values()])
    return {
        name: piece.clone().view(one.dtype).view(one.shape)
        for (name, one), piece in zip(tensors.items(), pieces, strict=True)
    }
