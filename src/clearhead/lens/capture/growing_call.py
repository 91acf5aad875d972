"""Growing: one attention of one call, piece by piece, as a cache grows and beams move."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.attention.call import Call
from clearhead.lens.capture.batch_history import Move, Moves, put_together
from clearhead.lens.capture.sums import Sums, widened
from clearhead.lens.capture.transfer import brought
from clearhead.lens.measures.definition import Job, Measures, blocks_of, pooled
from clearhead.lens.measures.measure_dispatch import measured
from clearhead.lens.measures.visible_counts import visible_keys
from clearhead.lens.record.attention_views import Forward, Sight
from clearhead.lens.record.exact_windows import Keeping

Probe = Callable[[Tensor], Tensor]
BLIND = {"logsumexp": -math.inf, "peak_key": -1, "top_keys": -1}  # of a query that sees nothing; the rest is 0
PER_QUERY = [one.name for one in fields(Measures) if one.name not in ("received", "map")]
CELLS = 2**24  # of a map that has to be measured finer than it is kept


class Detail(NamedTuple):
    """What is to be measured of every attention."""

    pixels: int = 256
    top: int = 8
    every: int = 1
    keep: str = "none"
    probes: Mapping[str, Probe] | None = None
    norms: bool = False


class Where(NamedTuple):
    """The document positions of the first query and of the first key."""

    query: int
    key: int = 0


class Growing:
    """One attention of one call. `end` is the position after its last query."""

    def __init__(self, name: str, heads: tuple[int, ...], cross: bool, detail: Detail, moves: Moves) -> None:
        self.name, self.heads, self.cross, self.detail, self.moves = name, heads, cross, detail, moves
        self.end = self.rows = self.keys = 0
        self.stands_in = False  # the last query, measured as long as there are too few for one in so many
        self.pieces: list[tuple[int, dict[str, Tensor]]] = []  # measures of queries, with the time of each piece
        self.norms: list[tuple[int, Tensor]] = []
        self.positions: list[range] = []
        self.blocks: tuple[int, int] | None = None
        self.received, self.map = Sums(), Sums(most=detail.pixels)
        self.left: dict[int, tuple[Tensor, Tensor, tuple[int, int]]] = {}  # sums of samples that are done
        self.keeping = Keeping() if detail.keep == "qk" else None
        self._sight: Sight | None = None

    def goes_on(self, batch: int, first_query: int) -> bool:
        """Whether queries from this position on come right after those that are here."""
        return len(self.moves.here) == batch and self.end == first_query

    def add(
        self,
        call: Call,
        where: Where,
        *,
        logsumexp: Tensor | None = None,
        norms: Callable[[slice], Tensor] | None = None,
        grows: bool = False,
    ) -> None:
        """Measures these queries, and adds them to what is here; `norms` gives those of some keys."""
        queries, keys, every, time = call.q.shape[2], call.k.shape[2], self.detail.every, self.moves.time
        rows = range(-(where.query + 1) % every, queries, every)
        if self.stands_in and queries:
            self._forget()
        if not rows and (not grows or not self.rows):
            rows = range(max(queries - 1, 0), queries)
            self.stands_in = grows and bool(rows)
        if self.blocks is None:
            height, width = blocks_of(len(rows), where.key + keys, self.detail.pixels)
            self.blocks = (max(height, 1), max(width, 1)) if self.detail.pixels else (0, 0)
        positions = range(rows.start + where.query, rows.stop + where.query, rows.step)
        found, exact = [], torch.float64 if grows else _result_dtype(call)
        while rows:
            part, rows = self._cut(rows, call, where)
            found.append(self._measure(call, part, where, logsumexp, exact))
        found = found or [_nothing(call, self.detail)]
        joined = (
            found[0] if len(found) == 1 else {name: torch.cat([one[name] for one in found], 2) for name in found[0]}
        )
        self._make_room(call, where.key + keys, exact)
        self.positions.append(positions)
        self.pieces.append((time, joined))
        new = slice(max(0, self.keys - where.key), keys)
        if norms is not None and (where.key + keys > self.keys or not self.norms):
            gap = max(0, where.key - self.keys)
            own = norms(new).cpu()
            self.norms.append((time, torch.nn.functional.pad(own, (gap, 0)) if gap else own))
        if self.keeping is not None:
            self.keeping.add(call, where.query, where.key, time)
        self.keys, self.end, self._sight = max(self.keys, where.key + keys), where.query + queries, None

    def _forget(self) -> None:
        """The query that stood in for others makes room for those that come now."""
        self.stands_in, self.rows, self.blocks = False, 0, None
        self.pieces, self.positions, self.left = [], [], {}
        self.received, self.map = Sums(), Sums(most=self.detail.pixels)

    def _make_room(self, call: Call, keys: int, exact: torch.dtype) -> None:
        """Also keys that no measured query could look at have their places."""
        self.received.reach(call.q.shape[:2], (keys,), exact)
        height, width = self.blocks or (0, 0)
        if height:
            self.map.reach(call.q.shape[:2], (0, -(-keys // width)), _result_dtype(call))
            self._shrink()

    def _cut(self, rows: range, call: Call, where: Where) -> tuple[range, range]:
        """Rows that can be measured together, and the rest: none lies across the edge of a block of the map."""
        height, width = self.blocks or (0, 0)
        count = len(rows)
        if height:
            count = -self.rows % height or count
            if where.key % width:  # measured finer than it is kept
                count = min(count, height * max(1, CELLS // max(1, math.prod(call.q.shape[:2]) * call.k.shape[2])))
        return rows[:count], rows[count:]

    def _measure(
        self, call: Call, rows: range, where: Where, logsumexp: Tensor | None, exact: torch.dtype
    ) -> dict[str, Tensor]:
        assert self.blocks is not None
        height, width = self.blocks
        fine = math.gcd(where.key, width) if width else 0  # columns that begin where those of the map do
        chosen = None if logsumexp is None else logsumexp[:, :, rows.start : rows.stop : rows.step]
        job = Job(call, rows, where.query - where.key, (height, fine), self.detail.top, True, chosen)
        result = measured(job)
        found = {name: getattr(result, name) for name in PER_QUERY} | self._probed(job, result, where)
        found["visible"] = visible_keys(call, rows).int().expand(len(call.q), -1, -1)
        for name in ("peak_key", "top_keys"):
            keys = found[name].int()  # half the memory; a document has fewer than 2³¹ tokens
            found[name] = torch.where(keys >= 0, keys + where.key, keys) if where.key else keys
        assert result.received is not None
        found = brought({**found, "received": result.received, "map": result.map})
        self.received.add(found.pop("received"), (where.key,), exact)
        pixels = found.pop("map")
        if height:
            if fine != width:
                inset = where.key // fine % (width // fine)
                pixels = pooled(torch.nn.functional.pad(pixels, (inset, 0)), width // fine, 3)
            self.map.add(pixels, (self.rows // height, where.key // width))
            self._shrink()
        self.rows += len(rows)
        return found

    def _shrink(self) -> None:
        """Where the map has too many pixels its blocks double."""
        assert self.blocks is not None
        for axis in (0, 1):
            while self.map.sizes[axis] > self.detail.pixels:
                self.map = Sums(pooled(self.map.value, 2, 2 + axis), most=self.detail.pixels)
                height, width = self.blocks
                self.blocks = (height, 2 * width) if axis else (2 * height, width)

    def _probed(self, job: Job, result: Measures, where: Where) -> dict[str, Tensor]:
        """The weights of the keys that probes ask for."""
        found: dict[str, Tensor] = {}
        if self.detail.probes:
            from clearhead.lens.measures.key_probes import weights_at
        for name, probe in (self.detail.probes or {}).items():
            positions = torch.tensor(job.rows, dtype=torch.long) + where.query
            keys = probe(positions).to(job.call.q.device)
            keys = torch.where(keys >= where.key, keys - where.key, -1).expand(job.call.q.shape[0], -1)
            found[f"probe {name}"] = weights_at(job.call, keys, result.logsumexp, rows=job.rows)
        return found

    def moved(self, move: Move, gone: int) -> None:
        """Samples change places; what those that leave have got so far is put aside, by numbers from `gone` on."""
        self._sight = None
        if self.received.room is None:
            return
        for number, row in enumerate(move.leaving, start=gone):
            sums = self.received.value[row].clone(), self._map()[row].clone()
            self.left[number] = (*sums, self.blocks or (0, 0))
        self.received.move(move.rows)
        self.map.move(move.rows)

    def _map(self) -> Tensor:
        value = self.received.value
        return self.map.value if self.map.room is not None else value.new_zeros(*value.shape[:2], 0, 0)

    @torch.inference_mode(False)
    def sight(self, forward: Forward) -> Sight:
        """What is here so far."""
        if self._sight is None:
            whole = {
                name: put_together([(time, piece[name]) for time, piece in self.pieces], self.moves, BLIND.get(name, 0))
                for name in self.pieces[0][1]
            }
            received, drawn = self._sums()
            kept = None
            if self.keeping is not None:
                kept = self.keeping.kept(self.moves, whole["logsumexp"] if self.detail.every == 1 else None)
            self._sight = Sight(
                **{name: whole[name] for name in PER_QUERY},
                received=received,
                map=drawn,
                name=self.name,
                cross=self.cross,
                heads=self.heads,
                queries=torch.tensor([*itertools.chain(*self.positions)], dtype=torch.long),
                blocks=self.blocks or (0, 0),
                inputs=self.moves.inputs,
                visible=whole["visible"],
                probes={name[6:]: whole[name] for name in whole if name.startswith("probe ")},
                norms=put_together(self.norms, self.moves) if self.norms else None,
                kept=kept,
                forward=forward,
            )
        return self._sight

    def _sums(self) -> tuple[Tensor, Tensor]:
        """What keys received and the map, of all samples in the order of the record."""
        dtype = self.pieces[0][1]["entropy"].dtype
        received, drawn = self.received.value.to(dtype, copy=True), self._map().to(dtype, copy=True)
        if not self.moves.gone:
            return received, drawn
        all_received, all_drawn = list(received), list(drawn)
        for number in range(len(self.moves.gone)):
            one, pixels, blocks = self.left.get(number, (received[:0].sum(0), drawn[:0].sum(0), self.blocks or (0, 0)))
            for axis, (had, have) in enumerate(zip(blocks, self.blocks or (0, 0), strict=True)):
                pixels = pooled(pixels, have // had, 1 + axis) if have != had else pixels
            all_received.append(widened(one.to(dtype), received.shape[1:]))
            all_drawn.append(widened(pixels.to(dtype), drawn.shape[1:]))
        order = self.moves.order
        return torch.stack([all_received[path] for path in order]), torch.stack([all_drawn[path] for path in order])


def _result_dtype(call: Call) -> torch.dtype:
    return torch.promote_types(call.q.dtype, torch.float32)


def _nothing(call: Call, detail: Detail) -> dict[str, Tensor]:
    """Measures of no queries."""
    empty = torch.zeros(*call.q.shape[:2], 0, dtype=_result_dtype(call))
    tops = empty[..., None].expand(-1, -1, -1, detail.top)
    found = dict.fromkeys([*PER_QUERY, *(f"probe {name}" for name in detail.probes or {})], empty)
    return found | {"visible": empty[:, :1].int(), "peak_key": empty.int(), "top_keys": tops.int(), "top_weights": tops}
