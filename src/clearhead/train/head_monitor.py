"""Head monitor: measures all attention heads on a few examples during training, cheap enough to leave on.

Three things go wrong with heads: their entropy collapses (all weight on one word, and training becomes unstable, Zhai
2023), they attend only to the first word (a sink, Xiao 2023), or they add nothing to the output (Michel 2019). In a
decoder without an encoder it also measures which heads attend to the previous token and which have become induction
heads (Olsson 2022): train/role_plot.py draws them beside the loss.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.lens import Record, watch
from clearhead.lens.analysis.repeated_tokens import MIN_VISIBLE, PASSAGE, draw_repeated_tokens, score_repeated_tokens
from clearhead.lens.attention_names import find_attentions
from clearhead.model import Decoder, Model
from clearhead.storage import atomic_file
from clearhead.tasks.processor import Examples
from clearhead.text.batches import Batch
from clearhead.train.observers import Observer, open_truncated, read_intact_lines
from clearhead.train.processes import Processes

EXAMPLES = 8  # in the batch that heads are measured on
EVERY, SHARE = 100, 0.02  # steps between measurements, unless they took more than this share of the time
COLLAPSED, SUNK, DEAD = 0.02, 0.95, 0.01  # below, above and below which a head is called so
FAINT = 0.001  # dead, too, is what adds less, however little the other heads of its layer add


class HeadState(NamedTuple):
    """The measures of one attention, one number per head."""

    entropy: list[float]  # as a share of the maximum: 1 is uniform attention, 0 attention to one key
    sink: list[float]  # the mass on the first visible key
    strength: list[float]  # Σ w·‖v W_O‖, what it can add to the output, against the mean of its layer's heads
    added: list[float]  # the same for one query, against √width: the length of a vector that a norm lets out
    previous: list[float] | None = (
        None  # weight on the token before, on repeated random tokens; only of a decoder alone
    )
    induction: list[float] | None = None  # weight on the token that followed the same token before; likewise

    def measured(self) -> dict[str, list[float]]:
        """The measures by name, without those that were not taken."""
        return {name: values for name, values in self._asdict().items() if values is not None}

    def count_problems(self) -> dict[str, int]:
        """How many heads have collapsed, attend only to the first key (sunk), or add nothing (dead)."""
        return {
            "collapsed": sum(value < COLLAPSED for value in self.entropy),
            "sunk": sum(value > SUNK for value in self.sink),
            "dead": sum(
                share < DEAD or length < FAINT for share, length in zip(self.strength, self.added, strict=True)
            ),
        }


def choose_equal_lengths(lengths: NDArray[np.int64], count: int = EXAMPLES) -> Batch:
    """A batch of examples of equal lengths, so that it has no padding; close to the mean length, if there are enough.

    >>> choose_equal_lengths(np.array([[3, 4], [9, 7], [3, 4], [8, 8]]), 2)
    Batch(examples=array([0, 2]), sizes=(3, 4))
    """
    kinds, which, often = np.unique(lengths, axis=0, return_inverse=True, return_counts=True)
    enough = np.minimum(often, count)
    unusual = np.abs(kinds.sum(1) - lengths.sum(1).mean())
    best = np.lexsort((unusual, -enough))[0]
    chosen = np.flatnonzero(which.reshape(-1) == best)[:count]
    return Batch(chosen, tuple(int(size) for size in kinds[best]))


@torch.no_grad()
def measure_heads(model: Model, forward: Callable[[], Any]) -> dict[str, HeadState]:
    """Measures every head in one forward pass over a batch without padding."""
    # Eager: the layers that are compiled for training would be compiled again for the lens.
    with torch.compiler.set_stance("force_eager"), watch(model, pixels=0, top=0, norms=True) as record:
        forward()
    widths = {name: attention.to_out.weight.shape[0] for name, attention in find_attentions(model).items()}
    return dict(_summarise(record, widths))


def _summarise(record: Record, widths: Mapping[str, int]) -> Iterator[tuple[str, HeadState]]:
    for name in record.names:
        sight = record[name]
        assert sight.visible is not None, "it was measured"
        assert sight.received is not None, "it was asked for"
        assert sight.norms is not None, "it was asked for"
        most = sight.visible.double().clamp(min=1).log().sum((0, 2)).clamp(min=1e-9)
        entropy = sight.entropy.double().sum((0, 2)) / most
        strength = (sight.received * sight.norms).double().sum((0, 2))
        relative = strength / strength.mean().clamp(min=1e-30)
        queries = max(1, sight.entropy.shape[0] * sight.entropy.shape[2])
        added = strength / queries / math.sqrt(widths[name])
        sink = sight.first.double().mean((0, 2))
        yield name, HeadState(entropy.tolist(), sink.tolist(), relative.tolist(), added.tolist())


@contextmanager
def record_tokens(model: Model) -> Iterator[list[Tensor]]:
    """Context manager: the token ids that the model is called with, one tensor (batch, tokens) per call."""
    seen: list[Tensor] = []

    def keep(_: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        tokens = arguments[0] if arguments else named.get("tokens")
        if tokens is not None:
            seen.append(tokens)

    hook = model.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        yield seen
    finally:
        hook.remove()


def draw_probe(tokens: Tensor, seed: int) -> Tensor | None:
    """Repeated random tokens for `score_repeated_tokens`, drawn from those of a batch; None if it is too short.

    A token that does not occur in the data, such as a byte that no text needs, has learned nothing.
    """
    numbers = tokens.unique().tolist()
    size = min(PASSAGE, len(numbers), tokens.shape[1] // 2)
    if size < MIN_VISIBLE:
        return None
    return draw_repeated_tokens(numbers, size, chance=torch.Generator().manual_seed(seed)).to(tokens.device)


class HeadMonitor:
    """Measures all heads on one fixed batch; by default as often as a small share of the training time allows.

    The heads of a decoder without an encoder are also measured on repeated random tokens, drawn with `seed`.
    """

    def __init__(self, examples: Examples[Any], every: int | None, processes: Processes, seed: int = 0) -> None:
        self.every, self.processes, self.seed = every, processes, seed
        self.probe: Tensor | None = None  # repeated random tokens, from the first measurement on
        self.batch = examples.collate(choose_equal_lengths(examples.lengths))
        self.started, self.durations = time.monotonic(), list[float]()

    def is_due(self, step: int) -> bool:
        """Whether to measure after this step; without `every`, only while measurements are cheap."""
        if step % (self.every or EVERY):
            return False
        counted = self.durations[1:]  # the first one includes compilation
        expensive = sum(counted + counted[-1:]) > SHARE * (time.monotonic() - self.started)
        return self.every is not None or not self.processes.agree(float(expensive))

    def measure(self, model: Model, forward: Callable[[Any], Any]) -> dict[str, HeadState]:
        """Measures the heads while `forward` runs the model on the batch."""
        started = time.monotonic()
        model.eval()
        with record_tokens(model) as seen:
            heads = measure_heads(model, lambda: forward(self.batch))
        if isinstance(model, Decoder) and not model.config.cross_attention and seen:
            heads = self._add_roles(model, heads, seen[0])
        model.train()
        self.durations.append(time.monotonic() - started)
        return heads

    def _add_roles(self, model: Model, heads: dict[str, HeadState], tokens: Tensor) -> dict[str, HeadState]:
        """The states with `previous` and `induction`, measured on the probe."""
        self.probe = draw_probe(tokens, self.seed) if self.probe is None else self.probe
        if self.probe is None:
            return heads
        with torch.compiler.set_stance("force_eager"):
            scores = score_repeated_tokens(model, self.probe)
        roles = ("previous", "induction")
        return {name: state._replace(**{role: scores[name][role] for role in roles}) for name, state in heads.items()}


class HeadLog(Observer):
    """Writes heads.jsonl, and at the end heads.png."""

    def __init__(self, folder: Path, resumed_from: int) -> None:
        self.path = folder / "heads.jsonl"
        self.file = open_truncated(self.path, resumed_from)

    def watched(self, step: int, heads: Mapping[str, HeadState]) -> None:
        rounded = {
            name: {field: [round(value, 4) for value in values] for field, values in state.measured().items()}
            for name, state in heads.items()
        }
        self.file.write(json.dumps({"step": step, "heads": rounded}) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()
        if lines := read_intact_lines(self.path):
            draw_heads(lines, self.path.with_suffix(".png"))


def draw_heads(lines: list[dict[str, Any]], path: Path) -> None:
    """Draws heads.png: one row per head, one column per measurement; dark cells deserve attention."""
    from matplotlib.figure import Figure

    steps = [line["step"] for line in lines]
    names = list(lines[-1]["heads"])
    titles = {
        "entropy": "entropy, of the greatest possible\n(0: looks at one word)",
        "sink": "mass on the first word\n(1: at nothing else)",
        "strength": "strength, of its layer's mean\n(0: adds nothing)",
    }
    counts = [len(lines[-1]["heads"][name]["sink"]) for name in names]
    figure = Figure(figsize=(12, max(3.0, 1.2 + 0.09 * sum(counts) + 0.12 * len(names))), layout="constrained")
    for axes, (field, title) in zip(figure.subplots(1, 3), titles.items(), strict=True):
        grid = np.array([[value for name in names for value in line["heads"][name][field]] for line in lines]).T
        palette = "cividis_r" if field == "sink" else "cividis"
        image = axes.imshow(grid, aspect="auto", interpolation="nearest", cmap=palette, vmin=0, vmax=1)
        axes.set_title(title, fontsize=10)
        axes.set_xticks(*_pick_ticks(steps))
        edges = np.cumsum([0, *counts])
        axes.set_yticks(
            (edges[:-1] + edges[1:]) / 2 - 0.5, names if field == "entropy" else [""] * len(names), fontsize=8
        )
        axes.hlines(edges[1:-1] - 0.5, -0.5, len(steps) - 0.5, colors="white", linewidth=1)
        axes.set_xlabel("step")
        figure.colorbar(image, ax=axes, shrink=0.8)
    with atomic_file(path) as fresh:
        figure.savefig(fresh, dpi=120, format="png")


def _pick_ticks(steps: list[int]) -> tuple[list[int], list[str]]:
    """The positions and labels of at most five ticks."""
    places = sorted({round(place) for place in np.linspace(0, len(steps) - 1, min(5, len(steps)))})
    return places, [f"{steps[place]:,}" for place in places]
