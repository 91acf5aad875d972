"""Pictures of attention for the examples: all heads in one grid, or one as lines. Chinese shows on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Curve
from torch import Tensor

from clearhead import shipped

INK, PALE, FRAME = "#1f2d3d", "#dde4ea", "#d9480f"
LOOK = {"font.family": ["DejaVu Sans", "Clearhead CJK"], "text.color": INK, "axes.labelcolor": INK}
LOOK |= {"xtick.color": INK, "ytick.color": INK, "xtick.major.size": 0, "ytick.major.size": 0}
LEAST_WEIGHT = 0.02  # smaller ones have no line
WORD_ROOM = 0.72  # inches
fontManager.addfont(shipped.FONT)


def draw_heads(
    weights: Tensor,
    reads: Sequence[str],
    writes: Sequence[str],
    path: Path,
    *,
    title: str,
    note: str,
    framed: tuple[int, int] | None = None,
) -> None:
    """One panel a head, one row of panels a layer, from `(layers, heads, writes, reads)`; one head may be framed."""
    layers, heads, rows, columns = weights.shape
    cell = 0.24 if heads <= 4 else 0.16  # inches
    size = {"figsize": ((cell * columns + 0.2) * heads + 1.6, (cell * rows + 0.36) * layers + 1.5)}
    with matplotlib.rc_context({**LOOK, "xtick.labelsize": 42 * cell, "ytick.labelsize": 42 * cell}):
        figure = Figure(**size, layout="constrained")
        figure.get_layout_engine().set(h_pad=0.07)
        grid = figure.subplots(layers, heads, squeeze=False)
        for number, axes in enumerate(grid.flat):
            layer, head = divmod(number, heads)
            is_framed = (layer, head) == framed
            image = _map(axes, weights[layer, head], [_upright(word) for word in reads], writes)
            axes.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=9.5, color=FRAME if is_framed else INK)
            axes.spines[:].set(visible=is_framed, color=FRAME, linewidth=2)
            axes.label_outer()
        _scale(figure, image, grid)
        figure.suptitle(title, fontsize=15)
        figure.supylabel("writes", fontsize=11)
        figure.supxlabel(f"reads\n\n{note}", fontsize=11)
        _save(figure, path)


def draw_lines(weights: Tensor, reads: Sequence[str], writes: Sequence[str], path: Path, *, title: str) -> None:
    """Lines from the words that are read, above, to those that are written; `weights` is (writes, reads)."""
    width = WORD_ROOM * max(len(reads), len(writes))
    above, below = (np.linspace(0, 1, 2 * len(words) + 1)[1::2] for words in (reads, writes))
    hues = matplotlib.colormaps["turbo"](np.linspace(0.1, 0.9, len(reads)))
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(width, 0.36 * width + 1.4), layout="constrained")
        axes = figure.subplots()
        for (row, column), weight in sorted(np.ndenumerate(weights.numpy()), key=lambda cell: cell[1]):
            if weight >= LEAST_WEIGHT:
                ends = [(above[column], 1), (above[column], 0.4), (below[row], 0.6), (below[row], 0)]
                curve = Curve(ends, [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4])
                thread = {"linewidth": max(0.5, 13 * weight), "alpha": 0.3 + 0.5 * weight, "capstyle": "butt"}
                axes.add_patch(PathPatch(curve, fill=False, edgecolor=hues[column], **thread))
        for words, centres, y, side in ((reads, above, 1.03, "bottom"), (writes, below, -0.03, "top")):
            for word, centre in zip(words, centres, strict=True):
                axes.text(centre, y, word, ha="center", va=side, fontsize=14)
        axes.set(xlim=(0, 1), ylim=(-0.14, 1.14))
        axes.set_axis_off()
        figure.suptitle(title, fontsize=17)
        note = f"A line is as thick as its weight; weights below {LEAST_WEIGHT} have none."
        figure.supxlabel(f"{note} Where a head looks is not why the model answers.", fontsize=11)
        _save(figure, path)


def _map(axes: Axes, weights: Tensor, reads: Sequence[str], writes: Sequence[str]) -> Any:
    rows, columns = weights.shape
    image = axes.pcolormesh(weights.numpy(), cmap="Blues", vmin=0, vmax=1, edgecolors=PALE, linewidth=0.5)
    axes.set(aspect="equal", ylim=(rows, 0))
    axes.set_xticks([column + 0.5 for column in range(columns)], reads)
    axes.set_yticks([row + 0.5 for row in range(rows)], writes)
    return image


def _upright(word: str) -> str:
    """A Chinese word as a column of characters, as there is little room for it."""
    return "\n".join(word) if word > "\u2e7f" else word


def _scale(figure: Figure, image: Any, where: Any) -> None:
    bar = figure.colorbar(image, ax=where, shrink=0.6, aspect=28, pad=0.015, label="attention weight")
    bar.outline.set_visible(False)


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
