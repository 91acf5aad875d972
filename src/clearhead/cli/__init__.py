"""The command line: parse, call, print.

`look` and `figures` are in exploring.py, `models` is in listing.py, the others are here. What costs time to import
(PyTorch above all) is imported by the command that needs it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from clearhead.errors import ConfigError

try:
    import typer
except ModuleNotFoundError:
    print('clearhead: the command line needs the package typer; pip install "clearhead[train]"', file=sys.stderr)
    sys.exit(2)

from clearhead.cli import exploring, listing, together
from clearhead.cli.options import Columns, Device, Json, Model, Threads, parse_columns
from clearhead.cli.reading import groups, inputs
from clearhead.cli.speaking import StdoutClosed, explained, flush, put, say
from clearhead.cli.startup import INTERRUPTED, import_torch
from clearhead.cli.task_options import add_task_options, task_command

if TYPE_CHECKING:
    from clearhead.predictor import Predictor
    from clearhead.tasks import Prediction

BATCH = 64


def _version(wanted: bool) -> bool:
    if wanted:
        put(f"clearhead {sys.modules['clearhead'].__version__}")
        raise typer.Exit
    return wanted


def common(
    version: Annotated[
        bool, typer.Option("--version", help="Say which version this is.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe's file, or a shipped recipe's name.")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe: train.steps=200.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder.", show_default="runs/RECIPE")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Another seed than the recipe's.")] = None,
    device: Device = "auto",
    threads: Threads = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run was stopped, exactly.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Throw away the run that is there.")] = False,
) -> None:
    """Train a model by a recipe."""
    if resume and overwrite:
        raise ConfigError("--resume goes on with a run, --overwrite throws it away; choose one")
    import_torch(threads)
    from clearhead.train import run_training

    run_training(recipe, overrides=changes or [], out=out, seed=seed, device=device, resume=resume, overwrite=overwrite)


def predict(
    model: Model,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="INPUT", help="What to answer; - stands for the lines of the input.")
    ] = None,
    as_json: Json = False,
    stream: Annotated[bool, typer.Option("--stream", help="Print an answer piece by piece as it is written.")] = False,
    device: Device = "auto",
    threads: Threads = None,
    **options: Any,
) -> None:
    """Answer each INPUT, or each line of the standard input, with one line.

    An INPUT that begins with a dash goes after --. From a pipe, lines are answered some hundred at a time; with
    --batch 1, each before the next is read. --best gives lines of NUMBER, SCORE, ANSWER with tabs between.
    """
    if stream and as_json:
        raise ConfigError("--stream prints pieces of text, --json whole objects; choose one")
    waiting, name, at_once = inputs(texts, options.get("batch") or BATCH)
    import_torch(threads)
    from clearhead.predictor import load

    predictor = load(model, device=device)
    ranked = predictor.task.read_options("predict", options).ranked
    if stream:
        _stream(predictor, waiting, options)
        return
    number = 0
    for some in groups(waiting, at_once):
        for text, answer in zip(some, predictor.predict(some, **options), strict=True):
            number += 1
            for note in answer.notes:
                say(f"{name} {number}: {note}")
            put(_as_json(text, answer) if as_json else _as_line(answer, number if ranked else None))
        flush()


def _stream(predictor: Predictor, waiting: Iterable[str], options: dict[str, Any]) -> None:
    for text in waiting:
        for piece in predictor.stream(text, **options):
            put(_one_line(piece), end="")
            flush()
        put("")
        flush()


def evaluate(
    model: Model,
    data: Annotated[
        list[str], typer.Argument(metavar="DATA", help="A .tsv, .csv or .jsonl(.gz); a file a column; shipped:NAME.")
    ],
    columns: Columns = None,
    as_json: Json = False,
    device: Device = "auto",
    threads: Threads = None,
    **options: Any,
) -> None:
    """Score a model's answers on data whose answers are known."""
    import_torch(threads)
    from clearhead.predictor import load

    predictor = load(model, device=device)
    names = parse_columns(columns) if columns else list(predictor.task.columns)
    if len(data) > 1 and isinstance(names, dict):
        raise ConfigError(
            f"--columns {columns} is for one CSV or JSONL; for a file a column name them in the files' order, as "
            f"--columns {','.join(names)}"
        )
    if len(data) > 1 and len(data) != len(names):
        raise ConfigError(
            f"{len(data)} files for the {len(names)} columns {', '.join(names)}; give one for each, or one for all"
        )
    source: Any = data[0] if len(data) == 1 else dict(zip(names, data, strict=True))
    scores = predictor.evaluate(source, columns=names, **options)
    if "note" in scores:
        say(str(scores["note"]))
    if as_json:
        put(json.dumps(scores, ensure_ascii=False))
    else:
        scores.pop("note", None)
        width = max(map(len, scores), default=0)
        for score, value in scores.items():
            put(f"{score:<{width}}  {value}")
    flush()


COMMANDS: dict[str, Callable[..., None]] = {
    "train": train,
    "predict": predict,
    "evaluate": evaluate,
    "look": exploring.look,
    "figures": exploring.figures,
    "models": listing.models,
}


def build_app(wanted: str | None) -> typer.Typer:
    """All commands; the one that is wanted has the options of the tasks, for which they must be imported."""
    app = typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        help="Build, train and ship Transformers, and see what every head looks at.",
        epilog="Exit codes: 0 done, 1 the run failed, 2 the input was wrong, 130 interrupted.",
    )
    app.callback()(common)
    for name, command in COMMANDS.items():
        app.command(name)(add_task_options(command, name, load=name == wanted))
    if wanted is not None and wanted not in COMMANDS and (own := task_command(wanted)) is not None:
        app.command(wanted)(own)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code; whatever goes wrong is said in words, on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # whatever the locale says
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        command = typer.main.get_command(build_app(next((one for one in given if not one.startswith("-")), None)))
        with command.make_context("clearhead", given) as context:
            command.invoke(context)
        return 0
    except typer.Exit as done:
        return done.exit_code
    except StdoutClosed:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it ends
        return 0
    except (KeyboardInterrupt, typer.Abort):
        if together.rank() == 0:
            say("interrupted")
        return INTERRUPTED
    except Exception as error:
        if os.environ.get("CLEARHEAD_TRACEBACK") == "1":
            raise
        code, message = explained(error)
        together.say_once(message)
        return code


def _as_line(answer: Prediction, number: int | None) -> str:
    if number is None:
        return _one_line(answer.text)
    return "\n".join(
        f"{number}\t{'' if score is None else f'{score:.4f}'}\t{_one_line(text)}" for text, score in answer.ranking()
    )


def _one_line(text: str) -> str:
    return text.translate({ord(mark): " " for mark in "\r\n\t"})


def _as_json(text: str, answer: Prediction) -> str:
    return json.dumps({"input": text, **answer.to_json()}, ensure_ascii=False)
