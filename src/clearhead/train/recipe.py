"""Recipe: one TOML file that says everything about a training run.

Unknown keys are refused, and the nearest name is suggested. `--set train.steps=200` overrides what the file says.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

import clearhead.shipped as shipped
from clearhead.errors import ConfigError
from clearhead.model import ModelConfig
from clearhead.tasks import TASKS

Source = str | dict[str, str]  # one file, or one file for each column


Share = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


class Data(Section):
    """Which files, and which of their lines are used."""

    train: Source | list[Source]
    dev: Source | list[Source] | None = None
    # The fields of a TSV in their order ("-" skips one), or { source = "zh", target = "en" } of a CSV or JSONL with
    # names of its own; None: the task's names.
    columns: list[str] | dict[str, str] | None = None
    lines: int | None = Field(None, ge=1)  # only the first so many of each training file
    longest: int = Field(128, ge=1)  # tokens of either side; longer pairs are dropped, and the report says so
    ratio: float = Field(6.0, ge=0)  # how many times longer a side of more than 10 tokens may be than the other; 0: any

    @field_validator("train", "dev", "columns", mode="wrap")
    @classmethod
    def _in_one_line(cls, value: Any, validate: Any, field: Any) -> Any:
        """What does not fit a union is refused once, not once for each of its members."""
        try:
            return validate(value)
        except ValidationError:
            wanted = "a list of names, or { a column of the task = its name in the file }"
            if field.field_name != "columns":
                wanted = "a file, { column = file } for each column, or a list of these"
            raise ValueError(f"should be {wanted}") from None


class Text(Section):
    """How text becomes tokens."""

    tokenizer: Literal["bpe", "unigram", "character"] = "bpe"
    vocabulary: int = Field(8000, ge=300)
    shared: bool = True  # one tokenizer for both languages, or one for each
    source_vocabulary: int | None = Field(None, ge=300)  # of the source's own tokenizer; None: as vocabulary
    script: Literal["simplified"] | None = None  # traditional Chinese characters become these
    lowercase: bool = False


class Train(Section):
    """How the weights are found."""

    steps: int = Field(10_000, ge=1)  # updates of the weights
    minutes: float | None = Field(None, gt=0)  # stop after so many, too; the schedule then ends with the time
    batch_tokens: int = Field(8192, ge=16)  # of one batch: all sides, pads included
    shapes: int = Field(16, ge=1)  # of how many different sizes batches may be, twice over
    accumulate: int = Field(1, ge=1)  # batches to one update
    learning_rate: float = Field(5e-4, gt=0)
    warmup: int = Field(1000, ge=0)  # steps in which the learning rate rises to that
    schedule: Literal["inverse-sqrt", "cosine", "linear", "constant"] = "inverse-sqrt"
    weight_decay: float = Field(0.01, ge=0)
    betas: tuple[Share, Share] = (0.9, 0.98)
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    clip: float = Field(1.0, ge=0)  # the largest norm of a gradient; 0: any
    average: Literal["none", "ema", "last"] = "none"  # weights that are kept: the last, a moving average, or…
    decay: float = Field(0.999, ge=0, lt=1)  # …of that average
    precision: Literal["auto", "float32", "float64", "bfloat16", "float16"] = "auto"
    compile: bool = False
    checkpointing: bool = False  # layers are computed again in the backward pass: less memory, a third more time
    shard: bool = False  # several processes share the weights (FSDP) instead of each holding all (DDP)
    log_every: int = Field(50, ge=1)
    evaluate_every: int = Field(1000, ge=1)  # steps from one evaluation (and checkpoint) to the next
    save_every: int | None = Field(None, ge=1)  # further checkpoints between; None: none
    evaluate_lines: int = Field(500, ge=1)  # of dev are translated each time; all of them at the end
    patience: int | None = Field(None, ge=1)  # evaluations without a better score, then stop; None: never
    metric: str | None = None  # what is better: a score of the task, or "loss"; None: the task's own
    keep: int = Field(2, ge=1)  # newest checkpoints that stay, besides the best
    weights: Literal["float32", "bfloat16", "int8"] = "float32"  # how the finished model is stored
    # steps from one look at what the heads do to the next; 0: never; None: 100, or more where that takes too long
    heads_every: int | None = Field(None, ge=0)
    tensorboard: bool = True


class Recipe(Section):
    task: str
    about: str = ""  # for the model's card: what it is, on what it was trained
    licence: str = ""
    seed: int = Field(1, ge=0, lt=2**63)
    data: Data
    text: Text = Text()
    model: dict[str, Any] = {}  # shape = "classic", and changes to it
    train: Train = Train()
    decode: dict[str, Any] = {}  # beam, length_penalty, part: the finished model's defaults

    @model_validator(mode="after")
    def _fits_together(self) -> Recipe:
        if self.task not in TASKS:
            raise ValueError(f"task: {_unknown(self.task, TASKS)}")
        self._check_model()
        task = TASKS[self.task]
        for key in self.decode:
            if key not in task.defaults:
                raise ValueError(f"decode.{key}: {_unknown(key, task.defaults)}")
        if self.train.metric not in (None, "loss", *task.metrics):
            raise ValueError(f"train.metric: {_unknown(self.train.metric, ('loss', *task.metrics))}")
        if self.train.average == "last" and self.train.keep < 2:
            raise ValueError("train.average: the last checkpoints are averaged, so train.keep must be at least 2")
        return self

    def _check_model(self) -> None:
        for key in ("vocabulary", "source_vocabulary"):
            if key in self.model:
                raise ValueError(f"model.{key}: the tokenizer decides that; set text.{key}")
        shape = self.model.get("shape", "classic")
        changes = {key: value for key, value in self.model.items() if key != "shape"}
        try:
            config = ModelConfig.named(str(shape), vocabulary=1, **changes)
        except (ConfigError, TypeError) as error:
            raise ValueError(f"model: {error}") from None
        if config.positions == "learned" and config.max_length <= self.data.longest:
            raise ValueError(
                f"model.max_length: {config.max_length} learned positions are too few for data.longest = "
                f"{self.data.longest} and the end; make it at least {self.data.longest + 1}"
            )


def read_recipe(name: str, overrides: Sequence[str] = (), seed: int | None = None) -> tuple[Recipe, Path]:
    """A recipe by its path or by the name of a shipped one, and the folder that its own paths start from."""
    path = Path(name)
    if not path.is_file():
        found = shipped.recipe(name)
        if found is None:
            raise ConfigError(f"no file {name} and no shipped recipe: {_unknown(name, shipped.recipes())}")
        path = found
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML: {error}") from None
    for override in overrides:
        _override(values, override)
    if seed is not None:
        values["seed"] = seed
    return checked(values, str(path)), path.parent


def checked(values: dict[str, Any], source: str) -> Recipe:
    """The recipe that these values make; what is wrong with them is said in a line each, what is missing in one."""
    try:
        return Recipe(**values)
    except ValidationError as error:
        problems = error.errors()
        missing = [_place(problem) for problem in problems if problem["type"] == "missing"]
        said = [f"{', '.join(missing)}: {'are' if len(missing) > 1 else 'is'} missing"] if missing else []
        said += [_said(problem) for problem in problems if problem["type"] != "missing"]
        raise ConfigError("\n".join(f"{source}: {one}" for one in said)) from None


def to_toml(recipe: Recipe) -> str:
    """The whole recipe, defaults included, as TOML."""
    values = recipe.model_dump(exclude_none=True)
    plain = {key: value for key, value in values.items() if not isinstance(value, dict)}
    lines = [f"{key} = {_toml(value)}" for key, value in plain.items()]
    for section, inside in values.items():
        if isinstance(inside, dict) and inside:
            lines += ["", f"[{section}]", *(f"{_key(key)} = {_toml(value)}" for key, value in inside.items())]
    return "\n".join(lines) + "\n"


def sources(recipe_sources: Source | list[Source], base: Path) -> list[Path | dict[str, Path]]:
    """Where the data lies: `shipped:NAME`, or paths, which start from the recipe's folder, or else from here."""
    given = recipe_sources if isinstance(recipe_sources, list) else [recipe_sources]
    return [
        {column: _located(path, base) for column, path in one.items()} if isinstance(one, dict) else _located(one, base)
        for one in given
    ]


