"""Role plot: when previous-token and induction heads appear in a language model, drawn below its loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clearhead.lens import ROLES
from clearhead.storage import atomic_file
from clearhead.train.observers import Observer, read_intact_lines

COLOURS = {"previous": "#0072b2", "induction": "#d55e00"}  # can be told apart by the colour-blind
LABELS = {"previous": "previous-token heads", "induction": "induction heads"}


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


def read_role_history(lines: list[dict[str, Any]], role: str) -> RoleHistory | None:
    """The history of a role from the lines of heads.jsonl; None if it was not measured."""
    measured = [line for line in lines if all(role in state for state in line["heads"].values())]
    if not measured:
        return None
    names = list(measured[-1]["heads"])
    heads = [(name, head) for name in names for head in range(len(measured[-1]["heads"][name][role]))]
    scores = np.array([[score for name in names for score in line["heads"][name][role]] for line in measured])
    return RoleHistory(role, [line["step"] for line in measured], scores, heads)


class RolePlot(Observer):
    """Draws roles.png at the end of a run, if the roles of heads were measured in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def close(self) -> None:
        heads = read_intact_lines(self.folder / "heads.jsonl")
        histories = [history for role in COLOURS if (history := read_role_history(heads, role)) is not None]
        if histories:
            draw_roles(read_intact_lines(self.folder / "metrics.jsonl"), histories, self.folder / "roles.png")


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
    above.set(ylabel="loss (nats)")
    if train or dev:
        above.legend(loc="upper right", frameon=False)
    for number, history in enumerate(histories):
        _draw_history(above, below, history, number)
    below.axhline(ROLES[histories[0].role].threshold, color="0.6", linewidth=0.8, linestyle=":")
    below.set(xlabel="step", ylabel="score on repeated random tokens", ylim=(0, 1.02))
    below.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), frameon=False)
    for axes in (above, below):
        axes.grid(alpha=0.25)
    with atomic_file(path) as fresh:
        figure.savefig(fresh, dpi=120, format="png")


def _draw_history(above: Any, below: Any, history: RoleHistory, number: int) -> None:
    """One role: a thin line for each head, a thick one for the best of each step, a dashed one where it appears.

    `number` is that of the role: labels of several stand below each other.
    """
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
            xytext=(4, -4 - 26 * number),
            textcoords="offset points",
            va="top",
            fontsize=8,
            color=colour,
        )
