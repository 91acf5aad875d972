"""The commands `models`, which lists what is shipped, and `merge`, which makes one model of an adapter and its base."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from clearhead.cli.options import Base, Model
from clearhead.cli.program import flush_output, import_torch
from clearhead.formatting import escape_control, format_bytes, print_message


def models() -> None:
    """List the shipped models, recipes and corpora."""
    import clearhead.shipped as shipped

    models = _find_all(shipped.models(), shipped.model)
    _print_table("models", ["name", "task", "size", "scores", "licence"], [_make_model_row(*model) for model in models])
    recipes = _find_all(shipped.recipes(), shipped.recipe)
    _print_table("recipes", ["name", "about"], [[name, _read_recipe(path).get("about", "")] for name, path in recipes])
    corpora = _find_all(shipped.corpora(), shipped.corpus)
    sizes = [[f"{shipped.PREFIX}{name}", _format_size(path)] for name, path in corpora]
    _print_table("corpora", ["name", "size"], sizes)
    flush_output()


def merge(
    model: Model,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="The new model's folder.")],
    base: Base = None,
) -> None:
    """Merge a LoRA adapter into its base model: the new folder is a whole model and needs no other."""
    import_torch(None)
    from clearhead.model_folder import ModelFolder
    from clearhead.model_folder import merge as merge_folder
    from clearhead.predictor import find_model

    merge_folder(find_model(model), out, base=base)
    example = ModelFolder.open(out).processor().inputs.example
    print_message(f"clearhead: wrote {out}; try it: clearhead predict {out} {example}")


def _find_all(names: list[str], find: Callable[[str], Path | None]) -> list[tuple[str, Path]]:
    return [(name, path) for name in names if (path := find(name)) is not None]


def _make_model_row(name: str, folder: Path) -> list[str]:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    scores = [f"{key} {value:g}" for key, value in metrics.get("dev", {}).items() if isinstance(value, float)]
    return [name, config["task"], _format_size(folder), ", ".join(scores), _find_licence(folder)]


def _find_licence(folder: Path) -> str:
    """The first sentence of the licence in a model's recipe; the card has all of it."""
    first, _, more = str(_read_recipe(folder / "recipe.toml").get("licence", "")).partition(". ")
    return f"{first} (see README.md)" if more else first


def _read_recipe(path: Path) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _format_size(path: Path) -> str:
    total = sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")))
    return format_bytes(total)


def _print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, title=title, title_justify="left", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(escape_control(cell, keep="")) for cell in row))  # a Text shows brackets as they are
    terminal, buffer = sys.stdout.isatty(), io.StringIO()
    console = Console(file=buffer, force_terminal=terminal, width=None if terminal else 200)
    console.print(table if rows else Text(f"no {title} are shipped"))
    print("\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n")  # with rich's own colours
