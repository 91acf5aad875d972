"""Observers: callbacks of a training run that print progress and write logs and plots; users may add their own."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from clearhead.formatting import escape_control, format_duration
from clearhead.model import Model
from clearhead.storage import atomic_file

if TYPE_CHECKING:
    from clearhead.train.head_monitor import HeadState

QUIET = 30.0  # seconds between printed lines, at least, where there is no progress bar


class Sample(NamedTuple):
    """One row of dev: the input, the model's answer, and the right answer."""

    shown_input: str
    answer: str
    right: str


class Moment(NamedTuple):
    """The argument of an observer's callbacks: the step, the model, and the metrics."""

    step: int
    steps: int
    model: Model
    metrics: dict[str, float | str]
    tokens: int  # trained on since the beginning, without pads
    seconds: float  # since the beginning
    done: float  # of the whole, from 0 to 1
    best: float | None  # the best score on dev so far; a loss has a minus before it
    samples: Sequence[Sample] = ()  # at an evaluation: a few answers


class Observer:
    """Base class of observers: override the callbacks that you need."""

    def logged(self, moment: Moment) -> None:
        """Every `train.log_every` steps."""

    def progressed(self, moment: Moment) -> None:
        """Every few seconds between them, if steps take long."""

    def evaluated(self, moment: Moment) -> None:
        """After each evaluation on dev."""

    def watched(self, step: int, heads: Mapping[str, HeadState]) -> None:
        """Every `train.heads_every` steps: the measures of all heads, by the name of the attention."""

    def close(self) -> None:
        """At the end of the run, also after an error."""


