"""The head atlas: all heads of a model in one picture, layers by heads, coloured by role or by a measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.typing import ColorType
from torch import Tensor

from clearhead.errors import ConfigError, ShapeError
from clearhead.explore.figures import record_names, style
from clearhead.explore.head_summaries import BROKEN, ROLE_COLOURS, summarise_heads
from clearhead.formatting import suggest_name
from clearhead.lens import Forward, Record
from clearhead.lens.analysis.roles import NONE, HeadRoles

MEASURES = {
    "entropy": "mean entropy, in nats",
    "distance": "mean distance, in tokens",
    "peak": "mean of the largest weight",
    "first": "mean weight of the first visible token",
}
MAX_NAMED = 16  # heads a layer whose cells have room for text


def head_atlas(
    source: Record | Forward | HeadRoles | Mapping[str, Float[Tensor, " heads"] | Sequence[float]],
    by: str = "entropy",
    *,
    title: str | None = None,
) -> Figure:
    """A table for each kind of attention with one coloured cell per head, layers by heads.

    The colour is the role, from `head_roles(model, inputs)` or with `by="role"` from the text of a Record alone; or the
    mean of a measure over all queries of a Record: "entropy", "distance", "peak" or "first"; or a number per head from
    a mapping such as `{"decoder.0.self": effects}`, which `by` then names. Cross-attention has no distance.
    """
    if isinstance(source, HeadRoles):
        return _draw_roles([(one.name, one.head, one.role, one.score) for one in source], title, source.notes)
    if by == "role" and isinstance(source, (Record, Forward)):
        forward = record_names.get_call(source)
        roles = [one for name in forward.names for one in find_roles(forward, name)]
        return _draw_roles(roles, title, ["Roles are estimated from this text alone."])
    values = _average_measure(source, by) if isinstance(source, (Record, Forward)) else _read_values(source)
    found = [value for heads in values.values() for value in heads.values() if np.isfinite(value)]
    norm = _make_norm(found)
    scale = style.current_theme().sequential if norm.vmin == 0 else style.current_theme().diverging
    largest = max(map(abs, found), default=0.0)
    decimals = 2 if largest < 10 else 1 if largest < 100 else 0

    def cell(value: float) -> tuple[str, ColorType]:
        known = np.isfinite(value)
        return (f"{value:.{decimals}f}", scale(norm(value))) if known else ("–", style.current_theme().background)

    cells = {name: {head: cell(value) for head, value in heads.items()} for name, heads in values.items()}
    with style.figure_style():
        figure = _draw_tables(cells, title)
        style.add_colour_bar(figure, ScalarMappable(norm, scale), figure.get_axes(), MEASURES.get(by, by))
    return figure


def find_roles(forward: Forward, name: str) -> list[tuple[str, int, str, float]]:
    """The heads of an attention: its name, their numbers, and roles and scores from this text alone."""
    sight = forward[name]
    heads = summarise_heads(sight, 0, record_names.find_delimiters(record_names.get_key_texts(sight, 0)))
    return [(name, one["number"], one["role"], one["score"] or 0.0) for one in heads]


def _draw_roles(roles: Sequence[tuple[str, int, str, float]], title: str | None, notes: Sequence[str]) -> Figure:
    theme = style.current_theme()
    colours: dict[str, ColorType] = {role: both[theme.dark] for role, both in ROLE_COLOURS.items()}
    colours[NONE] = to_rgba(colours[NONE], 0.25)  # most heads: pale, so that the others stand out
    cells: dict[str, dict[int, tuple[str, ColorType]]] = {}
    for name, head, role, score in roles:
        text = "" if role == NONE else role if role == BROKEN else f"{role}\n{score:.2f}"
        cells.setdefault(name, {})[head] = text, colours[role]
    counts = {role: sum(one[2] == role for one in roles) for role in colours}
    with style.figure_style():
        figure = _draw_tables(cells, title, [*notes, style.CAVEAT])
        patches = [Patch(color=colours[role], label=f"{role}  {count}") for role, count in counts.items() if count]
        figure.legend(handles=patches, loc="outside right center", handlelength=1, handleheight=1)
    return figure


def _draw_tables(
    cells: Mapping[str, Mapping[int, tuple[str, ColorType]]], title: str | None, notes: Sequence[str] = (style.CAVEAT,)
) -> Figure:
    """One table a kind, below each other; a cell is its text and colour."""
    if not any(cells.values()):
        raise ShapeError("there are no heads to draw")
    kinds = record_names.group_by_kind(cells)
    heads = 1 + max(head for some in cells.values() for head in some)
    named = heads <= MAX_NAMED
    width, height = (0.74, 0.4) if named else (0.3, 0.3)
    rows = [len(names) for names in kinds.values()]
    figure = style.make_figure(heads * width + 2.4, sum(rows) * height + 0.62 * len(rows) + 0.9)
    for axes, (kind, names) in zip(
        figure.subplots(len(rows), 1, squeeze=False, height_ratios=rows).flat, kinds.items(), strict=True
    ):
        for row, name in enumerate(names):
            for head, (text, colour) in cells[name].items():
                _draw_cell(axes, head, row, text if named else "", colour)
        step = 1 if named else 4
        axes.set(xlim=(-0.5, heads - 0.5), ylim=(len(names) - 0.5, -0.5))
        axes.set_xticks(range(0, heads, step))
        axes.set_yticks(range(len(names)), [_describe_layer(name) for name in names])
        axes.xaxis.tick_top()
        axes.spines[:].set_visible(False)
        axes.set_title(kind, loc="left", fontsize=style.TEXT, pad=6)
        axes.set_ylabel("layer", color=style.current_theme().muted, fontsize=style.SMALL)
    style.write_title(figure, title, notes)
    return figure


def _draw_cell(axes: Axes, head: int, row: int, text: str, colour: ColorType) -> None:
    axes.add_patch(Rectangle((head - 0.48, row - 0.46), 0.96, 0.92, facecolor=colour, edgecolor="none"))
    if text:
        axes.text(
            head,
            row,
            text,
            ha="center",
            va="center",
            fontsize=7,
            linespacing=1.1,
            color=style.choose_text_colour(colour),
        )


def _describe_layer(name: str) -> str:
    layer = record_names.split_name(name)[1]
    return "" if layer is None else str(layer)


def _make_norm(values: Sequence[float]) -> Normalize:
    """From 0 to the largest value; symmetric around 0 if some are negative."""
    lowest, highest = min(values, default=0.0), max(values, default=0.0)
    if lowest < 0:
        return Normalize(-max(-lowest, highest), max(-lowest, highest))
    return Normalize(0.0, max(highest, 1e-6))


def _read_values(source: Mapping[str, Float[Tensor, " heads"] | Sequence[float]]) -> dict[str, dict[int, float]]:
    return {name: dict(enumerate(map(float, some))) for name, some in source.items()}


def _average_measure(source: Record | Forward, by: str) -> dict[str, dict[int, float]]:
    if by not in MEASURES:
        raise ConfigError(f"heads cannot be coloured by {by!r}; {suggest_name(by, ['role', *MEASURES])}")
    return {name: _average_heads(source, name, by) for name in source.names}


def _average_heads(source: Record | Forward, name: str, by: str) -> dict[int, float]:
    """The mean of a measure for each head, over all queries of all calls that see a key."""
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
