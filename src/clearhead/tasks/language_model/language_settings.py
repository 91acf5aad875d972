"""Sections of a language model's recipe, and the options of its commands."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from clearhead.errors import ConfigError
from clearhead.tasks.settings import Data, Options, Section, TaskRecipe, Text, option

WRITE = ("predict", "look")
CUTS = ("top_k", "top_p", "min_p")


class DocumentData(Data):
    """`[data]`: documents, and how many tokens of one the model sees at once."""

    longest: int = Field(256, ge=2)  # tokens of a row, the context; longer documents are cut into several rows
    documents: Literal["file", "lines", "paragraphs"] = "file"  # what of a .txt file is one document

    @property
    def document_kind(self) -> str:
        return self.documents


class DocumentText(Text):
    """`[text]`: how documents become tokens, and prompts the beginnings of documents."""

    exact: bool = True  # texts stay as they are, line breaks and spaces included; false: normalised as in other tasks
    prompt_end: str = ""  # appended to every prompt, such as the line break after a title

    @property
    def keeps_layout(self) -> bool:
        return self.exact


class LanguageDecode(Section):
    """`[decode]`: the finished model's defaults for writing."""

    learned = False

    temperature: float = Field(0.8, ge=0)  # of sampling; 0: the most probable token at every step
    top_k: int | None = Field(None, ge=1)
    top_p: float | None = Field(None, gt=0, le=1)
    min_p: float | None = Field(None, ge=0, le=1)
    no_repeat_ngram: int = Field(0, ge=0)  # no run of so many tokens comes twice; 0: any may
    repetition_penalty: float = Field(1.0, gt=0)  # above 1, tokens that came before become less probable
    longest: int = Field(256, ge=1)  # tokens that are written


class LanguageModelRecipe(TaskRecipe):
    data: DocumentData
    text: DocumentText = DocumentText()
    decode: LanguageDecode = LanguageDecode()


class LanguageOptions(Options):
    """Options of writing and scoring; None: as the recipe's `[decode]` says."""

    temperature: float | None = option(None, "Sampling temperature; 0: no sampling.", only=WRITE, ge=0)
    top_k: int | None = option(None, "Sample from the k most probable tokens.", only=WRITE, ge=1)
    top_p: float | None = option(
        None, "Sample from the top tokens with this total probability.", only=WRITE, gt=0, le=1
    )
    min_p: float | None = option(
        None, "Sample from tokens with at least this share of the top probability.", only=WRITE, ge=0, le=1
    )
    no_repeat_ngram: int | None = option(
        None, "No run of so many tokens comes twice, the prompt's included; 0: any may.", only=WRITE, ge=0
    )
    repetition_penalty: float | None = option(
        None, "Above 1, tokens that came before become less probable (1.2 is much).", only=WRITE, gt=0
    )
    seed: int = option(0, "Random seed for sampling.", only=WRITE, ge=0)
    longest: int | None = option(None, "Maximum tokens per answer or part, end token included.", only=WRITE, ge=1)
    stop: list[str] = option([], "Stop before this text; may be given several times.", only=WRITE)
    stride: int | None = option(
        None, "Tokens by which the window moves on (default: half the context).", only=("evaluate",), ge=1
    )

    def fill(self, decode: LanguageDecode) -> LanguageDecode:
        """The settings of writing: these options, and the model's own where an option is not given."""
        given = {name: getattr(self, name) for name in LanguageDecode.model_fields if getattr(self, name) is not None}
        if self.temperature == 0 and (named := [name for name in CUTS if name in given]):
            raise ConfigError(
                f"{', '.join(named)}: no effect without sampling (temperature 0); set a temperature, such as 1"
            )
        if "" in self.stop:
            raise ConfigError("stop: an empty text would stop at once; give a text, or leave it out")
        return decode.model_copy(update=given)
