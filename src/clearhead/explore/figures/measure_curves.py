"""Curves of measures over the text, such as entropy and distance: a line for each layer or head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor

from clearhead.errors import ConfigError
from clearhead.explore.figures import record_names, style, tick_labels
from clearhead.explore.figures.weight_grid import GridAxis
from clearhead.formatting import suggest_name
from clearhead.lens import Forward, Record, Sight

MEASURES = {
    "entropy": "entropy, nats",
    "distance": "distance, tokens",
    "peak": "largest weight",
    "first": "weight of the first",
}
MAX_POINTS = 256  # of a curve; longer texts are averaged over blocks of tokens
MAX_LEGEND = 16  # lines that a legend names
SINGLE_WIDTH, WIDTH, HEIGHT = 7.0, 4.4, 1.9  # inches of a panel


class _Panel(NamedTuple):
    """Curves over one axis: `lines[name][measure]` has a value for each query, NaN if it sees nothing."""

    title: str
    axis: GridAxis
    lines: dict[str, dict[str, Float[Tensor, " queries"]]]
    ordered: bool  # whether the lines have an order, as layers do

    @property
    def block(self) -> int:
        """How many tokens a point stands for."""
        return -(-len(self.axis.positions) // MAX_POINTS)


def curves(
    source: Sight | Record | Forward,
    measures: Sequence[str] = ("entropy", "distance"),
    *,
    sample: int = 0,
    title: str | None = None,
) -> Figure:
    """Measures over the text: for a Sight a line for each head, for a Record the mean of heads for each layer.

    Measures are "entropy", "distance", "peak" and "first". A query that sees nothing leaves a gap. In long texts points
    are means over blocks of tokens.
    """
    for measure in measures:
        if measure not in MEASURES:
            raise ConfigError(f"there are no curves of {measure!r}; {suggest_name(measure, MEASURES)}")
    if isinstance(source, Sight):
        panels = [_make_head_panel(source, measures, sample)]
    else:
        forward = record_names.get_call(source)
        panels = [
            _make_layer_panel(kind, [forward[name] for name in names], measures, sample)
            for kind, names in record_names.group_by_kind(forward.names).items()
        ]
    with style.figure_style():
        width = SINGLE_WIDTH if len(panels) == 1 else WIDTH
        figure = style.make_figure(width * len(panels) + 1.4, HEIGHT * len(measures) + 1.4)
        grid = figure.subplots(len(measures), len(panels), squeeze=False, sharex="col", sharey="row")
        for panel, column in zip(panels, grid.T, strict=True):
            for axes, measure in zip(column, measures, strict=True):
                _draw_curves(axes, panel, measure, width)
            column[0].set_title(panel.title)
            _add_legend(figure, list(column), panel)
        texts = [text for panel in panels for text in panel.axis.texts or ()]
        notes = {f"Points are means over {panel.block} tokens." for panel in panels if panel.block > 1}
        style.write_title(figure, title, [*sorted(notes), style.note_missing_fonts(texts)])
    return figure


def _make_head_panel(sight: Sight, measures: Sequence[str], sample: int) -> _Panel:
    values = {measure: _measure_heads(sight, measure, sample) for measure in measures}
    lines = {
        f"head {head}": {measure: values[measure][index] for measure in measures}
        for index, head in enumerate(sight.heads)
    }
    return _Panel(sight.name, _make_axis(sight, sample), lines, ordered=False)


def _make_layer_panel(kind: str, sights: Sequence[Sight], measures: Sequence[str], sample: int) -> _Panel:
    """A line is the mean over a layer's heads."""
    lines = {}
    for sight in sights:
        layer = record_names.split_name(sight.name)[1]
        lines[sight.name if layer is None else f"layer {layer}"] = {
            measure: _measure_heads(sight, measure, sample).mean(0) for measure in measures
        }
    return _Panel(kind, _make_axis(sights[0], sample), lines, ordered=True)


def _make_axis(sight: Sight, sample: int) -> GridAxis:
    return GridAxis(sight.queries.tolist(), 1, record_names.get_query_texts(sight, sample))


def _measure_heads(sight: Sight, measure: str, sample: int) -> Float[Tensor, "heads queries"]:
    """One measure of all heads; NaN for distance in cross-attention and for queries that see nothing."""
    values: Tensor = getattr(sight, measure)[sample].double()
    hidden = sight.logsumexp[sample] == -torch.inf
    return values.masked_fill(hidden | (sight.cross and measure == "distance"), torch.nan)


def _draw_curves(axes: Axes, panel: _Panel, measure: str, width: float) -> None:
    style.style_axes(axes)
    count, block, empty = len(panel.axis.positions), panel.block, True
    for (name, values), (colour, dash) in zip(panel.lines.items(), _choose_styles(panel), strict=True):
        points = np.array([float(part.nanmean()) for part in values[measure].split(block)])
        x = np.arange(len(points)) * block + (block - 1) / 2
        mark = "o" if len(points) <= 40 else ""
        axes.plot(x, points, dash, color=colour, label=name, linewidth=1.4, marker=mark, markersize=3)
        empty = empty and bool(np.isnan(points).all())
    axes.set(xlim=(-0.5, count - 0.5), ylabel=MEASURES[measure])
    if empty:
        text = "not measured in cross-attention" if measure == "distance" else "no query sees any key"
        axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=style.current_theme().muted)
    else:
        axes.set_ylim(bottom=0)
    tick_labels.write_key_labels(axes, panel.axis, width / count, top=False)
    axes.label_outer()


def _choose_styles(panel: _Panel) -> list[tuple[object, str]]:
    """Colours and dashes: a scale for layers, distinct colours for a few heads."""
    count, theme = len(panel.lines), style.current_theme()
    if panel.ordered or count > len(theme.categorical):
        return [(theme.sequential_lines(number / max(count - 1, 1)), style.DASHES[0]) for number in range(count)]
    return [(theme.categorical[number], style.DASHES[number % len(style.DASHES)]) for number in range(count)]


def _add_legend(figure: Figure, column: Sequence[Axes], panel: _Panel) -> None:
    if len(panel.lines) <= MAX_LEGEND:
        column[0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.03), borderaxespad=0.3, handlelength=2.2)
        return
    scale = ScalarMappable(Normalize(0, len(panel.lines) - 1), style.current_theme().sequential_lines)
    style.add_colour_bar(figure, scale, column, "layer" if panel.ordered else "head")
