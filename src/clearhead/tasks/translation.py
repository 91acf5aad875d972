"""Translation: a text in one language to a text in another."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from clearhead.decode import Hypothesis
from clearhead.tasks.answerer import Scores
from clearhead.tasks.metrics import translation_scores
from clearhead.tasks.segmentation import count_sentences, restore_full_width, split_text
from clearhead.tasks.sequence_to_sequence.generation import GeneratedText, ScoringGenerator
from clearhead.tasks.sequence_to_sequence.search import Decode, SearchOptions
from clearhead.tasks.sequence_to_sequence.text_to_text import (
    PairObjective,
    PairProcessor,
    PairRecipe,
    PairSettings,
    TextGeneration,
    TextTracer,
    check_characters,
)
from clearhead.tasks.settings import option
from clearhead.tasks.task import Task
from clearhead.text import Row
from clearhead.text.chinese import is_mostly_chinese

LONGEST_LIST = 60  # characters of the lost numbers in a note


class TranslationDecode(Decode):
    """`[decode]` of translation: long texts are split into parts at sentence boundaries."""

    part: int = Field(64, ge=1)  # an input of more tokens is split at its sentences, and the answers are joined
    sentences: int = Field(3, ge=1)  # an input of more sentences is split, too: training pairs seldom have as many
    # sacrebleu's; None: zh for Chinese, else 13a. Its others want further packages, or download a model.
    bleu_tokenizer: Literal["13a", "intl", "zh", "char", "none"] | None = None


class TranslationRecipe(PairRecipe):
    decode: TranslationDecode = TranslationDecode()


class TranslationSettings(PairSettings, TranslationDecode):
    """The settings that a model folder keeps."""


class TranslationOptions(SearchOptions):
    lowercase: bool = option(False, "Compare without regard to case.", only=["evaluate"])


class TranslationProcessor(PairProcessor[TranslationRecipe]):
    metric = "bleu"
    stored_kind = TranslationSettings
    stored: TranslationSettings

    def adapt(self, rows: Sequence[Row], recipe: TranslationRecipe) -> None:
        if self.stored.bleu_tokenizer is None:
            chinese = is_mostly_chinese([row.values[1] for row in rows[:1000]])
            self.store(bleu_tokenizer="zh" if chinese else "13a")


class TranslationGeneration(TextGeneration[TranslationProcessor]):
    output_name = "translation"

    def split(self, text: str) -> list[list[int]]:
        """The input's tokens: all, or split at sentences where they are too many. A very long text is refused."""
        check_characters(text)
        source, decode = self.processor.source, self.processor.stored
        tokens = source.encode(text)
        if len(tokens) <= decode.part and count_sentences(text) <= decode.sentences:
            return [tokens] if tokens else []
        return [part for part in split_text(source.normal(text), source.encode, decode.part) if part]

    def decode_text(self, hypothesis: Hypothesis) -> str:
        text = super().decode_text(hypothesis)
        return restore_full_width(text) if self.processor.stored.bleu_tokenizer == "zh" else text

    def stable_text(self, text: str) -> str:
        # A "(" becomes full-width if a Chinese character follows.
        held = "(" if self.processor.stored.bleu_tokenizer == "zh" else ""
        return super().stable_text(text).removesuffix(held)

    def input_notes(self, text: str, answer: str) -> list[str]:
        lost = ", ".join(find_lost_numbers(text, answer))
        shown = lost if len(lost) <= LONGEST_LIST else f"{lost[:LONGEST_LIST]}…"
        return [f"numbers of the text are missing in the translation: {shown}"] if lost else []


def find_lost_numbers(text: str, translation: str) -> list[str]:
    """Numbers whose digits the translation lacks, zeros at the ends aside; those of one or two digits may be in words.

    >>> find_lost_numbers("1998年有12,345人和1,000,000本书", "In 1998 there were 12,354 people and a million books")
    ['12,345']
    """
    text, translation = (unicodedata.normalize("NFKC", side.replace("，", "， ")) for side in (text, translation))
    there = re.sub(r"(?<=\d)[,.\s](?=\d)", "", translation)
    digits = {number: number.replace(",", "").strip("0") for number in re.findall(r"\d+(?:,\d{3})*", text)}
    return [number for number, wanted in digits.items() if len(wanted) > 2 and wanted not in there]


class TranslationAnswerer(ScoringGenerator[TranslationProcessor, str]):
    options = TranslationOptions
    generation = TranslationGeneration

    def score(self, rows: Sequence[Row], predictions: Sequence[GeneratedText], options: SearchOptions) -> Scores:
        return translation_scores(
            [prediction.text for prediction in predictions],
            [row.values[1] for row in rows],
            tokenize=self.processor.stored.bleu_tokenizer or "13a",
            lowercase=isinstance(options, TranslationOptions) and options.lowercase,
        )


TASK = Task(
    name="translation",
    recipe=TranslationRecipe,
    processor=TranslationProcessor,
    objective=PairObjective,
    answerer=TranslationAnswerer,
    tracer=TextTracer,
    metrics=("bleu", "chrf"),
)
