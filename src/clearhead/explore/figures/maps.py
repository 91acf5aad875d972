"""Heat maps: one head, all heads of a layer, several attentions side by side, the alignment of a translation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from clearhead.errors import ShapeError
from clearhead.explore.figures import fonts, look, naming, ticks
from clearhead.explore.figures.cells import LABELLED, Cells, Tokens, cells_of, heads_of
from clearhead.lens import Forward, Record, Sight

NUMBERED = 20  # tokens a side: of more, the numbers in the cells would be too small
CLOSE = 32  # tokens a side of maps side by side: with labels of more, a figure would be too wide to read
VECTOR = 40  # cells a side that are drawn one by one, sharp at any size
PANEL = 160  # cells a side of one map among many


class Room(NamedTuple):
    """How many inches the cells of a map take, without its labels."""

    width: float
    height: float


def head_map(
    source: Sight | Tensor,
    head: int | None = None,
    *,
    sample: int = 0,
    queries: Tokens = None,
    keys: Tokens = None,
    when: str | None = None,
    title: str | None = None,
) -> Figure:
    """One head's weights: a row is what a token looks at. Without a head, the mean of all heads.

    `source` is a Sight, or weights (queries, keys), (heads, queries, keys) or (batch, heads, queries, keys). Up to 20
    tokens have numbers in their cells, up to 80 have labels; a longer text is drawn in blocks of tokens.

    At each place a decoder has read one token and writes the next: rows are named by the one that is "written", or the
    one that has been "read". By default it is "written" where it looks into another text, else "read".
    """
    cells = cells_of(source, head, sample=sample, queries=queries, keys=keys, when=when)
    words = ("key: is looked at", f"query: {_doing(source, when if queries is None else None) or 'looks'}")
    return _single(cells, _called(source, head) if title is None else title, words)


def alignment(
    source: Sight | Tensor,
    head: int | None = None,
    *,
    sample: int = 0,
    queries: Tokens = None,
    keys: Tokens = None,
    when: str | None = None,
    title: str | None = None,
) -> Figure:
    """Which source token each target token looks at most: a head map whose strongest cell in each row is framed.

    Of several alike, the first is framed; of a row that sees nothing, none. Some heads look for what is being
    "written", others back at what has been "read"; None takes whichever brings punctuation to punctuation.
    """
    if isinstance(source, Sight) and queries is None:
        when = when or _when(source, head, sample)
    cells = cells_of(source, head, sample=sample, queries=queries, keys=keys, when=when)
    doing = _doing(source, when) if queries is None else ""
    side = f"target: {doing}" if doing else "target"
    return _single(cells, _called(source, head) if title is None else title, ("source", side), framed=True)


def _doing(source: Sight | Tensor, when: str | None) -> str:
    """What happens to the tokens by which rows are named, where there is a choice."""
    if not isinstance(source, Sight):
        return ""
    if naming.written(source, when=when):
        return "is being written"
    chosen = when == "read" and naming.written(source, when="written")
    return "has just been read" if source.cross or chosen else ""


def _when(sight: Sight, head: int | None, sample: int) -> str:
    """Whether a head gives more to the source's punctuation when punctuation is written, or when it has been read."""
    given = cells_of(sight, head, sample=sample)
    marks = naming.punctuation(given.keys.texts)
    if not given.exact or not any(marks):
        return "written"
    own = {when: naming.punctuation(naming.query_texts(sight, sample, when=when)) for when in ("written", "read")}
    scores = {when: float(given.values[np.ix_(rows, marks)].sum()) for when, rows in own.items() if rows}
    return max(scores, key=lambda when: scores[when], default="written")


