"""The end of a run: scores the best weights (or the average of the last) and writes them as a model folder."""

from __future__ import annotations

import datetime
import json
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from clearhead.adapter_folder import ADAPTER, Adapter
from clearhead.formatting import format_bytes, format_count, format_duration, print_message
from clearhead.model import Model
from clearhead.model.layers import Stack
from clearhead.model.lora import merge_tensors
from clearhead.model.weight_storage import load_weights, pack_tensors, pack_weights, unique_tensors, unpack_weights
from clearhead.model_folder import write as write_folder
from clearhead.storage import hold_lock, replace_folder, restore_replaced, temporary_path
from clearhead.tasks.answerer import AnyAnswerer, ScoringAnswerer
from clearhead.tasks.processor import AnyProcessor
from clearhead.text import Row
from clearhead.train.data import TrainingData
from clearhead.train.loop import Trainer
from clearhead.train.recipe import to_toml
from clearhead.train.starting_weights import read_adapter

QUICK_ROWS = 200  # whose scores are kept beside those of all, for quick checks of a shipped model
TRIAL_ROWS = 64  # on which scoring is timed
SCORING_SECONDS, SCORING_SHARE = 120.0, 0.1  # scoring may take this time, or this share of the training time
LOCK_SECONDS = 60.0  # to wait for a process that is changing the model folder


def write_finished_model(where: Path, trainer: Trainer) -> None:
    """Scores the finished weights as they will be stored, and writes the model folder."""
    data, processes, position = trainer.data, trainer.processes, trainer.position
    weights = _final_weights(trainer)
    if not processes.first:
        return
    print_message(f"ended after step {position.step:,}: {_why_ended(trainer)}")
    adapter = read_adapter(where) if trainer.train.lora_rank else None
    model = _make_model(trainer, weights, adapter).to(processes.device).eval()
    before = data.processor.chosen_settings
    if message := data.objective.calibrate(model, data.examples.rows, data.dev_rows, data.unlabelled):
        print_message(message)
    print_chosen({key: value for key, value in data.processor.chosen_settings.items() if key not in before})
    metrics = _score_model(trainer, model)
    stored = None
    if adapter is not None:  # its low-rank matrices, and the other trained weights as calibration left them
        calibrated = model.state_dict()
        stored = adapter, {name: calibrated.get(name, tensor) for name, tensor in weights.items()}
    write = partial(
        write_folder,
        task=data.task,
        processor=data.processor,
        model=model,
        metrics=metrics,
        card=model_card(where.name, data, model, metrics),
        recipe=to_toml(data.recipe),
        weights=data.recipe.train.weights,
        adapter=stored,
    )
    _replace_model(where / "model", data, model, write)
    _print_scores(data, metrics)
    samples = _write_samples(where / "samples", data.processor, data.test or data.dev_rows or data.examples.rows)
    example = samples[0] if samples else data.processor.inputs.example
    print_message(f"wrote {where / 'model'}; try it: clearhead predict {where} {example}")
    if adapter is not None:
        size = format_bytes((where / "model" / ADAPTER).stat().st_size)
        print_message(
            f"it holds an adapter ({size}) and needs its base, {adapter.base}; "
            f"clearhead merge {where} --out FOLDER makes a model that needs none"
        )


def print_chosen(settings: Mapping[str, str]) -> None:
    """Prints what the data chose where the recipe says "auto"."""
    for key, value in settings.items():
        print_message(f'{key} = "auto": using "{value}"')


def _score_model(trainer: Trainer, model: Model) -> dict[str, Any]:
    """The content of metrics.json: how the run went, and the scores on dev, on test and of the baseline."""
    data, position = trainer.data, trainer.position
    metrics: dict[str, Any] = {
        "step": position.best_step or position.step,
        "averaged": _averaged_steps(trainer),
        "stopped": position.stopped,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "examples": len(trainer.examples),
        "tokens": position.tokens,
    }
    if settings := data.processor.chosen_settings:
        metrics["chosen"] = settings
    answerer = data.task.answerer(data.processor, model)
    for part, rows in (("dev", data.dev_rows), ("test", data.test)):
        if rows:
            metrics |= _score_rows(part, answerer, rows, position.seconds)
    return metrics | _score_baseline(data, data.test or data.dev_rows)


