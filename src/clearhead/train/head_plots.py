"""What the heads did during training: heads.jsonl, and at the end heads.png and roles.png."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clearhead.lens import ROLES
from clearhead.storage import atomic_file
from clearhead.train.head_monitor import HeadState
from clearhead.train.observers import Observer, open_truncated, read_intact_lines

MEASURES = {
    "entropy": "entropy, of the greatest possible\n(0: looks at one word)",
    "sink": "mass on the first word\n(1: at nothing else)",
    "strength": "strength, of its layer's mean\n(0: adds nothing)",
}
COLOURS = {"previous": "#0072b2", "induction": "#d55e00"}  # can be told apart by the colour-blind
LABELS = {"previous": "previous-token heads", "induction": "induction heads"}


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
