"""What users may set for tagging: the sections of its recipe; and the settings that a model folder keeps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from clearhead.errors import CheckpointError
from clearhead.tasks.settings import Data, Section, TaskRecipe, Text
from clearhead.tasks.tagging.schemes import OUTSIDE, list_tags


class TaggingData(Data):
    longest: int = Field(256, ge=16)  # pieces that are read together; longer sentences are read in windows
    scheme: Literal["iob1", "iob2", "bioes", "bmes"] | None = None  # of the tags in files; None: as each file looks


class TaggingText(Text):
    letter_case: bool = False  # the model also reads how a word is capitalised; for lower-case tokenizers
    convolutions: int = Field(0, ge=0)  # layers over three neighbouring pieces, before the first layer of attention
    # This share of pieces is read as unknown in training; in use, words with characters that training never saw are.
    unknown: float = Field(0.05, ge=0, lt=1)


class TaggingLoss(Section):
    tags: Literal["bioes", "iob2"] = "bioes"  # what the model predicts for each word, whatever the files have
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


def check_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuses a model folder whose settings are not those of a tagger."""
    kinds: dict[str, Any] = {
        "labels": list,
        "tags": str,
        "crf": bool,
        "letter_case": bool,
        "convolutions": int,
        "unknown": (int, float),
        "characters": bool,
        "scheme": (str, type(None)),
        "window": int,
    }
    wrong = [key for key, kind in kinds.items() if key not in settings or not isinstance(settings[key], kind)]
    if not wrong and settings["tags"] not in ("bioes", "iob2"):
        wrong = ["tags"]
    if not wrong:
        tags = [tag for tag in settings["labels"] if isinstance(tag, str)]
        types = {tag[2:] for tag in tags if tag != OUTSIDE}
        if not types or sorted(tags) != sorted(list_tags(sorted(types), settings["tags"])):
            wrong = ["labels"]
    if wrong:
        raise CheckpointError(f"the settings of {folder} are damaged: {', '.join(wrong)} missing or wrong")