def _replace_model(target: Path, data: TrainingData, model: Model, write: Callable[[Path], None]) -> None:
    """Writes the model folder of a run; one that was written before the run was resumed is replaced as a whole."""
    restore_replaced(target)
    if not target.exists():
        write(target)
        return
    with hold_lock(target, LOCK_SECONDS):
        if message := data.objective.carry_over(model, target):
            print_message(message)
        fresh = temporary_path(target, "new")
        shutil.rmtree(fresh, ignore_errors=True)
        write(fresh)
        replace_folder(fresh, target)


def _print_scores(data: TrainingData, metrics: dict[str, Any]) -> None:
    for part in ("dev", "test"):
        scores = metrics.get(part, {})
        shown = ", ".join(f"{key} {value:.4g}" for key, value in scores.items() if not isinstance(value, str))
        if shown:
            print_message(f"on {part}: {shown}")
        for key, value in scores.items():
            if isinstance(value, str):
                print_message(f"  {key} {value}")
    if "baseline" in metrics:
        print_message(compare_with_baseline(metrics, data.processor.metric, data.task.minimised))


def _write_samples(folder: Path, processor: AnyProcessor, rows: Sequence[Row]) -> list[Path]:
    """Writes a few inputs with their right answers into the run folder, if inputs are files; their paths."""
    if processor.inputs.kind == "text":
        return []
    fresh = temporary_path(folder, "new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    written = processor.inputs.write_samples(fresh, rows)
    replace_folder(fresh, folder)
    return [folder / path.name for path in written]


def _make_model(trainer: Trainer, weights: dict[str, Tensor], adapter: Adapter | None) -> Model:
    """The finished model, to be scored as it is stored: rounded to the storage's type, adapters merged."""
    model, kind = cast(Model, trainer.data.processor.build()), trainer.train.weights
    if adapter is None:
        model.load_state_dict(weights)
        load_weights(model, unpack_weights(pack_weights(model, kind)))
        return model
    base = {name: tensor.float().cpu() for name, tensor in trainer.model.state_dict().items() if name not in weights}
    stored = unpack_weights(pack_tensors(weights, kind))
    merged = merge_tensors(base, stored, adapter.scale)
    load_weights(model, {name: merged[name] for name in unique_tensors(model)})
    return model


def _why_ended(trainer: Trainer) -> str:
    train = trainer.train
    if trainer.position.stopped == "patience":
        return f"no better {trainer.data.metric} in {train.patience} evaluations (train.patience)"
    if trainer.position.stopped == "time":
        return f"its time is over (train.minutes = {train.minutes:g})"
    return f"all steps are done (train.steps = {train.steps})"


def _score_rows(part: str, answerer: AnyAnswerer, rows: Sequence[Row], trained: float) -> dict[str, Any]:
    """Scores on all rows, or on the first ones if all would take longer than a share of the training time."""
    limit, options = max(SCORING_SECONDS, SCORING_SHARE * trained), answerer.options()
    used = rows
    if len(rows) > TRIAL_ROWS:
        begin = time.monotonic()
        trial = [row for row in rows if not answerer.processor.check_row(row).problem][:TRIAL_ROWS]
        answerer.evaluate(trial, options)
        expected = (time.monotonic() - begin) / TRIAL_ROWS * len(rows)
        used = rows if expected <= limit else rows[: max(TRIAL_ROWS, int(len(rows) * limit / expected))]
        print_message(
            f"scoring {format_count(len(used), 'row')} of {part}: about {format_duration(min(expected, limit))}"
        )
    evaluation = answerer.evaluate(used, options)
    scores: dict[str, Any] = dict(evaluation.scores)
    if len(used) < len(rows):
        scores["rows"] = f"the first {len(used):,} of {len(rows):,}; clearhead evaluate scores all"
    if part != "dev":
        return {part: scores}
    first = scores
    if isinstance(answerer, ScoringAnswerer) and len(evaluation.rows) > QUICK_ROWS:
        quick = evaluation.rows[:QUICK_ROWS], evaluation.predictions[:QUICK_ROWS]
        first = dict(answerer.score(*quick, options))
    return {part: scores, "dev_first_200": first}


def _score_baseline(data: TrainingData, rows: Sequence[Row]) -> dict[str, Any]:
    """What a simple method scores that learns from the same rows, on test if there is one, else on dev.

    Whatever goes wrong is printed and no more: the model is what was asked for.
    """
    usable = [row for row in rows if not data.processor.check_row(row).problem]
    if data.task.baseline is None or not usable:
        return {}
    try:
        baseline = data.task.baseline(data.processor, data.examples.rows, usable)
    except Exception as error:
        print_message(f"the baseline was not scored: {error}")
        return {}
    return {"baseline": {"name": baseline.name, "rows": len(usable), **baseline.scores}}


def compare_with_baseline(metrics: dict[str, Any], metric: str, minimised: Collection[str] = ()) -> str:
    """One line: whether the model's metric is better than the baseline's on the same rows.

    >>> metrics = {"dev": {"accuracy": 0.78}, "baseline": {"name": "TF-IDF", "accuracy": 0.79}}
    >>> compare_with_baseline(metrics, "accuracy")
    'the model LOSES to its baseline on dev: accuracy 0.78 against 0.79 (TF-IDF)'
    """
    part, baseline = "test" if "test" in metrics else "dev", metrics["baseline"]
    score, other = metrics[part][metric], baseline[metric]
    ahead = other - score if metric in minimised else score - other
    verdict = "LOSES to" if ahead < 0 else "beats" if ahead > 0 else "equals"
    return f"the model {verdict} its baseline on {part}: {metric} {score} against {other} ({baseline['name']})"


def _averaged_steps(trainer: Trainer) -> list[int]:
    """The checkpoints that the finished weights are the mean of: the last ones, or only the best."""
    planned = trainer.checkpoints.planned_steps()
    if trainer.train.average == "last":
        return planned[-trainer.train.keep :]
    best = trainer.position.best_step
    return [best if best in planned else planned[-1]]  # a damaged one may have been deleted


def _final_weights(trainer: Trainer) -> dict[str, Tensor]:
    """The finished weights: those of the best step, their moving average, or the mean of the last checkpoints."""
    steps = _averaged_steps(trainer)
    kind = "average." if trainer.train.average == "ema" else "model."
    total = _load_weights(trainer, steps[0], kind)
    for step in steps[1:]:
        more = _load_weights(trainer, step, kind)
        total = {name: tensor.double() + more[name].double() for name, tensor in total.items()}
    return total if len(steps) == 1 else {name: tensor / len(steps) for name, tensor in total.items()}


def _load_weights(trainer: Trainer, step: int, kind: str) -> dict[str, Tensor]:
    tensors, _ = trainer.checkpoints.load(step, trainer.updater.collect_tensors())
    return {
        name.removeprefix(kind): (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu()
        for name, tensor in tensors.items()
        if name.startswith(kind)
    }


def model_card(name: str, data: TrainingData, model: nn.Module, metrics: dict[str, Any]) -> str:
    """A short README for a model folder: what it is, what it learned from, how good it is."""
    recipe, task, config = data.recipe, data.task, data.processor.config
    files = recipe.data.train if isinstance(recipe.data.train, list) else [recipe.data.train]
    sources = [" + ".join(source.values()) if isinstance(source, dict) else source for source in files]
    layers = " + ".join(str(len(stack.layers)) for stack in model.modules() if isinstance(stack, Stack))
    chosen = {**data.chosen, **data.processor.chosen_settings}
    settings = ", ".join(f"{key} = {json.dumps(value)}" for key, value in chosen.items())
    lines = [
        f"# {name}",
        "",
        recipe.about or f"A model for {task.name}, trained with clearhead.",
        "",
        "| | |",
        "|---|---|",
        f"| task | {task.name} |",
        f"| weights | {metrics['parameters']:,}, stored as {recipe.train.weights} |",
        f"| layers, width, heads | {layers}, {config.width}, {config.heads} |",
        f"| data | {', '.join(sources)}: {format_count(metrics['examples'], 'example')} |",
        f"| trained | {format_count(metrics['step'], 'step')}, seed {recipe.seed}, "
        f"{datetime.date.today().isoformat()} |",
        *([f"| started from | {Path(recipe.train.start_name).name} |"] if recipe.train.start_name else []),
        *([f"| adapter | LoRA of rank {recipe.train.lora_rank} |"] if recipe.train.lora_rank else []),
        *([f"| chosen from the data | {settings} |"] if settings else []),
        f"| licence | {recipe.licence or 'not stated: the data decides'} |",
    ]
    for part in ("dev", "test"):
        if part in metrics:
            lines += ["", f"Scores on {part}:", "", *(f"- {key}: {value}" for key, value in metrics[part].items())]
    if "baseline" in metrics:
        comparison = compare_with_baseline(metrics, data.processor.metric, task.minimised)
        lines += ["", f"Compared with a simple method, {comparison}."]
    example = data.processor.inputs.example if task.input_kind == "text" else f"{task.input_kind.upper()}-FILE"
    use = f"```sh\nclearhead predict THIS-FOLDER {example}\n```"
    return "\n".join([*lines, "", "How it was trained is in `recipe.toml`. To use it:", "", use, ""])
