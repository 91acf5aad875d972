"""A training run from the recipe to the finished model folder; docs/training.md lists the files that it writes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch

from clearhead.errors import ConfigError
from clearhead.formatting import format_bytes, format_count, print_message
from clearhead.model import Model
from clearhead.model.devices import empty_weights
from clearhead.storage import check_free
from clearhead.tasks.pretrained import Transfer
from clearhead.tasks.processor import AnyProcessor
from clearhead.train.data import TrainingData, prepare_data
from clearhead.train.finished_model import print_chosen, write_finished_model
from clearhead.train.fit import describe_chosen, list_chosen
from clearhead.train.head_monitor import HeadLog
from clearhead.train.loop import Trainer
from clearhead.train.observers import LossPlot, MetricsLog, Observer, ProgressReport, TensorBoardLog
from clearhead.train.processes import (
    Processes,
    distinguish_equal_sizes,
    join_processes,
    resolve_precision,
    select_attention_kernels,
)
from clearhead.train.recipe import Train, read_recipe
from clearhead.train.run_folder import Checkpoints, begin_run, fill_from_saved, save_recipe
from clearhead.train.starting_weights import print_start, read_new, record_start, start_model


def run_training(
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
    with join_processes(device) as processes, ExitStack() as held:
        resolve_precision(wanted.train.precision, processes.device)
        asked, wanted = wanted, fill_from_saved(where, wanted) if resume else wanted
        begin = begin_run(where, wanted, held, resume=resume, overwrite=overwrite)
        with begin if processes.first else nullcontext():
            processes.wait()
            data = prepare_data(where, wanted, base, processes)
            data = data._replace(chosen=list_chosen(asked, data.recipe))
            trainer, transfer = _make_trainer(where, data, processes)
            steps = trainer.checkpoints.steps()
            if resume and steps:
                trainer.resume(steps[-1])
            begun = None if steps else transfer
            if processes.first:
                _record_beginning(where, trainer, begun)
        if processes.first:
            _print_summary(where, trainer)
            if begun is not None:
                print_start(trainer.model, begun, trainer.train)
        with (
            _attach_observers(trainer, where, observers),
            _handle_signals(trainer),
            select_attention_kernels(float(data.examples.lengths.mean())),
            distinguish_equal_sizes(),
        ):
            trainer.run()
        write_finished_model(where, trainer)
        processes.wait()  # a process that leaves early may crash in gloo's threads
    return where


def _make_trainer(where: Path, data: TrainingData, processes: Processes) -> tuple[Trainer, Transfer | None]:
    """The trainer with a new model, and which weights it took over, if it starts from trained ones."""
    train, processor = data.recipe.train, data.processor
    checkpoints = Checkpoints(where / "checkpoints", train.keep, processes)
    torch.manual_seed(data.recipe.seed)
    check_memory(processor, train, processes)
    model = cast(Model, processor.build())
    transfer, new = None, list[str]()
    if data.start is not None:
        transfer = start_model(model, data.start, processor.labels, train)
        new = list(transfer.new)
    elif train.start_name is not None:
        new = read_new(where)
    return Trainer(data, model, checkpoints, processes, new=new), transfer


def _record_beginning(where: Path, trainer: Trainer, transfer: Transfer | None) -> None:
    """Writes recipe.toml, report.txt and, of a run that begins with trained weights, start.json."""
    data = trainer.data
    _check_disk(where, trainer)
    save_recipe(where, data.recipe)
    if data.start is not None and transfer is not None:
        record_start(where, data.start, transfer, data.recipe.train)
    (where / "report.txt").write_text(data.report + "\n", encoding="utf-8")


def check_memory(processor: AnyProcessor, train: Train, processes: Processes) -> None:
    """Refuses a model that needs more than the device's whole memory, activations not counted."""
    with empty_weights():
        weights = sum(parameter.numel() for parameter in processor.build().parameters())
    copies = 4 + (train.average == "ema")  # itself, its gradient and the two moments of Adam
    if train.lora_rank or (train.shard and processes.count > 1):
        copies = 1  # the others are in parts, or of the adapters alone, which are small
    needed = weights * copies * (8 if train.precision == "float64" else 4)
    available = device_memory(processes.device)
    if available is not None and needed > available:
        raise ConfigError(
            f"a model of {weights:,} weights needs at least {format_bytes(needed)} to be trained, and "
            f"{processes.device} has {format_bytes(available)}; make model.width, model.feedforward or model.layers "
            "smaller"
        )


