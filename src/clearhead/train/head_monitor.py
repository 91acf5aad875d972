"""Head monitor: measures all attention heads on a few examples during training, and draws what they did.

Three things go wrong with heads: their entropy collapses (all weight on one word, and training becomes unstable, Zhai
2023), they attend only to the first word (a sink, Xiao 2023), or they add nothing to the output (Michel 2019). In a
decoder without an encoder it also measures which heads attend to the previous token and which have become induction
heads (Olsson 2022). It is cheap enough to leave on; the results are heads.jsonl, heads.png and roles.png.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.attention import MultiHeadAttention, Seen
from clearhead.attention.call import check_call
from clearhead.lens import ROLES, measure
from clearhead.lens.analysis.norms import make_value_norms
from clearhead.lens.analysis.roles import MIN_VISIBLE, PASSAGE, draw_repeated_tokens, score_repeated_tokens
from clearhead.lens.attention_names import find_attentions
from clearhead.lens.measures.visible_keys import count_visible_keys
from clearhead.model import Decoder, Model
from clearhead.storage import atomic_file
from clearhead.tasks.processor import Examples
from clearhead.text.batches import Batch
from clearhead.text.packed_documents import PackedRows
from clearhead.train.observers import Observer, open_truncated, read_intact_lines
from clearhead.train.processes import Processes

EXAMPLES = 8  # in the batch that heads are measured on
STEPS_BETWEEN = 100  # from one measurement to the next, where the recipe does not say
MAX_TIME_SHARE = 0.02  # of the training time, above which such a measurement is left out
COLLAPSED = 0.02  # an entropy below this
SUNK = 0.95  # a sink above this
DEAD = 0.01  # a strength below this
FAINT = 0.001  # a head that adds less is dead, too, however little the other heads of its layer add

MEASURES = {
    "entropy": "entropy, of the greatest possible\n(0: looks at one word)",
    "sink": "mass on the first word\n(1: at nothing else)",
    "strength": "strength, of its layer's mean\n(0: adds nothing)",
}
COLOURS = {"previous": "#0072b2", "induction": "#d55e00"}  # can be told apart by the colour-blind
LABELS = {"previous": "previous-token heads", "induction": "induction heads"}


class HeadState(NamedTuple):
    """The measures of one attention, one number per head."""

    entropy: list[float]  # as a share of the maximum: 1 is uniform attention, 0 attention to one key
    sink: list[float]  # the mass on the first visible key
    strength: list[float]  # Σ w·‖v W_O‖, what it can add to the output, against the mean of its layer's heads
    added: list[float]  # the same for one query, against √width: the length of a vector that a norm lets out
    # Only of a decoder alone, on repeated random tokens:
    previous: list[float] | None = None  # weight on the token before
    induction: list[float] | None = None  # weight on the token that followed the same token before

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
    examples = np.flatnonzero(which.reshape(-1) == best)[:count]
    return Batch(examples, tuple(int(size) for size in kinds[best]))


@torch.no_grad()
def measure_heads(model: Model, forward: Callable[[], Any]) -> dict[str, HeadState]:
    """Measures every head in one forward pass over a batch without padding."""
    attentions, states = find_attentions(model), dict[str, HeadState]()
    with ExitStack() as stack:
        for name, attention in attentions.items():
            stack.callback(setattr, attention, "observer", attention.observer)
            attention.observer = partial(_observe, states, name, attention, attention.observer)
        # Eager: the layers are compiled for training, without observers.
        with torch.compiler.set_stance("force_eager"):
            forward()
    return {name: states[name] for name in attentions}


def _observe(
    states: dict[str, HeadState],
    name: str,
    attention: MultiHeadAttention,
    outer: Callable[[Seen], None] | None,
    seen: Seen,
) -> None:
    """Adds the state of one attention; an observer that was there before still gets the call."""
    assert name not in states, f"{name} ran twice for one loss: concatenate the texts of an example in one batch"
    if outer is not None:
        outer(seen)
    q, k, v, mask, *_ = seen
    options: Any = {"scale": seen.scale, "bias": seen.bias, "softcap": seen.softcap, "sinks": seen.sinks}
    measures = measure(q, k, mask, **options, pixels=0, top=0, logsumexp=seen.logsumexp)
    assert measures.received is not None
    norms = make_value_norms(attention.to_out, q.shape[1], name)(v)
    call = check_call(q, k, v, mask, **options)
    visible = count_visible_keys(call, range(q.shape[2])).cpu().expand(len(q), -1, -1)
    most = visible.double().clamp(min=1).log().sum((0, 2)).clamp(min=1e-9)
    entropy = measures.entropy.cpu().double().sum((0, 2)) / most
    strength = (measures.received.cpu() * norms.cpu()).double().sum((0, 2))
    relative = strength / strength.mean().clamp(min=1e-30)
    queries = max(1, q.shape[0] * q.shape[2])
    added = strength / queries / math.sqrt(attention.to_out.weight.shape[0])
    sink = measures.first.cpu().double().mean((0, 2))
    states[name] = HeadState(entropy.tolist(), sink.tolist(), relative.tolist(), added.tolist())


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
        if step % (self.every or STEPS_BETWEEN):
            return False
        counted = self.durations[1:]  # the first one includes compilation
        expensive = sum(counted + counted[-1:]) > MAX_TIME_SHARE * (time.monotonic() - self.started)
        return self.every is not None or not self.processes.agree(float(expensive))

    def measure(self, model: Model, forward: Callable[[Any], Any]) -> dict[str, HeadState]:
        """Measures the heads while `forward` runs the model on the batch."""
        started = time.monotonic()
        model.eval()
        heads = measure_heads(model, lambda: forward(self.batch))
        if isinstance(model, Decoder) and isinstance(self.batch, PackedRows):
            heads = self._add_roles(model, heads, self.batch.tokens)
        model.train()
        self.durations.append(time.monotonic() - started)
        return heads

    def _add_roles(self, model: Model, heads: dict[str, HeadState], tokens: Tensor) -> dict[str, HeadState]:
        """The states with `previous` and `induction`, measured on the probe."""
        if self.probe is None:
            # Only tokens of the data: one that no text needs, such as a rare byte, has learned nothing.
            numbers = tokens.unique().tolist()
            size = min(PASSAGE, len(numbers), tokens.shape[1] // 2)
            if size < MIN_VISIBLE:
                return heads
            chance = torch.Generator().manual_seed(self.seed)
            self.probe = draw_repeated_tokens(numbers, size, chance=chance).to(tokens.device)
        with torch.compiler.set_stance("force_eager"):
            scores = score_repeated_tokens(model, self.probe)
        roles = ("previous", "induction")
        return {name: state._replace(**{role: scores[name][role] for role in roles}) for name, state in heads.items()}


class HeadLog(Observer):
    """Writes heads.jsonl; at the end draws heads.png and, where roles were measured, roles.png."""

    def __init__(self, folder: Path, resumed_from: int) -> None:
        self.folder = folder
        self.file = open_truncated(folder / "heads.jsonl", resumed_from)

    def watched(self, step: int, heads: Mapping[str, HeadState]) -> None:
        rounded = {
            name: {field: [round(value, 4) for value in values] for field, values in state.measured().items()}
            for name, state in heads.items()
        }
        self.file.write(json.dumps({"step": step, "heads": rounded}) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()
        lines = read_intact_lines(self.folder / "heads.jsonl")
        if not lines:
            return
        draw_heads(lines, self.folder / "heads.png")
        if histories := read_role_histories(lines):
            draw_roles(read_intact_lines(self.folder / "metrics.jsonl"), histories, self.folder / "roles.png")


class RoleHistory(NamedTuple):
    """The scores of all heads in one role, at each measurement of a run."""

    role: str
    steps: list[int]
    scores: NDArray[np.float64]  # (measurements, heads)
    heads: list[tuple[str, int]]  # the attention's name and the number of the head

    @property
    def best(self) -> tuple[str, int]:
        """The head with the highest score at the end."""
        return self.heads[int(self.scores[-1].argmax())]

    @property
    def appeared(self) -> int | None:
        """The first step at which a head reaches the role's threshold, if any does."""
        reached = np.flatnonzero(self.scores.max(1) >= ROLES[self.role].threshold)
        return self.steps[reached[0]] if len(reached) else None


