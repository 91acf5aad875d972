"""The command line: parse, call, print.

What costs time to import (PyTorch above all) is imported by the command that needs it.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from clearhead.errors import ClearheadError, ConfigError, DataError, DiskFullError, TrainingError

try:
    import typer
except ModuleNotFoundError:
    print('clearhead: the command line needs the package typer; pip install "clearhead[train]"', file=sys.stderr)
    sys.exit(2)

if TYPE_CHECKING:
    from clearhead.tasks import Prediction

EXTRAS = {"matplotlib": "explore", "fastapi": "serve", "uvicorn": "serve", "transformers": "hf"}
READ_AHEAD = 4  # batches' worth of lines are read before they are answered: sorted by length, they need fewer pads
BATCH = 64

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Build, train and ship Transformers, and see what every head looks at.",
    epilog="Exit codes: 0 done, 1 the run failed, 2 the input was wrong.",
)

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A model's folder, a run's folder, or a shipped model's name.")
]
Device = Annotated[str, typer.Option(help="auto (a GPU if there is one), cpu, cuda, cuda:1 …")]
Batch = Annotated[int | None, typer.Option(min=1, help="How many inputs are computed together.", show_default="64")]
Beam = Annotated[int | None, typer.Option(min=1, help="How many beams the search keeps.", show_default="the model's")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class _StdoutClosed(Exception):
    """Nobody reads on, as after `| head`."""


def _version(wanted: bool) -> bool:
    if wanted:
        _print(f"clearhead {sys.modules['clearhead'].__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", help="Say which version this is.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe's file, or a shipped recipe's name.")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe: train.steps=200.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder.", show_default="runs/RECIPE")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Another seed than the recipe's.")] = None,
    device: Device = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run was stopped, exactly.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Throw away the run that is there.")] = False,
) -> None:
    """Train a model by a recipe."""
    if resume and overwrite:
        raise ConfigError("--resume goes on with a run, --overwrite throws it away; choose one")
    from clearhead.train import run

    run(recipe, overrides=changes or [], out=out, seed=seed, device=device, resume=resume, overwrite=overwrite)


@app.command()
def predict(
    model: Model,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="What to answer; - stands for the lines of the input.")
    ] = None,
    as_json: Json = False,
    device: Device = "auto",
    batch: Batch = None,
    beam: Beam = None,
    best: Annotated[int | None, typer.Option(min=1, help="How many answers to give for each input.")] = None,
) -> None:
    """Answer each TEXT, or each line of the standard input, with one line.

    A TEXT that begins with a dash goes after --. From a pipe, lines are answered some hundred at a time; with
    --batch 1, each before the next is read. --best gives lines of NUMBER, SCORE, TEXT with tabs between.
    """
    inputs, name, at_once = _inputs(texts, batch or BATCH)
    from clearhead.predictor import load

    predictor = load(model, device=device)
    options = _given(batch=batch, beams=beam, best=best)
    number = 0
    for some in _groups(inputs, at_once):
        for text, answer in zip(some, predictor.predict(some, **options), strict=True):
            number += 1
            for note in answer.notes:
                _say(f"{name} {number}: {note}")
            _print(_as_json(text, answer) if as_json else _as_line(answer, number if best and best > 1 else None))
        _flush()


@app.command()
def evaluate(
    model: Model,
    data: Annotated[
        list[str], typer.Argument(metavar="DATA", help="A .tsv, .csv or .jsonl(.gz); a file a column; shipped:NAME.")
    ],
    columns: Annotated[
        str | None, typer.Option(metavar="A,B", help="The file's columns in their order.", show_default="the task's")
    ] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Compare without regard to case.")] = False,
    as_json: Json = False,
    device: Device = "auto",
    batch: Batch = None,
    beam: Beam = None,
) -> None:
    """Score a model's answers on data whose answers are known."""
    from clearhead.predictor import load

    predictor = load(model, device=device)
    names = columns.split(",") if columns else list(predictor.task.columns)
    if len(data) > 1 and len(data) != len(names):
        raise ConfigError(
            f"{len(data)} files for the {len(names)} columns {', '.join(names)}; give one for each, or one for all"
        )
    source: Any = data[0] if len(data) == 1 else dict(zip(names, data, strict=True))
    options = _given(batch=batch, beams=beam, lowercase=lowercase or None)
    scores = predictor.evaluate(source, columns=names, **options)
    if as_json:
        _print(json.dumps(scores, ensure_ascii=False))
    else:
        width = max(map(len, scores), default=0)
        for score, value in scores.items():
            _print(f"{score:<{width}}  {value}")
    _flush()


