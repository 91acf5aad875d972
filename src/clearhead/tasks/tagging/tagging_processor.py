"""The stored part of tagging: tokenizer, tags, windows; rows become sentences with the tags of their words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clearhead.errors import CheckpointError, DataError
from clearhead.model import ModelConfig
from clearhead.tasks.inputs import TextInputs
from clearhead.tasks.processor import Columns, Files, Processor
from clearhead.tasks.tagging.entity_decoding import Decoder
from clearhead.tasks.tagging.evaluation import find_flaws
from clearhead.tasks.tagging.schemes import OUTSIDE, list_tags, write_tags
from clearhead.tasks.tagging.sentences import Sentence, mark_entities, read_sentence
from clearhead.tasks.tagging.tagged_files import read_tagged
from clearhead.tasks.tagging.tagger import Tagger
from clearhead.tasks.tagging.tagging_examples import (
    TaggedExamples,
    TaggedWords,
    WindowTokens,
    WordEncoder,
    choose_window,
    make_windows,
)
from clearhead.tasks.tagging.tagging_settings import TaggingRecipe, check_settings
from clearhead.text.report import Flaw

if TYPE_CHECKING:
    from clearhead.tasks.pretrained import Pretrained
    from clearhead.text import Report, Row, Tokenizer

MOST_LABELS = 500  # BIOES has four tags for each, and a CRF a score for each pair of tags


class SentenceInputs(TextInputs):
    """Texts as sentences: split into words, or into characters where the training data have it so."""

    def __init__(self, *, characters: bool, scheme: str | None) -> None:
        self.characters, self.scheme = characters, scheme

    def check(self, given: Any, place: str = "the input") -> Sentence:
        return Sentence.from_text(super().check(given, place), characters=self.characters)

    def of_row(self, row: Row) -> Sentence:
        return read_sentence(row, self.scheme, self.characters)


class TaggingProcessor(Processor[TaggingRecipe, TaggedWords]):
    """Every word of a text gets a tag, and tags give entities."""

    columns = ("text", "entities")
    metric = "entity_f1"
    added_tokens = 2
    tokenizer: Tokenizer
    default_shape = "tiny"
    inputs: SentenceInputs

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig, settings: Mapping[str, Any]) -> None:
        self.tokenizer, self.config, self._settings = tokenizer, config, dict(settings)
        self.labels: list[str] = settings["labels"]  # the tags that the model has scores for
        self.types = sorted({tag[2:] for tag in self.labels if tag != OUTSIDE})
        self.window: int = settings["window"]  # pieces that are read together
        self.inputs = SentenceInputs(characters=settings["characters"], scheme=settings["scheme"])
        self.decoder = Decoder(self.labels, settings["tags"])
        self.encoder = WordEncoder(tokenizer, longest=max(1, self.window // 4), unknown=bool(settings["unknown"]))

    # Data

    @classmethod
    def read(cls, source: Files, columns: Columns = None, documents: str | None = None) -> Iterator[Row]:
        if isinstance(source, Mapping):
            raise DataError(
                "tagging reads one file with words and tags, or with texts and entities, not one file per column"
            )
        return read_tagged(source, columns)

    @classmethod
    def prepare(cls, rows: Sequence[Row], recipe: TaggingRecipe, start: Pretrained | None = None) -> TaggingProcessor:
        sentences = [Sentence.from_row(row, scheme=recipe.data.scheme) for row in rows]
        labels = list_tags(collect_types(sentences, rows), recipe.loss.tags)
        if start is not None and sorted(start.labels) == sorted(labels):
            labels = list(start.labels)  # in their order, so that the output head can be taken over, too
        words = [word for sentence in sentences for word in sentence.word_texts()]
        tokenizer = recipe.text.make_tokenizer(words, start)
        config = cls.make_config(recipe, start, vocabulary=tokenizer.size, labels={"count": len(labels)})
        settings = {
            "labels": labels,
            "tags": recipe.loss.tags,
            "crf": recipe.loss.crf,
            "letter_case": recipe.text.letter_case,
            "convolutions": recipe.text.convolutions,
            "unknown": recipe.text.unknown,
            "characters": has_single_characters(sentences),
            "scheme": recipe.data.scheme,
            "window": choose_window(recipe.data.longest, config, tokenizer, sentences),
        }
        return cls(tokenizer, config, settings)

    def examples(self, rows: Iterable[Row], report: Report, recipe: TaggingRecipe | None = None) -> TaggedExamples:
        used: list[Row] = []
        for row in rows:
            if problem := self.row_problem(row):
                report.drop(row, problem)
                continue
            report.keep()
            used.append(row)
            for flaw, count in self.find_flaws(row).items():
                report.add_flaw(row, flaw, count)
        if not used:
            raise DataError(f"no sentence is left to use: {report}")
        sentences = [self.inputs.of_row(row) for row in used]
        windows, tags, origins = list[WindowTokens](), list[list[int]](), list[int]()
        for origin, (sentence, parts) in enumerate(zip(sentences, self.encode(sentences), strict=True)):
            # A label that training never saw cannot be learned; it counts as wrong where entities are scored.
            entities = [span for span in sentence.entities if span.label in self.types]
            words = write_tags(entities, len(sentence.words), self.decoder.scheme)
            numbers = [self.decoder.numbers[tag] for tag in words]
            windows += parts
            tags += [numbers[part.window.first : part.window.last] for part in parts]
            origins += [origin] * len(parts)
        return TaggedExamples(windows, tags, self.tokenizer.pad).of(used, origins)

    def row_problem(self, row: Row) -> str | None:
        return None if self.inputs.of_row(row).words else "without a word"

    def find_flaws(self, row: Row) -> dict[Flaw, int]:
        return find_flaws(self.inputs.of_row(row), self.types)

    def answer_of(self, row: Row) -> str:
        sentence = self.inputs.of_row(row)
        return mark_entities(sentence.text, sentence.exact_entities())

    def encode(self, sentences: Sequence[Sentence]) -> list[list[WindowTokens]]:
        """The windows of each sentence; all their words are encoded in one call."""
        encoded = iter(self.encoder.encode([word for sentence in sentences for word in sentence.word_texts()]))
        ends = self.tokenizer.start, self.tokenizer.end
        windows = []
        for sentence in sentences:
            words = list(islice(encoded, len(sentence.words)))
            windows.append(make_windows(words, size=self.window, ends=ends))
        return windows

    # Model

    def build(self) -> Tagger:
        crf, cases, convolutions = (self._settings[key] for key in ("crf", "letter_case", "convolutions"))
        return Tagger(self.config, crf=crf, cases=cases, convolutions=convolutions)

    # Model folder

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self._settings)

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder)

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> TaggingProcessor:
        from clearhead.text import Tokenizer

        tokenizer = Tokenizer.load(folder)
        check_settings(folder, settings)
        tags = len(settings["labels"])
        if (tags, tokenizer.size) != (config.label_count, config.vocabulary):
            raise CheckpointError(
                f"{folder} has {tags} tags and {tokenizer.size} tokens, but its model {config.label_count} and "
                f"{config.vocabulary}; copy the folder again"
            )
        return cls(tokenizer, config, settings)


def collect_types(sentences: Sequence[Sentence], rows: Sequence[Row]) -> list[str]:
    """The labels of entities in the training data; none at all, or far too many, are refused."""
    types = sorted({span.label for sentence in sentences for span in sentence.entities})
    if not types:
        raise DataError(f"there is nothing to learn: no word of {len(rows):,} sentences is in an entity")
    if len(types) > MOST_LABELS:
        raise DataError(
            f"{rows[0].file}: {len(types):,} different labels ({', '.join(types[:3])}, …), and tagging takes at "
            f"most {MOST_LABELS}: it scores every pair of tags; is the right column read as the tag?"
        )
    return types


def has_single_characters(sentences: Sequence[Sentence]) -> bool:
    """Whether every word of these sentences is one character; those whose words we split do not count."""
    split_by_file = [sentence for sentence in sentences if sentence.characters is None]
    lengths = {end - begin for sentence in split_by_file for begin, end in sentence.words}
    return bool(split_by_file) and lengths <= {1}
