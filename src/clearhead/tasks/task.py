"""Task: the declaration of what a task is, made of four parts with different lifetimes.

    Processor   learned from the data and stored with the model: tokenizers, labels; rows become examples
    Objective   training only: the loss, and what is fitted with the finished weights
    Answerer    frozen: predictions, scores; the options of a request come with each call
    Tracer      for the lens: the forward passes of one input, which `look` repeats

What a task cannot do is absent: a field is None, or a part is not of the class that could do it.
CONTRIBUTING.md shows how to add one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clearhead.errors import ConfigError
from clearhead.formatting import suggest_name
from clearhead.tasks.answerer import AnyAnswerer, Baseline
from clearhead.tasks.metrics import Curve
from clearhead.tasks.objective import AnyObjective
from clearhead.tasks.processor import AnyProcessor
from clearhead.tasks.settings import Options, TaskRecipe, option_names, refuse_unknown, validate
from clearhead.tasks.trace import TaskTracer
from clearhead.text.corpora import Row

Rows = Sequence[Row]


class Action(NamedTuple):
    """What a model can do beside answering, by `clearhead TASK MODEL ACTION …`: a line about it, and the function.

    The function takes the answerer, the model folder, the arguments and whether JSON is wanted; it gives the lines to
    print.
    """

    about: str
    run: Callable[[Any, Path, Sequence[str], bool], list[str]]


@dataclass(frozen=True, kw_only=True)
class Task:
    """The declaration of a task: its name, its settings and the classes of its four parts."""

    name: str
    recipe: type[TaskRecipe]  # with the task's own sections
    processor: type[AnyProcessor]
    objective: type[AnyObjective]
    answerer: type[AnyAnswerer]
    tracer: type[TaskTracer[Any]] | None
    metrics: tuple[str, ...]  # what it is scored by, beside the loss
    minimised: tuple[str, ...] = ()  # those of them that should be small, such as error rates
    input_kind: Literal["text", "picture", "sound"] = "text"  # inputs of the other kinds are files
    writes_lines: bool = False  # whether answers are texts with line breaks, which a terminal shows as they are written
    # The tables of `evaluate --report` below the scores, of the rows and their predictions.
    report: Callable[[Any, Rows, Sequence[Any]], str] | None = None
    # How many rows are answered at some thresholds, and how many of these are right, for `evaluate`.
    curve: Callable[[Any, Rows, Sequence[Any]], Curve] | None = None
    # Labels, and how many texts of each label (rows) were given each label (columns), for `evaluate --figure`.
    confusion: Callable[[Any, Rows, Sequence[Any]], tuple[list[str], NDArray[np.int64]]] | None = None
    # What a simple method scores on rows (the last argument) that learns from the same training rows.
    baseline: Callable[[Any, Rows, Rows], Baseline] | None = None
    # Whether rows with the same input have answers that exclude each other; None where there may be several answers.
    contradict: Callable[[Any, Rows], bool] | None = None
    baseline_learns: bool = True  # whether `baseline` needs the training rows
    actions: Mapping[str, Action] = field(default_factory=dict)
    # By a recipe's `objective`, where that decides the parts.
    variants: Mapping[str, Task] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("columns", "metric"):
            assert hasattr(self.processor, name), f"{self.processor.__name__} must declare its {name}"
        chosen_by = self.processor.metric
        assert chosen_by in ("loss", *self.metrics), f"metric {chosen_by!r} is none of the metrics of {self.name}"

    def select(self, objective: str | None) -> Task:
        """The variant that a recipe or a model folder names; the task itself if it has none."""
        if not self.variants:
            return self
        if objective is None or objective not in self.variants:
            raise ConfigError(f"objective {objective!r} is not known; {suggest_name(str(objective), self.variants)}")
        return self.variants[objective]

    def find_action(self, name: str) -> Action:
        if name not in self.actions:
            hint = suggest_name(name, self.actions) if self.actions else "it has none"
            raise ConfigError(f"{self.name} has no action {name!r}; {hint}")
        return self.actions[name]

    @property
    def options(self) -> type[Options]:
        """The options of predict, evaluate and look."""
        return self.answerer.options

    @property
    def option_kinds(self) -> list[type[Options]]:
        """The classes of options that models of this task may have: those of its variants."""
        return [variant.options for variant in self.variants.values()] or [self.options]

    def read_options(self, command: str, values: Mapping[str, Any]) -> Options:
        """Options by name, checked; those that a command does not have are refused, and the nearest is suggested."""
        refuse_unknown(command, values, option_names(self.options, command))
        return validate(self.options, values, command)
