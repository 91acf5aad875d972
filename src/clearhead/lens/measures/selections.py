"""The options `queries` and `spans`: which queries are measured, and over which keys their weights are summed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from jaxtyping import Int
from torch import Tensor

from clearhead.errors import ClearheadError
from clearhead.lens.attention_names import to_python_number, to_python_numbers
from clearhead.lens.measures.definition import Spans

Queries = slice | Collection[int] | Int[Tensor, " positions"]
Selected = slice | tuple[int, ...]  # `Queries`, checked
FAR = 2**30  # the end of a span without one: further than any key


def check_queries(queries: Queries | int, error: type[ClearheadError]) -> Selected:
    """A slice with a positive step, or a tuple of positions; raises `error` for anything else."""
    if isinstance(queries, slice):
        checked = read_slice(queries)
        if checked is not None and checked.step is not None and checked.step < 1:
            raise error(f"queries are measured in the order of their positions: a step must be positive, got {queries}")
        if checked is not None:
            return checked
    else:
        positions = to_python_numbers(queries)
        positions = [positions] if is_whole(positions) else positions
        if isinstance(positions, Collection) and not isinstance(positions, str):
            numbers = tuple(map(to_python_number, positions))
            if all(map(is_whole, numbers)):
                return numbers
    raise error(f"queries are a slice, such as slice(-64, None), or positions, such as [5, -1], got {queries!r:.80}")


def check_spans(spans: Mapping[str, slice], error: type[ClearheadError]) -> dict[str, slice]:
    """Names with slices of keys, without a step; raises `error` for anything else."""
    if not isinstance(spans, Mapping):
        raise error(f"spans must be a dict from names to slices of keys, got {spans!r:.80}")
    checked = {}
    for name, span in spans.items():
        keys = read_slice(span) if isinstance(span, slice) else None
        if not isinstance(name, str) or keys is None or keys.step not in (None, 1):
            raise error(
                f"a span is a name with a slice of keys, such as {{'passage': slice(120, 480)}}, got {name!r}: {span!r}"
            )
        checked[name] = slice(keys.start, keys.stop)
    return checked


def locate_spans(spans: Mapping[str, slice], keys: int) -> Spans:
    """The spans as ranges of keys; negative edges count from the last of `keys`, a span without end has none.

    >>> locate_spans({"prompt": slice(0, 5), "then": slice(5, None), "last two": slice(-2, None)}, keys=7)
    {'prompt': range(0, 5), 'then': range(5, 1073741824), 'last two': range(5, 1073741824)}
    """

    def locate(edge: int | None, default: int) -> int:
        return default if edge is None else edge if edge >= 0 else max(0, keys + edge)

    return {name: range(locate(span.start, 0), locate(span.stop, FAR)) for name, span in spans.items()}


def shift_spans(spans: Spans, first_key: int) -> Spans:
    """The same spans, counted from the key at position `first_key`."""
    return {name: range(max(0, span.start - first_key), max(0, span.stop - first_key)) for name, span in spans.items()}


def find_query_runs(selected: Selected, first: int, count: int) -> list[range]:
    """The selected ones of `count` queries from position `first` on, counted from the first, as ranges in order.

    Negative positions count from the end of these queries; positions of other queries are ignored.

    >>> find_query_runs(slice(-3, None), first=10, count=5), find_query_runs((0, 11, 12, 13, 20, -1), first=10, count=5)
    ([range(2, 5)], [range(1, 5)])
    """
    end = first + count
    if isinstance(selected, slice):
        wanted = range(*selected.indices(end))
        skipped = max(0, -(-(first - wanted.start) // wanted.step))
        rows = wanted[skipped:]
        return [range(rows.start - first, rows[-1] + 1 - first, rows.step)] if rows else []
    positions = sorted({position if position >= 0 else end + position for position in selected})
    return _group_into_ranges(position - first for position in positions if first <= position < end)


def _group_into_ranges(numbers: Iterable[int]) -> list[range]:
    """Increasing numbers as ranges of equal steps: [1, 2, 3, 7, 9, 11] is range(1, 4) and range(7, 12, 2)."""
    ranges: list[range] = []
    for number in numbers:
        last = ranges[-1] if ranges else range(0)
        if len(last) == 1:
            ranges[-1] = range(last[0], number + 1, number - last[0])
        elif last and number == last[-1] + last.step:
            ranges[-1] = range(last[0], number + 1, last.step)
        else:
            ranges.append(range(number, number + 1))
    return ranges


def read_slice(part: slice) -> slice | None:
    """The same slice with Python's numbers; None if its edges or its step are no whole numbers."""
    edges = [to_python_number(edge) for edge in (part.start, part.stop, part.step)]
    return slice(*edges) if all(edge is None or is_whole(edge) for edge in edges) else None


def is_whole(value: object) -> bool:
    """Whether a value is an integer, which a boolean is not."""
    return isinstance(value, int) and not isinstance(value, bool)
