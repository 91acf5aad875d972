"""Means and spreads over all queries, tables of heads, queries or keys, and differences between two records."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.errors import RecordError
from clearhead.formatting import suggest_name
from clearhead.lens.record.attention_views import Sight

if TYPE_CHECKING:
    from clearhead.lens.record.attention_record import Record

MEASURES = ("entropy", "peak", "distance", "first")  # of which there are means and spreads
PER_QUERY = ("logsumexp", "entropy", "peak", "peak_key", "distance", "first")
LEVELS = ("head", "query", "key")
Table = dict[str, Any]  # columns by name, each a NumPy array


class Spread(NamedTuple):
    """Mean and standard deviation over queries."""

    mean: Float[Tensor, " heads"]
    std: Float[Tensor, " heads"]


class Statistics(NamedTuple):
    """One number per head, in the order of `heads`; NaN if no query of the head had a visible key."""

    heads: tuple[int, ...]
    queries: Int[Tensor, " heads"]
    entropy: Spread
    peak: Spread
    distance: Spread
    first: Spread
    max_score: Float[Tensor, " heads"]  # the largest over all queries; NaN where it was not measured


class RunningStatistics:
    """Sums over all queries of several sights of one attention, from which means and spreads follow.

    The sums are of differences from the first value of each head: squares of large numbers would lose the spread.
    """

    def __init__(self) -> None:
        self.heads: list[int] = []
        self.counts = torch.zeros(0, dtype=torch.long)
        self.max_scores = torch.zeros(0, dtype=torch.float64)
        self.shifts, self.sums, self.squares = (torch.zeros(len(MEASURES), 0, dtype=torch.float64) for _ in range(3))

    def add(self, sight: Sight) -> None:
        """Adds all queries of a sight that see anything, also what is not a number: it must show in the mean."""
        self._reserve(sight.heads)
        at = [self.heads.index(head) for head in sight.heads]
        real = sight.logsumexp != -math.inf
        self._set_shifts(sight, at, real)
        self.counts[at] += real.sum((0, 2))
        largest = torch.full((len(at),), math.nan)
        if sight.max_score is not None:
            largest = torch.nn.functional.pad(sight.max_score, (0, 0, 0, 1), value=-math.inf).amax(0)
        self.max_scores[at] = self.max_scores[at].maximum(largest.double())
        for n, name in enumerate(MEASURES):
            apart = (getattr(sight, name).double() - self.shifts[n, at][:, None]).masked_fill(~real, 0.0)
            self.sums[n, at] += apart.sum((0, 2))
            self.squares[n, at] += apart.square().sum((0, 2))

    def merge(self, other: RunningStatistics) -> None:
        """Adds the sums of another."""
        self._reserve(other.heads)
        at = [self.heads.index(head) for head in other.heads]
        empty = self.counts[at] == 0
        self.shifts[:, at] = torch.where(empty, other.shifts, self.shifts[:, at])
        moved = other.shifts - self.shifts[:, at]
        self.squares[:, at] += other.squares + 2 * moved * other.sums + other.counts * moved.square()
        self.sums[:, at] += other.sums + other.counts * moved
        self.counts[at] += other.counts
        self.max_scores[at] = self.max_scores[at].maximum(other.max_scores)

    def result(self) -> Statistics:
        """The statistics so far, with heads in order."""
        order = sorted(range(len(self.heads)), key=self.heads.__getitem__)
        counts, shifts = self.counts[order], self.shifts[:, order]
        means = self.sums[:, order] / counts
        spreads = (self.squares[:, order] / counts - means.square()).clamp(min=0).sqrt()
        columns = zip(MEASURES, shifts, means, spreads, strict=True)
        spread = {name: Spread(shift + mean, std) for name, shift, mean, std in columns}
        heads = tuple(self.heads[index] for index in order)
        return Statistics(heads, counts, **spread, max_score=self.max_scores[order])

    def _reserve(self, heads: list[int] | tuple[int, ...]) -> None:
        more = [head for head in heads if head not in self.heads]
        self.heads += more
        self.counts = torch.nn.functional.pad(self.counts, (0, len(more)))
        self.max_scores = torch.nn.functional.pad(self.max_scores, (0, len(more)), value=-math.inf)
        self.shifts, self.sums, self.squares = (
            torch.nn.functional.pad(table, (0, len(more))) for table in (self.shifts, self.sums, self.squares)
        )

    def _set_shifts(self, sight: Sight, at: list[int], real: Tensor) -> None:
        """Of heads without any query so far, the values of the first query that sees anything."""
        for index, head in enumerate(at):
            if not self.counts[head] and bool(real[:, index].any()):
                batch, query = real[:, index].nonzero()[0].tolist()
                numbers = [float(getattr(sight, name)[batch, index, query]) for name in MEASURES]
                self.shifts[:, head] = torch.tensor(numbers, dtype=torch.float64)


def make_table(record: Record, level: str) -> Table:
    """The columns of a table, each a NumPy array with one value per head, query or key."""
    if level not in LEVELS:
        raise RecordError(f"there is no level {level!r} of a table; {suggest_name(level, LEVELS)}")
    if level == "head":
        parts = [_list_heads(name, statistics) for name, statistics in record.statistics().items()]
    elif record.running:
        raise RecordError(f"keep='statistics' kept no {level}: take the table of level 'head'")
    else:
        make = _list_queries if level == "query" else _list_keys
        parts = [make(number, call[name]) for number, call in enumerate(record.calls) for name in call.names]
        if any(call.interrupted for call in record.calls):
            for part in parts:
                part["interrupted"] = torch.tensor([bool(record.calls[n].interrupted) for n in part["call"].tolist()])
    columns = list(dict.fromkeys(name for part in parts for name in part))
    blanks = [torch.full((len(part["name"]),), math.nan) for part in parts]  # of a column that other attentions have
    pairs = list(zip(parts, blanks, strict=True))
    return {column: _join([part.get(column, blank) for part, blank in pairs]) for column in columns}


def _list_heads(name: str, statistics: Statistics) -> dict[str, Any]:
    columns: dict[str, Any] = {"name": [name] * len(statistics.heads), "head": torch.tensor(statistics.heads)}
    columns["queries"] = statistics.queries
    for measure in MEASURES:
        spread = getattr(statistics, measure)
        columns |= {measure: spread.mean, f"{measure}_std": spread.std}
    return columns | {"max_score": statistics.max_score}


def _list_queries(call: int, sight: Sight) -> dict[str, Any]:
    shape = sight.entropy.shape
    columns = _list_places(call, sight, shape) | {"query": sight.queries.expand(shape).flatten()}
    columns |= {name: getattr(sight, name).flatten() for name in PER_QUERY}
    columns |= {f"mass {name}": mass.flatten() for name, mass in sight.mass.items()}
    return columns | {
        name if name == "itself" else f"probe {name}": mass.flatten() for name, mass in sight.probes.items()
    }


def _list_keys(call: int, sight: Sight) -> dict[str, Any]:
    shape = sight.received.shape
    places = torch.arange(shape[2]).expand(shape).flatten()
    columns = _list_places(call, sight, shape) | {"key": places, "received": sight.received.flatten()}
    columns["received_mean"] = sight.received_mean.flatten()
    texts = [sight.texts(sample) for sample in range(shape[0])]
    if any(token is not None for text in texts for token in text):
        columns["text"] = [token for text in texts for _ in sight.heads for token in text]
    return columns


def _list_places(call: int, sight: Sight, shape: torch.Size) -> dict[str, Any]:
    """The columns that every row of a sight has: call, name, sample and head."""
    samples, heads = torch.arange(shape[0]).view(-1, 1, 1), torch.tensor(sight.heads).view(1, -1, 1)
    count = math.prod(shape)
    places = {"sample": samples.expand(shape).flatten(), "head": heads.expand(shape).flatten()}
    return {"call": torch.full((count,), call), "name": [sight.name] * count, **places}


def _join(parts: list[Any]) -> Any:
    if all(isinstance(part, Tensor) for part in parts):
        return torch.cat(parts).numpy()
    numpy = import_module("numpy")
    return numpy.array(
        [text for part in parts for text in (part if isinstance(part, list) else [None] * len(part))], object
    )


class HeadChange(NamedTuple):
    """How the mean of one measure of one head differs between two records; `size` is in standard deviations.

    >>> print(HeadChange("decoder.0.self", 3, "entropy", before=1.0, after=2.5, difference=1.5, size=0.75))
    decoder.0.self head 3: entropy 1 → 2.5, by 0.75 standard deviations
    """

    name: str
    head: int
    measure: str
    before: float
    after: float
    difference: float
    size: float

    def __str__(self) -> str:
        apart = (d for d in range(3, 18) if f"{self.before:.{d}g}" != f"{self.after:.{d}g}")
        digits = 3 if self.before == self.after else next(apart, 3)
        means = f"{self.before:.{digits}g} → {self.after:.{digits}g}"
        return f"{self.name} head {self.head}: {self.measure} {means}, by {self.size:.2g} standard deviations"


def compare_records(before: Record, after: Record) -> list[HeadChange]:
    """All differences between the statistics of two records, the largest first."""
    old, new = before.statistics(), after.statistics()
    if apart := sorted(old.keys() ^ new.keys()):
        raise RecordError(
            f"two records of the same attentions can be compared; only one of them has {', '.join(apart[:6])}"
            f"{', …' if len(apart) > 6 else ''}"
        )
    changes = [change for name in old for change in _iterate_changes(name, old[name], new[name])]
    return sorted(changes, key=lambda change: -change.size if not math.isnan(change.size) else -math.inf)


def _iterate_changes(name: str, before: Statistics, after: Statistics) -> Iterator[HeadChange]:
    if before.heads != after.heads:
        raise RecordError(f"of {name!r}, one record has heads {list(before.heads)}, the other {list(after.heads)}")
    for measure in MEASURES:
        old, new = getattr(before, measure), getattr(after, measure)
        spread = ((old.std.square() + new.std.square()) / 2).sqrt()
        apart = new.mean - old.mean
        size = (apart.abs() / spread).where(apart != 0, 0.0)
        columns = (old.mean, new.mean, apart, size)
        for index, head in enumerate(before.heads):
            yield HeadChange(name, head, measure, *(float(column[index]) for column in columns))
