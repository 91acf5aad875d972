"""Figures for a lesson, without a model: softmax saturation, positional encodings, and the cost of attention."""

from __future__ import annotations

import os
import timeit
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import matplotlib
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from clearhead.attention import Rotary, Sinusoidal, attend, attention_weights
from clearhead.errors import ConfigError
from clearhead.explore.figures import style
from clearhead.lens import measure

SCORES, DEVIATIONS = 20_000, (100.0, 1.0)
LENGTHS = (128, 256, 512, 1024, 2048, 4096)
HEADS, FEATURES = 2, 32
# Of lines, by whether the background is dark; after Paul Tol: they stay apart for the colour-blind.
COLOURS = {False: ("#332288", "#cc6677", "#117733"), True: ("#77aadd", "#ee8866", "#44bb99")}
MAX_SECONDS = 0.25  # a method that took longer is not tried with more tokens
METHODS: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {
    "the definition: all weights": lambda q, k, v: attention_weights(q, k) @ v,
    "a fused kernel: no weights": lambda q, k, v: attend(q, k, v),
    "the lens: exact measures": lambda q, k, v: measure(q, k),
}


def saturation() -> Figure:
    """Why scores are divided by √d: the softmax of scores with a large deviation saturates.

    Above, histograms of normal scores with the standard deviations 100 and 1; below, their softmax.
    """
    scores = torch.randn(SCORES, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with style.figure_style() as theme:
        figure = style.make_figure(9.6, 5.6)
        grid = figure.subplots(2, 2)
        for (above, below), deviation in zip(grid.T, DEVIATIONS, strict=True):
            _remove_box(above)
            above.hist((scores * deviation).numpy(), bins=50, color=theme.sequential(0.55))
            above.set_title(f"{SCORES:,} scores, standard deviation {deviation:g}")
            above.set(xlabel="score", ylabel="how many")
            _draw_weights(below, (scores * deviation).softmax(0))
        notes = [
            "A query and a key of d random features have scores of standard deviation √d: divided by √d, it is 1.",
            "Gradients pass through w(1 − w): where one weight is 1 and the others 0, nothing is learned.",
        ]
        style.write_title(figure, "The softmax saturates when scores spread wide", notes)
    return figure


def _draw_weights(axes: Axes, weights: Float[Tensor, " keys"]) -> None:
    """Plots the weights, with their perplexity and the sum of gradients in the title."""
    theme = style.current_theme()
    _remove_box(axes)
    # As vectors, tens of thousands of points would make megabytes.
    axes.plot(weights.numpy(), color=theme.sequential(0.75), linewidth=0.8, rasterized=True)
    keys = float(torch.special.entr(weights).sum().exp())
    effective = f"{keys:,.0f} effective keys" if keys >= 1.5 else "1 effective key"
    slope = float((weights * (1 - weights)).sum())
    title = f"largest weight {float(weights.max()):.2g}, {effective}, Σ w(1 − w) = {slope:.1g}"
    axes.set_title(title, fontsize=style.SMALL, color=theme.muted)
    axes.set(xlabel="key", ylabel="weight", ylim=(0, float(weights.max()) * 1.05))
    axes.ticklabel_format(axis="y", scilimits=(-3, 3))


def positional_encodings(width: int = 64, tokens: int = 128) -> Figure:
    """Positional encodings: sinusoidal values, rotary angles, and the similarity of two positions.

    The similarity is the product of two sinusoids, normalised to 1 for equal positions; a query and a key of ones after
    rotary have the same product.
    """
    positions = torch.arange(tokens)
    waves = Sinusoidal(width)(positions, torch.float64)
    angles = (positions[:, None].double() * Rotary(width).speeds(positions.device)).remainder(2 * torch.pi)
    similar = (waves @ waves[0]) / (waves[0] @ waves[0])
    with style.figure_style() as theme:
        figure = style.make_figure(13.2, 4.6)
        left, middle, right = figure.subplots(1, 3)
        _draw_field(figure, left, waves, theme.diverging, (-1.0, 1.0), "value")
        left.set(title="sinusoidal: added to the vectors", xlabel="feature")
        _draw_field(figure, middle, angles, matplotlib.colormaps["twilight"], (0.0, 2 * torch.pi), "angle (radians)")
        middle.set(title="rotary: rotates pairs of q and k", xlabel="pair of features")
        _remove_box(right)
        right.plot(similar.numpy(), color=COLOURS[theme.dark][0], linewidth=1.5)
        right.set(title="similarity of two positions", xlabel="distance in tokens", ylabel="product, 1 for equal")
        right.set_xlim(0, max(tokens - 1, 1))
        note = (
            "High frequencies separate neighbours, low ones distant positions. The curve on the right holds for both."
        )
        style.write_title(figure, f"Positions in {width} features", [note])
    return figure


def _draw_field(
    figure: Figure,
    axes: Axes,
    values: Float[Tensor, "positions features"],
    colours: Colormap,
    limits: tuple[float, float],
    label: str,
) -> None:
    norm = Normalize(*limits)
    axes.imshow(values.numpy(), cmap=colours, norm=norm, aspect="auto", interpolation="nearest")
    axes.set_ylabel("position")
    axes.spines[:].set_visible(False)
    style.add_colour_bar(figure, ScalarMappable(norm, colours), axes, label)


class Cost(NamedTuple):
    """Time and peak memory beyond the input, in bytes, of one method at one sequence length."""

    method: str
    tokens: int
    seconds: float
    memory: int


def measure_costs(lengths: Sequence[int] = LENGTHS) -> list[Cost]:
    """Measures time and memory of the definition, a fused kernel and the lens for growing lengths; takes seconds.

    Times are the best of three runs. A method that took longer than 0.25 s is not tried with more tokens.
    """
    costs, generator = list[Cost](), torch.Generator().manual_seed(0)
    for method, run in METHODS.items():
        for tokens in sorted(lengths):
            tensors = [torch.randn(1, HEADS, tokens, FEATURES, generator=generator) for _ in range(3)]
            job = partial(run, *tensors)
            with torch.no_grad():
                memory = _measure_memory(job)  # the first run, which also warms up
                seconds = min(timeit.repeat(job, number=1, repeat=3))
            costs.append(Cost(method, tokens, seconds, memory))
            if seconds > MAX_SECONDS:
                break
    return costs


def cost(costs: Sequence[Cost] | None = None) -> Figure:
    """Time and memory against the number of tokens, on logarithmic axes; measured now unless `costs` are given."""
    measured = measure_costs() if costs is None else list(costs)
    if not measured:
        raise ConfigError("there are no costs to draw")
    lengths, methods = sorted({point.tokens for point in measured}), dict.fromkeys(point.method for point in measured)
    with style.figure_style() as theme:
        figure = style.make_figure(10.4, 4.8)
        grid = figure.subplots(1, 2)
        quantities = ("seconds", 1e3, "time, ms"), ("memory", 1e-6, "memory, MB")
        for axes, (quantity, factor, name) in zip(grid, quantities, strict=True):
            _remove_box(axes)
            for method, colour, mark in zip(methods, COLOURS[theme.dark], "os^", strict=False):
                points = [point for point in measured if point.method == method]
                values = [max(getattr(point, quantity) * factor, 1e-6) for point in points]
                tokens = [point.tokens for point in points]
                axes.plot(tokens, values, marker=mark, color=colour, label=method, markersize=5)
            _set_log_axes(axes, lengths)
            axes.set(xlabel="tokens", ylabel=name)
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        style.write_title(figure, "What attention costs")
        words: Any = {"loc": "left", "fontsize": style.SMALL, "color": theme.muted}
        grid[0].set_title(f"{HEADS} heads of {FEATURES} features, float32, measured here", **words)
        grid[1].set_title("beyond the input; a dashed line is the square of the length", **words)
    return figure


def _set_log_axes(axes: Axes, lengths: Sequence[int]) -> None:
    """Makes both axes logarithmic and adds a dashed line that grows with the square of the length."""
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_major_locator(FixedLocator(list(lengths)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    low, high = axes.get_ylim()
    first, last = lengths[0], lengths[-1]
    square = [low * 1.3, low * 1.3 * (last / first) ** 2]
    axes.plot([first, last], square, "--", color=style.current_theme().muted, linewidth=0.9)
    axes.set_ylim(low, high)


def _measure_memory(job: Callable[[], object]) -> int:
    """Peak memory in bytes, from the profiler."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own log output
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        job()
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def _remove_box(axes: Axes) -> None:
    """Removes the box and adds grid lines."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color=style.current_theme().grid, linewidth=0.6)
    axes.set_axisbelow(True)
