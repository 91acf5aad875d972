"""Attention received by each token, as bars and shades of the text, and by each sentence of a summarised text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from clearhead.errors import RecordError, ShapeError
from clearhead.explore.figures import style, tick_labels
from clearhead.explore.figures.label_text import make_drawable, make_labels, measure_width, wrap_text
from clearhead.explore.figures.weight_grid import (
    GridAxis,
    Source,
    Texts,
    describe_heads,
    get_call,
    get_key_texts,
    list_heads,
    select_weights,
)
from clearhead.explore.token_axis import display_tokens
from clearhead.lens import Forward, Record, Sight
from clearhead.tasks.summarisation.source_coverage import SentenceCoverage, SourceCoverage, measure_coverage

MAX_SHADED = 400  # tokens
WIDTH = 8.4  # inches
LINE, FONT_SIZE = 0.28, 10.0  # inches, points
PEAKS = 8  # tokens of a long text that are labelled
MAX_BARS = 400  # of a long text, so that each is wide enough to be seen
MAX_RATIO = 30  # of the largest value to the mean, above which the scale is logarithmic
TEXT_WIDTH, BAR_WIDTH = 4.6, 3.4  # inches: of the sentences of a text, and of their shares
TEXT_LINE, SENTENCE_GAP = 0.19, 0.14  # inches
MAX_SENTENCES = 24  # of a longer text those with the most attention are drawn
MAX_LETTERS = 180  # of a sentence


def received(
    source: Source, head: int | None = None, *, sample: int = 0, tokens: Texts = None, title: str | None = None
) -> Figure:
    """The sum over all queries of the weight on each token: as shades of the text, and as bars.

    By default the mean of all heads. `source` is a Sight, or weights as for `head_map`. Of a text of more than 400
    tokens a bar shows the largest and the mean of several tokens, and the tokens that receive most are labelled.
    """
    values = _sum_received(source, head, sample)
    if isinstance(source, Sight) and tokens is None:
        tokens = get_key_texts(source, sample)
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
        wide = measure_width(text, FONT_SIZE) + 0.1
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


def coverage(source: Record | Forward, *, sample: int = 0, title: str | None = None) -> Figure:
    """Each sentence of the source, its share of the decoder's cross-attention, and how many tokens were attended to.

    The attention is the mean of all heads of all decoder layers, summed over the tokens of the answer. A text of more
    than 24 sentences is drawn by the 24 with the most attention.
    """
    measured = record_coverage(source, sample=sample)
    ranked = sorted(measured.sentences, key=lambda sentence: -sentence.attention)[:MAX_SENTENCES]
    sentences = sorted(ranked, key=lambda sentence: sentence.tokens.start)
    with style.figure_style():
        texts = [make_drawable(sentence.text, MAX_LETTERS) for sentence in sentences]
        lines = [wrap_text(text, TEXT_WIDTH, style.TEXT) or [""] for text in texts]
        heights = [TEXT_LINE * len(wrapped) + SENTENCE_GAP for wrapped in lines]
        figure = style.make_figure(TEXT_WIDTH + BAR_WIDTH + 0.6, sum(heights) + 1.3)
        _draw_shares(figure.subplots(), sentences, lines, heights)
        notes = [f"{measured.attended:.0%} of the text's tokens got at least an even share of the attention."]
        if len(sentences) < len(measured.sentences):
            notes.append(f"The {len(sentences)} of {len(measured.sentences)} sentences with the most attention.")
        notes.append(style.note_missing_fonts([sentence.text for sentence in sentences]))
        style.write_title(figure, title or "What the summary covers of the text", notes)
    return figure


def record_coverage(source: Record | Forward, *, sample: int = 0) -> SourceCoverage:
    """The coverage of the source text in one recorded call, from what its tokens received in all cross-attentions."""
    forward = get_call(source)
    sights = [forward[name] for name in forward.names if forward[name].cross]
    received = [sight.received for sight in sights if sight.received is not None]
    if not sights or len(received) < len(sights):
        raise RecordError("coverage needs the measure `received` of cross-attention; record an encoder-decoder again")
    texts = get_key_texts(sights[0], sample)
    if texts is None:
        raise RecordError("the source tokens of this record are not known; label it first: record.label(source=…)")
    pieces = [text or "" for text in texts]
    last = len(pieces) - 1 if pieces and pieces[-1] == "</s>" else len(pieces)  # the end is no part of the text
    mean = torch.stack([sums[sample].double().mean(0) for sums in received]).mean(0)
    return measure_coverage(mean[:last], pieces[:last])


def _draw_shares(axes: Axes, sentences: list[SentenceCoverage], lines: list[list[str]], heights: list[float]) -> None:
    theme, top = style.current_theme(), 0.0
    largest = max((sentence.attention for sentence in sentences), default=0.0) or 1.0
    begin, scale = TEXT_WIDTH + 0.15, (BAR_WIDTH - 1.55) / largest
    small: Any = {"fontsize": style.SMALL, "color": theme.muted}
    for sentence, wrapped, height in zip(sentences, lines, heights, strict=True):
        text, middle, length = "\n".join(wrapped), top + height / 2, sentence.attention * scale
        axes.text(TEXT_WIDTH, middle, text, ha="right", va="center", fontsize=style.TEXT, parse_math=False)
        colour = theme.sequential(0.15 + 0.75 * sentence.attention / largest)
        axes.barh(middle, length, left=begin, height=min(0.3, height * 0.7), color=colour)
        tokens = sentence.tokens.stop - sentence.tokens.start
        label = f"{sentence.attention:.0%} · {round(sentence.attended * tokens)} of {tokens} tokens"
        axes.text(begin + length + 0.08, middle, label, va="center", **small)
        top += height
    axes.plot([begin, begin], [0, top], color=theme.grid, linewidth=1.0)
    axes.set(xlim=(0, TEXT_WIDTH + BAR_WIDTH), ylim=(top or 1.0, 0))
    axes.set_axis_off()
    axes.text(begin, -0.12, "share of the attention · tokens attended to", **small)
