"""Attention received by each token: the text shaded by it, and a bar chart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray
from torch import Tensor

from clearhead.errors import RecordError, ShapeError
from clearhead.explore.figures import fonts, record_names, style, tick_labels
from clearhead.explore.figures.label_text import make_drawable, make_labels
from clearhead.explore.figures.record_names import Texts
from clearhead.explore.figures.weight_grid import GridAxis, Source, describe_heads, list_heads, select_weights
from clearhead.explore.token_axis import display_tokens
from clearhead.lens import Sight

MAX_SHADED = 400  # tokens
WIDTH = 8.4  # inches
LINE, FONT_SIZE = 0.28, 10.0  # inches, points
PEAKS = 8  # tokens of a long text that are labelled
MAX_BARS = 400  # of a long text, so that each is wide enough to be seen
MAX_RATIO = 30  # of the largest value to the mean, above which the scale is logarithmic


def received(
    source: Source, head: int | None = None, *, sample: int = 0, tokens: Texts = None, title: str | None = None
) -> Figure:
    """The sum over all queries of the weight on each token: as shades of the text, and as bars.

    By default the mean of all heads. `source` is a Sight, or weights as for `head_map`. Of a text of more than 400
    tokens a bar shows the largest and the mean of several tokens, and the tokens that receive most are labelled.
    """
    values = _sum_received(source, head, sample)
    if isinstance(source, Sight) and tokens is None:
        tokens = record_names.get_key_texts(source, sample)
    if not len(values) or (tokens is not None and len(tokens) < len(values)):
        raise ShapeError(f"{len(tokens or ())} tokens are given for {len(values)} keys; give one for each")
    axis = GridAxis(range(len(values)), 1, None if tokens is None else tokens[: len(values)])
    with style.figure_style():
        lines = _break_lines(axis.texts) if axis.texts is not None and len(values) <= MAX_SHADED else []
        figure = style.make_figure(WIDTH + 0.9, LINE * len(lines) + 3.2)
        norm = style.make_norm(float(values.max()), exact=False)
        rows = [LINE * len(lines), 2.0] if lines else [2.0]
        *above, below = figure.subplots(len(rows), 1, height_ratios=rows, squeeze=False).flat
        for axes in above:
            _draw_text(axes, lines, values, norm)
        notes = [style.note_missing_fonts(axis.texts or ())]
        if axis.labelled:
            _draw_bars(below, values, norm)
        else:
            notes += _draw_profile(below, values)
        _finish_bars(below, axis, values)
        if not lines and not axis.labelled:
            _label_peaks(below, axis, values)
        default = ": ".join(filter(None, ("Attention received", describe_heads(source, head))))
        style.write_title(figure, default if title is None else title, notes)
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
        heads = [source.place_of(number) for number in (list_heads(source) if head is None else [head])]
        sums = source.received[sample, heads].double().mean(0)
    values: NDArray[np.float64] = sums.numpy()
    return values


Placed = tuple[int, str, float, float]  # index of the token, its text, left edge and width in inches


def _break_lines(tokens: Sequence[str | None]) -> list[list[Placed]]:
    """Places tokens in lines; tokens of one word touch each other."""
    lines: list[list[Placed]] = [[]]
    end = 0.0
    for index, (token, word) in enumerate(zip(tokens, display_tokens([text or "" for text in tokens]), strict=True)):
        text = make_drawable(word.shown if token else "", 24)
        wide = fonts.measure_width(text, FONT_SIZE) + 0.1
        begin = end + (0.0 if word.glued else 0.07) if lines[-1] else 0.0
        if lines[-1] and begin + wide > WIDTH:
            lines.append([])
            begin = 0.0
        lines[-1].append((index, text, begin, wide))
        end = begin + wide
    return lines


def _draw_text(axes: Axes, lines: Sequence[Sequence[Placed]], values: NDArray[np.float64], norm: Normalize) -> None:
    theme = style.current_theme()
    for row, line in enumerate(lines):
        for index, text, begin, wide in line:
            colour = theme.sequential(norm(values[index]))
            axes.add_patch(Rectangle((begin, row + 0.06), wide, 0.88, facecolor=colour, edgecolor=theme.background))
            style.write_in_cell(axes, begin + wide / 2, row + 0.5, text, colour, fontsize=FONT_SIZE)
    axes.set(xlim=(-0.02, WIDTH), ylim=(len(lines), 0))
    axes.set_axis_off()


def _draw_bars(axes: Axes, values: NDArray[np.float64], norm: Normalize) -> None:
    theme, tokens = style.current_theme(), np.arange(len(values))
    axes.bar(tokens, values, width=0.8, color=theme.sequential(norm(values)), edgecolor=theme.grid, linewidth=0.6)


def _draw_profile(axes: Axes, values: NDArray[np.float64]) -> list[str]:
    """Bars of several tokens each, pale up to the largest value and dark up to the mean; returns the notes on them."""
    theme, count = style.current_theme(), len(values)
    block = -(-count // MAX_BARS)
    padded = np.append(values, np.full(-count % block, np.nan)).reshape(-1, block)
    largest, mean = np.nanmax(padded, 1), np.nanmean(padded, 1)
    edges = np.minimum(np.arange(len(padded) + 1) * block, count) - 0.5
    floor, notes = 0.0, []
    if (mean > 0).any() and largest.max() > MAX_RATIO * values.mean():
        floor = max(float(mean[mean > 0].min()), float(values.mean()) / 50) / 2
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
        notes.append("logarithmic scale")
    if block > 1:
        axes.stairs(np.maximum(largest, floor), edges, baseline=floor, fill=True, color=theme.sequential(0.34))
        notes.append(f"of every {block} tokens: dark the mean, pale up to the largest")
    axes.stairs(np.maximum(mean, floor), edges, baseline=floor, fill=True, color=theme.sequential(0.72))
    axes.set_ylim(bottom=floor)
    return notes


def _finish_bars(axes: Axes, axis: GridAxis, values: NDArray[np.float64]) -> None:
    """Writes the mean of all tokens, the labels and the limits."""
    style.style_axes(axes)
    axes.grid(False, axis="x")
    theme, count, mean = style.current_theme(), len(values), float(values.mean())
    axes.axhline(mean, color=theme.muted, linewidth=0.9, linestyle=(0, (4, 3)))
    ends: Any = {"xy": (1.0, mean), "xycoords": ("axes fraction", "data"), "xytext": (3, 0), "va": "center"}
    axes.annotate("mean", **ends, textcoords="offset points", fontsize=style.SMALL, color=theme.muted)
    side = 0.1 if axis.labelled else 0.012 * count  # room for the label of the first token
    axes.set(xlim=(-0.5 - side, count - 0.5 + side), ylabel="attention received")
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
    tick_labels.write_key_labels(axes, axis, WIDTH / count, top=False)


def _label_peaks(axes: Axes, axis: GridAxis, values: NDArray[np.float64]) -> None:
    """Labels the largest values that are not too close to each other."""
    if axis.texts is None:
        return
    look: Any = {"xytext": (0, 4), "textcoords": "offset points", "ha": "center", "va": "bottom", "rotation": 90}
    labels, peaks = make_labels(axis.texts), list[int]()
    for token in np.argsort(-values, kind="stable").tolist():
        if len(peaks) == PEAKS:
            break
        if all(abs(token - peak) > len(values) / 30 for peak in peaks):
            peaks.append(token)
            label = labels[token] if any(letter.isalnum() for letter in labels[token]) else f"“{labels[token]}”"
            axes.annotate(label, (token, values[token]), fontsize=style.SMALL, parse_math=False, **look)
    low, high = axes.get_ylim()
    top = float(values.max())  # labels stand in the upper third
    axes.set_ylim(low, low * (top / low) ** 1.5 if axes.get_yscale() == "log" else max(high, 1.5 * top))
