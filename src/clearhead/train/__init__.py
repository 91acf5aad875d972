"""Training: one recipe, one run folder, and at its end a model folder.

runs/NAME/
  recipe.toml      the whole recipe, defaults included       report.txt    which lines were dropped, and why
  task/            tokenizers                                checkpoints/  the newest, and the best
  metrics.jsonl    losses and scores                         speed.jsonl   tokens per second
  loss.png         the same, as a curve                      tensorboard/
  heads.jsonl      what every head did while it learned      heads.png     the same, to look at
  model/           the finished model: `clearhead predict runs/NAME`
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from clearhead.errors import ClearheadError
from clearhead.folder import MARK, fresh_folder, verify
from clearhead.folder import write as write_folder
from clearhead.model import ModelConfig
from clearhead.model.packing import fill, packed, unpacked
from clearhead.tasks import TASKS, Examples, Task
from clearhead.text import Report, Row
from clearhead.train.card import card, counted
from clearhead.train.checkpoints import Checkpoints, averaged, gathered
from clearhead.train.heads import Heads
from clearhead.train.loop import Trainer
from clearhead.train.observers import Board, Curve, Journal, Moment, Observer, Progress
from clearhead.train.processes import Processes, joined
from clearhead.train.recipe import Recipe, read_recipe, sources, to_toml
from clearhead.train.room import check_room, fitting
from clearhead.train.runs import open_run, put_back
from clearhead.train.spreading import distinct_sizes, precision_of, short_kernels

__all__ = ["Moment", "Observer", "Recipe", "Trainer", "read_recipe", "run"]


def run(
    recipe: str,
    *,
    overrides: Sequence[str] = (),
    out: Path | None = None,
    seed: int | None = None,
    device: str = "auto",
    resume: bool = False,
    overwrite: bool = False,
    observers: Sequence[Observer] = (),
) -> Path:
    """Trains as the recipe says; returns the run folder, with the finished model in it."""
    wanted, base = read_recipe(recipe, overrides, seed)
    where = Path("runs") / Path(recipe).stem if out is None else Path(out)
    where = where.resolve() if where.is_symlink() else where
    with joined(device) as processes, ExitStack() as held:
        precision_of(wanted.train.precision, processes.device)
        check_room(wanted, processes)
        aside, made = None, False
        if processes.first:
            made = not where.exists()
            aside = open_run(where, wanted, held, resume=resume, overwrite=overwrite)
        processes.wait()
        with _undone(where, aside, made):
            task, examples, dev = _data(where, wanted, base, processes)
            checkpoints = Checkpoints(where / "checkpoints", wanted.train.keep, processes)
            torch.manual_seed(wanted.seed)
            with fitting(processes.device):
                model = task.build()
                trainer = Trainer(wanted.train, task, model, examples, dev, checkpoints, processes, seed=wanted.seed)
        if aside is not None:
            shutil.rmtree(aside)
        steps = checkpoints.steps()
        if resume and steps:
            trainer.resume(steps[-1])
        _say(processes, _opening(where, trainer, task))
        with (
            _watched(trainer, where, wanted, processes, observers),
            _patient(trainer),
            short_kernels(float(examples.lengths.mean())),
            distinct_sizes(),
        ):
            trainer.run()
        _finish(where, wanted, trainer, dev)
        processes.wait()  # all leave together: one that leaves early may crash in gloo's threads
    return where


@contextmanager
def _undone(where: Path, aside: Path | None, made: bool) -> Iterator[None]:
    """If the data are not sound or the model does not fit, all is as before.

    The old run that was set aside is back, a new folder is gone.
    """
    try:
        yield
    except BaseException as error:
        put_back(where, aside)
        if made and isinstance(error, (ClearheadError, OSError)):
            shutil.rmtree(where)
        raise


def _data(
    where: Path, recipe: Recipe, base: Path, processes: Processes
) -> tuple[Task, Examples, tuple[Examples, Sequence[Row]] | None]:
    """The task with its tokenizers (trained once, by the first process), and the examples."""
    kind = TASKS[recipe.task]
    columns, lines = recipe.data.columns, recipe.data.lines
    rows = [row for source in sources(recipe.data.train, base) for row in islice(kind.read(source, columns), lines)]
    prepared = where / "task"
    if processes.first and not prepared.is_dir():
        task = kind.prepared(rows, recipe.text, recipe.model, recipe.decode)
        with fresh_folder(prepared) as fresh:
            task.save(fresh)
            values = {"model": task.config.to_dict(), "settings": task.settings}
            (fresh / "task.json").write_text(json.dumps(values, indent=1), encoding="utf-8")
    processes.wait()
    verify(prepared)
    values = json.loads((prepared / "task.json").read_text(encoding="utf-8"))
    task = kind.load(prepared, ModelConfig.from_dict(values["model"]), values["settings"])
    report, dev = Report(), None
    examples = task.examples(rows, report, recipe.data)
    said = f"train: {report}"
    if recipe.data.dev is not None:
        report = Report()
        dev_rows = [row for source in sources(recipe.data.dev, base) for row in kind.read(source, columns)]
        usable = task.examples(dev_rows, report)
        dev = (usable, usable.rows)
        said += f"\ndev: {report}"
    if processes.first:
        (where / "report.txt").write_text(said + "\n", encoding="utf-8")
        _say(processes, said)
    return task, examples, dev


@contextmanager
def _watched(
    trainer: Trainer, where: Path, recipe: Recipe, processes: Processes, others: Sequence[Observer]
) -> Iterator[None]:
    """With everyone who wants to hear of it; only the first process talks and writes."""
    metric = recipe.train.metric or trainer.task.metric
    metric = metric if recipe.data.dev is not None else "loss"
    begun = trainer.position.step
    observers: list[Observer] = list(others)
    if processes.first:
        observers += [Journal(where, begun), Progress(metric, trainer.position.best)]
        if recipe.train.tensorboard:
            observers.append(Board(where / "tensorboard", begun))
        observers.append(Curve(where, metric))
        if recipe.train.heads_every != 0:
            observers.append(Heads(where, begun))
    trainer.observers = observers
    with ExitStack() as stack:
        for observer in reversed(observers):  # closed in their order: the curve reads what the journal wrote
            stack.callback(observer.close)
        yield


@contextmanager
def _patient(trainer: Trainer) -> Iterator[None]:
    """An interruption waits for the step to end and for a checkpoint; a second one does not.

    Several processes would hear of it at different steps, and wait for each other for ever: they just end.
    """
    if trainer.processes.count > 1:
        yield
        return

    def interrupt(number: int, _: Any) -> None:
        trainer.interrupted = True
        signal.signal(number, before[signal.Signals(number)])

    try:
        before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # only the main thread may
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _finish(where: Path, recipe: Recipe, trainer: Trainer, dev: tuple[Examples, Sequence[Row]] | None) -> None:
    """The best weights, or the average of the last, as a model folder with its scores."""
    target, processes, position = where / "model", trainer.processes, trainer.position
    weights = _final_weights(trainer, recipe)
    if not processes.first:
        return
    model = trainer.task.build()
    model.load_state_dict(weights)
    fill(model, unpacked(packed(model, recipe.train.weights)))  # scored as it is stored
    model.to(processes.device)
    metrics: dict[str, Any] = {
        "step": position.best_step or position.step,
        "averaged": _averaged_steps(trainer, recipe),
        "stopped": position.stopped,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "pairs": len(trainer.examples),
        "tokens": position.tokens,
    }
    if dev is not None:
        metrics["dev"] = trainer.task.evaluate(model.eval(), dev[1])
        few = len(dev[1]) <= 200
        metrics["dev_first_200"] = metrics["dev"] if few else trainer.task.evaluate(model, dev[1][:200])
    text = card(where.name, recipe, trainer.task, metrics)
    fresh = where / f".model{MARK}new"
    shutil.rmtree(fresh, ignore_errors=True)
    write_folder(
        fresh,
        task=trainer.task,
        model=model,
        metrics=metrics,
        card=text,
        recipe=to_toml(recipe),
        weights=recipe.train.weights,
    )
    if target.exists():  # of a run that went on
        shutil.rmtree(target)
    fresh.rename(target)
    dev_scores = metrics.get("dev", {})
    shown = ", ".join(f"{name} {value}" for name, value in dev_scores.items() if not isinstance(value, str))
    beam = trainer.task.settings.get("beam", 1)
    _say(processes, f"{target}: done" + (f"; on dev, beam {beam}: {shown}" if shown else ""))
    for name, value in dev_scores.items():
        if isinstance(value, str):
            _say(processes, f"  {name} {value}")
    _say(processes, f'try it: clearhead predict {where} "…"')


def _averaged_steps(trainer: Trainer, recipe: Recipe) -> list[int]:
    """The checkpoints that the finished weights are the mean of: the last ones, or only the best."""
    kept = trainer.checkpoints.planned()
    if recipe.train.average == "last":
        return kept[-recipe.train.keep :]
    best = trainer.position.best_step
    return [best if best in kept else kept[-1]]  # a damaged one may have been deleted


def _final_weights(trainer: Trainer, recipe: Recipe) -> dict[str, Tensor]:
    steps = _averaged_steps(trainer, recipe)
    kind = "average." if recipe.train.average == "ema" else "model."

    def weights(step: int) -> dict[str, Tensor]:
        tensors, _ = trainer.checkpoints.load(step, gathered(trainer.model, trainer.optimizer, trainer.average))
        return {
            name.removeprefix(kind): (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu()
            for name, tensor in tensors.items()
            if name.startswith(kind)
        }

    return averaged(weights, steps) if len(steps) > 1 else weights(steps[0])


def _opening(where: Path, trainer: Trainer, task: Task) -> str:
    size = sum(parameter.numel() for parameter in trainer.model.parameters())
    examples, steps = counted(len(trainer.examples), "example"), counted(trainer.windows, "step")
    return (
        f"{where}: {task.name}, {size:,} weights, {examples}, {steps} an epoch, "
        f"{trainer.precision} on {trainer.processes.device}, {_beginning(trainer)}"
    )


def _beginning(trainer: Trainer) -> str:
    """Where training begins, or why there is nothing left to train."""
    train, step = trainer.train, trainer.position.step
    if trainer.position.stopped is None:
        return f"going on after step {step:,}" if step else "from the beginning"
    if step >= train.steps:
        why, key = f"{'past' if step > train.steps else 'at'} its end, step {step:,} of {train.steps:,}", "steps"
    elif trainer.done >= 1:
        why, key = f"at the end of its time, {train.minutes:g} min", "minutes"
    else:
        why, key = f"at the end of its patience, {train.patience}", "patience"
    return f"already {why}: nothing is trained; a larger train.{key} goes on"


def _say(processes: Processes, text: str) -> None:
    if processes.first:  # a file's name may hold anything, even what moves a terminal's cursor
        print(re.sub(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", lambda found: repr(found[0])[1:-1], text), file=sys.stderr)