@app.command()
def look(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|RECORD", help="A model's folder or name, a Hugging Face folder, a record's file."
        ),
    ],
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="What to read; - is the standard input.")] = None,
    answer: Annotated[str | None, typer.Option(help="Look at this answer, not at the model's own.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the page to this file, which needs nothing else.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Show the page in the browser.")] = False,
    heads: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:0,3", help="Of a long text, put every weight of these heads into the file."),
    ] = None,
    part: Annotated[
        int | None,
        typer.Option(
            min=1, help="Of a text in parts, or a record of several, write this one.", show_default="all that fit"
        ),
    ] = None,
    without: Annotated[
        bool, typer.Option("--without", help="Put into the file what the model does without each head; takes a while.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The server's port.", show_default="any")] = 0,
    device: Device = "auto",
    beam: Beam = None,
) -> None:
    """See what every head looks at: a page from a server on this machine, or with --out as one file.

    The page holds the text. The server answers on this machine alone, under an address that nobody can guess.
    """
    if out is None and (heads or part is not None or without):
        raise ConfigError("--heads, --part and --without are for --out: the server's page has all of them")
    from clearhead.explore import looking

    text = _text(text)
    seen = looking.looked(subject, text, answer=answer, device=device, **_given(beams=beam))
    if out is not None:
        written = looking.write(seen, out, part=part, heads=heads or [], without=without)
        _say(f"{written} has {written.stat().st_size / 1e6:.1f} MB, and the text in it")
        if show:
            _show(written.resolve().as_uri())
        return
    with looking.serve(seen, port=port, browser=show) as server:
        _print(server.url)
        _flush()
        _say("open this address in a browser on this machine; Ctrl-C ends it")
        with suppress(KeyboardInterrupt):
            server.wait()


@app.command()
def figures(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL|RECORD", help="A model's folder or name, a Hugging Face folder, a record's file."
        ),
    ] = None,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="What to read; - is the standard input.")] = None,
    out: Annotated[Path, typer.Option(help="The folder of the figures.")] = Path("figures"),
    kind: Annotated[str, typer.Option("--format", metavar="png|svg|pdf", help="What they are saved as.")] = "png",
    heads: Annotated[
        list[str] | None, typer.Option(metavar="NAME:0,3", help="Draw these heads large, not the telling ones.")
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(metavar="written|read", help="Call a decoder's rows by what it writes there, or has read."),
    ] = None,
    answer: Annotated[str | None, typer.Option(help="Look at this answer, not at the model's own.")] = None,
    lesson: Annotated[
        bool, typer.Option("--lesson", help="Without a model: softmax saturation, positions, cost against length.")
    ] = False,
    dark: Annotated[bool, typer.Option("--dark", help="On a dark ground.")] = False,
    device: Device = "auto",
    beam: Beam = None,
) -> None:
    """Draw what every head looks at, and print a line for each file: its name, and what it shows."""
    if lesson == (subject is not None):
        raise ConfigError("give a MODEL and a TEXT, or a RECORD, or --lesson for figures that need none of them")
    from clearhead.explore.figures import naming, sets

    sets.check_place(out, kind)
    naming.check_when(rows)
    if lesson:
        drawings = sets.of_lesson()
    else:
        from clearhead.explore import looking

        options = _given(beams=beam)
        seen = looking.looked(str(subject), _text(text), answer=answer, device=device, keep="none", **options)
        for note in dict.fromkeys(note for call in seen.record.calls for note in call.about.get("notes", [])):
            _say(note)
        drawings = sets.of_record(seen.record, heads or [], name=seen.title, when=rows)
    for path, shows in sets.write(drawings, out, kind, dark=dark):
        _print(f"{path}\t{shows}")
        _flush()


