"""Options that several commands have, options that tasks add to commands, and commands of single tasks.

Tasks are imported (and PyTorch with them) only for the command that is about to run, and only the one of its model.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer

from clearhead.cli.program import flush_output, import_torch, print_output
from clearhead.errors import ConfigError
from clearhead.formatting import escape_control

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from clearhead.predictor import Predictor
    from clearhead.tasks import Task
    from clearhead.tasks.settings import Options

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A model's folder, a run's folder, or a shipped model's name.")
]
Base = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="The model that a LoRA adapter belongs to, if it was moved.",
        show_default="as in training",
    ),
]
Text = Annotated[
    str | None,
    typer.Argument(metavar="INPUT", help="A text, or a path of a file; - reads it from stdin."),
]
Answer = Annotated[str | None, typer.Option(help="Show the attention for this answer, not for the model's own.")]
Device = Annotated[str, typer.Option(help="auto (a GPU if there is one), cpu, cuda, cuda:1 …")]
Threads = Annotated[
    int | None, typer.Option(min=1, max=256, help="Number of CPU threads.", show_default="one for each core")
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="A,B|A=X,B=Y",
        help="TSV: the fields in order; - skips one. CSV, JSONL: TASK_COLUMN=FILE_COLUMN for each.",
        show_default="as in training, or the task's",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

SHARED = {"figures": "look"}  # commands with the options of another
# Commands of single tasks, as `clearhead --help` lists them without importing the tasks
TASK_COMMANDS = {"answers": "Add, remove or list the answers that a model for answers knows."}
TITLE = 74  # characters of a panel's title in a terminal of 80 columns
Action = Annotated[str, typer.Argument(metavar="ACTION", help="The action; see above.")]
Arguments = Annotated[list[str] | None, typer.Argument(metavar="ARGUMENT", help="Arguments of the action.")]


def parse_columns(written: str) -> list[str] | dict[str, str]:
    """Parses --columns: a list of names, or a mapping of the task's names to those in the file.

    >>> parse_columns("-,source,target")
    ['-', 'source', 'target']
    >>> parse_columns("source=zh,target=en")
    {'source': 'zh', 'target': 'en'}
    """
    parts = written.split(",")
    if "=" not in written:
        return parts
    names = dict(part.split("=", 1) for part in parts if "=" in part)
    if len(names) < len(parts):
        raise ConfigError(
            f"--columns {written}: give each column once, as TASK_COLUMN=FILE_COLUMN, or the fields in order, as A,B"
        )
    return names


def find_task(arguments: Sequence[str]) -> Task | None:
    """The task of the model that the arguments of a command name first; None if they name none of ours."""
    import clearhead.shipped as shipped

    name = next((text for text in arguments if not text.startswith("-")), "")
    folders = [Path(name), Path(name, "model"), shipped.model(name.removeprefix(shipped.PREFIX))]
    for folder in folders:
        with suppress(OSError, ValueError, KeyError, AttributeError, TypeError):
            config = json.loads(Path(str(folder), "config.json").read_text(encoding="utf-8"))
            wanted, objective = config["task"], config["settings"].get("objective")
            import_torch(None)  # before the task does: how its threads wait is decided then
            from clearhead.tasks import TASKS

            return TASKS[wanted].select(objective)
    return None


def add_task_options(
    command: Callable[..., None], name: str, *, load: bool, task: Task | None = None
) -> Callable[..., None]:
    """A command function whose `**options` are replaced by those of a task, or of all tasks (of none unless `load`).

    Whether the model's own task has an option is checked when it is known which that is.
    """
    signature = inspect.signature(command, eval_str=True)
    fixed = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    load = load and len(fixed) < len(signature.parameters)  # only commands with **options take options of tasks
    added = list(_make_parameters(SHARED.get(name, name), task)) if load else []
    optional = {parameter.name for parameter in added}

    @wraps(command)
    def run(**values: Any) -> None:
        command(**{key: value for key, value in values.items() if key not in optional or value not in (None, [], ())})

    parameters = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in [*fixed, *added]]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def refuse_foreign_options(predictor: Predictor, command: str, options: Mapping[str, Any]) -> None:
    """Refuses options that other tasks have and this one does not, in the spelling of the command line."""
    from clearhead.tasks import TASKS
    from clearhead.tasks.settings import option_names

    task, objective = predictor.task, predictor.processor.settings.get("objective")
    names = option_names(task.options, command)
    for name in options:
        if name not in names:
            kinds = [kind for each in TASKS.values() for kind in each.option_kinds]
            fields = {name: field for kind in kinds for name, field in kind.model_fields.items()}
            has = ", ".join(_flag(option, task.options.model_fields[option]) for option in names)
            kind = task.name if objective is None else f'{task.name} with objective = "{objective}"'
            raise ConfigError(f"{kind} has no option {_flag(name, fields[name])}; it has {has}")


def _make_parameters(command: str, task: Task | None) -> Iterator[inspect.Parameter]:
    """An option for each name that the task, or some task, has; tasks with the same name mean the same."""
    import_torch(None)  # before the tasks do: how its threads wait is decided then
    from clearhead.tasks.settings import option_names

    kinds = _list_option_kinds(command) if task is None else {task.name: [task.options]}
    owners: dict[str, dict[str, FieldInfo]] = {}  # of each option the tasks, with their fields
    for owner, options in kinds.items():
        for kind in options:
            for name in option_names(kind, command):
                owners.setdefault(name, {}).setdefault(owner, kind.model_fields[name])
    for name, fields in owners.items():
        field = next(iter(fields.values()))
        panel = None if len(fields) == len(kinds) else _panel_title(list(fields), list(kinds))
        default = field.default if all(other.default == field.default for other in fields.values()) else None
        annotation = _make_annotation(name, field, panel, default)
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _list_option_kinds(command: str) -> dict[str, Sequence[type[Options]]]:
    """The classes of options of every task by its name, and those of Hugging Face models, for the help."""
    from clearhead.explore.huggingface_folder import HuggingFaceOptions
    from clearhead.tasks import TASKS

    kinds: dict[str, Sequence[type[Options]]] = {name: task.option_kinds for name, task in TASKS.items()}
    return {**kinds, "Hugging Face models": [HuggingFaceOptions]} if command == "look" else kinds


def _panel_title(tasks: Sequence[str], every: Sequence[str]) -> str:
    """Whose options a panel of the help has, in one line of 80 columns: those of some tasks, or of all but some."""
    title = f"For {', '.join(tasks)}"
    if len(title) <= TITLE:
        return title
    return f"For all tasks but {', '.join(task for task in every if task not in tasks)}"


def _make_annotation(name: str, field: FieldInfo, panel: str | None, default: Any) -> Any:
    """The type annotation from which typer makes an option; its help shows `default` unless that is None."""
    flag, kind = _flag(name, field), _plain_type(name, field.annotation)
    if kind is bool and field.default is True:
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    limits: dict[str, Any] = {"ge": None, "le": None}
    if kind in (int, float):
        limits |= {name: getattr(limit, name) for limit in field.metadata for name in limits if hasattr(limit, name)}
    plain = kind is not bool and default not in (None, "", [])
    option = typer.Option(
        flag, help=field.description, show_default=str(default) if plain else False, rich_help_panel=panel
    )
    option.min, option.max = limits["ge"], limits["le"]
    return Annotated[kind | None, option]


def _flag(name: str, field: FieldInfo) -> str:
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    return str(extra.get("flag") or f"--{name.replace('_', '-')}")


def _plain_type(name: str, annotation: Any) -> Any:
    """The plain type of a field: bool, int, float, str, or list[str] of an option that may be repeated."""
    if annotation == list[str]:
        return annotation
    inner = get_args(annotation)
    names = {annotation, *inner, *(kind for each in inner for kind in get_args(each))}
    for kind in (bool, float, int, str):
        if kind in names or (get_origin(annotation) is Literal and isinstance(inner[0], kind)):
            return kind
    raise TypeError(f"option {name} has type {annotation}; options are bool, int, float, str or a Literal of these")


def make_task_command(name: str) -> Callable[..., None] | None:
    """The command of a task that has actions of its own: `clearhead NAME MODEL ACTION …`."""
    import_torch(None)
    from clearhead.tasks import TASKS

    if name not in TASKS or not (task := TASKS[name]).actions:
        return None

    def run(
        model: Model,
        action: Action,
        arguments: Arguments = None,
        as_json: Json = False,
        base: Base = None,
        device: Device = "auto",
    ) -> None:
        from clearhead.predictor import load

        task.find_action(action)
        predictor = load(model, device=device, base=base)
        if predictor.task.name != task.name:
            raise ConfigError(f"{model} is a model for {predictor.task.name}, not for {task.name}")
        for line in predictor.act(action, *arguments or [], as_json=as_json):
            print_output(escape_control(line, keep="\t"))
        flush_output()

    listed = "\n\n".join(f"{name}: {action.about}" for name, action in task.actions.items())
    run.__doc__ = f"What else a model for {task.name} can do.\n\n{listed}"
    return run
