"""Figures that need no model: why scores are scaled, and what positions look like."""

from __future__ import annotations

import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from torch import Tensor

from clearhead.attention import Rotary, Sinusoidal
from clearhead.errors import ConfigError
from clearhead.explore.figures import look

SCORES = 20_000


def saturation(deviations: tuple[float, float] = (100.0, 1.0), *, scores: int = SCORES, seed: int = 0) -> Figure:
    """Why scores are divided by √d: the softmax of wide scores is one peak, that of narrow ones is not.

    Above, normal scores with these standard deviations, the same draw twice; below, what the softmax makes of them.
    """
    if scores < 2 or any(not deviation > 0 for deviation in deviations):
        raise ConfigError(f"this needs at least 2 scores and deviations above 0, got {scores} and {deviations}")
    drawn = torch.randn(scores, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    with look.drawing() as theme:
        figure = look.blank(9.6, 5.6)
        grid = figure.subplots(2, 2)
        for (above, below), deviation in zip(grid.T, deviations, strict=True):
            wide = drawn * deviation
            look.plain(above)
            above.hist(wide.numpy(), bins=50, color=theme.scale(0.55))
            above.set_title(f"{scores:,} scores, standard deviation {deviation:g}")
            above.set(xlabel="score", ylabel="how many")
            _weights(below, wide.softmax(0))
        look.entitle(
            figure,
            "The softmax saturates when scores spread wide",
            [
                "A query and a key of d random features have scores of standard deviation √d: divided by √d, it is 1.",
                "Gradients pass through w(1 − w): where one weight is 1 and the others 0, nothing is learned.",
            ],
        )
    return figure


def _weights(axes: Axes, weights: Tensor) -> None:
    """The weights in their order, and in words how few share them."""
    theme = look.current()
    look.plain(axes)
    # Tens of thousands of dots would make a vector file of megabytes.
    axes.plot(weights.numpy(), color=theme.scale(0.75), linewidth=0.8, rasterized=True)
    keys = float(torch.special.entr(weights).sum().exp())
    seen = f"as if {keys:,.0f} keys were" if keys >= 1.5 else "as if one key was"
    slope = float((weights * (1 - weights)).sum())
    said = f"largest weight {float(weights.max()):.2g}, {seen} seen, Σ w(1 − w) = {slope:.1g}"
    axes.set_title(said, fontsize=look.SMALL, color=theme.quiet)
    axes.set(xlabel="key", ylabel="weight", ylim=(0, float(weights.max()) * 1.05))
    axes.ticklabel_format(axis="y", scilimits=(-3, 3))


def positional_encodings(width: int = 64, tokens: int = 128, *, base: float = 10000.0) -> Figure:
    """What positions look like: sines and cosines that are added, angles by which rotary turns, and what both do.

    On the right, how alike two positions are: the product of their sinusoids, 1 for the same. A query and a key of
    ones that rotary has turned have the same product.
    """
    places = torch.arange(tokens)
    waves = Sinusoidal(width, base)(places, torch.float64)
    rotary = Rotary(width, base)
    angles = (places[:, None].double() * rotary.speeds(places.device)).remainder(2 * torch.pi)
    alike = (waves @ waves[0]) / (waves[0] @ waves[0])
    with look.drawing() as theme:
        figure = look.blank(13.2, 4.6)
        left, middle, right = figure.subplots(1, 3)
        _field(figure, left, waves, theme.both, (-1.0, 1.0), "value")
        left.set(title="sinusoidal: added to the vectors", xlabel="feature")
        _field(figure, middle, angles, theme.around, (0.0, 2 * torch.pi), "angle (radians)")
        middle.set(title="rotary: turns pairs of q and k", xlabel="pair of features")
        look.plain(right)
        right.plot(alike.numpy(), color=theme.apart[0], linewidth=1.5)
        right.set(title="how alike two positions are", xlabel="tokens between them", ylabel="product, 1 for the same")
        right.set_xlim(0, max(tokens - 1, 1))
        note = "Fast waves tell neighbours apart, slow ones far places. Both kinds have the curve on the right."
        look.entitle(figure, f"Positions in {width} features", [note])
    return figure


def _field(
    figure: Figure, axes: Axes, values: Tensor, colours: Colormap, limits: tuple[float, float], label: str
) -> None:
    norm = Normalize(*limits)
    axes.imshow(values.numpy(), cmap=colours, norm=norm, aspect="auto", interpolation="nearest")
    axes.set_ylabel("position")
    axes.spines[:].set_visible(False)
    look.colour_bar(figure, ScalarMappable(norm, colours), axes, label)