@app.command()
def models() -> None:
    """List what is shipped: models, recipes, corpora."""
    import clearhead.shipped as shipped

    models = _found(shipped.models(), shipped.model)
    _table("models", ["name", "task", "size", "scores", "licence"], [_model_row(*one) for one in models])
    recipes = _found(shipped.recipes(), shipped.recipe)
    _table("recipes", ["name", "about"], [[name, _recipe(path).get("about", "")] for name, path in recipes])
    corpora = _found(shipped.corpora(), shipped.corpus)
    _table("corpora", ["name", "size"], [[f"shipped:{name}", _size(path)] for name, path in corpora])
    _flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code; whatever goes wrong is said in words, on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # whatever the locale says
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    command = typer.main.get_command(app)
    try:
        with command.make_context("clearhead", list(sys.argv[1:] if arguments is None else arguments)) as context:
            command.invoke(context)
        return 0
    except typer.Exit as done:
        return done.exit_code
    except _StdoutClosed:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it ends
        return 0
    except (KeyboardInterrupt, typer.Abort):
        _say("interrupted")
        return 130
    except Exception as error:
        if os.environ.get("CLEARHEAD_TRACEBACK") == "1":
            raise
        code, message = _explained(error)
        _say(message)
        return code


def _inputs(texts: list[str] | None, batch: int) -> tuple[Iterable[str], str, int]:
    """What to answer, what to call one of them, and how many to take at a time."""
    if texts and texts != ["-"]:
        if "-" in texts:
            raise ConfigError("- means the lines of the standard input, and stands alone")
        return (_utf8(os.fsencode(text), f"text {number}") for number, text in enumerate(texts, 1)), "text", batch
    if sys.stdin is None or (not texts and sys.stdin.isatty()):
        raise ConfigError("there is nothing to answer; give a TEXT, or - for the lines of the standard input")
    at_once = 1 if batch == 1 or sys.stdin.isatty() else READ_AHEAD * batch
    return _lines(sys.stdin.buffer), "line", at_once


def _text(text: str | None) -> str | None:
    """One text, from the command line or the standard input."""
    if text != "-":
        return None if text is None else _utf8(os.fsencode(text), "TEXT")
    if sys.stdin is None:
        raise ConfigError("there is no standard input to read")
    return _utf8(sys.stdin.buffer.read(), "the standard input").removeprefix("\ufeff").rstrip("\r\n")


def _show(address: str) -> None:
    import webbrowser

    if not webbrowser.open(address):
        _say(f"no browser was found; open {address}")


