"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated, Any

import typer

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A model's folder, a run's folder, or a shipped model's name.")
]
Device = Annotated[str, typer.Option(help="auto (a GPU if there is one), cpu, cuda, cuda:1 …")]
Batch = Annotated[int | None, typer.Option(min=1, help="How many inputs are computed together.", show_default="64")]
Beam = Annotated[int | None, typer.Option(min=1, help="How many beams the search keeps.", show_default="the model's")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
