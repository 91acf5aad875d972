"""Curves over the text: how sharply and how far each layer, or each head, looks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor

from clearhead.errors import ConfigError
from clearhead.explore.figures import look, naming, ticks
from clearhead.explore.figures.cells import Axis
from clearhead.lens import Forward, Record, Sight

MEASURES = {
    "entropy": "entropy, nats",
    "distance": "distance, tokens",
    "peak": "largest weight",
    "first": "weight of the first",
}
POINTS = 256  # along a curve: of a longer text, means over so many stretches
LISTED = 16  # lines that a legend names
ALONE, WIDTH, HEIGHT = 7.0, 4.4, 1.9  # inches of a panel


class _Panel(NamedTuple):
    """Curves that share their text: `lines[name][measure]` has a value for each query, NaN where it sees nothing."""

    title: str
    axis: Axis
    lines: dict[str, dict[str, Tensor]]
    ordered: bool  # whether one line follows on the other, as layers do


def curves(
    source: Sight | Record | Forward,
    measures: Sequence[str] = ("entropy", "distance"),
    *,
    sample: int = 0,
    heads: Sequence[int] | None = None,
    tokens: naming.Sides = None,
    title: str | None = None,
) -> Figure:
    """How measures run over the text: of a Sight a line for each head, of a Record one for each layer, over its heads.

    Measures are "entropy", "distance", "peak" and "first". A query that sees nothing leaves a gap. Of a long text,
    points are means over stretches of tokens.
    """
    for measure in measures:
        if measure not in MEASURES:
            raise ConfigError(f"curves are drawn of {', '.join(MEASURES)}, not of {measure!r}")
    if isinstance(source, Sight):
        panels = [_of_heads(source, measures, sample, heads, tokens)]
    else:
        forward = naming.forward_of(source)
        panels = [
            _of_layers(kind, [forward[name] for name in names], measures, sample, heads, tokens)
            for kind, names in naming.by_kind(forward.names).items()
        ]
    with look.drawing():
        width = ALONE if len(panels) == 1 else WIDTH
        figure = look.blank(width * len(panels) + 1.4, HEIGHT * len(measures) + 1.4)
        grid = figure.subplots(len(measures), len(panels), squeeze=False, sharex="col", sharey="row")
        for panel, column in zip(panels, grid.T, strict=True):
            for axes, measure in zip(column, measures, strict=True):
                _draw(axes, panel, measure, width)
            column[0].set_title(panel.title)
            _name_lines(figure, list(column), panel)
        texts = [text for panel in panels for text in panel.axis.texts or ()]
        notes = {f"Points are means over {_block(panel)} tokens." for panel in panels if _block(panel) > 1}
        look.entitle(figure, title, [*sorted(notes), look.font_note(texts)])
    return figure


def _of_heads(
    sight: Sight, measures: Sequence[str], sample: int, heads: Sequence[int] | None, tokens: naming.Sides
) -> _Panel:
    chosen = sight.heads if heads is None else heads
    lines = {
        f"head {head}": {measure: _values(sight, measure, sample)[sight.place_of(head)] for measure in measures}
        for head in chosen
    }
    return _Panel(sight.name, _axis(sight, sample, tokens), lines, ordered=False)


def _of_layers(
    kind: str,
    sights: Sequence[Sight],
    measures: Sequence[str],
    sample: int,
    heads: Sequence[int] | None,
    tokens: naming.Sides,
) -> _Panel:
    """A line is the mean over a layer's heads."""
    lines = {}
    for sight in sights:
        layer = naming.kind_and_layer(sight.name)[1]
        places = [sight.place_of(head) for head in (sight.heads if heads is None else heads)]
        lines[sight.name if layer is None else f"layer {layer}"] = {
            measure: _values(sight, measure, sample)[places].mean(0) for measure in measures
        }
    return _Panel(kind, _axis(sights[0], sample, tokens), lines, ordered=True)


def _axis(sight: Sight, sample: int, tokens: naming.Sides) -> Axis:
    return Axis(sight.queries.tolist(), 1, naming.query_texts(sight, sample, tokens))


def _values(sight: Sight, measure: str, sample: int) -> Tensor:
    """(heads, queries); distance has no meaning between two texts."""
    values: Tensor = getattr(sight, measure)[sample].double()
    hidden = sight.logsumexp[sample] == -torch.inf
    return values.masked_fill(hidden | (sight.cross and measure == "distance"), torch.nan)


def _draw(axes: Axes, panel: _Panel, measure: str, width: float) -> None:
    look.plain(axes)
    count, block = len(panel.axis.positions), _block(panel)
    some = False
    for (name, values), (colour, dash) in zip(panel.lines.items(), _styles(panel), strict=True):
        y = values[measure]
        points = np.array([float(part.nanmean()) for part in y.split(block)])
        x = np.arange(len(points)) * block + (block - 1) / 2
        mark = "o" if len(points) <= 40 else ""
        axes.plot(x, points, dash, color=colour, label=name, linewidth=1.4, marker=mark, markersize=3)
        some = some or not np.isnan(points).all()
    axes.set(xlim=(-0.5, count - 0.5), ylabel=MEASURES[measure])
    if some:
        axes.set_ylim(bottom=0)
    else:
        said = "not measured between two texts" if measure == "distance" else "no query sees anything"
        axes.text(0.5, 0.5, said, transform=axes.transAxes, ha="center", va="center", color=look.current().quiet)
    ticks.write_keys(axes, panel.axis, width / count, top=False)
    axes.label_outer()


def _styles(panel: _Panel) -> list[tuple[object, str]]:
    """Of layers, from dark to light; of heads, as different as can be."""
    count, theme = len(panel.lines), look.current()
    if panel.ordered or count > len(theme.apart):
        return [(theme.rising(place / max(count - 1, 1)), look.DASHES[0]) for place in range(count)]
    return [(theme.apart[place], look.DASHES[place % len(look.DASHES)]) for place in range(count)]


def _name_lines(figure: Figure, column: Sequence[Axes], panel: _Panel) -> None:
    if len(panel.lines) <= LISTED:
        column[0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.03), borderaxespad=0.3, handlelength=2.2)
        return
    scale = ScalarMappable(Normalize(0, len(panel.lines) - 1), look.current().rising)
    look.colour_bar(figure, scale, column, "layer" if panel.ordered else "head")


def _block(panel: _Panel) -> int:
    return -(-len(panel.axis.positions) // POINTS)
