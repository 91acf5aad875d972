"""The command line: parse, call, print.

`train` and `predict` are here, the others in files of their own. A command imports what is slow, such as PyTorch,
when it needs it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from clearhead.errors import ConfigError

try:
    import typer
except ModuleNotFoundError:
    print('clearhead: the command line needs the package typer; pip install "clearhead[train]"', file=sys.stderr)
    sys.exit(2)

from clearhead.cli import evaluate_command, look_commands, models_command
from clearhead.cli.options import (
    TASK_COMMANDS,
    Base,
    Columns,
    Device,
    Json,
    Model,
    Threads,
    add_task_options,
    find_task,
    make_task_command,
    parse_columns,
    refuse_foreign_options,
)
from clearhead.cli.program import (
    INTERRUPTED,
    batch_inputs,
    decode_utf8,
    describe_error,
    discard_output,
    find_table,
    flush_output,
    import_torch,
    one_line,
    open_inputs,
    prepare_streams,
    print_output,
    rank,
    report_failure,
)
from clearhead.formatting import print_message

if TYPE_CHECKING:
    from clearhead.predictor import Predictor
    from clearhead.tasks import Prediction, Task

BATCH = 64
WITH_MODEL = ("predict", "evaluate", "look", "figures")  # commands whose first argument is a model
HELP = {"--help", "-h"}
READER_LEFT = 141  # the exit code when a pipe's reader has left, as shells have it for SIGPIPE


def _print_version(wanted: bool) -> bool:
    if wanted:
        print_output(f"clearhead {sys.modules['clearhead'].__version__}")
        raise typer.Exit
    return wanted


def global_options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
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
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run from its last checkpoint.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run in the folder, if there is one.")
    ] = False,
) -> None:
    """Train a model by a recipe."""
    if resume and overwrite:
        raise ConfigError("--resume continues a run, --overwrite replaces it; choose one")
    for name, text in [("RECIPE", recipe), *(("--set", change) for change in changes or []), ("--out", str(out))]:
        decode_utf8(os.fsencode(text), name)  # the run's files repeat them as UTF-8
    import_torch(threads)
    from clearhead.train import run_training

    run_training(recipe, overrides=changes or [], out=out, seed=seed, device=device, resume=resume, overwrite=overwrite)


def predict(
    model: Model,
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="INPUT", help="A text, a table (.csv, .tsv, .jsonl), or a file; - reads lines from stdin."
        ),
    ] = None,
    columns: Columns = None,
    as_json: Json = False,
    stream: Annotated[bool, typer.Option("--stream", help="Print an answer piece by piece as it is written.")] = False,
    base: Base = None,
    device: Device = "auto",
    threads: Threads = None,
    **options: Any,
) -> None:
    """Answer each INPUT, or each line of the standard input, with one line.

    The answer of a language model to a single INPUT keeps its line breaks; on a terminal it appears as it is written.
    An INPUT that begins with a dash goes after --. From a pipe, lines are answered some hundred at a time; with
    --batch 1, each before the next is read. --best gives lines of RANK, SCORE, ANSWER with tabs between;
    each INPUT begins again at rank 1. The rows of a table are printed with the answers in further columns.
    """
    if stream and as_json:
        raise ConfigError("--stream prints pieces of text, --json whole objects; choose one")
    table = find_table(texts)
    if table is None and columns:
        raise ConfigError("--columns says where a table has its texts; give one .csv, .tsv or .jsonl as INPUT")
    waiting, name, batch_size = open_inputs(texts, options.get("batch") or BATCH)
    import_torch(threads)
    from clearhead.cli.tables import predict_table, remark_once
    from clearhead.predictor import load

    predictor = load(model, device=device, base=base)
    refuse_foreign_options(predictor, "predict", options)
    if predictor.task.input_kind == "text":
        if table is not None:
            if stream:
                raise ConfigError("--stream prints pieces of one text; a table's rows are answered whole")
            predict_table(predictor, table, parse_columns(columns) if columns else None, as_json=as_json, **options)
            return
        if len(predictor.processor.input_columns) == 1:
            waiting = remark_once(waiting, name, predictor.processor.input_columns[0])
    ranked = predictor.task.read_options("predict", options).ranked
    lines = predictor.task.writes_lines and texts is not None and len(texts) == 1 and texts != ["-"]
    if stream or (lines and not as_json and sys.stdout.isatty()):
        _stream(predictor, waiting, options, lines=lines)
        return
    number, name = 0, predictor.task.input_kind if name == "text" else name
    for batch in batch_inputs(waiting, batch_size):
        for text, answer in zip(batch, predictor.predict(batch, inputs_before=number, **options), strict=True):
            number += 1
            for note in answer.notes:
                print_message(f"clearhead: {name} {number}: {note}")
            if as_json:
                print_output(json.dumps({"input": text, **answer.to_json()}, ensure_ascii=False))
            else:
                print_output(answer.text if lines else _as_lines(answer, ranked=ranked))
        flush_output()


def _stream(predictor: Predictor, waiting: Iterable[str], options: dict[str, Any], *, lines: bool) -> None:
    for number, text in enumerate(waiting):
        for note in predictor.stream_notes(text):
            print_message(f"clearhead: {note}")
        for piece in predictor.stream(text, inputs_before=number, **options):
            print_output(piece if lines else one_line(piece), end="")
            flush_output()
        print_output("")
        flush_output()


COMMANDS: dict[str, Callable[..., None]] = {
    "train": train,
    "predict": predict,
    "evaluate": evaluate_command.evaluate,
    "look": look_commands.look,
    "figures": look_commands.figures,
    "models": models_command.models,
    "merge": models_command.merge,
}


def build_app(wanted: str | None, task: Task | None = None) -> typer.Typer:
    """The app with all commands; only the `wanted` one has options of tasks, which are slow to import.

    They are those of `task`, or of all tasks.
    """
    app = typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        help="Build, train and ship Transformers, and see what every head looks at.",
        epilog="Exit codes: 0 done, 1 the run failed, 2 the input was wrong, 130 interrupted, 141 pipe closed.",
    )
    app.callback()(global_options)
    for name, command in COMMANDS.items():
        app.command(name)(add_task_options(command, name, load=name == wanted, task=task))
    if wanted is not None and wanted not in COMMANDS and (command_of_task := make_task_command(wanted)) is not None:
        app.command(wanted)(command_of_task)
    for name, about in TASK_COMMANDS.items():
        if name != wanted:
            app.command(name, help=about)(lambda: None)  # only listed
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code; errors become one line on stderr."""
    prepare_streams()
    try:
        return _run_command(list(sys.argv[1:] if arguments is None else arguments))
    except (BrokenPipeError, SystemExit) as error:
        if BrokenPipeError not in (type(error), type(error.__context__)):  # for rich exits because of one
            raise
        discard_output()
        return READER_LEFT


