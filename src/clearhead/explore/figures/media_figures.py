"""Figures of pictures and sounds: the patches that each word looks at, the moments that each letter looks at."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_rgb
from matplotlib.figure import Figure

from clearhead.errors import RecordError
from clearhead.explore.figures import style
from clearhead.explore.figures.label_text import make_labels, measure_width
from clearhead.explore.figures.weight_grid import MAX_LABELS, make_grid
from clearhead.explore.token_axis import read_media
from clearhead.lens import Sight
from clearhead.tasks.media import PictureInput, SoundInput

VEIL = 0.66  # share of the veil's colour in patches without weight
VEILS = {False: "#cdc9c0", True: "#14161b"}  # the colours on light and dark ground, as in the page
FULL = 8.0  # times the even weight, from which on a patch has its full colours
MAX_COLUMNS = 8
MAX_WORDS = 64
PANEL = 1.25  # inches of the longer side of a picture
SOUND_WIDTH = 8.4  # inches, of which 1.6 are for labels


class _Words(NamedTuple):
    """The words that were written, and the weights of each: one for every patch or position."""

    labels: list[str]
    texts: Sequence[str | None]
    weights: Float[np.ndarray, "words keys"]


def word_overlays(sight: Sight, head: int | None = None, *, sample: int = 0, title: str | None = None) -> Figure:
    """The picture once for each word, in colour where the word looks; by default the mean of all heads.

    Patches lose their colours as their weight falls; a word with even attention leaves all of them pale.
    """
    media, words = _read_picture(sight), _read_words(sight, head, sample)
    shown = min(len(words.labels), MAX_WORDS)
    rows = ceil((shown + 1) / MAX_COLUMNS)
    columns = ceil((shown + 1) / rows)
    with style.figure_style():
        height, width = media.pixels.shape[:2]
        wide, high = (PANEL * size / max(height, width) for size in (width, height))
        figure = style.make_figure(columns * (wide + 0.1) + 0.4, rows * (high + 0.32) + 1.0, boxes=True)
        grid = figure.subplots(rows, columns, squeeze=False)
        _draw_picture(grid.flat[0], media.pixels, "")
        for axes, label, weights in zip(grid.flat[1:], words.labels[:shown], words.weights, strict=False):
            _draw_picture(axes, blend_overlay(media, weights), label)
        for axes in grid.flat[shown + 1 :]:
            axes.set_axis_off()
        cut = f"The first {shown} of {len(words.labels)} words." if shown < len(words.labels) else ""
        style.write_title(figure, title, [cut, style.note_missing_fonts(words.texts), style.CAVEAT])
    return figure


def sound_alignment(sight: Sight, head: int | None = None, *, sample: int = 0, title: str | None = None) -> Figure:
    """A spectrogram, CTC's spikes, and below on the same time what each letter looks at in a head.

    By default the mean of all heads.
    """
    media, words = _read_media(sight), _read_words(sight, head, sample)
    if not isinstance(media, SoundInput):
        raise RecordError(f"the record of {sight.name!r} contains no sound")
    heights = [1.5, *([0.5] if media.spikes else []), min(max(0.21 * len(words.labels), 0.9), 7.0)]
    with style.figure_style() as theme:
        figure = style.make_figure(SOUND_WIDTH, sum(heights) + 1.5)
        stack = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        _draw_spectrogram(stack[0], media)
        if media.spikes:
            _draw_spikes(stack[1], media, SOUND_WIDTH - 1.6)
        norm = style.make_norm(float(words.weights.max()), False)
        _draw_letters(stack[-1], media, words, norm)
        style.add_colour_bar(figure, ScalarMappable(norm, theme.sequential), stack[-1], "attention weight")
        style.write_title(figure, title, [style.note_missing_fonts(words.texts), style.CAVEAT])
    return figure


def _draw_letters(axes: Axes, media: SoundInput, words: _Words, norm: Normalize) -> None:
    """A row for each letter, a column for each position in time."""
    count, theme = len(words.labels), style.current_theme()
    edges = media.start + np.arange(words.weights.shape[1] + 1) * media.position_seconds
    rows = np.arange(count + 1) - 0.5
    axes.pcolormesh(edges, rows, words.weights, cmap=theme.sequential, norm=norm, rasterized=True)
    heard = media.start + len(media.spectrogram) * media.frame_seconds
    axes.set(ylim=(count - 0.5, -0.5), xlim=(media.start, max(edges[-1], heard)))
    step = ceil(count / MAX_LABELS)
    axes.set_yticks(range(0, count, step), words.labels[::step], fontsize=style.SMALL)
    axes.set_xlabel("seconds", fontsize=style.SMALL, color=theme.muted)
    axes.spines[:].set_visible(False)


def blend_overlay(media: PictureInput, weights: Float[np.ndarray, " keys"]) -> UInt8[np.ndarray, "height width 3"]:
    """The picture, grey and faded where the weights of its patches are small; tokens before the patches are ignored."""
    patches = media.rows * media.columns
    weights = weights[len(weights) - patches :]
    most = max(float(weights.max()), 1e-12)
    strength = min(max(most * patches / FULL, 0.12), 1.0)
    shares = (strength * weights / most).clip(0, 1).reshape(media.rows, media.columns) ** 0.6
    height, width = media.pixels.shape[:2]
    down, across = (np.arange(size) * cells // size for size, cells in ((height, media.rows), (width, media.columns)))
    share = shares[np.ix_(down, across)][:, :, None]
    pixels = media.pixels.astype(np.float64)
    grey = pixels @ np.array([[0.299], [0.587], [0.114]])
    pale = grey * (1 - VEIL) + 255 * np.array(to_rgb(VEILS[style.current_theme().dark])) * VEIL
    blended: UInt8[np.ndarray, "height width 3"] = (pale * (1 - share) + pixels * share).round().astype(np.uint8)
    return blended


def _read_picture(sight: Sight) -> PictureInput:
    media = _read_media(sight)
    if not isinstance(media, PictureInput) or media.rows * media.columns > sight.keys:
        raise RecordError(f"the record of {sight.name!r} contains no picture")
    return media


def _read_media(sight: Sight) -> PictureInput | SoundInput | None:
    if sight.forward is None:
        raise RecordError(f"{sight.name!r} belongs to no recorded call, so its picture or sound is not known")
    return read_media(sight.forward)


def _read_words(sight: Sight, head: int | None, sample: int) -> _Words:
    """The written words and their weights; keys that share a cell of the map share its weight evenly."""
    grid = make_grid(sight, head, sample=sample)
    block = grid.keys.block
    weights = np.repeat(grid.values / block, block, axis=1)[:, : sight.keys]
    texts = grid.queries.texts or [str(position) for position in grid.queries.positions]
    texts = list(texts)[:: grid.queries.block]
    return _Words(make_labels(texts), texts, weights)


def _draw_picture(axes: Axes, pixels: UInt8[np.ndarray, "height width 3"], label: str) -> None:
    axes.imshow(pixels, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(visible=True, color=style.current_theme().grid)
    axes.set_title(label, fontsize=style.SMALL, pad=3)


def _draw_spectrogram(axes: Axes, media: SoundInput) -> None:
    theme = style.current_theme()
    frames, mels = media.spectrogram.shape
    low, high = np.quantile(media.spectrogram, (0.2, 0.999))
    axes.imshow(
        media.spectrogram.T,
        cmap=LinearSegmentedColormap.from_list("ink", [theme.background, theme.text]),
        vmin=low,
        vmax=max(high, low + 1e-9),
        origin="lower",
        aspect="auto",
        extent=(media.start, media.start + frames * media.frame_seconds, 0, mels),
        interpolation="nearest",
    )
    axes.set(yticks=[])
    axes.tick_params(labelbottom=False)
    axes.set_ylabel("mel bands", fontsize=style.SMALL, color=theme.muted)


def _draw_spikes(axes: Axes, media: SoundInput, inches: float) -> None:
    theme = style.current_theme()
    times = [media.start + (position + 0.5) * media.position_seconds for position, _, _ in media.spikes]
    axes.vlines(times, 0, [chance for _, _, chance in media.spikes], color=theme.highlight, linewidth=1.4)
    for time, label, chance in _join_spikes(media, inches):
        axes.text(time, chance + 0.06, label, ha="center", va="bottom", fontsize=style.SMALL)
    axes.set(ylim=(0, 1.75), yticks=[])
    axes.spines[["top", "left", "right"]].set_visible(False)
    axes.tick_params(labelbottom=False)
    axes.set_ylabel("CTC", fontsize=style.SMALL, color=theme.muted)


def _join_spikes(media: SoundInput, inches: float) -> list[tuple[float, str, float]]:
    """Times, labels and heights of CTC's spikes: letters that would overlap are joined, repeated ones written once."""
    second = inches / (len(media.spectrogram) * media.frame_seconds)
    groups: list[tuple[float, float, str, float]] = []  # first and last time, text, height
    before = (-2, "")
    for position, text, chance in media.spikes:
        time, again = media.start + (position + 0.5) * media.position_seconds, before == (position - 1, text)
        before = (position, text)
        if groups:
            first, last, joined, height = groups[-1]
            room = sum(measure_width(_label_spike(label), style.SMALL) for label in (joined, text)) / 2 + 0.04
            if again or (time - (first + last) / 2) * second < room:
                groups[-1] = (first, time, joined + ("" if again else text), max(height, chance))
                continue
        groups.append((time, time, text, chance))
    return [((first + last) / 2, _label_spike(text), height) for first, last, text, height in groups]


def _label_spike(text: str) -> str:
    return make_labels([text.replace("▁", " ").strip() or " "])[0]
