"""Lines between the tokens that are looked at, above, and those that look, below, as thick as the weights."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from numpy.typing import NDArray

from clearhead.errors import ShapeError
from clearhead.explore.figures import style
from clearhead.explore.figures.heatmaps import describe_rows
from clearhead.explore.figures.label_text import is_wide, make_axis_labels, measure_width, stack_characters
from clearhead.explore.figures.weight_grid import Source, Texts, WeightGrid, describe_heads, make_grid
from clearhead.lens import Sight

MAX_TOKENS = 64  # a side
LEAST_WEIGHT = 0.02  # smaller ones have no line
EVEN = 4  # the thickest line stands for at least EVEN times the even weight: broad heads keep thin lines
FONT_SIZE = 11.0  # points
THICKEST = 8.0  # points
GAP = 0.16  # inches between labels
MIN_WIDTH, MAX_WIDTH = 4.4, 10.5  # inches of a row whose labels lie side by side
UPRIGHT_PITCH = 0.2  # inches a token whose label is upright


class _Row(NamedTuple):
    """Labels of tokens with their centres in inches."""

    words: list[str]
    centres: list[float]


def lines(
    source: Source,
    head: int | Sequence[int] | None = None,
    *,
    sample: int = 0,
    queries: Texts = None,
    keys: Texts = None,
    title: str | None = None,
) -> Figure:
    """Lines from the tokens that are looked at, above, to those that look, below: as thick as the weights.

    `head` is one head or several, of which the mean is drawn; by default all. `source` is a Sight, or weights as for
    `head_map`, of at most 64 tokens a side; weights below 0.02 have no line.
    """
    heads = [head] if head is None or isinstance(head, int) else head
    if not heads:
        raise ShapeError("there are no heads to draw")
    grids = [make_grid(source, number, sample=sample, queries=queries, keys=keys) for number in heads]
    mean: NDArray[np.float64] = np.mean([cells.values for cells in grids], axis=0)
    cells = WeightGrid(mean, grids[0].queries, grids[0].keys)
    rows, columns = len(cells.queries.positions), len(cells.keys.positions)
    if not cells.exact or max(rows, columns) > MAX_TOKENS:
        raise ShapeError(
            f"lines are for texts of at most {MAX_TOKENS} tokens a side, got {rows} queries × {columns} keys; "
            "head_map draws longer ones"
        )
    looks = describe_rows(source) or "looks"
    with style.figure_style():
        figure = _draw_figure(cells)
        texts = [*(cells.queries.texts or ()), *(cells.keys.texts or ())]
        notes = [_describe_lines(cells, looks), style.note_missing_fonts(texts), style.CAVEAT]
        style.write_title(figure, describe_heads(source, head) if title is None else title, notes)
    return figure


def has_lines(sight: Sight) -> bool:
    """Whether the attention is short enough for `lines`, and every weight of it is known."""
    exact = sight.blocks == (1, 1) or sight.kept is not None
    return exact and max(len(sight.queries), sight.keys) <= MAX_TOKENS


def _draw_figure(cells: WeightGrid) -> Figure:
    above, below = (make_axis_labels(axis.texts, axis.positions) for axis in (cells.keys, cells.queries))
    needed = max(_measure_row(above), _measure_row(below), MIN_WIDTH)
    upright = needed > MAX_WIDTH
    width = max(len(above), len(below)) * UPRIGHT_PITCH if upright else needed
    height = min(max(0.36 * width, 2.2), 3.8)
    top, bottom = (_place_row(words, width, upright) for words in (above, below))
    room = max(_label_height(word) for word in top.words + bottom.words) if upright else 0.25
    figure = style.make_figure(width + 0.3, height + 2 * room + 1.1)
    axes = figure.subplots()
    _draw_lines(axes, cells.values, (top, bottom), height)
    for row, edge, side in ((top, height + 0.06, "bottom"), (bottom, -0.06, "top")):
        for word, centre in zip(row.words, row.centres, strict=True):
            look: Any = {"va": "baseline"}
            if upright:
                look = {"rotation": 90 if "\n" not in word and len(word) > 1 else 0, "linespacing": 1.0, "va": side}
            y = edge if upright or side == "bottom" else edge - FONT_SIZE / 72
            axes.text(centre, y, word, ha="center", fontsize=FONT_SIZE, **look)
    axes.set(xlim=(0, width), ylim=(-room - 0.06, height + room + 0.06))
    axes.set_axis_off()
    return figure


def _draw_lines(axes: Axes, weights: NDArray[np.float64], rows: tuple[_Row, _Row], height: float) -> None:
    """Draws the weights from small to large, each in the hue of its key."""
    top, bottom = rows
    full = _full_weight(weights)
    pitch = min(_measure_pitch(row.centres) for row in rows)
    thickest = min(THICKEST, 0.6 * pitch * 72)
    hues = style.current_theme().line_hues(np.linspace(0, 1, len(top.centres)))
    codes = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
    cells = [(weight, query, key) for (query, key), weight in np.ndenumerate(weights) if weight >= LEAST_WEIGHT]
    for weight, query, key in sorted(cells):
        above, below, share = top.centres[key], bottom.centres[query], min(1.0, weight / full)
        curve = Path([(above, height), (above, 0.4 * height), (below, 0.6 * height), (below, 0)], codes)
        thread = {"linewidth": max(0.5, thickest * share), "alpha": 0.3 + 0.5 * share, "capstyle": "butt"}
        axes.add_patch(PathPatch(curve, fill=False, edgecolor=hues[key], gid=f"line-{query}-{key}", **thread))


def _full_weight(weights: NDArray[np.float64]) -> float:
    """The weight of the thickest line: 1, or the largest where all are small, as on the page."""
    largest = float(np.nanmax(weights, initial=0.0))
    return 1.0 if largest >= 0.5 else max(largest, min(1.0, EVEN / weights.shape[1]))


def _describe_lines(cells: WeightGrid, looks: str) -> str:
    parts = [
        f"Above: the token that is looked at. Below: the one that {looks}. A line is as thick as its weight,",
        f"the thickest stands for {_full_weight(cells.values):.2g}; weights below {LEAST_WEIGHT} have none.",
    ]
    if not np.isfinite(cells.values).all():
        parts.append("Some weights are not finite numbers and have none.")
    return " ".join(parts)


def _measure_row(words: Sequence[str]) -> float:
    """The width in inches of labels side by side."""
    return sum(measure_width(word, FONT_SIZE) + GAP for word in words)


def _place_row(words: Sequence[str], width: float, upright: bool) -> _Row:
    """Spreads labels over the width, each in the middle of its own room."""
    if upright:
        stacked = [stack_characters(word) if len(word) <= 4 else word for word in words]
        return _Row(stacked, [(index + 0.5) * width / len(words) for index in range(len(words))])
    rest = (width - _measure_row(words)) / len(words)
    rooms = [measure_width(word, FONT_SIZE) + GAP + rest for word in words]
    return _Row(list(words), [end - room / 2 for end, room in zip(accumulate(rooms), rooms, strict=True)])


def _measure_pitch(centres: Sequence[float]) -> float:
    return (centres[-1] - centres[0]) / (len(centres) - 1) if len(centres) > 1 else MIN_WIDTH


def _label_height(word: str) -> float:
    """The height in inches of an upright label: stacked, or turned by 90 degrees."""
    if "\n" in word or (len(word) == 1 and is_wide(word)):
        return (word.count("\n") + 1) * FONT_SIZE * 1.25 / 72
    return measure_width(word, FONT_SIZE) + 0.05
