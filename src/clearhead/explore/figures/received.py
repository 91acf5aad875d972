"""What tokens receive: the text shaded by it, and bars below."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from torch import Tensor

from clearhead.errors import RecordError, ShapeError
from clearhead.explore.figures import fonts, look, naming, ticks
from clearhead.explore.figures.cells import Axis, Tokens, heads_of, weights_of
from clearhead.explore.figures.labels import labels, shown
from clearhead.explore.words import words
from clearhead.lens import Sight

SHADED = 400  # tokens: a longer text would fill pages
WIDTH = 8.4  # inches
LINE, LETTERS = 0.28, 10.0  # inches of a line of text, points of its letters
PEAKS = 8  # tokens of a long text that are named


def received(
    source: Sight | Tensor,
    head: int | None = None,
    *,
    sample: int = 0,
    tokens: Tokens = None,
    title: str | None = None,
) -> Figure:
    """How much attention each token gets from all queries together: the text shaded by it, and as bars.

    Without a head, the mean of all heads. `source` is a Sight, or weights as `head_map` takes them. A text of more
    than 400 tokens is drawn as a profile, in which those that receive most are named.
    """
    values = _received(source, head, sample)
    if isinstance(source, Sight) and tokens is None:
        tokens = naming.key_texts(source, sample)
    if not len(values) or (tokens is not None and len(tokens) < len(values)):
        raise ShapeError(f"{0 if tokens is None else len(tokens)} tokens are given for {len(values)} keys")
    axis = Axis(range(len(values)), 1, None if tokens is None else tokens[: len(values)])
    named = _called(source, head) if title is None else title
    with look.drawing():
        lines = _lines(axis.texts) if axis.texts is not None and len(values) <= SHADED else []
        figure = look.blank(WIDTH + 0.9, LINE * len(lines) + 3.2)
        norm = look.norm_of(float(values.max()), exact=False)
        rows = [LINE * len(lines), 2.0] if lines else [2.0]
        *above, below = figure.subplots(len(rows), 1, height_ratios=rows, squeeze=False).flat
        for axes in above:
            _shade(axes, lines, values, norm)
        _bars(below, axis, values, norm)
        if not lines and not axis.labelled:
            _name_peaks(below, axis, values)
        look.entitle(figure, named, [look.font_note(axis.texts or ())])
    return figure


def shaded_text(values: Sequence[float] | Tensor, tokens: Sequence[str | None], *, title: str | None = None) -> Figure:
    """A text whose tokens are shaded by numbers from 0 on, such as what one token looks at."""
    numbers = np.asarray(values, dtype=float)
    if len(numbers) != len(tokens) or not len(tokens):
        raise ShapeError(f"{len(numbers)} numbers for {len(tokens)} tokens; give one for each")
    with look.drawing():
        lines = _lines(tokens)
        figure = look.blank(WIDTH + 0.4, LINE * len(lines) + 0.9)
        _shade(figure.subplots(), lines, numbers, look.norm_of(float(numbers.max()), exact=False))
        look.entitle(figure, title, [look.font_note(tokens)])
    return figure


def _received(source: Sight | Tensor, head: int | None, sample: int) -> NDArray[np.float64]:
    if not isinstance(source, Sight):
        sums = weights_of(source, head, sample).sum(0)
    else:
        if source.received is None:
            raise RecordError(f"what keys received was not measured of {source.name!r}")
        wanted = [source.place_of(one) for one in (heads_of(source) if head is None else [head])]
        sums = source.received[sample, wanted].double().mean(0)
    values: NDArray[np.float64] = sums.numpy()
    return values


Placed = tuple[int, str, float, float]  # the token's number, what is written, where it begins, how wide it is


def _lines(tokens: Sequence[str | None]) -> list[list[Placed]]:
    """Words in lines, as a text is set: pieces of one word touch each other, unless the line is full."""
    lines: list[list[Placed]] = [[]]
    end = 0.0
    for place, (token, word) in enumerate(zip(tokens, words([one or "" for one in tokens]), strict=True)):
        said = shown(word.shown if token else "", 24)
        wide = fonts.width(said, LETTERS) + 0.1
        begin = end + (0.0 if word.glued else 0.07) if lines[-1] else 0.0
        if lines[-1] and begin + wide > WIDTH:
            lines.append([])
            begin = 0.0
        lines[-1].append((place, said, begin, wide))
        end = begin + wide
    return lines


def _shade(axes: Axes, lines: Sequence[Sequence[Placed]], values: NDArray[np.float64], norm: Normalize) -> None:
    scale = look.current().scale
    for row, line in enumerate(lines):
        for place, said, begin, wide in line:
            colour = scale(norm(values[place]))
            axes.add_patch(Rectangle((begin, row + 0.06), wide, 0.88, facecolor=colour, edgecolor=look.current().paper))
            ink = look.ink_on(colour)
            axes.text(begin + wide / 2, row + 0.5, said, ha="center", va="center", fontsize=LETTERS, color=ink)
    axes.set(xlim=(-0.02, WIDTH), ylim=(len(lines), 0))
    axes.set_axis_off()


def _bars(axes: Axes, axis: Axis, values: NDArray[np.float64], norm: Normalize) -> None:
    look.plain(axes)
    axes.grid(False, axis="x")
    theme, count = look.current(), len(values)
    places = np.arange(count)
    if axis.labelled:
        axes.bar(places, values, width=0.8, color=theme.scale(norm(values)), edgecolor=theme.faint, linewidth=0.6)
    else:
        axes.fill_between(places, values, step="mid", color=theme.scale(0.72), linewidth=0)
    axes.axhline(float(values.mean()), color=theme.quiet, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.annotate("mean", (1.0, float(values.mean())), xycoords=("axes fraction", "data"), xytext=(3, 0),
                  textcoords="offset points", va="center", fontsize=look.SMALL, color=theme.quiet)  # fmt: skip
    axes.set(xlim=(-0.6, count - 0.4), ylabel="attention received")
    axes.set_ylim(bottom=0)
    ticks.write_keys(axes, axis, WIDTH / count, top=False)


def _name_peaks(axes: Axes, axis: Axis, values: NDArray[np.float64]) -> None:
    """The tokens that receive most, if their names do not run into each other."""
    if axis.texts is None:
        return
    names, taken = labels(axis.texts), list[int]()
    for place in np.argsort(-values, kind="stable").tolist():
        if len(taken) == PEAKS:
            break
        if all(abs(place - other) > len(values) / 30 for other in taken):
            taken.append(place)
            axes.annotate(f"{names[place]}", (place, values[place]), xytext=(0, 3), textcoords="offset points",
                          ha="center", va="bottom", rotation=90, fontsize=look.SMALL, parse_math=False)  # fmt: skip
    axes.margins(y=0.45)


def _called(source: Sight | Tensor, head: int | None) -> str:
    number = "mean of all heads" if head is None else f"head {head}"
    return f"Attention received: {source.name}, {number}" if isinstance(source, Sight) else "Attention received"