def _located(name: str, base: Path) -> Path:
    if name.startswith("shipped:"):
        found = shipped.corpus(name.removeprefix("shipped:"))
        if found is None:
            wanted = name.removeprefix("shipped:")
            raise ConfigError(f"no shipped corpus: {_unknown(wanted, shipped.corpora())}")
        return found
    given = Path(name).expanduser()
    # One that was given with --set may well be meant from where the user stands.
    return given if given.exists() and not (base / given).exists() else base / given


def _override(values: dict[str, Any], override: str) -> None:
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


def _said(problem: Any) -> str:
    """One of pydantic's findings in our words: where, what, and the nearest name if one is unknown."""
    place = _place(problem)
    if problem["type"] == "extra_forbidden":
        *sections, key = problem["loc"]
        fields = _fields(sections)
        return f"{place}: {_unknown(key, fields)}"
    message = problem["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
    return f"{place}: {message}, got {problem['input']!r}" if place else message


def _place(problem: Any) -> str:
    return ".".join(str(step) for step in problem["loc"] if not _is_type(step))


def _is_type(step: Any) -> bool:
    return isinstance(step, str) and (step in ("str", "int", "float", "bool") or "[" in step)


def _fields(sections: Sequence[Any]) -> list[str]:
    model: Any = Recipe
    for section in sections:
        model = model.model_fields[section].annotation
    return list(model.model_fields)


def _unknown(name: Any, known: Iterable[str]) -> str:
    near = get_close_matches(str(name), list(known), n=1)
    return f"{name!r} is not known; " + (f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}")


def _key(key: str) -> str:
    return key if key.replace("-", "").replace("_", "").isalnum() and key.isascii() else json.dumps(key)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_toml(inside)}" for key, inside in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)
