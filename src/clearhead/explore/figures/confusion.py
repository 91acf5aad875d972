"""Confusion matrix: how often rows of one label were given another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from numpy.typing import NDArray

from clearhead.errors import ShapeError
from clearhead.explore.figures import label_text, style

MAX_NUMBERED = 30  # labels: of more, the numbers in the cells would be too small
MAX_LABEL_WIDTH = 32  # letters
MAX_PAIRS = 5  # of labels that are named below


def confusion_matrix(names: Sequence[str], counts: NDArray[np.int64], *, title: str | None = None) -> Figure:
    """A row for each right label, a column for each given one; colours are shares of the row.

    Up to 30 labels have their counts in the cells. The pairs that are confused most often are named below.
    """
    if counts.shape != (len(names), len(names)):
        raise ShapeError(f"{len(names)} labels need a matrix of that size, got {tuple(counts.shape)}")
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    numbered = len(names) <= MAX_NUMBERED
    with style.figure_style() as theme:
        labels = [label_text.make_drawable(name, MAX_LABEL_WIDTH) for name in names]
        size = style.TEXT if numbered else style.SMALL * 0.75
        side = len(names) * (0.42 if numbered else 0.135)
        beside = max(label_text.measure_width(label, size) for label in labels) + 0.4
        figure = style.make_figure(side + beside + 1.2, side + beside + 1.3, boxes=True)
        axes = figure.add_subplot()
        norm = style.make_norm(1.0, exact=numbered)
        axes.imshow(shares, cmap=theme.sequential, norm=norm, aspect="equal")
        axes.set_xticks(range(len(names)), labels, rotation=90, fontsize=size)
        axes.set_yticks(range(len(names)), labels, fontsize=size)
        axes.set_xlabel("given by the model")
        axes.set_ylabel("right")
        for row, column in zip(*np.nonzero(counts), strict=True) if numbered else ():
            style.write_in_cell(axes, column, row, f"{counts[row, column]}", theme.sequential(shares[row, column]))
        style.add_colour_bar(figure, ScalarMappable(norm, theme.sequential), axes, "share of the right label")
        style.write_title(figure, title, [_describe_worst(labels, counts), style.note_missing_fonts(names)])
    return figure


def _describe_worst(names: Sequence[str], counts: NDArray[np.int64]) -> str:
    wrong = np.where(np.eye(len(names), dtype=bool), 0, counts)
    order = np.argsort(-wrong, axis=None, kind="stable")[:MAX_PAIRS]
    pairs = [divmod(int(cell), len(names)) for cell in order]
    said = [f"{names[row]} → {names[column]} ({wrong[row, column]})" for row, column in pairs if wrong[row, column]]
    return f"Most often confused: {', '.join(said)}." if said else "Nothing was confused."
