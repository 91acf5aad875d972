"""Recipe: the TOML file with all settings of a training run.

Unknown keys are refused, and the nearest name is suggested. `--set train.steps=200` overrides what the file says.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import Field, create_model, model_validator

import clearhead.shipped as shipped
from clearhead.errors import ConfigError
from clearhead.formatting import suggest_name
from clearhead.model import ModelConfig
from clearhead.tasks import TASKS, Task
from clearhead.tasks.file_inputs import is_generated
from clearhead.tasks.settings import Section, Source, TaskRecipe, validate

DECIDED = {  # keys of [model] that the data decide
    "vocabulary": "the tokenizer decides that; set text.vocabulary",
    "source_vocabulary": "the tokenizer decides that; set text.source_vocabulary",
    "labels": "the data decide that",
    "patch_size": "set picture.patch",
    "patch_rows": "set picture.height and picture.patch",
    "patch_columns": "set picture.width and picture.patch",
}

# Keys of [train] that a run may change when it is resumed: how long it is, and what is kept or shown of it.
CHANGEABLE = {
    *("steps", "minutes", "patience", "log_every", "evaluate_lines", "save_every", "heads_every"),
    *("keep", "weights", "tensorboard"),
}

SCRATCH = "none"  # as train.init_from: random weights

Share = Annotated[float, Field(ge=0, lt=1)]


class Train(Section):
    """`[train]` of a recipe: optimization, evaluation, checkpoints and logs.

    Where the recipe leaves out a key that fit.OPEN names, the data choose it when a run begins.
    """

    # Whose trained weights and tokenizer the run starts from: a model folder, a Hugging Face one, "minilm", "none", …
    init_from: str | None = Field(None, min_length=1)
    steps: int = Field(10_000, ge=0)  # updates of the weights; 0: only what is fitted after training
    minutes: float | None = Field(None, gt=0)  # stop after this time, too; the schedule then ends with it
    batch_tokens: int = Field(8192, ge=16)  # of one batch: all sides, pads included
    shapes: int = Field(16, ge=1)  # at most 2 × shapes distinct padded shapes of batches
    accumulate: int = Field(1, ge=1)  # batches to one update
    learning_rate: float = Field(5e-4, gt=0)
    warmup: int = Field(1000, ge=0)  # steps in which the learning rate rises to that
    schedule: Literal["inverse-sqrt", "cosine", "linear", "constant"] = "inverse-sqrt"
    layer_decay: float = Field(1.0, gt=0, le=1)  # each layer learns at this share of the rate of the layer above it
    frozen_layers: int = Field(0, ge=0)  # lowest layers that do not change, and the embeddings with them
    head_warmup: int = Field(0, ge=0)  # steps at the start in which only the output head and new weights change
    lora_rank: int = Field(0, ge=0)  # of LoRA adapters: only they, new weights and label heads change; 0: no adapters
    lora_alpha: float = Field(16.0, gt=0)  # what adapters add is scaled by alpha / rank
    lora_dropout: Share = 0.0  # of their inputs
    lora_on: list[Literal["attention", "feedforward"]] = Field(["attention"], min_length=1)
    weight_decay: float = Field(0.01, ge=0)
    betas: tuple[Share, Share] = Field((0.9, 0.98), strict=False)
    clip: float = Field(1.0, ge=0)  # the largest norm of a gradient; 0: any
    average: Literal["none", "ema", "last"] = "none"  # "ema": a moving average; "last": the mean of checkpoints
    decay: float = Field(0.999, ge=0, lt=1)  # of the moving average
    precision: Literal["auto", "float32", "float64", "bfloat16", "float16"] = "auto"
    compile: bool = False
    checkpointing: bool = False  # layers are computed again in the backward pass: less memory, a third more time
    shard: bool = False  # several processes share the weights (FSDP) instead of each holding all (DDP)
    log_every: int = Field(50, ge=1)
    evaluate_every: int = Field(1000, ge=1)  # steps from one evaluation (and checkpoint) to the next
    save_every: int | None = Field(None, ge=1)  # further checkpoints between; None: none
    evaluate_lines: int = Field(500, ge=1)  # rows of dev that are answered each time; all of them at the end
    patience: int | None = Field(None, ge=1)  # evaluations without a better score, then stop; None: never
    metric: str | None = None  # what is better: a score of the task, or "loss"; None: the task's own
    keep: int = Field(2, ge=1)  # newest checkpoints that stay, besides the best
    weights: Literal["float32", "bfloat16", "int8"] = "float32"  # how the finished model is stored
    # steps between two measurements of the heads; 0: never; None: 100, or more if that takes too long
    heads_every: int | None = Field(None, ge=0)
    tensorboard: bool = True

    @property
    def start_name(self) -> str | None:
        """The trained weights that the run starts from, as far as the recipe says; None: random ones."""
        return None if self.init_from == SCRATCH else self.init_from


class Recipe(TaskRecipe):
    """A whole recipe; `recipe_class` adds the sections of a task."""

    train: Train = Train()

    @property
    def kind(self) -> Task:
        """The task, or its variant, that the recipe names."""
        return TASKS[self.task].select(self.variant)

    @model_validator(mode="after")
    def _check_together(self) -> Recipe:
        self._check_model()
        metrics = ("loss", *self.kind.metrics)
        if self.train.metric is not None and self.train.metric not in metrics:
            hint = suggest_name(self.train.metric, metrics)
            raise ValueError(f"train.metric: {self.train.metric!r} is not known; {hint}")
        if self.train.lora_rank and self.train.start_name is None:
            raise ValueError("train.lora_rank: adapters are for trained weights; name their folder in train.init_from")
        if self.train.lora_rank and self.train.shard:
            raise ValueError("train.lora_rank: adapters are small and cannot be sharded; leave train.shard out")
        if self.train.average == "last" and self.train.keep < 2:
            raise ValueError("train.average: the last checkpoints are averaged, so train.keep must be at least 2")
        return self

    def _check_model(self) -> None:
        for key, remedy in DECIDED.items():
            if key in self.model:
                raise ValueError(f"model.{key}: {remedy}")
        if self.train.start_name is not None and "shape" in self.model:
            raise ValueError(
                "model.shape: the weights in train.init_from decide that; leave it out (--set model={} empties [model])"
            )
        try:
            config = self.kind.processor.make_config(self, **self.kind.processor.placeholder_sizes)
        except (ConfigError, TypeError) as error:
            raise ValueError(f"model: {error}") from None
        if self.train.start_name is None and (problem := find_position_problem(self, config)):
            raise ValueError(problem)


def learned_settings(recipe: Recipe) -> dict[str, Any]:
    """The settings of training that change what is learned; a run may only be resumed with the same ones."""
    settings = recipe.train.model_dump(mode="json")
    return {"seed": recipe.seed, **{f"train.{key}": settings[key] for key in settings if key not in CHANGEABLE}}


def find_position_problem(recipe: Recipe, config: ModelConfig) -> str | None:
    """Why a model's learned positions are too few for the longest texts of a recipe; None if they are enough."""
    needed = recipe.data.longest + recipe.kind.processor.added_tokens
    if config.positions != "learned" or config.max_length >= needed:
        return None
    remedy = f"make it at least {needed}" if recipe.train.start_name is None else "make data.longest smaller"
    return (
        f"model.max_length: {config.max_length} learned positions are too few for data.longest = "
        f"{recipe.data.longest} with start and end; {remedy}"
    )