def head_grid(
    source: Sight | Tensor,
    heads: Sequence[int] | None = None,
    *,
    sample: int = 0,
    queries: Tokens = None,
    keys: Tokens = None,
    when: str | None = None,
    title: str | None = None,
    captions: Mapping[int, str] | None = None,
) -> Figure:
    """All heads of one attention, or some of them, on one scale; `captions` say more about a head, such as its role.

    Rows are named by what is "written" or "read", as those of `head_map`.
    """
    numbers = heads_of(source) if heads is None else list(heads)
    if not numbers:
        raise ShapeError("there are no heads to draw")
    drawn = [cells_of(source, one, sample=sample, queries=queries, keys=keys, when=when, most=PANEL) for one in numbers]
    columns = min(len(numbers), 4 if len(numbers) <= 16 else 8)
    rows = ceil(len(numbers) / columns)
    with look.drawing():
        titles = [_caption(number, captions or {}) for number in numbers]
        room = _small_room(drawn[0], max(fonts.width(one, look.SMALL) for one in titles))
        beside, above = _label_room(drawn[0], room)
        wide, high = columns * (room.width + 0.15) + beside, rows * (room.height + 0.36) + above
        figure = look.blank(wide + 1.1, high + 1.1, boxes=True)
        grid = figure.subplots(rows, columns, squeeze=False)
        norm = _norm(drawn)
        for axes, cells, words in zip(grid.flat, drawn, titles, strict=False):
            _draw(axes, cells, norm, room)
            axes.label_outer()
            axes.set_title(words, fontsize=look.SMALL, pad=3)
        for axes in grid.flat[len(numbers) :]:
            axes.set_axis_off()
        _finish(figure, drawn[:1], norm, _called(source, None, every=True) if title is None else title)
    return figure


def _caption(number: int, captions: Mapping[int, str]) -> str:
    return f"head {number} · {captions[number]}" if captions.get(number) else f"head {number}"


def side_by_side(
    source: Record | Forward,
    chosen: Mapping[str, int | None] | None = None,
    *,
    sample: int = 0,
    tokens: naming.Sides = None,
    when: str | None = None,
    title: str | None = None,
) -> Figure:
    """Several attentions beside each other: `{"encoder.5.self": 2, "decoder.2.cross": None}`, None for all heads' mean.

    By default the last layer of each kind: where the encoder looks, the decoder, and the decoder into the source.
    """
    forward = naming.forward_of(source)
    wanted = chosen or {names[-1]: None for names in naming.by_kind(forward.names).values()}
    drawn = []
    for name, head in wanted.items():
        sight = forward[name]
        queries, keys = naming.query_texts(sight, sample, tokens, when=when), naming.key_texts(sight, sample, tokens)
        drawn.append(cells_of(sight, head, sample=sample, queries=queries, keys=keys, most=2 * PANEL))
    with look.drawing():
        rooms = _even_rooms(drawn)
        sizes = [_label_room(cells, room) for cells, room in zip(drawn, rooms, strict=True)]
        width = sum(room.width + beside + 0.35 for room, (beside, _) in zip(rooms, sizes, strict=True))
        height = max(room.height + above for room, (_, above) in zip(rooms, sizes, strict=True))
        figure = look.blank(width + 1.0, height + 1.3, boxes=True)
        grid = figure.subplots(1, len(drawn), squeeze=False, width_ratios=[room.width for room in rooms])
        norm = _norm(drawn)
        for axes, cells, room, (name, head) in zip(grid.flat, drawn, rooms, wanted.items(), strict=True):
            _draw(axes, cells, norm, room, numbered=all(_is_numbered(one) for one in drawn))
            axes.set_anchor("N")
            axes.set_title(_called(forward[name], head), fontsize=look.TEXT, pad=8)
        _finish(figure, drawn, norm, title)
    return figure


def _single(cells: Cells, title: str, words: tuple[str, str], *, framed: bool = False) -> Figure:
    with look.drawing() as theme:
        room = _room(cells)
        beside, above = _label_room(cells, room)
        figure = look.blank(room.width + beside + 1.5, room.height + above + 1.5, boxes=True)
        axes = figure.subplots()
        norm = _norm([cells])
        _draw(axes, cells, norm, room, numbered=_is_numbered(cells))
        axes.set_xlabel(words[0], color=theme.quiet, fontsize=look.SMALL)
        axes.set_ylabel(words[1], color=theme.quiet, fontsize=look.SMALL)
        axes.xaxis.set_label_position("top")
        if framed:
            _frame_strongest(axes, cells)
        _finish(figure, [cells], norm, title)
    return figure


def _draw(axes: Axes, cells: Cells, norm: Normalize, room: Room, *, numbered: bool = False) -> None:
    """The cells with their labels; as many inches as the room has, wherever the layout puts them."""
    rows, columns = cells.values.shape
    theme = look.current()
    if max(rows, columns) <= VECTOR:
        edges = (np.arange(size + 1) - 0.5 for size in (columns, rows))
        axes.pcolormesh(*edges, cells.values, cmap=theme.scale, norm=norm, edgecolors=theme.paper, linewidth=0.7)
    else:
        axes.imshow(cells.values, cmap=theme.scale, norm=norm, aspect="auto", interpolation="nearest")
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    axes.set_box_aspect(room.height / room.width)
    axes.spines[:].set_visible(max(rows, columns) > VECTOR)
    ticks.write_queries(axes, cells.queries, room.height / rows)
    ticks.write_keys(axes, cells.keys, room.width / columns)
    if numbered:
        _write_numbers(axes, cells, norm)


