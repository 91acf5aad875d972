"""The command `evaluate`: scores of a model, its tables, a figure, and a baseline beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearhead.cli.options import Base, Columns, Device, Json, Model, Threads, parse_columns, refuse_foreign_options
from clearhead.cli.program import flush_output, import_torch, print_output
from clearhead.errors import ConfigError, DataError
from clearhead.formatting import print_message

if TYPE_CHECKING:
    from clearhead.predictor import Predictor
    from clearhead.tasks import Task
    from clearhead.tasks.answerer import Baseline, Evaluation
    from clearhead.tasks.metrics import Curve
    from clearhead.text import Row


def evaluate(
    model: Model,
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA",
            help="A .tsv, .csv, .jsonl(.gz) or folder, one file per column, or shipped:NAME.",
        ),
    ],
    columns: Columns = None,
    as_json: Json = False,
    report: Annotated[
        bool, typer.Option("--report", help="Also print tables, such as precision and recall per label.")
    ] = (False),
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Write the confusion matrix as .png, .svg or .pdf.")
    ] = None,
    baseline: Annotated[
        bool,
        typer.Option("--baseline", help="Also score a simple method: TF-IDF, BM25, first sentences, nearest picture."),
    ] = False,
    train: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="What the baseline learns from.", show_default="the model's training data"),
    ] = None,
    base: Base = None,
    device: Device = "auto",
    threads: Threads = None,
    **options: Any,
) -> None:
    """Score a model's answers on data whose answers are known."""
    if train and not baseline:
        raise ConfigError("--train says what a baseline learns from; it needs --baseline")
    import_torch(threads)
    from clearhead.predictor import load
    from clearhead.tasks.metrics import format_curve

    predictor = load(model, device=device, base=base)
    refuse_foreign_options(predictor, "evaluate", options)
    task, processor = predictor.task, predictor.processor
    _refuse_missing(task, report=report, figure=figure is not None, baseline=baseline)
    names = parse_columns(columns) if columns else None
    # Read before the model answers: what is missing is refused at once.
    training = _training_rows(predictor, train, names) if baseline and task.baseline_learns else []
    evaluation = predictor.evaluate_rows(_source(predictor, data, columns), columns=names, **options)
    tables = task.report(processor, evaluation.rows, evaluation.predictions) if report and task.report else ""
    curve = task.curve(processor, evaluation.rows, evaluation.predictions) if task.curve else []
    if report and curve:
        tables += f"\n\n{format_curve(curve)}"
    simple = task.baseline(processor, training, evaluation.rows) if baseline and task.baseline else None
    if figure is not None:
        _draw(predictor, evaluation, figure)
    scores = dict(evaluation.scores)
    if "note" in scores:
        print_message(f"clearhead: {scores['note']}")
    if as_json:
        _print_json(scores, tables, simple, curve)
    else:
        scores.pop("note", None)
        _print_scores(scores)
        if simple is not None:
            print_output(f"\nbaseline: {simple.name}")
            _print_scores(simple.scores)
        if tables:
            print_output(f"\n{tables}")
    flush_output()


def _refuse_missing(task: Task, *, report: bool, figure: bool, baseline: bool) -> None:
    """Refuses what the task does not have, before anything is scored."""
    if report and task.report is None:
        raise ConfigError(f"{task.name} has no tables to report")
    if figure and task.confusion is None:
        raise ConfigError(f"{task.name} has no confusion matrix to draw")
    if baseline and task.baseline is None:
        raise ConfigError(f"{task.name} has no baseline to compare with")


def _source(predictor: Predictor, data: Sequence[str], columns: str | None) -> Any:
    """One file, or a file for each column."""
    if len(data) == 1:
        return data[0]
    names = parse_columns(columns) if columns else list(predictor.processor.columns)
    if isinstance(names, dict):
        raise ConfigError(
            f"--columns {columns} is for a single CSV or JSONL; with one file per column, list the names in the order "
            "of the files, such as "
            f"--columns {','.join(names)}"
        )
    if len(data) != len(names):
        raise ConfigError(
            f"{len(data)} files for the {len(names)} columns {', '.join(names)}; give one for each, or one for all"
        )
    return dict(zip(names, data, strict=True))


def _training_rows(predictor: Predictor, files: Sequence[str] | None, columns: Any) -> list[Row]:
    """Rows of --train, or else those that the model learned from, as its recipe names them."""
    if files:
        return [row for file in files for row in predictor.read_rows(file, columns=columns)]
    from clearhead.model_folder import RECIPE
    from clearhead.train.data import read_training_rows
    from clearhead.train.recipe import read_recipe

    path = None if predictor.folder is None else predictor.folder / RECIPE
    if path is None or not path.is_file():
        raise ConfigError("the model's folder has no recipe that names its training data; give it with --train FILE")
    try:
        recipe, base = read_recipe(str(path))
        return read_training_rows(recipe, base)
    except (ConfigError, DataError) as error:
        raise DataError(f"the baseline needs the training data: {error}; give it with --train FILE") from None


def _draw(predictor: Predictor, evaluation: Evaluation, path: Path) -> None:
    from clearhead.explore.figures import confusion_matrix, save

    assert predictor.task.confusion is not None, "checked before anything was scored"
    labels, counts = predictor.task.confusion(predictor.processor, evaluation.rows, evaluation.predictions)
    save(confusion_matrix(labels, counts, title=predictor.name), path)
    print_message(f"clearhead: wrote {path}")


def _print_json(scores: Mapping[str, Any], tables: str, simple: Baseline | None, curve: Curve) -> None:
    more: dict[str, Any] = {"report": tables} if tables else {}
    if curve:
        more["curve"] = curve
    if simple is not None:
        more["baseline"] = {"name": simple.name, **simple.scores}
    print_output(json.dumps({**scores, **more}, ensure_ascii=False))


def _print_scores(scores: Mapping[str, Any]) -> None:
    width = max(map(len, scores), default=0)
    for score, value in scores.items():
        print_output(f"{score:<{width}}  {value}")