def _invoke(app: typer.Typer, arguments: list[str]) -> int:
    command = typer.main.get_command(app)
    try:
        with command.make_context("clearhead", arguments) as context:
            command.invoke(context)
        return 0
    except typer.Exit as done:
        return done.exit_code


def _run_command(arguments: list[str]) -> int:
    try:
        wanted = next((text for text in arguments if not text.startswith("-")), None)
        task = find_task(arguments[1:]) if wanted in WITH_MODEL and not HELP.intersection(arguments) else None
        try:
            code = _invoke(build_app(wanted, task), arguments)
        except Exception as error:
            if task is None or not hasattr(error, "option_name"):  # as click's NoSuchOption has
                raise
            code = _invoke(build_app(wanted), arguments)  # if another task has the option, the command says more
        flush_output()
        return code
    except BrokenPipeError:
        raise
    except (KeyboardInterrupt, typer.Abort):
        if rank() == 0:
            print_message("clearhead: interrupted")
        return INTERRUPTED
    except Exception as error:
        if os.environ.get("CLEARHEAD_TRACEBACK") == "1":
            raise
        code, message = describe_error(error)
        report_failure(error, message)
        return code


def _as_lines(answer: Prediction, *, ranked: bool) -> str:
    """The answer in one line; `ranked` gives a line of rank, score and text for it and for each alternative."""
    if not ranked:
        return one_line(answer.text)
    return "\n".join(
        f"{rank}\t{'' if score is None else f'{score:.4f}'}\t{one_line(text)}"
        for rank, (text, score) in enumerate(answer.ranking(), 1)
    )