def device_memory(device: torch.device) -> int | None:
    """All the memory of a device, in bytes; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on every system
        return None


def _check_disk(where: Path, trainer: Trainer) -> None:
    """Refuses a run whose checkpoints do not fit on the disk, before its first step."""
    weights = sum(parameter.nbytes for parameter in trainer.updater.parameters.values())
    checkpoint = weights * (3 + bool(trainer.updater.average))  # weights, the two moments of Adam, the average
    missing = max(1, trainer.train.keep + 2 - len(trainer.checkpoints.steps()))
    check_free(where, checkpoint * missing + weights, f"a run with {missing} more checkpoints and a model")


@contextmanager
def _attach_observers(trainer: Trainer, where: Path, others: Sequence[Observer]) -> Iterator[None]:
    """Context manager: attaches all observers, and closes them; only the first process prints and writes."""
    metric, train, begun = trainer.data.metric, trainer.train, trainer.position.step
    observers: list[Observer] = list(others)
    if trainer.processes.first:
        progress = ProgressReport(metric, trainer.position.best, minimised=trainer.data.minimises)
        observers += [MetricsLog(where, begun), progress]
        if train.tensorboard:
            observers.append(TensorBoardLog(where / "tensorboard", begun))
        observers.append(LossPlot(where, metric))
        if train.heads_every != 0:
            observers.append(HeadLog(where, begun))
    trainer.observers = observers
    with ExitStack() as stack:
        for observer in reversed(observers):  # closed in their order: the curve reads what the journal wrote
            stack.callback(observer.close)
        yield


@contextmanager
def _handle_signals(trainer: Trainer) -> Iterator[None]:
    """Context manager: Ctrl-C, SIGTERM or SIGHUP ends the run after the current step, with a checkpoint.

    A second signal ends it at once. With several processes the default applies: they would receive the signal at
    different steps and wait for each other for ever.
    """
    if trainer.processes.count > 1:
        yield
        return

    def interrupt(number: int, _: Any) -> None:
        trainer.interrupted = True
        signal.signal(number, before[signal.Signals(number)])

    signals = [signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    heeded = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores SIGHUP
    try:
        before = {number: signal.signal(number, interrupt) for number in heeded}
    except ValueError:  # only the main thread may
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_summary(where: Path, trainer: Trainer) -> None:
    """Prints what is about to be trained, and warns about recipe settings that are probably mistakes."""
    data, train = trainer.data, trainer.train
    print_message(data.report)
    rows = format_count(len(data.examples), "example") + (f" in {data.script}" if data.script else "")
    for line in describe_chosen(data.chosen, rows):
        print_message(line)
    print_chosen(data.processor.chosen_settings)
    if trainer.dev is None and (train.patience is not None or train.metric not in (None, "loss")):
        print_message("train.patience and train.metric do nothing without data.dev: the last weights are kept")
    size, trained = (
        sum(parameter.numel() for parameter in trainer.model.parameters() if parameter.requires_grad or frozen)
        for frozen in (True, False)
    )
    weights = f"{size:,} weights" + (f" ({trained:,} of them trained)" if trained < size else "")
    examples, steps = format_count(len(trainer.examples), "example"), format_count(trainer.steps_per_epoch, "step")
    print_message(
        f"{where}: {data.task.name}, {weights}, {examples}, {steps} an epoch, "
        f"{trainer.updater.precision} on {trainer.processes.device}, {_describe_start(trainer)}"
    )


def _describe_start(trainer: Trainer) -> str:
    """Where training starts, or why nothing is left to train."""
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