class MetricsLog(Observer):
    """Writes metrics.jsonl, which is the same for the same seed, and speed.jsonl, which differs in every run."""

    def __init__(self, folder: Path, resumed_from: int) -> None:
        self.metrics = open_truncated(folder / "metrics.jsonl", resumed_from)
        self.speed = open_truncated(folder / "speed.jsonl", resumed_from)

    def logged(self, moment: Moment) -> None:
        self._write(self.metrics, {"step": moment.step, **moment.metrics})
        rate = moment.tokens / max(moment.seconds, 1e-9)
        times = {"seconds": round(moment.seconds, 3), "tokens": moment.tokens, "tokens_per_second": round(rate)}
        self._write(self.speed, {"step": moment.step, **times})

    def evaluated(self, moment: Moment) -> None:
        self._write(self.metrics, {"step": moment.step, "dev": moment.metrics})

    def close(self) -> None:
        self.metrics.close()
        self.speed.close()

    def _write(self, file: IO[str], values: dict[str, Any]) -> None:
        file.write(json.dumps(values, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


class TensorBoardLog(Observer):
    """Writes TensorBoard's files."""

    def __init__(self, folder: Path, resumed_from: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # With the default queue of 10 values, training would wait for the disk.
        self.writer = SummaryWriter(str(folder), purge_step=resumed_from + 1, max_queue=1000)

    def logged(self, moment: Moment) -> None:
        self._write("train", moment)
        self.writer.add_scalar("train/tokens_per_second", moment.tokens / max(moment.seconds, 1e-9), moment.step)

    def evaluated(self, moment: Moment) -> None:
        self._write("dev", moment)

    def watched(self, step: int, heads: Mapping[str, HeadState]) -> None:
        for name, state in heads.items():
            for field, values in state.measured().items():
                self.writer.add_scalar(f"heads.{field}/{name}", sum(values) / len(values), step)
        for problem in ("collapsed", "sunk", "dead"):
            self.writer.add_scalar(f"heads/{problem}", sum(s.count_problems()[problem] for s in heads.values()), step)
        for role in ("previous", "induction"):
            if scores := [score for state in heads.values() for score in state.measured().get(role, ())]:
                self.writer.add_scalar(f"heads/best_{role}", max(scores), step)

    def close(self) -> None:
        self.writer.close()

    def _write(self, where: str, moment: Moment) -> None:
        for name, value in moment.metrics.items():
            if not isinstance(value, str):
                self.writer.add_scalar(f"{where}/{name}", value, moment.step)


class LossPlot(Observer):
    """Draws loss.png: the loss on training data and dev, and the score, over the steps."""

    def __init__(self, folder: Path, metric: str) -> None:
        self.folder, self.metric = folder, metric

    def close(self) -> None:
        lines = read_intact_lines(self.folder / "metrics.jsonl")
        train = [(line["step"], line["loss"]) for line in lines if "loss" in line]
        dev = [(line["step"], line["dev"]) for line in lines if "dev" in line]
        if not train:
            return
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        axes.plot(*zip(*train, strict=True), label="training", color="tab:blue")
        if dev:
            axes.plot(
                [step for step, _ in dev], [scores["loss"] for _, scores in dev], "o-", label="dev", color="tab:orange"
            )
            if self.metric != "loss":
                other = axes.twinx()
                other.plot(
                    [step for step, _ in dev], [scores[self.metric] for _, scores in dev], "s--", color="tab:green"
                )
                other.set_ylabel(f"{self.metric} on dev (dashed)", color="tab:green")
        axes.set(xlabel="step", ylabel="loss (nats)")
        axes.grid(alpha=0.3)
        axes.legend(loc="upper right")
        with atomic_file(self.folder / "loss.png") as fresh:
            figure.savefig(fresh, dpi=120)


class ProgressReport(Observer):
    """Prints a progress bar with loss, speed and remaining time; lines if stderr is not a terminal."""

    def __init__(self, metric: str, best: float | None = None, *, minimised: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        self.metric, self.best, self.pace, self.left = metric, best, "", ""
        self.minimised = minimised or metric == "loss"  # then the trainer's best is a negative number
        self.printed = time.monotonic()
        self.seen: list[tuple[float, float, int]] = []  # of the last lines: share done, seconds, tokens
        self.console = Console(stderr=True, highlight=False)
        self.bar = Bar(
            TextColumn("{task.fields[where]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[said]}"),
            console=self.console,
            expand=True,
        )
        self.task = self.bar.add_task("", total=1.0, where="the first steps are slow…", said="")
        if self.console.is_terminal:
            self.bar.start()

    def progressed(self, moment: Moment) -> None:
        if self.console.is_terminal or time.monotonic() - self.printed > QUIET:
            self.logged(moment)

    def logged(self, moment: Moment) -> None:
        self.seen = [*self.seen[-9:], (moment.done, moment.seconds, moment.tokens)]
        done, seconds, tokens = (new - old for new, old in zip(self.seen[-1], self.seen[0], strict=True))
        if len(self.seen) == 1:
            done, seconds, tokens = self.seen[0]
        left = format_duration(seconds / done * (1 - moment.done)) if done > 0 and moment.done < 1 else None
        self.left = "" if left is None else f" · about {left} left"
        where = f"step {moment.step:,} of {moment.steps:,}"
        rate = f"{tokens / max(seconds, 1e-9):,.0f} tokens/s"
        self.pace = f"loss {moment.metrics['loss']:.3f} · {rate}"
        if self.console.is_terminal:
            self.bar.update(self.task, completed=moment.done, where=where, said=self._format_status())
        else:
            self._print(f"{where} · {self._format_status()}")

    def evaluated(self, moment: Moment) -> None:
        scores = {name: value for name, value in moment.metrics.items() if not isinstance(value, str)}
        line = ", ".join(f"{name} {value:.4g}" for name, value in scores.items())
        self._print(f"  dev at step {moment.step:,}: {line}")
        for shown_input, answer, right in moment.samples:
            common = 0 if answer == right else len(os.path.commonprefix([answer, right]))  # noqa: RUF071 — by character
            verdict = "right" if answer == right else f"right would be: {_shorten(right, common)}"
            self._print(f"    {_shorten(shown_input)} → {_shorten(answer, common) or 'nothing'} ({verdict})")
        self.best = moment.best
        if self.console.is_terminal and self.pace:  # else the bar would still show the previous best score
            self.bar.update(self.task, said=self._format_status())

    def _format_status(self) -> str:
        shown = self.best if self.best is None or not self.minimised else -self.best
        best = "" if shown is None else f" · best {self.metric} {shown:.4g}"
        return f"{self.pace}{best}{self.left}"

    def close(self) -> None:
        if self.console.is_terminal:
            self.bar.stop()

    def _print(self, line: str) -> None:
        self.printed = time.monotonic()
        self.console.print(escape_control(line), markup=False, emoji=False, soft_wrap=True)  # one line, however long


def _shorten(text: str, index: int = 0, width: int = 60) -> str:
    """At most `width` characters of a text on one line: the first ones, or those around the one at `index`.

    >>> _shorten("one two three four", width=10), _shorten("one two three four", 15, width=10)
    ('one two t…', '…hree four')
    """
    before = min(len(" ".join(text[:index].split())), index)
    line = " ".join(text.split())
    if len(line) <= width:
        return line
    begin = 0 if before < width - width // 3 else min(before - width // 3, len(line) - width)
    shown = line[begin : begin + width]
    shown = f"…{shown[1:]}" if begin else shown
    return shown if begin + width >= len(line) else f"{shown[:-1]}…"


def open_truncated(path: Path, step: int) -> IO[str]:
    """Opens a log for appending, without the lines after `step`, which will be written again."""
    lines = [line for line in read_intact_lines(path) if line["step"] <= step]
    with atomic_file(path) as fresh, fresh.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    return path.open("a", encoding="utf-8")


def read_intact_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSONL log up to the first damaged one; the last may be cut off after a power failure."""
    lines: list[dict[str, Any]] = []
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            try:
                values = json.loads(line)
            except ValueError:
                break
            if not isinstance(values, dict) or "step" not in values:
                break
            lines.append(values)
    return lines
