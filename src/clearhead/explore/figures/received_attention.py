"""Attention received by each token: the text shaded by it, and a bar chart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from torch import Tensor

from clearhead.errors import RecordError, ShapeError
from clearhead.explore.figures import fonts, record_names, style, tick_labels
from clearhead.explore.figures.label_text import make_drawable, make_labels
from clearhead.explore.figures.weight_grid import GridAxis, Source, Tokens, list_heads, select_weights
from clearhead.explore.token_display import display_tokens
from clearhead.lens import Sight

MAX_SHADED = 400  # tokens
WIDTH = 8.4  # inches
LINE, FONT_SIZE = 0.28, 10.0  # inches, points
PEAKS = 8  # tokens of a long text that are labelled


def received(
    source: Source,
    head: int | None = None,
    *,
    sample: int = 0,
    tokens: Tokens = None,
    title: str | None = None,
) -> Figure:
    """The sum over all queries of the weight on each token: as shades of the text, and as bars.

    By default the mean of all heads. `source` is a Sight, or weights as for `head_map`. A text of more than 400 tokens
    is drawn as a profile in which the largest values are labelled.
    """
    values = _sum_received(source, head, sample)
    if isinstance(source, Sight) and tokens is None:
        tokens = record_names.get_key_texts(source, sample)
    if not len(values) or (tokens is not None and len(tokens) < len(values)):
        given = 0 if tokens is None else len(tokens)
        raise ShapeError(f"{given} tokens are given for {len(values)} keys; give one for each")
    axis = GridAxis(range(len(values)), 1, None if tokens is None else tokens[: len(values)])
    named = _default_title(source, head) if title is None else title
    with style.figure_style():
        lines = _break_lines(axis.texts) if axis.texts is not None and len(values) <= MAX_SHADED else []
        figure = style.make_figure(WIDTH + 0.9, LINE * len(lines) + 3.2)
        norm = style.make_norm(float(values.max()), exact=False)
        rows = [LINE * len(lines), 2.0] if lines else [2.0]
        *above, below = figure.subplots(len(rows), 1, height_ratios=rows, squeeze=False).flat
        for axes in above:
            _draw_text(axes, lines, values, norm)
        _draw_bars(below, axis, values, norm)
        if not lines and not axis.labelled:
            _label_peaks(below, axis, values)
        style.write_title(figure, named, [style.note_missing_fonts(axis.texts or ())])
    return figure


def shaded_text(
    values: Sequence[float] | Float[Tensor, " tokens"], tokens: Sequence[str | None], *, title: str | None = None
) -> Figure:
    """A text whose tokens are shaded by non-negative numbers, such as the weights of one query."""
    numbers = np.asarray(values, dtype=float)
    if len(numbers) != len(tokens) or not len(tokens):
        raise ShapeError(f"{len(numbers)} numbers for {len(tokens)} tokens; give one for each")
    with style.figure_style():
        lines = _break_lines(tokens)
        figure = style.make_figure(WIDTH + 0.4, LINE * len(lines) + 0.9)
        _draw_text(figure.subplots(), lines, numbers, style.make_norm(float(numbers.max()), exact=False))
        style.write_title(figure, title, [style.note_missing_fonts(tokens)])
    return figure


def _sum_received(source: Source, head: int | None, sample: int) -> NDArray[np.float64]:
    if not isinstance(source, Sight):
        sums = select_weights(source, head, sample).sum(0)
    else:
        if source.received is None:
            raise RecordError(f"{source.name!r} has no measure `received`; record the model again with watch()")
        wanted = [source.place_of(one) for one in (list_heads(source) if head is None else [head])]
        sums = source.received[sample, wanted].double().mean(0)
    values: NDArray[np.float64] = sums.numpy()
    return values


Placed = tuple[int, str, float, float]  # index of the token, its text, left edge and width in inches


def _break_lines(tokens: Sequence[str | None]) -> list[list[Placed]]:
    """Places tokens in lines; tokens of one word touch each other."""
    lines: list[list[Placed]] = [[]]
    end = 0.0
    for place, (token, word) in enumerate(zip(tokens, display_tokens([one or "" for one in tokens]), strict=True)):
        text = make_drawable(word.shown if token else "", 24)
        wide = fonts.measure_width(text, FONT_SIZE) + 0.1
        begin = end + (0.0 if word.glued else 0.07) if lines[-1] else 0.0
        if lines[-1] and begin + wide > WIDTH:
            lines.append([])
            begin = 0.0
        lines[-1].append((place, text, begin, wide))
        end = begin + wide
    return lines


def _draw_text(axes: Axes, lines: Sequence[Sequence[Placed]], values: NDArray[np.float64], norm: Normalize) -> None:
    scale = style.current_theme().sequential
    for row, line in enumerate(lines):
        for place, text, begin, wide in line:
            colour = scale(norm(values[place]))
            axes.add_patch(
                Rectangle((begin, row + 0.06), wide, 0.88, facecolor=colour, edgecolor=style.current_theme().background)
            )
            ink = style.choose_text_colour(colour)
            axes.text(begin + wide / 2, row + 0.5, text, ha="center", va="center", fontsize=FONT_SIZE, color=ink)
    axes.set(xlim=(-0.02, WIDTH), ylim=(len(lines), 0))
    axes.set_axis_off()


def _draw_bars(axes: Axes, axis: GridAxis, values: NDArray[np.float64], norm: Normalize) -> None:
    style.style_axes(axes)
    axes.grid(False, axis="x")
    theme, count = style.current_theme(), len(values)
    places = np.arange(count)
    if axis.labelled:
        axes.bar(places, values, width=0.8, color=theme.sequential(norm(values)), edgecolor=theme.grid, linewidth=0.6)
    else:
        axes.fill_between(places, values, step="mid", color=theme.sequential(0.72), linewidth=0)
    axes.axhline(float(values.mean()), color=theme.muted, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.annotate("mean", (1.0, float(values.mean())), xycoords=("axes fraction", "data"), xytext=(3, 0),
                  textcoords="offset points", va="center", fontsize=style.SMALL, color=theme.muted)  # fmt: skip
    axes.set(xlim=(-0.6, count - 0.4), ylabel="attention received")
    axes.set_ylim(bottom=0)
    tick_labels.write_key_labels(axes, axis, WIDTH / count, top=False)


def _label_peaks(axes: Axes, axis: GridAxis, values: NDArray[np.float64]) -> None:
    """Labels the largest values that are not too close to each other."""
    if axis.texts is None:
        return
    names, taken = make_labels(axis.texts), list[int]()
    for place in np.argsort(-values, kind="stable").tolist():
        if len(taken) == PEAKS:
            break
        if all(abs(place - other) > len(values) / 30 for other in taken):
            taken.append(place)
            axes.annotate(f"{names[place]}", (place, values[place]), xytext=(0, 3), textcoords="offset points",
                          ha="center", va="bottom", rotation=90, fontsize=style.SMALL, parse_math=False)  # fmt: skip
    axes.margins(y=0.45)


def _default_title(source: Source, head: int | None) -> str:
    number = "mean of all heads" if head is None else f"head {head}"
    return f"Attention received: {source.name}, {number}" if isinstance(source, Sight) else "Attention received"
