"""Tick labels along a map or curve: every token if there is room, else some positions."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from math import floor, log10

from matplotlib.axes import Axes
from matplotlib.text import Text

from clearhead.explore.figures.label_text import make_axis_labels, measure_width, stack_characters
from clearhead.explore.figures.style import SMALL, TEXT
from clearhead.explore.figures.weight_grid import GridAxis

MIN_PITCH = 0.125  # inches a token that has its own label
POSITION_PITCH = 0.55  # inches between positions
GAP = 0.06  # inches between labels on one line
MIN_FONT = 7.5  # points
MAX_STACKED = 4  # Chinese characters written from top to bottom


def write_query_labels(axes: Axes, axis: GridAxis, pitch: float) -> None:
    """Writes labels on the left; `pitch` is the height of a cell in inches."""
    cells, words = _place_labels(axis, pitch)
    axes.set_yticks(cells, words, fontsize=_font_size(axis, pitch))
    _disable_math(axes.get_yticklabels())


def write_key_labels(axes: Axes, axis: GridAxis, pitch: float, *, top: bool = True) -> None:
    """Writes labels at the top or bottom: horizontally if they fit, else rotated or stacked."""
    cells, words = _place_labels(axis, pitch)
    points, flat = _fit_one_line(words, axis, pitch)
    if top:
        axes.xaxis.tick_top()
    axes.set_xticks(cells, words if flat else [_stack_short(word) for word in words], fontsize=points)
    for text in axes.get_xticklabels():
        if not flat and _is_rotated(text.get_text(), points, pitch):
            text.set_rotation(90)
        text.set(linespacing=1.0, va="bottom" if top else "top", ha="center")
    _disable_math(axes.get_xticklabels())


def measure_query_labels(axis: GridAxis, pitch: float) -> float:
    """The width in inches of the labels of queries."""
    points, (_, words) = _font_size(axis, pitch), _place_labels(axis, pitch)
    return max((measure_width(word, points) for word in words), default=0.0)


def measure_key_labels(axis: GridAxis, pitch: float) -> float:
    """The height in inches of the labels of keys."""
    _, words = _place_labels(axis, pitch)
    points, flat = _fit_one_line(words, axis, pitch)
    upright = [] if flat else [_stack_short(word) for word in words]
    turned = [measure_width(word, points) for word in upright if _is_rotated(word, points, pitch)]
    return max([points * 1.25 / 72 * (word.count("\n") + 1) for word in upright or [""]] + turned)


def _has_all_labels(axis: GridAxis, pitch: float) -> bool:
    """Whether every token gets a label."""
    return axis.labelled and pitch >= MIN_PITCH


def _place_labels(axis: GridAxis, pitch: float) -> tuple[list[float], list[str]]:
    """Where labels stand, in cells, and their texts."""
    count = len(axis.positions)
    if _has_all_labels(axis, pitch):
        return [float(cell) for cell in range(count)], make_axis_labels(axis.texts, axis.positions)
    step = _round_step(count * POSITION_PITCH / max(pitch * axis.cells, POSITION_PITCH))
    tokens = range(0, count, step)
    return [(token + 0.5) / axis.block - 0.5 for token in tokens], [f"{axis.positions[token]:,}" for token in tokens]


def _round_step(least: float) -> int:
    """The smallest of 1, 2, 5 times a power of ten that is at least `least`.

    >>> [_round_step(number) for number in (0.3, 1.5, 21.0, 50.0, 51.0)]
    [1, 2, 50, 50, 100]
    """
    if least <= 1:
        return 1
    power = 10 ** floor(log10(least))
    return int(next(times * power for times in (1, 2, 5, 10) if times * power >= least))


def _font_size(axis: GridAxis, pitch: float) -> float:
    """The font size in points."""
    return min(TEXT, 72 * pitch * 0.74) if _has_all_labels(axis, pitch) else SMALL


def _fit_one_line(words: Sequence[str], axis: GridAxis, pitch: float) -> tuple[float, bool]:
    """The font size of labels on one line, and whether they fit; a smaller font is preferred to rotation."""
    points = _font_size(axis, pitch)
    if not _has_all_labels(axis, pitch):
        return points, True
    fitting = points * (pitch - GAP) / max(measure_width(word, points) for word in words)
    return (min(points, fitting), True) if fitting >= MIN_FONT else (points, False)


def _is_rotated(word: str, points: float, pitch: float) -> bool:
    """Whether a label is rotated: not single characters, nor pairs that fit."""
    letters = len(unicodedata.normalize("NFC", word))
    return "\n" not in word and letters > 1 and (letters > 2 or measure_width(word, points) > pitch - GAP)


def _stack_short(word: str) -> str:
    return stack_characters(word) if len(word) <= MAX_STACKED else word


def _disable_math(texts: Sequence[Text]) -> None:
    """Keeps dollar signs in tokens from being read as formulas."""
    for text in texts:
        text.set_parse_math(False)
