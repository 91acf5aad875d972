"""What users may set for pre-training: the sections of its recipe."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from clearhead.tasks.language_model.language_processor import (
    DocumentText,
    LanguageDecode,
    LanguageModelRecipe,
    LanguageSettings,
)
from clearhead.tasks.sequence_to_sequence.search import Decode
from clearhead.tasks.settings import Section

Objective = Literal["masked", "denoise", "next"]


class Masking(Section):
    """`[masking]`: what is hidden from the model, of objective "masked" and "denoise"."""

    share: float = Field(0.15, gt=0, lt=1)  # of the tokens
    random: float = Field(0.1, ge=0, le=1)  # of the masked tokens: a random token instead of <mask>; only "masked"
    kept: float = Field(0.1, ge=0, le=1)  # of the masked tokens: read as they are, and predicted; only "masked"
    span: float = Field(3.0, ge=1)  # mean words of a span, which one <mask> replaces; only "denoise"
    shuffle: bool = True  # sentences are shuffled; only "denoise"

    @model_validator(mode="after")
    def _check_sum(self) -> Masking:
        if self.random + self.kept > 1:
            raise ValueError("random and kept are shares of the masked tokens: together at most 1")
        return self


class Contrast(Section):
    """`[contrast]`: the vectors of neighbouring sentences become similar, those of others not; only "masked"."""

    weight: float = Field(0.0, ge=0)  # of that loss; 0: none, and windows are as long as they may be
    temperature: float = Field(0.05, gt=0)  # cosine similarities are divided by it


class PretrainingText(DocumentText):
    """`[text]`: as of a language model, but normalised as other tasks expect it that start from the weights."""

    exact: bool = False


class PretrainingDecode(LanguageDecode):
    """`[decode]`: that of a language model for "next"; beam search for "denoise"."""

    beam: int = Field(5, ge=1)
    length_penalty: float = 1.0


class HidingSettings(Section):
    """The settings that a model folder keeps, of "masked" and "denoise"."""

    objective: Objective
    longest: int  # tokens of a window
    documents: str = "file"
    masking: Masking = Masking()


class DenoisingSettings(HidingSettings):
    """The same of "denoise"."""

    decode: Decode = Decode()


class NextTokenSettings(LanguageSettings):
    """The settings that a model folder keeps, of "next"."""

    objective: Literal["next"] = "next"


class PretrainingRecipe(LanguageModelRecipe):
    objective: Objective = "masked"
    text: PretrainingText = PretrainingText()
    masking: Masking = Masking()
    contrast: Contrast = Contrast()
    decode: PretrainingDecode = PretrainingDecode()

    @property
    def variant(self) -> str:
        return self.objective