def _write_numbers(axes: Axes, cells: Cells, norm: Normalize) -> None:
    """The weights in their cells; what is hidden, as pads are, has a 0 without decimals."""
    scale = look.current().scale
    for (row, column), weight in np.ndenumerate(cells.values):
        said = "0" if weight == 0 else f"{weight:.2f}"
        colour = look.ink_on(scale(norm(weight)))
        axes.text(column, row, said, ha="center", va="center", fontsize=look.SMALL, color=colour)


def _frame_strongest(axes: Axes, cells: Cells) -> None:
    for row, weights in enumerate(cells.values):
        if weights.max() > 0:
            corner = (float(weights.argmax()) - 0.5, row - 0.5)
            frame = Rectangle(
                corner, 1, 1, fill=False, edgecolor=look.current().mark, linewidth=2, zorder=3, clip_on=False
            )
            axes.add_patch(frame)


def _finish(figure: Figure, drawn: Sequence[Cells], norm: Normalize, title: str | None) -> None:
    """What all maps have: the scale, the title, and what is to be known about them."""
    exact = all(cells.exact for cells in drawn)
    axes = figure.get_axes()
    scale = ScalarMappable(norm, look.current().scale)
    look.colour_bar(figure, scale, axes, "attention weight" if exact else "share of attention")
    sides = [axis for cells in drawn for axis in (cells.queries, cells.keys) if axis.labelled]
    texts = [text for axis in sides for text in axis.texts or ()]
    blocks = sorted({(cells.queries.block, cells.keys.block) for cells in drawn if not cells.exact})
    told = "what one of these queries gives to those keys together, on average"
    notes = [f"A cell is {rows} × {columns} tokens: {told}." for rows, columns in blocks]
    look.entitle(figure, title, [*notes, look.font_note(texts), look.CAVEAT])


def _norm(drawn: Sequence[Cells]) -> Normalize:
    return look.norm_of(max(cells.values.max() for cells in drawn), all(_is_numbered(cells) for cells in drawn))


def _is_numbered(cells: Cells) -> bool:
    return cells.exact and max(cells.values.shape) <= NUMBERED


def _room(cells: Cells) -> Room:
    """Cells are large where they have numbers in them, and squares wherever that makes sense."""
    rows, columns = cells.values.shape
    longest = max(rows, columns)
    if cells.exact and longest <= LABELLED:
        side = 0.46 if longest <= NUMBERED else max(0.15, 0.46 * NUMBERED / longest)
        return Room(columns * side, rows * side)
    return _within(6.6, rows, columns)


def _small_room(cells: Cells, widest: float) -> Room:
    """One map among many; below words of so many inches, which need a line of their own."""
    rows, columns = cells.values.shape
    if cells.exact and max(rows, columns) <= 24:
        side = max(0.16, min(widest, 1.9) / max(rows, columns))
        return Room(max(columns * side, widest), max(rows * side, 0.7))
    room = _within(1.9, rows, columns)
    return Room(max(room.width, widest), room.height)


def _even_rooms(drawn: Sequence[Cells]) -> list[Room]:
    """Side by side, cells are equally large if all maps are small, else the maps are."""
    longest = max(max(cells.values.shape) for cells in drawn)
    if all(cells.exact for cells in drawn) and longest <= CLOSE:
        side = 0.4 if longest <= NUMBERED else 0.17
        return [Room(columns * side, rows * side) for rows, columns in (cells.values.shape for cells in drawn)]
    return [_within(4.6, *cells.values.shape) for cells in drawn]


def _within(inches: float, rows: int, columns: int) -> Room:
    longest = max(rows, columns)
    return Room(*(max(inches * size / longest, 0.25 * inches) for size in (columns, rows)))


def _label_room(cells: Cells, room: Room) -> tuple[float, float]:
    rows, columns = cells.values.shape
    return ticks.beside(cells.queries, room.height / rows), ticks.above(cells.keys, room.width / columns)


def _called(source: Sight | Tensor, head: int | None, *, every: bool = False) -> str:
    number = "" if every else "mean of all heads" if head is None else f"head {head}"
    if not isinstance(source, Sight):
        many = source.ndim > 2
        return number.capitalize() if many else ""
    return f"{source.name}, {number}" if number else source.name
