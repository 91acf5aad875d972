"""Windows over long sentences: each word is scored once, in the window where it is farthest from an edge."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple


class Window(NamedTuple):
    """Words `begin` to `end` are read together; `first` to `last` of them are scored here."""

    begin: int
    end: int
    first: int
    last: int


def plan_windows(pieces: Sequence[int], size: int) -> list[Window]:
    """Windows of at most `size` pieces over words of so many pieces each; neighbours share a quarter.

    One window where everything fits. No word may have more than `size // 4` pieces, unless it fits by itself.

    >>> plan_windows([1] * 6, 8)
    [Window(begin=0, end=6, first=0, last=6)]
    >>> plan_windows([1] * 12, 8)
    [Window(begin=0, end=8, first=0, last=6), Window(begin=4, end=12, first=6, last=12)]
    """
    ends = [0, *accumulate(pieces)]  # the pieces before each word
    words = len(pieces)
    if ends[-1] <= size:
        return [Window(0, words, 0, words)]
    reach = [(0, _last_fitting(ends, 0, size))]
    while reach[-1][1] < words:
        begin, end = reach[-1]
        begin = max(begin + 1, _first_fitting(ends, end, size // 4))
        end = _last_fitting(ends, begin, size)
        if end == words:
            begin = _first_fitting(ends, end, size)  # the last one has more on its left
        reach.append((begin, end))
    cuts = [0]
    for (_, end), (begin, _) in pairwise(reach):
        middle = (ends[begin] + ends[end]) / 2
        cuts.append(max(cuts[-1], min(range(begin, end + 1), key=lambda word: abs(ends[word] - middle))))
    cuts.append(words)
    return [Window(begin, end, cuts[number], cuts[number + 1]) for number, (begin, end) in enumerate(reach)]


def _last_fitting(ends: Sequence[int], begin: int, size: int) -> int:
    """The largest end such that the words from `begin` have at most `size` pieces; one word at least."""
    end = begin + 1
    while end + 1 < len(ends) and ends[end + 1] - ends[begin] <= size:
        end += 1
    return end


def _first_fitting(ends: Sequence[int], end: int, size: int) -> int:
    """The smallest begin such that the words up to `end` have at most `size` pieces."""
    begin = end
    while begin > 0 and ends[end] - ends[begin - 1] <= size:
        begin -= 1
    return begin
