"""What users may set for a task: the sections of its recipe, and the options of `predict` and `evaluate`.

Both are pydantic models: values are checked, unknown names are refused and the nearest one is suggested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, WrapValidator, model_validator

from clearhead.errors import ConfigError
from clearhead.formatting import suggest_name
from clearhead.tasks.pretrained import Pretrained
from clearhead.text import Tokenizer

Source = str | dict[str, str]  # one file, or one file for each column
Share = Annotated[float, Field(gt=0, lt=1)]
SettingsT = TypeVar("SettingsT", bound=BaseModel)
LARGEST_VOCABULARY = 8000  # unless a recipe names its size
COMMANDS = ("predict", "evaluate", "look")  # that have options of tasks; figures has those of look


def one_message(wanted: str) -> WrapValidator:
    """For a field of several types: a value of none is refused in one line, not in one for each type."""

    def check(value: Any, validate: Callable[[Any], Any]) -> Any:
        try:
            return validate(value)
        except ValidationError:
            raise ValueError(f"should be {wanted}") from None

    return WrapValidator(check)


FILES = "a file, { column = file } for each column, or a list of these"


class Section(BaseModel):
    """One section of a recipe: immutable, without unknown keys, infinities or NaN."""

    learned: ClassVar[bool] = True  # whether it changes what is learned: if so, a run that is resumed must keep it

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True, allow_inf_nan=False)


class Data(Section):
    """`[data]`: which files, and which of their rows are used."""

    train: Annotated[Source | list[Source], one_message(FILES)]
    # A float is the share of `train` that is split off for it: dev = 0.02.
    dev: Annotated[
        Source | list[Source] | Share | None,
        one_message(f"{FILES}, or the share of train that is split off for it, greater than 0 and less than 1"),
    ] = None
    test: Annotated[Source | list[Source] | None, one_message(FILES)] = None  # scored once, with the finished model
    # The fields of a TSV in their order ("-" skips one), or { source = "zh", target = "en" } of a CSV or JSONL with
    # names of its own; None: the task's names.
    columns: Annotated[
        list[str] | dict[str, str] | None,
        one_message("a list of names, or { a column of the task = its name in the file }"),
    ] = None
    lines: int | None = Field(None, ge=1)  # only the first lines of each training file, at most this number
    longest: int = Field(128, ge=1)  # tokens of a text; longer rows are dropped from training, and the report says so

    def find_excess(self, tokens: int) -> str | None:
        """Why a row of this number of tokens is dropped from training, if it is."""
        return f"longer than {self.longest} tokens" if tokens > self.longest else None

    @property
    def document_kind(self) -> str | None:
        """What of a `.txt` file is one row, where rows are documents."""
        return None

    @property
    def ordered(self) -> bool:
        """Whether neighbouring rows belong together: a share of them that is split off for dev is then the last one."""
        return False

    @property
    def unlabelled_source(self) -> Source | list[Source] | None:
        """Files of inputs without answers, where a task learns from them."""
        return None

    def resolve(self, find: Callable[[str], Path]) -> Data:
        """With the content of other files that the section names, such as names of labels; `find` gives their paths."""
        return self


class Text(Section):
    """`[text]`: how text becomes tokens."""

    tokenizer: Literal["auto", "bpe", "unigram", "character"] = "auto"  # "auto": the data choose, see train/fit.py
    vocabulary: int | None = Field(None, ge=300)  # None: what is seen often enough in the data
    script: Literal["simplified"] | None = None  # traditional Chinese characters become these
    lowercase: bool = False
    pieces: list[str] = []  # texts that are one token wherever they are written, such as #Person1#

    def make_tokenizer(self, texts: Iterable[str], start: Pretrained | None) -> Tokenizer:
        """The tokenizer of the trained weights to start from, or else a new one for these texts."""
        return self.train_tokenizer(texts) if start is None else start.tokenizer

    def train_tokenizer(self, texts: Iterable[str], vocabulary: int | None = None, *, mask: bool = False) -> Tokenizer:
        """A tokenizer for these texts, with another size of vocabulary or a mask token if that is wanted."""
        return Tokenizer.train(
            texts,
            kind="bpe" if self.tokenizer == "auto" else self.tokenizer,
            vocabulary=vocabulary or self.vocabulary or LARGEST_VOCABULARY,
            script=self.script,
            lowercase=self.lowercase,
            exact=self.keeps_layout,
            pieces=self.pieces,
            mask=mask,
        )

    @property
    def keeps_layout(self) -> bool:
        """Whether texts stay as they are, with their line breaks and spaces, instead of being normalised."""
        return False


class TaskRecipe(Section):
    """Base class of recipes, without the `[train]` section; a task adds its own sections in a subclass."""

    task: str
    about: str = ""  # for the model's card: what it is, on what it was trained
    licence: str = ""
    seed: int = Field(1, ge=0, lt=2**63)
    data: Data
    text: Text = Text()
    model: dict[str, Any] = {}  # shape = "classic", and changes to it; empty: what fits the machine and the data

    def needs_steps(self, processor: Any, rows: int) -> bool:
        """Whether a model for so many rows is worth training by gradients; else all is fitted in one go."""
        return True

    @property
    def variant(self) -> str | None:
        """The variant of the task that the recipe asks for, where there are several."""
        return None


class Options(Section):
    """Options of `predict` and `evaluate`, in Python and on the command line. A task adds its own in a subclass."""

    batch: int = Field(64, ge=1, description="How many inputs are computed together.")

    @model_validator(mode="before")
    @classmethod
    def _unwrap_numpy(cls, values: Any) -> Any:
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}

    @property
    def ranked(self) -> bool:
        """Whether several answers to each input are wanted, best first."""
        return False


def option(default: Any, description: str, *, flag: str | None = None, only: Sequence[str] = (), **limits: Any) -> Any:
    """A field of `Options`: its `flag` on the command line (None: its name), and the only commands that have it."""
    wrong = [only] if isinstance(only, str) else [name for name in only if name not in COMMANDS]
    assert not wrong, f"only={wrong[0]!r}: a tuple of commands is wanted, of {', '.join(COMMANDS)}"
    extra: Any = {"flag": flag, "only": list(only)}
    return Field(default, description=description, json_schema_extra=extra, **limits)


class RankedOptions(Options):
    """Options of tasks that can give several answers to an input, best first."""

    best: int = option(1, "How many answers to give for each input.", only=("predict",), ge=1)

    @property
    def ranked(self) -> bool:
        return self.best > 1


def option_names(kind: type[Options], command: str) -> list[str]:
    """The options of a task that a command (`predict`, `evaluate`, `look`) has."""
    names = []
    for name, field in kind.model_fields.items():
        extra = field.json_schema_extra
        only = extra.get("only") if isinstance(extra, dict) else None
        if not only or command in only:  # type: ignore[operator]
            names.append(name)
    return names


def refuse_unknown(command: str, values: Iterable[str], options: Sequence[str]) -> None:
    """Refuses an option that a command does not have."""
    for name in values:
        if name not in options:
            raise ConfigError(f"{command} has no option {name!r}; {suggest_name(name, options)}")


def validate(kind: type[SettingsT], values: Mapping[str, Any], name: str = "") -> SettingsT:
    """The settings that these values make; what is wrong with them is one line each, what is missing one line."""
    try:
        return kind(**values)
    except ValidationError as error:
        before, problems = f"{name}: " if name else "", error.errors()
        missing = [_key(problem) for problem in problems if problem["type"] == "missing"]
        lines = [f"{', '.join(missing)}: {'are' if len(missing) > 1 else 'is'} missing"] if missing else []
        lines += [_describe(problem, kind) for problem in problems if problem["type"] != "missing"]
        raise ConfigError("\n".join(f"{before}{line}" for line in lines)) from None


def _describe(problem: Any, kind: type[BaseModel]) -> str:
    """One of pydantic's findings in our words: where, what, and the nearest name if one is unknown."""
    path = _key(problem)
    if problem["type"] == "extra_forbidden":
        *sections, key = problem["loc"]
        return f"{path}: {key!r} is not known; {suggest_name(key, _fields(kind, sections))}"
    message = str(problem["msg"]).removeprefix("Value error, ").replace("Input should be", "should be")
    return f"{path}: {message}, got {problem['input']!r:.80}" if path else message


def _key(problem: Any) -> str:
    """Where the problem is; pydantic's path also names members of unions, which the user has never written."""
    steps = map(str, problem["loc"])
    return ".".join(step for step in steps if step not in ("str", "int", "float", "bool") and "[" not in step)


def _fields(kind: type[BaseModel], sections: Sequence[Any]) -> list[str]:
    model: Any = kind
    for section in sections:
        model = model.model_fields[section].annotation
        model = next((member for member in (model, *get_args(model)) if hasattr(member, "model_fields")), model)
    return list(model.model_fields)