def _lines(stream: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(stream, 1):
        text = _utf8(line, f"line {number} of the standard input").removesuffix("\n").removesuffix("\r")
        yield text.removeprefix("\ufeff") if number == 1 else text


def _utf8(raw: bytes, place: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte, where = raw[error.start], error.start + 1
        raise DataError(
            f"{place} is not UTF-8: byte 0x{byte:02X} at place {where}; convert it first, as iconv does"
        ) from None


def _groups(inputs: Iterable[str], at_once: int) -> Iterator[list[str]]:
    """So many at a time; what comes before a broken line is still answered."""
    some, broken = list[str](), None
    try:
        for text in inputs:
            some.append(text)
            if len(some) == at_once:
                yield some
                some = []
    except DataError as error:
        broken = error
    if some:
        yield some
    if broken is not None:
        raise broken


def _as_line(answer: Prediction, number: int | None) -> str:
    if number is None:
        return _one_line(answer.text)
    answers = [(answer.text, answer.score), *answer.alternatives]
    return "\n".join(
        f"{number}\t{'' if score is None else f'{score:.4f}'}\t{_one_line(text)}" for text, score in answers
    )


def _one_line(text: str) -> str:
    return text.translate({ord(mark): " " for mark in "\r\n\t"})


def _as_json(text: str, answer: Prediction) -> str:
    others = [{"output": other, "score": _finite(score)} for other, score in answer.alternatives]
    shown = {"input": text, "output": answer.text, "score": _finite(answer.score)}
    return json.dumps({**shown, "alternatives": others, "notes": answer.notes}, ensure_ascii=False)


def _finite(score: float | None) -> float | None:
    return score if score is not None and math.isfinite(score) else None


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _found(names: list[str], find: Callable[[str], Path | None]) -> list[tuple[str, Path]]:
    return [(name, path) for name in names if (path := find(name)) is not None]


def _model_row(name: str, folder: Path) -> list[str]:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    scores = [f"{key} {value:g}" for key, value in metrics.get("dev", {}).items() if isinstance(value, float)]
    return [name, config["task"], _size(folder), ", ".join(scores), _recipe(folder / "recipe.toml").get("licence", "")]


def _recipe(path: Path) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _size(path: Path) -> str:
    total = sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")))
    return f"{total / 2**20:.1f} MiB"


def _table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, title=title, title_justify="left", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(Text, row))  # a Text is shown as it is, brackets and all
    terminal, drawn = sys.stdout.isatty(), io.StringIO()
    console = Console(file=drawn, force_terminal=terminal, width=None if terminal else 200)
    console.print(table if rows else Text(f"no {title} are shipped"))
    _print("\n".join(line.rstrip() for line in drawn.getvalue().splitlines()) + "\n")


def _explained(error: Exception) -> tuple[int, str]:
    """The exit code for an error, and what to say about it."""
    said = getattr(error, "format_message", None)
    if said is not None:  # the command line itself is wrong
        context: Any = getattr(error, "ctx", None)
        return 2, f"{said() or 'say what to do'} ({context.command_path if context else 'clearhead'} --help says more)"
    if isinstance(error, ClearheadError):
        return 1 if isinstance(error, (TrainingError, DiskFullError)) else 2, str(error)
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("clearhead"):
        extra = EXTRAS.get(str(error.name).split(".")[0], "train")
        return 2, f'the package {error.name} is missing; pip install "clearhead[{extra}]"'
    if isinstance(error, MemoryError) or _is_memory(error):
        return 1, (
            "out of memory; take a smaller --batch or --beam, or, in training, a smaller train.batch_tokens or "
            "train.checkpointing=true"
        )
    if isinstance(error, OSError):
        wrong = isinstance(error, (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError))
        place = "" if error.filename is None else f"{error.filename}: "
        full = " (the disk is full)" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        return 2 if wrong else 1, f"{place}{error.strerror or error}{full}"
    return 1, (
        f"{type(error).__name__}: {error}; this should not happen: CLEARHEAD_TRACEBACK=1 shows where, and a report "
        "of it is welcome"
    )


def _is_memory(error: Exception) -> bool:
    """PyTorch has a class of its own for GPUs only."""
    words = ("out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(some in str(error) for some in words)


def _print(text: str) -> None:
    try:
        print(text)
    except BrokenPipeError:
        raise _StdoutClosed from None


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise _StdoutClosed from None


def _say(message: str) -> None:
    """To the user, apart from the output; control characters, which may come from a file, cannot play tricks."""
    plain = "".join(mark if mark.isprintable() or mark == "\n" else ascii(mark)[1:-1] for mark in message)
    print(f"clearhead: {plain}", file=sys.stderr, flush=True)
