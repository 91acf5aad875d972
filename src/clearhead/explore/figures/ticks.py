"""Labels along the sides of a map: every token where there is room, else positions."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from math import floor, log10

from matplotlib.axes import Axes
from matplotlib.text import Text

from clearhead.explore.figures import fonts
from clearhead.explore.figures.cells import Axis
from clearhead.explore.figures.labels import labels, stacked
from clearhead.explore.figures.look import SMALL, TEXT

CLOSEST = 0.125  # inches between tokens that are labelled one by one
APART = 0.55  # inches between positions
GAP = 0.06  # inches between labels that stand in one line
SMALLEST = 7.5  # points
STACKED = 4  # Chinese characters on top of each other, at most


def write_queries(axes: Axes, axis: Axis, pitch: float) -> None:
    """Labels on the left; `pitch` is how many inches a cell has."""
    places, words = marks(axis, pitch)
    axes.set_yticks(places, words, fontsize=_size(axis, pitch))
    _plain(axes.get_yticklabels())


def write_keys(axes: Axes, axis: Axis, pitch: float, *, top: bool = True) -> None:
    """Labels on top or at the bottom: flat where they fit, else upright."""
    places, words = marks(axis, pitch)
    points, flat = _line(words, axis, pitch)
    if top:
        axes.xaxis.tick_top()
    axes.set_xticks(places, words if flat else [_upright(word) for word in words], fontsize=points)
    for text in axes.get_xticklabels():
        if not flat and _turned(text.get_text(), points, pitch):
            text.set_rotation(90)
        text.set(linespacing=1.0, va="bottom" if top else "top", ha="center")
    _plain(axes.get_xticklabels())


def beside(axis: Axis, pitch: float) -> float:
    """How many inches the labels of queries need."""
    return max((fonts.width(word, _size(axis, pitch)) for word in marks(axis, pitch)[1]), default=0.0)


def above(axis: Axis, pitch: float) -> float:
    """How many inches the labels of keys need."""
    words = marks(axis, pitch)[1]
    points, flat = _line(words, axis, pitch)
    upright = [] if flat else [_upright(word) for word in words]
    turned = [fonts.width(word, points) for word in upright if _turned(word, points, pitch)]
    return max([points * 1.25 / 72 * (word.count("\n") + 1) for word in upright or [""]] + turned)


def one_by_one(axis: Axis, pitch: float) -> bool:
    """Whether every token has a label."""
    return axis.labelled and pitch >= CLOSEST


def marks(axis: Axis, pitch: float) -> tuple[list[float], list[str]]:
    """Where the labels stand, in cells, and what they say."""
    count = len(axis.positions)
    if one_by_one(axis, pitch):
        words = labels(axis.texts) if axis.texts is not None else [str(place) for place in axis.positions]
        return [float(place) for place in range(count)], words
    step = _round(count * APART / max(pitch * axis.cells, APART))
    chosen = range(0, count, step)
    return [(place + 0.5) / axis.block - 0.5 for place in chosen], [f"{axis.positions[place]:,}" for place in chosen]


def _round(least: float) -> int:
    """1, 2 or 5 times a power of ten, at least so much.

    >>> [_round(number) for number in (0.3, 1.5, 21.0, 50.0, 51.0)]
    [1, 2, 50, 50, 100]
    """
    if least <= 1:
        return 1
    power = 10 ** floor(log10(least))
    return int(next(times * power for times in (1, 2, 5, 10) if times * power >= least))


def _size(axis: Axis, pitch: float) -> float:
    """Of the letters, in points."""
    return min(TEXT, 72 * pitch * 0.74) if one_by_one(axis, pitch) else SMALL


def _line(words: Sequence[str], axis: Axis, pitch: float) -> tuple[float, bool]:
    """The size of labels that stand in one line, and whether they fit there; a little smaller is better than turned."""
    points = _size(axis, pitch)
    if not one_by_one(axis, pitch):
        return points, True
    fitting = points * (pitch - GAP) / max(fonts.width(word, points) for word in words)
    return (min(points, fitting), True) if fitting >= SMALLEST else (points, False)


def _turned(word: str, points: float, pitch: float) -> bool:
    """Single letters and signs are not, nor pairs that fit."""
    letters = len(unicodedata.normalize("NFC", word))
    return "\n" not in word and letters > 1 and (letters > 2 or fonts.width(word, points) > pitch - GAP)


def _upright(word: str) -> str:
    return stacked(word) if len(word) <= STACKED else word


def _plain(texts: Sequence[Text]) -> None:
    """A dollar sign in a token makes no formula."""
    for text in texts:
        text.set_parse_math(False)
