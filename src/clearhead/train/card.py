"""The model's card: what it is, what it learned from, how good it is."""

from __future__ import annotations

import datetime
from typing import Any

from clearhead.tasks import Task
from clearhead.train.recipe import Recipe


def card(name: str, recipe: Recipe, task: Task, metrics: dict[str, Any]) -> str:
    """A short README for a model folder."""
    config = task.config
    given = recipe.data.train if isinstance(recipe.data.train, list) else [recipe.data.train]
    data = [" + ".join(one.values()) if isinstance(one, dict) else one for one in given]
    layers = (
        f"{config.layers} + {config.decoder_layers or config.layers}" if task.name == "translation" else config.layers
    )
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
        f"| data | {', '.join(data)}: {counted(metrics['pairs'], 'example')} |",
        f"| trained | {counted(metrics['step'], 'step')}, seed {recipe.seed}, {datetime.date.today().isoformat()} |",
        f"| licence | {recipe.licence or 'not stated: the data decides'} |",
    ]
    if "dev" in metrics:
        lines += ["", "Scores on dev:", ""]
        lines += [f"- {key}: {value}" for key, value in metrics["dev"].items()]
    use = '```sh\nclearhead predict THIS-FOLDER "…"\n```'
    return "\n".join([*lines, "", "How it was trained is in `recipe.toml`. To use it:", "", use, ""])


def counted(count: int, what: str) -> str:
    """A number of things.

    >>> counted(1, "step"), counted(2000, "step")
    ('1 step', '2,000 steps')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"
