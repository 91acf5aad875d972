"""The command that lists what is shipped: models."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clearhead.cli.speaking import flush, put


def models() -> None:
    """List what is shipped: models, recipes, corpora."""
    import clearhead.shipped as shipped

    models = _found(shipped.models(), shipped.model)
    _table("models", ["name", "task", "size", "scores", "licence"], [_model_row(*one) for one in models])
    recipes = _found(shipped.recipes(), shipped.recipe)
    _table("recipes", ["name", "about"], [[name, _recipe(path).get("about", "")] for name, path in recipes])
    corpora = _found(shipped.corpora(), shipped.corpus)
    _table("corpora", ["name", "size"], [[f"shipped:{name}", _size(path)] for name, path in corpora])
    flush()


def _found(names: list[str], find: Callable[[str], Path | None]) -> list[tuple[str, Path]]:
    return [(name, path) for name in names if (path := find(name)) is not None]


def _model_row(name: str, folder: Path) -> list[str]:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    scores = [f"{key} {value:g}" for key, value in metrics.get("dev", {}).items() if isinstance(value, float)]
    return [name, config["task"], _size(folder), ", ".join(scores), _licence(folder)]


def _licence(folder: Path) -> str:
    """In the recipe's first sentence, or in the words of the card where the recipe only points to it."""
    said = str(_recipe(folder / "recipe.toml").get("licence", ""))
    card = folder / "README.md"
    if card.name not in said or not card.is_file():
        first, _, more = said.partition(". ")
        return f"{first} (see {card.name})" if more else said
    text = card.read_text(encoding="utf-8")
    found = re.search(r"\| licence \| (.+?) \|", text) or re.search(r"weights\b[^.]*? under ([\w.+-]*\w)", text)
    return f"{found[1]} ({said})" if found else said


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
    put("\n".join(line.rstrip() for line in drawn.getvalue().splitlines()) + "\n")