def read_role_histories(lines: list[dict[str, Any]]) -> list[RoleHistory]:
    """The histories of the roles that were measured, from the lines of heads.jsonl."""
    histories = []
    for role in COLOURS:
        measured = [line for line in lines if all(role in state for state in line["heads"].values())]
        if measured:
            names = list(measured[-1]["heads"])
            heads = [(name, head) for name in names for head in range(len(measured[-1]["heads"][name][role]))]
            scores = np.array([_join_heads(line, names, role) for line in measured])
            histories.append(RoleHistory(role, [line["step"] for line in measured], scores, heads))
    return histories


def draw_heads(lines: list[dict[str, Any]], path: Path) -> None:
    """Draws heads.png: one row per head, one column per measurement; dark cells deserve attention."""
    from matplotlib.figure import Figure

    steps = [line["step"] for line in lines]
    ticks = sorted({round(tick) for tick in np.linspace(0, len(steps) - 1, min(5, len(steps)))})
    names = list(lines[-1]["heads"])
    counts = [len(lines[-1]["heads"][name]["sink"]) for name in names]
    edges = np.cumsum([0, *counts])
    figure = Figure(figsize=(12, max(3.0, 1.2 + 0.09 * sum(counts) + 0.12 * len(names))), layout="constrained")
    for axes, (field, title) in zip(figure.subplots(1, 3), MEASURES.items(), strict=True):
        grid = np.array([_join_heads(line, names, field) for line in lines]).T
        palette = "cividis_r" if field == "sink" else "cividis"
        image = axes.imshow(grid, aspect="auto", interpolation="nearest", cmap=palette, vmin=0, vmax=1)
        axes.set_title(title, fontsize=10)
        axes.set_xticks(ticks, [f"{steps[tick]:,}" for tick in ticks])
        labels = names if field == "entropy" else [""] * len(names)
        axes.set_yticks((edges[:-1] + edges[1:]) / 2 - 0.5, labels, fontsize=8)
        axes.hlines(edges[1:-1] - 0.5, -0.5, len(steps) - 0.5, colors="white", linewidth=1)
        axes.set_xlabel("step")
        figure.colorbar(image, ax=axes, shrink=0.8)
    with atomic_file(path) as fresh:
        figure.savefig(fresh, dpi=120, format="png")


