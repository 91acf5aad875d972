"""Heat maps: one head, all heads of a layer, the alignment of a translation."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from clearhead.errors import ShapeError
from clearhead.explore.figures import style, weight_grid
from clearhead.explore.figures.label_text import make_labels, measure_width, stack_characters
from clearhead.explore.figures.weight_grid import Source, Texts, WeightGrid, make_grid
from clearhead.lens import Sight

MAX_NUMBERED = 20  # tokens a side with numbers in their cells
MAX_VECTOR = 40  # cells a side that are drawn as vectors
PANEL_CELLS = 160  # cells a side of one map among many
MIN_PITCH = 0.125  # inches a token that has its own label
POSITION_PITCH = 0.55  # inches between positions
GAP = 0.06  # inches between labels on one line
MIN_FONT = 7.5  # points
MAX_STACKED = 4  # Chinese characters written from top to bottom


class PlotSize(NamedTuple):
    """The width and height of a map in inches, without its labels."""

    width: float
    height: float


def head_map(
    source: Source,
    head: int | None = None,
    *,
    sample: int = 0,
    queries: Texts = None,
    keys: Texts = None,
    title: str | None = None,
) -> Figure:
    """A heat map of one head: a row has the weights of one query. By default the mean of all heads.

    `source` is a Sight, or weights (queries, keys), (heads, queries, keys) or (batch, heads, queries, keys). Up to 20
    tokens have numbers in their cells, up to 80 have labels; longer texts are drawn in blocks of tokens.

    At each place a decoder has read one token and writes the next. Its rows are named by the token written in
    cross-attention, else by the one read.
    """
    cells = make_grid(source, head, sample=sample, queries=queries, keys=keys)
    words = ("key: is looked at", f"query: {_describe_rows(source) or 'looks'}")
    return _draw_single(cells, weight_grid.describe_heads(source, head) if title is None else title, words)


def alignment(
    source: Source,
    head: int | None = None,
    *,
    sample: int = 0,
    queries: Texts = None,
    keys: Texts = None,
    title: str | None = None,
) -> Figure:
    """A head map in which the largest weight of each row is framed: the source token of each target token.

    Among equal weights the first is framed; a row that sees nothing has no frame. Some heads follow the token that is
    written, others the one that was read: rows are named so that punctuation is aligned with punctuation.
    """
    named_by = _choose_row_naming(source, head, sample) if isinstance(source, Sight) and queries is None else None
    cells = make_grid(source, head, sample=sample, queries=queries, keys=keys, named_by=named_by)
    rows = _describe_rows(source, named_by) if queries is None else ""
    side = f"target: {rows}" if rows else "target"
    return _draw_single(
        cells, weight_grid.describe_heads(source, head) if title is None else title, ("source", side), framed=True
    )


def _describe_rows(source: Source, named_by: str | None = None) -> str:
    """Whether rows are named by tokens written or read, in words; "" if there is no choice."""
    if not isinstance(source, Sight):
        return ""
    if weight_grid.get_written_texts(source, named_by):
        return "is being written"
    by_choice = named_by == "read" and weight_grid.get_written_texts(source, "written")
    return "has just been read" if source.cross or by_choice else ""


def _choose_row_naming(sight: Sight, head: int | None, sample: int) -> str:
    """The naming of rows, "written" or "read", with more weight from punctuation to punctuation."""
    cells = make_grid(sight, head, sample=sample)
    columns = weight_grid.find_punctuation(cells.keys.texts)
    if not cells.exact or not any(columns):
        return "written"
    scores = dict[str, float]()
    for named_by in ("written", "read"):
        if rows := weight_grid.find_punctuation(weight_grid.get_query_texts(sight, sample, named_by)):
            scores[named_by] = float(cells.values[np.ix_(rows, columns)].sum())
    return max(scores, key=lambda named_by: scores[named_by], default="written")


def head_grid(
    source: Source,
    *,
    sample: int = 0,
    queries: Texts = None,
    keys: Texts = None,
    title: str | None = None,
    captions: Mapping[int, str] | None = None,
) -> Figure:
    """Heat maps of all heads of one attention on one colour scale; `captions` are added to their titles."""
    captions = captions or {}
    numbers = source.heads if isinstance(source, Sight) else range(source.shape[-3] if source.ndim > 2 else 1)
    if not numbers:
        raise ShapeError("there are no heads to draw")
    grids = [make_grid(source, head, sample=sample, queries=queries, keys=keys, most=PANEL_CELLS) for head in numbers]
    titles = [f"head {head} · {captions[head]}" if captions.get(head) else f"head {head}" for head in numbers]
    columns = min(len(numbers), 4 if len(numbers) <= 16 else 8)
    rows = ceil(len(numbers) / columns)
    with style.figure_style():
        size = _panel_size(grids[0], max(measure_width(words, style.SMALL) for words in titles))
        beside, above = _measure_labels(grids[0], size)
        wide, high = columns * (size.width + 0.15) + beside, rows * (size.height + 0.36) + above
        figure = style.make_figure(wide + 1.1, high + 1.1, boxes=True)
        panels = figure.subplots(rows, columns, squeeze=False)
        norm = _make_norm(grids)
        for axes, cells, words in zip(panels.flat, grids, titles, strict=False):
            _draw_map(axes, cells, norm, size)
            axes.label_outer()
            axes.set_title(words, fontsize=style.SMALL, pad=3)
        for axes in panels.flat[len(numbers) :]:
            axes.set_axis_off()
        default = source.name if isinstance(source, Sight) else ""
        _finish(figure, grids[0], norm, default if title is None else title)
    return figure


def _draw_single(cells: WeightGrid, title: str, words: tuple[str, str], *, framed: bool = False) -> Figure:
    with style.figure_style() as theme:
        size = _plot_size(cells)
        beside, above = _measure_labels(cells, size)
        figure = style.make_figure(size.width + beside + 1.5, size.height + above + 1.5, boxes=True)
        axes = figure.subplots()
        norm = _make_norm([cells])
        _draw_map(axes, cells, norm, size, numbered=_is_numbered(cells))
        axes.set_xlabel(words[0], color=theme.muted, fontsize=style.SMALL)
        axes.set_ylabel(words[1], color=theme.muted, fontsize=style.SMALL)
        axes.xaxis.set_label_position("top")
        if framed:
            _frame_strongest(axes, cells)
        _finish(figure, cells, norm, title)
    return figure


def _draw_map(axes: Axes, cells: WeightGrid, norm: Normalize, size: PlotSize, *, numbered: bool = False) -> None:
    """Draws the cells with their labels in a box of this size."""
    rows, columns = cells.values.shape
    theme = style.current_theme()
    if max(rows, columns) <= MAX_VECTOR:
        edges = (np.arange(count + 1) - 0.5 for count in (columns, rows))
        axes.pcolormesh(
            *edges, cells.values, cmap=theme.sequential, norm=norm, edgecolors=theme.background, linewidth=0.7
        )
    else:
        axes.imshow(cells.values, cmap=theme.sequential, norm=norm, aspect="auto", interpolation="nearest")
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    axes.set_box_aspect(size.height / size.width)
    axes.spines[:].set_visible(max(rows, columns) > MAX_VECTOR)
    beside, above = _label_queries(cells.queries, size.height / rows), _label_keys(cells.keys, size.width / columns)
    axes.set_yticks(beside.cells, beside.words, fontsize=beside.points)
    axes.xaxis.tick_top()
    axes.set_xticks(above.cells, above.words, fontsize=above.points)
    for text, rotated in zip(axes.get_xticklabels(), above.rotated, strict=True):
        text.set(rotation=90 if rotated else 0, linespacing=1.0, va="bottom", ha="center")
    if numbered:
        _write_numbers(axes, cells, norm)


def _write_numbers(axes: Axes, cells: WeightGrid, norm: Normalize) -> None:
    """Writes the weights into their cells; exact zeros, such as padding, without decimals."""
    scale = style.current_theme().sequential
    for (row, column), weight in np.ndenumerate(cells.values):
        text = "0" if weight == 0 else f"{weight:.2f}"
        style.write_in_cell(axes, column, row, text, scale(norm(weight)))


def _frame_strongest(axes: Axes, cells: WeightGrid) -> None:
    look: Any = {"fill": False, "edgecolor": style.current_theme().highlight, "linewidth": 2}
    for row, weights in enumerate(cells.values):
        if weights.max() > 0:
            corner = (float(weights.argmax()) - 0.5, row - 0.5)
            axes.add_patch(Rectangle(corner, 1, 1, zorder=3, clip_on=False, **look))


def _finish(figure: Figure, cells: WeightGrid, norm: Normalize, title: str | None) -> None:
    """Adds the colour bar, the title and the notes."""
    scale = ScalarMappable(norm, style.current_theme().sequential)
    label = "attention weight" if cells.exact else "share of attention"
    style.add_colour_bar(figure, scale, figure.get_axes(), label)
    texts = [text for axis in (cells.queries, cells.keys) if axis.labelled for text in axis.texts or ()]
    size = f"{cells.queries.block} × {cells.keys.block} tokens"
    meaning = "" if cells.exact else f"A cell is {size}: the sum over its keys, averaged over its queries."
    style.write_title(figure, title, [meaning, style.note_missing_fonts(texts), style.CAVEAT])


def _make_norm(grids: Sequence[WeightGrid]) -> Normalize:
    return style.make_norm(max(cells.values.max() for cells in grids), all(map(_is_numbered, grids)))


def _is_numbered(cells: WeightGrid) -> bool:
    return cells.exact and max(cells.values.shape) <= MAX_NUMBERED


def _plot_size(cells: WeightGrid) -> PlotSize:
    """The size of a single map: large cells if they have numbers, squares if possible."""
    rows, columns = cells.values.shape
    longest = max(rows, columns)
    if cells.exact and longest <= weight_grid.MAX_LABELS:
        side = 0.46 if longest <= MAX_NUMBERED else max(0.15, 0.46 * MAX_NUMBERED / longest)
        return PlotSize(columns * side, rows * side)
    return _fit_into(6.6, rows, columns)


def _panel_size(cells: WeightGrid, widest: float) -> PlotSize:
    """The size of one map among many, at least as wide as its title."""
    rows, columns = cells.values.shape
    if cells.exact and max(rows, columns) <= 24:
        side = max(0.16, min(widest, 1.9) / max(rows, columns))
        return PlotSize(max(columns * side, widest), max(rows * side, 0.7))
    size = _fit_into(1.9, rows, columns)
    return PlotSize(max(size.width, widest), size.height)


def _fit_into(inches: float, rows: int, columns: int) -> PlotSize:
    longest = max(rows, columns)
    return PlotSize(*(max(inches * count / longest, 0.25 * inches) for count in (columns, rows)))


def _measure_labels(cells: WeightGrid, size: PlotSize) -> tuple[float, float]:
    """The width of the labels beside a map, and the height of those above it, in inches."""
    rows, columns = cells.values.shape
    beside, above = _label_queries(cells.queries, size.height / rows), _label_keys(cells.keys, size.width / columns)
    lines = max((word.count("\n") + 1 for word in above.words), default=1)
    turned = [above.measure(word) for word, rotated in zip(above.words, above.rotated, strict=True) if rotated]
    return max(map(beside.measure, beside.words), default=0.0), max([lines * above.points * 1.25 / 72, *turned])


class _Labels(NamedTuple):
    """The labels along one side of a map: where they stand, in cells, and how they are written."""

    cells: list[float]
    words: list[str]
    rotated: list[bool]
    points: float  # font size

    def measure(self, word: str) -> float:
        """The width of a label in inches."""
        return measure_width(word, self.points)


def _label_queries(axis: weight_grid.GridAxis, pitch: float) -> _Labels:
    """A label for each token if there is room, else some positions; `pitch` is the size of a cell in inches."""
    count = len(axis.positions)
    if _has_all_labels(axis, pitch):
        words = list(map(str, axis.positions)) if axis.texts is None else make_labels(axis.texts)
        cells, points = [float(cell) for cell in range(count)], min(style.TEXT, 72 * pitch * 0.74)
        return _Labels(cells, words, [False] * count, points)
    step = _round_step(count * POSITION_PITCH / max(pitch * axis.cells, POSITION_PITCH))
    tokens = range(0, count, step)
    cells = [(token + 0.5) / axis.block - 0.5 for token in tokens]
    return _Labels(cells, [f"{axis.positions[token]:,}" for token in tokens], [False] * len(tokens), style.SMALL)


def _label_keys(axis: weight_grid.GridAxis, pitch: float) -> _Labels:
    """The same for keys: in a smaller font if they then fit side by side, else rotated or stacked."""
    labels = _label_queries(axis, pitch)
    if not _has_all_labels(axis, pitch):
        return labels
    fitting = labels.points * (pitch - GAP) / max(map(labels.measure, labels.words))
    if fitting >= MIN_FONT:
        return labels._replace(points=min(labels.points, fitting))
    words = [stack_characters(word) if len(word) <= MAX_STACKED else word for word in labels.words]
    return labels._replace(words=words, rotated=[_is_rotated(word, labels.points, pitch) for word in words])


def _has_all_labels(axis: weight_grid.GridAxis, pitch: float) -> bool:
    return axis.labelled and pitch >= MIN_PITCH


def _is_rotated(word: str, points: float, pitch: float) -> bool:
    """Whether a label is rotated: not single characters, nor pairs that fit."""
    letters = len(unicodedata.normalize("NFC", word))
    return "\n" not in word and letters > 1 and (letters > 2 or measure_width(word, points) > pitch - GAP)


def _round_step(least: float) -> int:
    """The smallest of 1, 2, 5 times a power of ten that is at least `least`.

    >>> [_round_step(number) for number in (0.3, 1.5, 21.0, 50.0, 51.0)]
    [1, 2, 50, 50, 100]
    """
    if least <= 1:
        return 1
    power = 10 ** floor(log10(least))
    return int(next(times * power for times in (1, 2, 5, 10) if times * power >= least))
