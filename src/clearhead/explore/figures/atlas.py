"""The head atlas: all heads of a model in one picture, layers by heads, coloured by role or by a measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from clearhead.errors import ConfigError, ShapeError
from clearhead.explore.figures import look, naming
from clearhead.explore.heads import summaries
from clearhead.lens import Forward, Record
from clearhead.lens.analysis.roles import NONE, ROLES, HeadRoles

MEASURES = {
    "entropy": "mean entropy, in nats",
    "distance": "mean distance, in tokens",
    "peak": "mean of the largest weight",
    "first": "mean weight of the first visible token",
}
NAMED = 16  # heads: with more of them a cell has no room for words


def head_atlas(
    source: Record | Forward | HeadRoles | Mapping[str, Tensor | Sequence[float]],
    by: str = "entropy",
    *,
    title: str | None = None,
) -> Figure:
    """Every head as a cell, a table for each kind of attention.

    `head_roles(model, inputs)` colours them by role, and a Record does by "role", as far as one text can tell. A Record
    also knows the mean of a measure, "entropy", "distance", "peak" or "first", over all queries that see anything. A
    mapping such as `{"decoder.0.self": effects}`, one number a head, colours by these numbers, which `by` then names.
    Distance means nothing between two texts, and is left out there.
    """
    if isinstance(source, HeadRoles):
        return _of_roles([(one.name, one.head, one.role, one.score) for one in source], title, source.notes)
    if by == "role" and isinstance(source, (Record, Forward)):
        return _of_roles(_roles(naming.forward_of(source)), title, ["As far as this text can tell."])
    values = _measured(source, by) if isinstance(source, (Record, Forward)) else _given(source)
    found = [value for heads in values.values() for value in heads.values() if np.isfinite(value)]
    norm = _norm(found)
    scale = look.current().scale if norm.vmin == 0 else look.current().both
    largest = max(map(abs, found), default=0.0)
    decimals = 2 if largest < 10 else 1 if largest < 100 else 0

    def cell(value: float) -> tuple[str, Any]:
        known = np.isfinite(value)
        return (f"{value:.{decimals}f}", scale(norm(value))) if known else ("–", look.current().paper)

    cells = {name: {head: cell(value) for head, value in heads.items()} for name, heads in values.items()}
    with look.drawing():
        figure = _tables(cells, title)
        look.colour_bar(figure, ScalarMappable(norm, scale), figure.get_axes(), MEASURES.get(by, by))
    return figure


def _roles(forward: Forward) -> list[tuple[str, int, str, float]]:
    found = []
    for name in forward.names:
        sight = forward[name]
        for one in summaries(sight, 0, naming.delimiters(naming.key_texts(sight, 0))):
            found.append((name, one["number"], one["role"], one["score"] or 0.0))
    return found


def _of_roles(roles: Sequence[tuple[str, int, str, float]], title: str | None, notes: Sequence[str]) -> Figure:
    theme = look.current()
    colours = {"alignment": theme.scale(0.6)} | dict(zip(ROLES, theme.apart, strict=False)) | {NONE: theme.rest}
    cells: dict[str, dict[int, tuple[str, Any]]] = {}
    for name, head, role, score in roles:
        said = "" if role == NONE else f"{role}\n{score:.2f}"
        cells.setdefault(name, {})[head] = said, colours[role]
    counts = {role: sum(one[2] == role for one in roles) for role in colours}
    with look.drawing():
        figure = _tables(cells, title, [*notes, look.CAVEAT])
        patches = [Patch(color=colours[role], label=f"{role}  {count}") for role, count in counts.items() if count]
        figure.legend(handles=patches, loc="outside right center", handlelength=1, handleheight=1)
    return figure


def _tables(
    cells: Mapping[str, Mapping[int, tuple[str, Any]]], title: str | None, notes: Sequence[str] = (look.CAVEAT,)
) -> Figure:
    """One table a kind, below each other; a cell has its words and its colour."""
    if not any(cells.values()):
        raise ShapeError("there are no heads to draw")
    kinds = naming.by_kind(cells)
    heads = 1 + max(head for some in cells.values() for head in some)
    words = heads <= NAMED
    width, height = (0.74, 0.4) if words else (0.3, 0.3)
    rows = [len(names) for names in kinds.values()]
    figure = look.blank(heads * width + 2.4, sum(rows) * height + 0.62 * len(rows) + 0.9)
    for axes, (kind, names) in zip(
        figure.subplots(len(rows), 1, squeeze=False, height_ratios=rows).flat, kinds.items(), strict=True
    ):
        for row, name in enumerate(names):
            for head, (said, colour) in cells[name].items():
                _cell(axes, head, row, said if words else "", colour)
        step = 1 if words else 4
        axes.set(xlim=(-0.5, heads - 0.5), ylim=(len(names) - 0.5, -0.5))
        axes.set_xticks(range(0, heads, step))
        axes.set_yticks(range(len(names)), [_layer(name) for name in names])
        axes.xaxis.tick_top()
        axes.spines[:].set_visible(False)
        axes.set_title(kind, loc="left", fontsize=look.TEXT, pad=6)
        axes.set_ylabel("layer", color=look.current().quiet, fontsize=look.SMALL)
    look.entitle(figure, title, notes)
    return figure


def _cell(axes: Axes, head: int, row: int, said: str, colour: Any) -> None:
    axes.add_patch(Rectangle((head - 0.48, row - 0.46), 0.96, 0.92, facecolor=colour, edgecolor="none"))
    if said:
        axes.text(head, row, said, ha="center", va="center", fontsize=7, linespacing=1.1, color=look.ink_on(colour))


def _layer(name: str) -> str:
    layer = naming.kind_and_layer(name)[1]
    return "" if layer is None else str(layer)


def _norm(values: Sequence[float]) -> Normalize:
    """From 0 to the largest; about 0 if some are below."""
    lowest, highest = min(values, default=0.0), max(values, default=0.0)
    if lowest < 0:
        return Normalize(-max(-lowest, highest), max(-lowest, highest))
    return Normalize(0.0, max(highest, 1e-6))


def _given(source: Mapping[str, Tensor | Sequence[float]]) -> dict[str, dict[int, float]]:
    return {name: dict(enumerate(map(float, some))) for name, some in source.items()}


def _measured(source: Record | Forward, by: str) -> dict[str, dict[int, float]]:
    if by not in MEASURES:
        raise ConfigError(f"heads are coloured by role, {', '.join(MEASURES)}, not by {by!r}")
    return {name: _means(source, name, by) for name in source.names}


def _means(source: Record | Forward, name: str, by: str) -> dict[int, float]:
    """The mean of a measure over all queries of all calls that see anything."""
    total: dict[int, Tensor] = {}
    for forward in source.calls if isinstance(source, Record) else [source]:
        if name not in forward:
            continue
        sight = forward[name]
        seeing = sight.logsumexp > -torch.inf
        sums = torch.stack([(getattr(sight, by) * seeing).double().sum((0, 2)), seeing.double().sum((0, 2))])
        for place, head in enumerate(sight.heads):
            some = torch.tensor([torch.nan, torch.nan]) if sight.cross and by == "distance" else sums[:, place]
            total[head] = total.get(head, torch.zeros(2)) + some
    return {head: float(value / count) if count else float("nan") for head, (value, count) in total.items()}