def draw_roles(metrics: list[dict[str, Any]], histories: list[RoleHistory], path: Path) -> None:
    """Draws the loss, and below it the scores of all heads in each role, the best head of each step as a thick line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 4])
    train = [(line["step"], line["loss"]) for line in metrics if "loss" in line]
    dev = [(line["step"], line["dev"]["loss"]) for line in metrics if "dev" in line]
    if train:
        above.plot(*zip(*train, strict=True), label="training", color="0.45")
    if dev:
        above.plot(*zip(*dev, strict=True), "o-", label="dev", color="black", markersize=4)
    if train or dev:
        above.legend(loc="upper right", frameon=False)
    above.set(ylabel="loss (nats)")
    for number, history in enumerate(histories):
        _draw_history(above, below, history, label_height=-4 - 26 * number)
    below.axhline(ROLES[histories[0].role].threshold, color="0.6", linewidth=0.8, linestyle=":")
    below.set(xlabel="step", ylabel="score on repeated random tokens", ylim=(0, 1.02))
    below.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), frameon=False)
    for axes in (above, below):
        axes.grid(alpha=0.25)
    with atomic_file(path) as fresh:
        figure.savefig(fresh, dpi=120, format="png")


def _draw_history(above: Any, below: Any, history: RoleHistory, *, label_height: int) -> None:
    """One role: a thin line for each head, a thick one for the best of each step, a dashed one where it appears."""
    colour = COLOURS[history.role]
    below.plot(history.steps, history.scores, color=colour, linewidth=0.7, alpha=0.3)
    name, head = history.best
    label = f"{LABELS[history.role]} (best at the end: {name}, head {head})"
    below.plot(history.steps, history.scores.max(1), color=colour, linewidth=2.2, label=label)
    if history.appeared is not None:
        for axes in (above, below):
            axes.axvline(history.appeared, color=colour, linewidth=1, linestyle="--")
        above.annotate(
            f"{history.role} head\nfrom step {history.appeared:,}",
            (history.appeared, 1),
            xycoords=above.get_xaxis_transform(),
            xytext=(4, label_height),
            textcoords="offset points",
            va="top",
            fontsize=8,
            color=colour,
        )


def _join_heads(line: dict[str, Any], names: list[str], field: str) -> list[float]:
    """The values of all heads in one measurement, attention by attention."""
    return [value for name in names for value in line["heads"][name][field]]
