"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clearhead.errors import ConfigError

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
