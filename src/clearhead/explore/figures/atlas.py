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
from clearhead.explore.figures import style
from clearhead.explore.figures.weight_grid import get_call, get_key_texts, group_by_kind
from clearhead.explore.head_summaries import BROKEN, ROLE_COLOURS, summarise_heads
from clearhead.explore.scene import split_name
from clearhead.explore.token_axis import Axis
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
Cells = dict[str, dict[int, tuple[str, ColorType]]]  # text and colour, by attention and head
Numbers = Mapping[str, Float[Tensor, " heads"] | Sequence[float]]


def head_atlas(
    source: Record | Forward | HeadRoles | Numbers, by: str = "entropy", *, title: str | None = None
) -> Figure:
    """A table for each kind of attention with one coloured cell per head, layers by heads.

    Colours show roles: those of `head_roles(model, inputs)`, or with `by="role"` those found in the text of a Record
    alone. With `by="entropy"`, "distance", "peak" or "first" they show the mean over all queries of a Record. Or they
    show a number per head, `{"decoder.0.self": effects}`, which `by` names. Cross-attention has no distance.
    """
    if isinstance(source, HeadRoles):
        return _draw_roles([(head.name, head.head, head.role, head.score) for head in source], title, source.notes)
    if not isinstance(source, (Record, Forward)):
        numbers = {name: dict(enumerate(map(float, heads))) for name, heads in source.items()}
        return _draw_numbers(numbers, by, title)
    if by == "role":
        forward = get_call(source)
        roles = [role for name in forward.names for role in find_roles(forward, name)]
        return _draw_roles(roles, title, ["Roles are estimated from this text alone."])
    if by not in MEASURES:
        raise ConfigError(f"heads cannot be coloured by {by!r}; {suggest_name(by, ['role', *MEASURES])}")
    return _draw_numbers({name: _average_heads(source, name, by) for name in source.names}, by, title)


def find_roles(forward: Forward, name: str) -> list[tuple[str, int, str, float]]:
    """The heads of an attention: its name, their numbers, and roles and scores from this text alone."""
    sight = forward[name]
    texts = get_key_texts(sight, 0)
    delimiters = None if texts is None else Axis.text([text or "" for text in texts]).find_delimiters()
    heads = summarise_heads(sight, 0, delimiters)
    return [(name, head["number"], head["role"], head["score"] or 0.0) for head in heads]


def _draw_numbers(values: Mapping[str, Mapping[int, float]], by: str, title: str | None) -> Figure:
    numbers = [value for heads in values.values() for value in heads.values() if np.isfinite(value)]
    theme, norm, largest = style.current_theme(), _make_norm(numbers), max(map(abs, numbers), default=0.0)
    scale = theme.sequential if norm.vmin == 0 else theme.diverging
    decimals = 2 if largest < 10 else 1 if largest < 100 else 0

    def cell(value: float) -> tuple[str, ColorType]:
        return (f"{value:.{decimals}f}", scale(norm(value))) if np.isfinite(value) else ("–", theme.background)

    cells = {name: {head: cell(value) for head, value in heads.items()} for name, heads in values.items()}
    with style.figure_style():
        figure = _draw_tables(cells, title)
        style.add_colour_bar(figure, ScalarMappable(norm, scale), figure.get_axes(), MEASURES.get(by, by))
    return figure


def _make_norm(values: Sequence[float]) -> Normalize:
    """From 0 to the largest value; symmetric around 0 if some are negative."""
    lowest, highest = min(values, default=0.0), max(values, default=0.0)
    if lowest < 0:
        return Normalize(-max(-lowest, highest), max(-lowest, highest))
    return Normalize(0.0, max(highest, 1e-6))


def _draw_roles(roles: Sequence[tuple[str, int, str, float]], title: str | None, notes: Sequence[str]) -> Figure:
    theme = style.current_theme()
    colours: dict[str, ColorType] = {role: both[theme.dark] for role, both in ROLE_COLOURS.items()}
    colours[NONE] = to_rgba(colours[NONE], 0.25)  # most heads: pale, so that the others stand out
    cells: Cells = {}
    counts = dict.fromkeys(colours, 0)
    for name, head, role, score in roles:
        text = "" if role == NONE else role if role == BROKEN else f"{role}\n{score:.2f}"
        cells.setdefault(name, {})[head] = text, colours[role]
        counts[role] += 1
    with style.figure_style():
        figure = _draw_tables(cells, title, [*notes, style.CAVEAT])
        patches = [Patch(color=colours[role], label=f"{role}  {count}") for role, count in counts.items() if count]
        figure.legend(handles=patches, loc="outside right center", handlelength=1, handleheight=1)
    return figure


def _draw_tables(cells: Cells, title: str | None, notes: Sequence[str] = (style.CAVEAT,)) -> Figure:
    if not any(cells.values()):
        raise ShapeError("there are no heads to draw")
    kinds = group_by_kind(cells)
    heads = 1 + max(head for numbers in cells.values() for head in numbers)
    named = heads <= MAX_NAMED
    width, height = (0.74, 0.4) if named else (0.3, 0.3)
    rows = [len(names) for names in kinds.values()]
    figure = style.make_figure(heads * width + 2.4, sum(rows) * height + 0.62 * len(rows) + 0.9)
    tables = figure.subplots(len(rows), 1, squeeze=False, height_ratios=rows)
    for axes, (kind, names) in zip(tables.flat, kinds.items(), strict=True):
        for row, name in enumerate(names):
            for head, (text, colour) in cells[name].items():
                _draw_cell(axes, head, row, text if named else "", colour)
        axes.set(xlim=(-0.5, heads - 0.5), ylim=(len(names) - 0.5, -0.5))
        axes.set_xticks(range(0, heads, 1 if named else 4))
        layers = [split_name(name)[1] for name in names]
        axes.set_yticks(range(len(names)), ["" if layer is None else str(layer) for layer in layers])
        axes.xaxis.tick_top()
        axes.spines[:].set_visible(False)
        axes.set_title(kind, loc="left", fontsize=style.TEXT, pad=6)
        axes.set_ylabel("layer", color=style.current_theme().muted, fontsize=style.SMALL)
    style.write_title(figure, title, notes)
    return figure


def _draw_cell(axes: Axes, head: int, row: int, text: str, colour: ColorType) -> None:
    axes.add_patch(Rectangle((head - 0.48, row - 0.46), 0.96, 0.92, facecolor=colour, edgecolor="none"))
    if text:
        style.write_in_cell(axes, head, row, text, colour, fontsize=7, linespacing=1.1)


def _average_heads(source: Record | Forward, name: str, by: str) -> dict[int, float]:
    """The mean of a measure for each head, over all queries of all calls that see a key."""
    total: dict[int, Tensor] = {}
    for forward in source.calls if isinstance(source, Record) else [source]:
        if name not in forward:
            continue
        sight = forward[name]
        seeing = sight.logsumexp > -torch.inf
        sums = torch.stack([(getattr(sight, by) * seeing).double().sum((0, 2)), seeing.double().sum((0, 2))])
        if sight.cross and by == "distance":
            sums = sums * torch.nan
        for index, head in enumerate(sight.heads):
            total[head] = total.get(head, torch.zeros(2)) + sums[:, index]
    return {head: float(value / count) if count else float("nan") for head, (value, count) in total.items()}
