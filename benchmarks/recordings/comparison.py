"""The differences between two recordings, each with its place and both values, and what is known to differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from itertools import zip_longest
from typing import Any, NamedTuple

SHOWN = 110  # characters of a value
ABSENT = object()


class Difference(NamedTuple):
    """A place such as "classify/predict/best/stdout/3/score", and what was and is there."""

    place: str
    old: Any
    new: Any

    def __str__(self) -> str:
        if self.old is ABSENT:
            return f"{self.place}: is new: {_shorten(repr(self.new), 0)}"
        if self.new is ABSENT:
            return f"{self.place}: is gone, was {_shorten(repr(self.old), 0)}"
        old, new = repr(self.old), repr(self.new)
        start = next((n for n, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), 0)
        return f"{self.place}:\n      was {_shorten(old, start)}\n      is  {_shorten(new, start)}"


class Exemption(NamedTuple):
    """Places that may differ, as a pattern in which * stands for anything, and the reason."""

    pattern: str
    reason: str


def find_differences(old: Any, new: Any, place: str) -> Iterator[Difference]:
    """Where two values differ. Numbers are equal if they are written the same: 1 is not 1.0, 0.0 is not -0.0."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from find_differences(old.get(key, ABSENT), new.get(key, ABSENT), f"{place}/{key}")
    elif isinstance(old, list) and isinstance(new, list):
        pairs = enumerate(zip(old, new, strict=True)) if len(old) == len(new) else _align(old, new)
        for number, pair in pairs:
            yield from find_differences(*pair, f"{place}/{number}")
    elif old is not new and repr(old) != repr(new):
        yield Difference(place, old, new)


def _align(old: list[Any], new: list[Any]) -> Iterator[tuple[int, tuple[Any, Any]]]:
    """The places in `old` where two lists of different lengths differ, with both values; ABSENT for none."""
    matcher = SequenceMatcher(None, [repr(value) for value in old], [repr(value) for value in new], autojunk=False)
    for kind, begin, end, new_begin, new_end in matcher.get_opcodes():
        if kind != "equal":
            pairs = zip_longest(old[begin:end], new[new_begin:new_end], fillvalue=ABSENT)
            yield from enumerate(pairs, start=begin)


def make_report(
    title: str,
    about: Sequence[str],
    pairs: dict[str, tuple[Any, Any]],
    exemptions: Sequence[Exemption],
) -> tuple[list[str], int]:
    """The lines of a report on all items, and how many differences no exemption names."""
    counts, details, total = [0] * len(exemptions), list[str](), 0
    rows = ["| what | |", "|---|---|"]
    for name, (old, new) in pairs.items():
        exempt, found = 0, list[Difference]()
        for one in find_differences(old, new, name):
            known = [number for number, each in enumerate(exemptions) if fnmatchcase(one.place, each.pattern)]
            exempt += bool(known)
            for number in known:
                counts[number] += 1
            found += [] if known else [one]
        result = f"{len(found)} differences" if found else "identical"
        rows.append(f"| {name} | {result}{f', but for {exempt} that may differ' if exempt else ''} |")
        details += [f"- {one}" for one in found]
        total += len(found)
    reasons = [
        f"- {count} places of `{one.pattern}` may differ: {one.reason}"
        for one, count in zip(exemptions, counts, strict=True)
    ]
    sections = [[f"# {title}"], list(about), rows, reasons, details]
    return [line for section in sections if section for line in [*section, ""]], total


def _shorten(text: str, start: int) -> str:
    """At most SHOWN characters of a text, from a little before `start` on."""
    begin = max(0, start - 40)
    shown = text[begin : begin + SHOWN]
    return f"{'…' * (begin > 0)}{shown}{'…' * (begin + SHOWN < len(text))}"
