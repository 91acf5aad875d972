"""Report: how many rows of a corpus were kept, how many dropped for which reason, and flaws of those kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from clearhead.errors import DataError
from clearhead.formatting import format_count
from clearhead.text.corpora import Row

SHOWN = 3  # places named for each reason


class Flaw(NamedTuple):
    """What is wrong in a row that is used all the same, in words that follow a number."""

    singular: str
    plural: str


class Report:
    """Counts kept and dropped rows, with the first few file names and lines for each reason.

    >>> report = Report()
    >>> for line in range(1, 6):
    ...     report.keep() if line == 2 else report.drop(Row(("",), "data/train.tsv", line), "empty")
    >>> report.drop(Row(("a",), "data/more.tsv", 7), "too long")
    >>> print(report)
    kept 1 of 6; dropped 4 empty (train.tsv:1, :3, :4, …), 1 too long (more.tsv:7)
    """

    def __init__(self) -> None:
        self.kept = 0
        self.flaws = Counter[Flaw]()
        self.dropped = Counter[str]()
        self.remarks = Counter[str]()
        self.places = dict[str, list[Row]]()  # the first rows of each reason

    @property
    def total(self) -> int:
        return self.kept + self.dropped.total()

    def keep(self, rows: int = 1) -> None:
        self.kept += rows

    def drop(self, row: Row, reason: str) -> None:
        """Counts a row that is left out; `reason` reads well after a number: "empty", "longer than 128 tokens"."""
        self.dropped[reason] += 1
        self._remember(row, reason)

    def admit(self, row: Row, problem: str | None, flaws: Mapping[Flaw, int] = MappingProxyType({})) -> bool:
        """Counts a row as dropped, if it has a problem, else as kept, with its flaws; whether it is kept."""
        if problem is not None:
            self.drop(row, problem)
            return False
        self.keep()
        for flaw, count in flaws.items():
            self.flaws[flaw] += count
            self._remember(row, flaw.plural)
        return True

    def refuse_empty(self, unit: str) -> None:
        """Raises a DataError if no row was kept; `unit` says what a row is, such as "pair"."""
        if not self.kept:
            raise DataError(f"no {unit} is left to use: {self}")

    def _remember(self, row: Row, reason: str) -> None:
        places = self.places.setdefault(reason, [])
        if len(places) < SHOWN + 1:
            places.append(Row((), row.file, row.line))

    def remark(self, what: str) -> None:
        """Counts a row that is kept, with something to know about it; `what` reads well after a number."""
        self.remarks[what] += 1

    def __str__(self) -> str:
        remarks = [f"{count:,} {what}" for what, count in self.remarks.items()]
        parts = [", ".join([f"kept {self.kept:,} of {self.total:,}", *remarks])]
        reasons = [f"{count:,} {reason} ({self._where(reason)})" for reason, count in self.dropped.items()]
        flaws = [f"{format_count(count, *flaw)} ({self._where(flaw.plural)})" for flaw, count in self.flaws.items()]
        parts += [f"{verb} {', '.join(texts)}" for verb, texts in (("dropped", reasons), ("flaws:", flaws)) if texts]
        return "; ".join(parts)

    def _where(self, reason: str) -> str:
        """The first places, a file's name only where it changes: train.tsv:5, :77, …"""
        said, last = [], None
        for row in self.places[reason][:SHOWN]:
            said.append(row._replace(file="" if row.file == last else Path(row.file).name).where)
            last = row.file
        return ", ".join(said + ["…"] * (len(self.places[reason]) > SHOWN))


def describe_flaws(flaws_of_rows: Iterable[tuple[Row, Mapping[Flaw, int]]]) -> list[str]:
    """A line for each kind of flaw in these rows: how many there are, and where the first one is."""
    counts, first = Counter[Flaw](), dict[Flaw, str]()
    for row, flaws in flaws_of_rows:
        for flaw, count in flaws.items():
            counts[flaw] += count
            first.setdefault(flaw, row.where)
    return [f"{format_count(count, *flaw)} (first {first[flaw]})" for flaw, count in counts.items()]