@cache
def recipe_class(sections: type[TaskRecipe]) -> type[Recipe]:
    """The recipe of a task: its own sections, and the trainer's."""
    bases: Any = (sections, Recipe)
    return cast(type[Recipe], create_model(f"{sections.__name__}WithTraining", __base__=bases))


def read_recipe(name: str, overrides: Sequence[str] = (), seed: int | None = None) -> tuple[Recipe, Path]:
    """A recipe by its path or by the name of a shipped one, and the folder that its own paths start from."""
    path = Path(name)
    if not path.is_file():
        shipped_recipe = shipped.recipe(name)
        if shipped_recipe is None:
            raise ConfigError(
                f"no file and no shipped recipe is called {name}; {suggest_name(name, shipped.recipes())}"
            )
        path = shipped_recipe
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML: {error}") from None
    for override in overrides:
        _apply_override(values, override)
    if seed is not None:
        values["seed"] = seed
    return check_recipe(values, str(path)), path.parent


def check_recipe(values: dict[str, Any], source: str) -> Recipe:
    """The validated recipe; the error has one line for each problem, and one for all missing keys."""
    name = values.get("task")
    if name is not None and (not isinstance(name, str) or name not in TASKS):
        raise ConfigError(f"{source}: task: {name!r} is not known; {suggest_name(name, TASKS)}")
    kind = Recipe if name is None else recipe_class(TASKS[name].recipe)
    return validate(kind, values, source)


def to_toml(recipe: Recipe) -> str:
    """The whole recipe, defaults included, as TOML."""
    values = recipe.model_dump(exclude_none=True)
    plain = {key: value for key, value in values.items() if not isinstance(value, dict)}
    lines = [f"{key} = {_format_value(value)}" for key, value in plain.items()]
    for section, inside in values.items():
        if isinstance(inside, dict) and inside:
            lines += ["", f"[{section}]"]
            lines += [f"{_format_key(key)} = {_format_value(value)}" for key, value in inside.items()]
    return "\n".join(lines) + "\n"


def resolve_sources(recipe_sources: Source | list[Source], base: Path) -> list[Path | dict[str, Path]]:
    """The paths of data files: `shipped:NAME`, or relative to the recipe's folder, or to the current one."""
    sources = recipe_sources if isinstance(recipe_sources, list) else [recipe_sources]
    return [
        {column: resolve_path(path, base) for column, path in source.items()}
        if isinstance(source, dict)
        else resolve_path(source, base)
        for source in sources
    ]


def resolve_path(name: str, base: Path) -> Path:
    """The path of a file that a recipe names: `shipped:NAME`, or relative to its folder, or to the current one.

    `made:NAME`, for data that a program makes, stays as it is.
    """
    if is_generated(name):
        return Path(name)
    if name.startswith(shipped.PREFIX):
        return shipped.corpus(name.removeprefix(shipped.PREFIX))
    path = Path(name).expanduser()
    # A path given with --set may be relative to the current folder.
    return path if path.exists() and not (base / path).exists() else base / path


def _apply_override(values: dict[str, Any], override: str) -> None:
    key, equals, written = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set wants key=value, such as train.steps=200; got {override!r}")
    try:
        value = tomllib.loads(f"value = {written}")["value"]
    except tomllib.TOMLDecodeError:
        value = written  # a bare word is a text
    *sections, last = key.strip().split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--set {override}: {section} is no section")
    values[last] = value


def _format_key(key: str) -> str:
    return key if key.replace("-", "").replace("_", "").isalnum() and key.isascii() else json.dumps(key)


def _format_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_format_key(key)} = {_format_value(inside)}" for key, inside in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_format_value, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)
