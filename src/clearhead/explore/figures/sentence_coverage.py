"""Coverage of a text by its summary: for each sentence its share of the cross-attention, as bars beside the text."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clearhead.errors import RecordError
from clearhead.explore.figures import record_names, style
from clearhead.explore.figures.label_text import make_drawable, wrap_text
from clearhead.lens import Forward, Record
from clearhead.tasks.summarisation.source_coverage import SentenceCoverage, SourceCoverage, measure_coverage

TEXT_WIDTH, BAR_WIDTH = 4.6, 3.4  # inches
LINE, GAP = 0.19, 0.14  # inches: of a line of text, and between sentences
MAX_SENTENCES = 24  # of a longer text those with the most attention are drawn
MAX_LETTERS = 180  # of a sentence


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
        heights = [LINE * len(wrapped) + GAP for wrapped in lines]
        figure = style.make_figure(TEXT_WIDTH + BAR_WIDTH + 0.6, sum(heights) + 1.3)
        _draw_bars(figure.subplots(), sentences, lines, heights)
        notes = [f"{measured.attended:.0%} of the text's tokens got at least an even share of the attention."]
        if len(sentences) < len(measured.sentences):
            notes.append(f"The {len(sentences)} of {len(measured.sentences)} sentences with the most attention.")
        notes.append(style.note_missing_fonts([sentence.text for sentence in sentences]))
        style.write_title(figure, title or "What the summary covers of the text", notes)
    return figure


def record_coverage(source: Record | Forward, *, sample: int = 0) -> SourceCoverage:
    """The coverage of the source text in one recorded call, from what its tokens received in all cross-attentions."""
    forward = record_names.get_call(source)
    sights = [forward[name] for name in forward.names if forward[name].cross]
    received = [sight.received for sight in sights if sight.received is not None]
    if not sights or len(received) < len(sights):
        raise RecordError("coverage needs the measure `received` of cross-attention; record an encoder-decoder again")
    texts = record_names.get_key_texts(sights[0], sample)
    if texts is None:
        raise RecordError("the source tokens of this record are not known; label it first: record.label(source=…)")
    pieces = [text or "" for text in texts]
    last = len(pieces) - 1 if pieces and pieces[-1] == "</s>" else len(pieces)  # the end is no part of the text
    mean = torch.stack([sums[sample].double().mean(0) for sums in received]).mean(0)
    return measure_coverage(mean[:last], pieces[:last])


def _draw_bars(axes: Axes, sentences: list[SentenceCoverage], lines: list[list[str]], heights: list[float]) -> None:
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
