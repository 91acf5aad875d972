"""What users may set for tagging: the sections of its recipe; and the settings that a model folder keeps."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from clearhead.tasks.settings import Data, Section, TaskRecipe, Text
from clearhead.tasks.tagging.schemes import OUTSIDE, list_tags

FileScheme = Literal["iob1", "iob2", "bioes", "bmes"]
ModelScheme = Literal["bioes", "iob2"]


class TaggingData(Data):
    longest: int = Field(256, ge=16)  # pieces that are read together; longer sentences are read in windows
    scheme: FileScheme | None = None  # of the tags in files; None: as each file looks


class TaggingText(Text):
    letter_case: bool = False  # the model also reads how a word is capitalised; for lower-case tokenizers
    convolutions: int = Field(0, ge=0)  # layers over three neighbouring pieces, before the first layer of attention
    # This share of pieces is read as unknown in training; in use, words with characters that training never saw are.
    unknown: float = Field(0.05, ge=0, lt=1)


class TaggingLoss(Section):
    tags: ModelScheme = "bioes"  # what the model predicts for each word, whatever the files have
    crf: bool = True  # scores of steps from tag to tag are learned, and whole sequences are
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    # Pieces that text.unknown hides in training are also predicted, as in masked language models; weight of that loss.
    masked: float = Field(0.0, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _refuse_both(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("crf", True) and values.get("label_smoothing"):
            raise ValueError("label_smoothing is for the loss of single words; set crf = false to use it")
        return values


class TaggingRecipe(TaskRecipe):
    data: TaggingData
    text: TaggingText = TaggingText()
    loss: TaggingLoss = TaggingLoss()

    @model_validator(mode="after")
    def _check_masked(self) -> TaggingRecipe:
        if self.loss.masked and not self.text.unknown:
            raise ValueError("loss.masked predicts hidden pieces, and text.unknown = 0 hides none; set it to 0.15")
        return self


class TaggerSettings(Section):
    """The settings that a model folder keeps."""

    labels: list[str]  # the tags that the model has scores for
    tags: ModelScheme
    crf: bool
    letter_case: bool
    convolutions: int
    unknown: float
    characters: bool  # every character is a word
    scheme: FileScheme | None
    window: int  # pieces that are read together

    @model_validator(mode="after")
    def _check_labels(self) -> TaggerSettings:
        if not self.types or sorted(self.labels) != sorted(list_tags(self.types, self.tags)):
            raise ValueError("labels: not the tags of any entities")
        return self

    @property
    def types(self) -> list[str]:
        """The labels of entities."""
        return sorted({tag[2:] for tag in self.labels if tag != OUTSIDE})
