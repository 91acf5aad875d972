"""Sections of a classification recipe, and the options of its commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from clearhead.errors import DataError
from clearhead.tasks.settings import Data, Options, Section, TaskRecipe, Text, option


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
            names = path.read_text(encoding="utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise DataError(f"data.label_names: {path} cannot be read: {reason}") from None
        names = [name.strip() for name in names]
        while names and not names[-1]:
            names.pop()
        if empty := [line for line, name in enumerate(names, 1) if not name]:
            raise DataError(f"{path}:{empty[0]}: empty line; every line must have the name of a label")
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
    class_weights: Literal["balanced"] | dict[str, float] | None = None

    @field_validator("class_weights", mode="wrap")
    @classmethod
    def _check_weights(cls, value: Any, validate: Any) -> Any:
        try:
            checked = validate(value)
        except ValidationError:
            raise ValueError('should be "balanced" or { label = weight }') from None
        if isinstance(checked, dict) and any(weight <= 0 for weight in checked.values()):
            raise ValueError("weights should be greater than 0")
        return checked


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


class LabelOptions(Options):
    best: int = option(1, "How many answers to give for each input.", only=("predict",), ge=1)

    @property
    def ranked(self) -> bool:
        return self.best > 1
