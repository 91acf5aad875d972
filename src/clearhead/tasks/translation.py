"""Translation: a text in one language to a text in another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from clearhead.decode import Hypothesis
from clearhead.tasks.base import Scores
from clearhead.tasks.metrics import translation_scores
from clearhead.tasks.number_check import find_lost_numbers, list_numbers
from clearhead.tasks.segmentation import count_sentences, measure_han_share, restore_full_width, split_text
from clearhead.tasks.sequence_to_sequence import Decode, GeneratedText, SearchOptions, TextToText
from clearhead.tasks.sequence_to_sequence.text_to_text import TextToTextRecipe
from clearhead.tasks.settings import TaskRecipe, option

if TYPE_CHECKING:
    from clearhead.text import Row

CHINESE = 0.3  # the share of Chinese characters from which on a target is Chinese


class TranslationDecode(Decode):
    """`[decode]` of translation: long texts are split into parts at sentence boundaries."""

    part: int = Field(64, ge=1)  # an input of more tokens is split at its sentences, and the answers are joined
    sentences: int = Field(3, ge=1)  # and so is one of more sentences: pairs to learn from seldom have as many
    # sacrebleu's; None: zh for Chinese, else 13a. Its others want further packages, or download a model.
    bleu_tokenizer: Literal["13a", "intl", "zh", "char", "none"] | None = None


class TranslationRecipe(TextToTextRecipe):
    decode: TranslationDecode = TranslationDecode()


class TranslationOptions(SearchOptions):
    lowercase: bool = option(False, "Compare without regard to case.", only=["evaluate"])


class Translation(TextToText):
    name = "translation"
    output_name = "translation"
    recipe = TranslationRecipe
    options = TranslationOptions
    decode_section = TranslationDecode
    metrics = ("bleu", "chrf")
    metric = "bleu"
    decode: TranslationDecode

    def adapt(self, rows: Sequence[Row]) -> None:
        if self.decode.bleu_tokenizer is None:
            chinese = measure_han_share([row.values[1] for row in rows[:1000]]) > CHINESE
            self.decode = self.decode.model_copy(update={"bleu_tokenizer": "zh" if chinese else "13a"})

    def configure(self, recipe: TaskRecipe) -> None:
        found = self.decode.bleu_tokenizer
        super().configure(recipe)
        if self.decode.bleu_tokenizer is None:
            self.decode = self.decode.model_copy(update={"bleu_tokenizer": found})

    def split(self, given: str) -> list[list[int]]:
        """The input's tokens: all, or split at sentences where they are too many."""
        limit, tokens = self.decode.part, self.source.encode(given)
        if len(tokens) <= limit and count_sentences(given) <= self.decode.sentences:
            return [tokens] if tokens else []
        return [part for part in split_text(self.source.normal(given), self.source.encode, limit) if part]

    def decode_text(self, hypothesis: Hypothesis) -> str:
        text = super().decode_text(hypothesis)
        return restore_full_width(text) if self.decode.bleu_tokenizer == "zh" else text

    def stable_text(self, text: str) -> str:
        held = "(" if self.decode.bleu_tokenizer == "zh" else ""  # it is full-width if a Chinese character follows
        return super().stable_text(text).removesuffix(held)

    def input_notes(self, given: str, text: str) -> list[str]:
        lost = find_lost_numbers(given, text)
        return [f"numbers of the text are missing in the translation: {list_numbers(lost)}"] if lost else []

    def quick_options(self) -> TranslationOptions:
        return TranslationOptions(beams=1)

    def score(self, rows: Sequence[Row], predictions: Sequence[GeneratedText], options: SearchOptions) -> Scores:
        """BLEU and chrF."""
        return translation_scores(
            [prediction.text for prediction in predictions],
            [row.values[1] for row in rows],
            tokenize=self.decode.bleu_tokenizer or "13a",
            lowercase=isinstance(options, TranslationOptions) and options.lowercase,
        )
