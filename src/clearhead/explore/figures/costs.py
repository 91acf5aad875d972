"""Cost against length: time and memory of attention, measured here and now."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from clearhead.attention import attend, attention_weights
from clearhead.errors import ConfigError
from clearhead.explore.figures import look
from clearhead.lens import measure

LENGTHS = (128, 256, 512, 1024, 2048, 4096)
HEADS, FEATURES = 2, 32
PATIENCE = 0.25  # seconds: what took longer is not tried with more tokens
WAYS: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {
    "the definition: all weights": lambda q, k, v: attention_weights(q, k) @ v,
    "a fused kernel: no weights": lambda q, k, v: attend(q, k, v),
    "the lens: exact measures": lambda q, k, v: measure(q, k),
}


class Cost(NamedTuple):
    """What one way took for so many tokens: seconds, and at the most so many bytes beyond its input."""

    way: str
    tokens: int
    seconds: float
    memory: int


def measure_costs(lengths: Sequence[int] = LENGTHS, *, device: str = "cpu", patience: float = PATIENCE) -> list[Cost]:
    """Time and memory of the definition, of a fused kernel and of the lens, for growing lengths; a few seconds.

    Times are the best of three runs. A way that took longer than `patience` seconds is not tried with more tokens.
    """
    if not lengths or min(lengths) < 1:
        raise ConfigError(f"lengths must be whole numbers of at least 1, got {list(lengths)}")
    found, chance = list[Cost](), torch.Generator().manual_seed(0)
    for way, run in WAYS.items():
        for tokens in sorted(lengths):
            tensors = [torch.randn(1, HEADS, tokens, FEATURES, generator=chance).to(device) for _ in range(3)]
            job = partial(run, *tensors)
            with torch.no_grad():
                memory = _memory(job, device)  # the first run, which also warms up
                seconds = min(_seconds(job, device) for _ in range(3))
            found.append(Cost(way, tokens, seconds, memory))
            if seconds > patience:
                break
    return found


def cost(costs: Sequence[Cost] | None = None, *, title: str = "What attention costs") -> Figure:
    """Time and memory against the number of tokens, both axes logarithmic; measured now, unless `costs` are given."""
    measured = measure_costs() if costs is None else list(costs)
    if not measured:
        raise ConfigError("there are no costs to draw")
    ways = list(dict.fromkeys(one.way for one in measured))
    with look.drawing() as theme:
        figure = look.blank(10.4, 4.8)
        grid = figure.subplots(1, 2)
        quantities = ("seconds", 1e3, "time, ms"), ("memory", 1e-6, "memory, MB")
        for axes, (quantity, factor, name) in zip(grid, quantities, strict=True):
            look.plain(axes)
            for way, colour, mark in zip(ways, (theme.apart[1], theme.apart[0], theme.apart[2]), "os^", strict=False):
                own = [one for one in measured if one.way == way]
                values = [max(getattr(one, quantity) * factor, 1e-6) for one in own]
                axes.plot([one.tokens for one in own], values, marker=mark, color=colour, label=way, markersize=5)
            _logarithmic(axes, sorted({one.tokens for one in measured}))
            axes.set(xlabel="tokens", ylabel=name)
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        look.entitle(figure, title)
        words: Any = {"loc": "left", "fontsize": look.SMALL, "color": theme.quiet}
        grid[0].set_title(f"{HEADS} heads of {FEATURES} features, float32, measured here", **words)
        grid[1].set_title("beyond the input; a dashed line is the square of the length", **words)
    return figure


def _logarithmic(axes: Axes, lengths: Sequence[int]) -> None:
    """Both axes; a dashed line grows with the square of the length, from the lowest first point on."""
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_major_locator(FixedLocator(list(lengths)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    low, high = axes.get_ylim()
    first, last = lengths[0], lengths[-1]
    square = [low * 1.3, low * 1.3 * (last / first) ** 2]
    axes.plot([first, last], square, "--", color=look.current().quiet, linewidth=0.9)
    axes.set_ylim(low, high)


def _seconds(job: Callable[[], object], device: str) -> float:
    _wait(device)
    began = time.perf_counter()
    job()
    _wait(device)
    return time.perf_counter() - began


def _memory(job: Callable[[], object], device: str) -> int:
    """The most bytes that were held at a time: on a GPU as its allocator says, else as the profiler hears of it."""
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        job()
        return torch.cuda.max_memory_allocated() - before
    with _quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as heard:
        job()
    events = [event for event in heard.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


@contextmanager
def _quiet() -> Iterator[None]:
    """The profiler writes about itself, unless it is told not to."""
    before = os.environ.get("KINETO_LOG_LEVEL")
    os.environ["KINETO_LOG_LEVEL"] = "99"
    try:
        yield
    finally:
        if before is None:
            del os.environ["KINETO_LOG_LEVEL"]
        else:
            os.environ["KINETO_LOG_LEVEL"] = before


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
