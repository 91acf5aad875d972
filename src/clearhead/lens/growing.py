"""Growing: one attention of one call, piece by piece, as a cache grows and beams move."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from clearhead.attention.inputs import Call
from clearhead.lens.measures import Job, Measures, blocks_of, pooled
from clearhead.lens.measuring import measured
from clearhead.lens.sights import Sight

if TYPE_CHECKING:
    from clearhead.lens.record import Forward

Probe = Callable[[Tensor], Tensor]
BLIND = {"logsumexp": -math.inf, "peak_key": -1, "top_keys": -1}  # of a query that sees nothing; the rest is 0
CELLS = 2**24  # of a map that has to be measured finer than it is kept


class Detail(NamedTuple):
    """What is to be measured of every attention."""

    pixels: int = 256
    top: int = 8
    every: int = 1
    keep: str = "none"
    probes: Mapping[str, Probe] | None = None
    norms: bool = False


class Move(NamedTuple):
    """The samples of a growing call change places: sample n is what rows[n] was; those of `leaving` are done."""

    rows: Tensor
    leaving: Sequence[int]


class Piece(NamedTuple):
    """What one step added: measures of its queries, by name, (batch, heads, queries, …)."""

    of_queries: dict[str, Tensor]


class Growing:
    """One attention of one call. `end` is the position after its last query."""

    def __init__(self, name: str, heads: tuple[int, ...], cross: bool, detail: Detail) -> None:
        self.name, self.heads, self.cross, self.detail = name, heads, cross, detail
        self.events: list[Piece | Move] = []
        self.positions: list[Tensor] = []
        self.end = self.rows = 0
        self.batch: int | None = None
        self.blocks: tuple[int, int] | None = None
        self.received: Tensor | None = None
        self.map: Tensor | None = None
        self._sight: Sight | None = None

    def goes_on(self, batch: int, first_query: int) -> bool:
        """Whether queries from this position on come right after those that are here."""
        return self.batch == batch and self.end == first_query

    def add(self, call: Call, first_query: int, first_key: int, logsumexp: Tensor | None, grows: bool) -> None:
        """Measures these queries, and adds them to what is here."""
        self._sight = None
        self.batch, self.end = call.q.shape[0], first_query + call.q.shape[2]
        every, queries = self.detail.every, call.q.shape[2]
        rows = range(-(first_query + 1) % every, queries, every)
        if not rows and not grows:
            rows = range(max(queries - 1, 0), queries)
        self.positions.append(torch.tensor(rows, dtype=torch.long) + first_query)
        if self.blocks is None:
            height, width = blocks_of(len(rows), first_key + call.k.shape[2], self.detail.pixels)
            self.blocks = (max(height, 1), max(width, 1)) if self.detail.pixels else (0, 0)
        parts = [self._measure(call, part, first_query, first_key, logsumexp) for part in self._parts(rows, call)]
        self.events.append(Piece(_joined(parts)))

    def _parts(self, rows: range, call: Call) -> list[range]:
        """The rows, cut where a row of the map ends, so that none is measured across its edge."""
        assert self.blocks is not None
        height = self.blocks[0]
        head = -self.rows % height if height else 0
        parts = [rows[:head], rows[head:]]
        return [part for part in parts if part] or [rows]

    def _measure(self, call: Call, rows: range, first_query: int, first_key: int, lse: Tensor | None) -> Measures:
        assert self.blocks is not None
        height, width = self.blocks
        fine = math.gcd(first_key, width)  # columns that begin where those of the map do
        chosen = None if lse is None else lse[:, :, rows.start : rows.stop : rows.step]
        job = Job(call, rows, first_query - first_key, (height, fine), self.detail.top, True, chosen)
        found = _at_home(measured(job), first_key)
        assert found.received is not None
        self.received = _added(self.received, found.received, first_key)
        if height:
            coarse = pooled(torch.nn.functional.pad(found.map, (first_key // fine, 0)), width // fine, 3)
            self._draw(coarse)
        self.rows += len(rows)
        return found

    def _draw(self, piece: Tensor) -> None:
        """Adds rows to the map, which grows; where it would have too many pixels its blocks double."""
        assert self.blocks is not None
        above = self.rows // self.blocks[0]
        padded = torch.nn.functional.pad(piece, (0, 0, above, 0))
        self.map = padded if self.map is None else _sum(self.map, padded)
        for axis in (2, 3):
            while self.map.shape[axis] > self.detail.pixels:
                self.map = pooled(self.map, 2, axis)
                height, width = self.blocks
                self.blocks = (2 * height, width) if axis == 2 else (height, 2 * width)

    def moved(self, move: Move) -> None:
        raise NotImplementedError

    def sight(self, forward: Forward) -> Sight:
        """What is here so far."""
        if self._sight is None:
            whole = {
                name: torch.cat([p.of_queries[name] for p in self.events if isinstance(p, Piece)], 2)
                for name in self.events[0].of_queries
            }
            assert self.blocks is not None and self.received is not None
            map = self.map if self.map is not None else self.received.new_zeros(*self.received.shape[:2], 0, 0)
            self._sight = Sight(
                **whole,
                received=self.received,
                map=map,
                name=self.name,
                cross=self.cross,
                heads=self.heads,
                queries=torch.cat(self.positions),
                blocks=self.blocks,
                inputs=tuple(range(len(self.received))),
            )
        return self._sight


def _at_home(found: Measures, first_key: int) -> Measures:
    """On the CPU, with keys counted from the beginning of the document."""
    moved = {one.name: getattr(found, one.name).cpu() for one in fields(found)}
    for name in ("peak_key", "top_keys"):
        keys = moved[name].int()
        moved[name] = torch.where(keys >= 0, keys + first_key, keys)
    return Measures(**moved)


def _joined(parts: Sequence[Measures]) -> dict[str, Tensor]:
    names = [one.name for one in fields(Measures) if one.name not in ("received", "map")]
    return {name: torch.cat([getattr(part, name) for part in parts], 2) for name in names}


def _added(total: Tensor | None, more: Tensor, first: int) -> Tensor:
    more = torch.nn.functional.pad(more, (first, 0))
    return more if total is None else _sum(total, more)


def _sum(first: Tensor, second: Tensor) -> Tensor:
    """Of two that may differ in their last two sizes: what is missing counts as 0."""
    sizes = [max(a, b) for a, b in zip(first.shape, second.shape, strict=True)]
    total = first.new_zeros(sizes)
    for one in (first, second):
        total[tuple(slice(0, n) for n in one.shape)] += one
    return total
