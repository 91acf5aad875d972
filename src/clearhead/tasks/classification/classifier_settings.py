"""Sections of a classification recipe, the options of its commands, and what is written in the label column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, model_validator

from clearhead.errors import DataError
from clearhead.formatting import parse_whole_number
from clearhead.tasks.settings import Data, Options, Section, TaskRecipe, Text, one_message, option
from clearhead.text import Row


class ClassificationData(Data):
    """`[data]`: texts or pairs of texts, with a label or several labels each."""

    longest: int = Field(256, ge=1)
    multi_label: bool = False  # each text has any number of labels
    label_separator: str = Field(",", min_length=1)  # between them
    # What numbers in the label column mean, from 0: names, or a file with a name on each line.
    label_names: str | list[str] | None = None

    def resolve(self, find: Callable[[str], Path]) -> ClassificationData:
        """With the names of labels read from their file."""
        if not isinstance(self.label_names, str):
            return self
        path = find(self.label_names)
        try:
            names = [line.strip() for line in path.read_text(encoding="utf-8-sig").rstrip().split("\n")]
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise DataError(f"data.label_names: {path} cannot be read: {reason}") from None
        if "" in names:
            raise DataError(f"{path}:{names.index('') + 1}: empty line; every line must have the name of a label")
        return self.model_copy(update={"label_names": names})


class ClassificationLoss(Section):
    """`[loss]`: regularisation against overfitting on small data, and weights of labels."""

    label_smoothing: float = Field(0.0, ge=0, lt=1)
    token_dropout: float = Field(0.0, ge=0, lt=1)  # share of tokens that are hidden in training, others each time
    # Hidden tokens are also predicted, as in masked language models; weight of that loss.
    masked: float = Field(0.0, ge=0)
    # R-Drop (Liang et al. 2021): weight of the divergence between two passes with different dropout; 0: one pass.
    r_drop: float = Field(0.0, ge=0)
    # "balanced": each label weighs as much as any other, however rare; or { label = weight }.
    class_weights: Annotated[
        Literal["balanced"] | dict[str, PositiveFloat] | None,
        one_message('"balanced" or { label = weight }, with weights greater than 0'),
    ] = None


class ClassificationRecipe(TaskRecipe):
    data: ClassificationData
    text: Text = Text()
    loss: ClassificationLoss = ClassificationLoss()

    @model_validator(mode="after")
    def _check_masked(self) -> ClassificationRecipe:
        if self.loss.masked and not self.loss.token_dropout:
            raise ValueError(
                "loss.masked predicts hidden tokens, and loss.token_dropout = 0 hides none; set it to 0.15"
            )
        return self


class ClassifierSettings(Section):
    """The settings that a model folder keeps."""

    labels: list[str]
    pairs: bool = False  # of texts
    multi_label: bool = False
    label_separator: str = ","
    label_names: list[str] = Field([])
    label_counts: list[int] = Field([])  # training rows with each label, and of all
    longest: int = 0  # tokens of a text in training; 0: not known
    temperature: float = 1.0  # that the model's scores were divided by
    thresholds: list[float]  # of each label, where a text may have several


class LabelOptions(Options):
    best: int = option(1, "How many answers to give for each input.", only=("predict",), ge=1)

    @property
    def ranked(self) -> bool:
        return self.best > 1


@dataclass(frozen=True)
class LabelColumn:
    """How the label column is parsed: one label, or several with a separator; as names, or as indices into `names`.

    >>> LabelColumn(multi_label=True, names=("anger", "fear", "joy")).parse("2, 0")
    ('joy', 'anger')
    >>> LabelColumn().parse("a,b"), LabelColumn(multi_label=True).parse("")
    (('a,b',), ())
    """

    multi_label: bool = False
    separator: str = ","
    names: tuple[str, ...] = ()

    def parse(self, written: str) -> tuple[str, ...]:
        """The labels of one row, each once; none where nothing is written."""
        parts = written.split(self.separator) if self.multi_label else [written]
        stripped = (part.strip() for part in parts)
        return tuple(dict.fromkeys(self._name(part) for part in stripped if part))

    def collect(self, rows: Sequence[Row]) -> dict[str, int]:
        """The labels that occur and how often, in the order of `names`, or else sorted."""
        counts = Counter[str]()
        for row in rows:
            labels = self.parse(row.values[-1])
            if self.names and (unknown := [label for label in labels if label not in self.names]):
                raise DataError(
                    f"{row.where}: the label {unknown[0]!r} is not one of the {len(self.names)} in data.label_names, "
                    f"nor an index into it (0 to {len(self.names) - 1})"
                )
            counts.update(labels)
        # One label of many is something to tell apart if there are texts without it.
        if len(counts) < 2 and not (self.multi_label and counts and max(counts.values()) < len(rows)):
            file = f"{rows[0].file}: " if rows else ""
            raise DataError(f"{file}at least two different labels are needed; found {', '.join(counts) or 'none'}")
        return {label: counts[label] for label in (self.names or sorted(counts)) if label in counts}

    def _name(self, part: str) -> str:
        number = parse_whole_number(part)
        if part in self.names or number is None or number >= len(self.names):
            return part
        return self.names[number]
