"""Sections of a tagging recipe, and the stored part: tokenizer, tags, windows; rows become examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, islice, pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from clearhead.errors import DataError
from clearhead.model import ModelConfig
from clearhead.tasks.losses import UNCOUNTED
from clearhead.tasks.pretrained import Pretrained
from clearhead.tasks.processor import Columns, Examples, Files, Processor, RowCheck, TextInputs
from clearhead.tasks.settings import Data, Section, TaskRecipe, Text
from clearhead.tasks.tagging.linear_chain import TagDecoder
from clearhead.tasks.tagging.schemes import OUTSIDE, list_tags, write_tags
from clearhead.tasks.tagging.sentence_windows import WindowTokens, WordEncoder, choose_window, make_windows
from clearhead.tasks.tagging.sentences import Sentence, group_documents, mark_entities, read_sentence
from clearhead.tasks.tagging.tagged_files import read_tagged
from clearhead.tasks.tagging.tagger import Tagger
from clearhead.text import Report, Row, Tokenizer
from clearhead.text.batches import Batch, Ragged
from clearhead.text.report import Flaw

MOST_LABELS = 100  # BIOES has four tags for each, and a CRF a score for each pair of tags
# With context, training reads all documents in windows of so many quarters of the full size, and each sentence alone:
# always cut in the same places, they would be learned by heart, and short texts would be unlike what was learned.
LEARNED_QUARTERS = (4, 3, 2)
REPAIRED = Flaw(
    "tag out of sequence, repaired as conlleval reads it", "tags out of sequence, repaired as conlleval reads them"
)
MISPLACED = Flaw("entity that begins or ends inside a word", "entities that begin or end inside a word")
UNSEEN = Flaw(
    "entity with a label that is not in the training data, counted as missed",
    "entities with a label that is not in the training data, counted as missed",
)


ModelScheme = Literal["bioes", "iob2"]


class TaggingData(Data):
    longest: int = Field(256, ge=16)  # pieces that are read together; longer texts are read in windows
    # Whole documents are read instead of single sentences: where one is cut into windows, a word has this number of
    # pieces on both sides in its window, if the document has them. 0: every sentence is read alone.
    context: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _check_context(self) -> TaggingData:
        if 4 * self.context > self.longest:
            raise ValueError(
                f"data.context = {self.context} is more than a quarter of data.longest = {self.longest}, and windows "
                f"overlap by twice the context; make it at most {self.longest // 4}, or data.longest larger"
            )
        return self

    @property
    def ordered(self) -> bool:
        return self.context > 0


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

    @model_validator(mode="after")
    def _refuse_both(self) -> TaggingLoss:
        if self.crf and self.label_smoothing:
            raise ValueError("label_smoothing is for the loss of single words; set crf = false to use it")
        return self


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
    window: int  # pieces that are read together
    context: int = 0  # of neighbouring sentences, in pieces; 0: sentences are read one by one

    @model_validator(mode="after")
    def _check_labels(self) -> TaggerSettings:
        if not self.types or sorted(self.labels) != sorted(list_tags(self.types, self.tags)):
            raise ValueError("labels: not the tags of any entities")
        return self

    @property
    def types(self) -> list[str]:
        """The labels of entities."""
        return sorted({tag[2:] for tag in self.labels if tag != OUTSIDE})


class TaggedWords(NamedTuple):
    """A batch: tokens, the first piece of each word to be scored, the number of its tag (−100 in the padding), and
    whether it begins a sentence."""

    tokens: Tensor
    lengths: Tensor
    cases: Tensor
    words: Tensor
    word_lengths: Tensor
    tags: Tensor
    begins: Tensor


class TaggedExamples(Examples[TaggedWords]):
    """Windows of sentences or documents, with the tags of their words and whether these begin sentences."""

    on_device = ("tokens", "cases", "words", "tags", "begins")

    def __init__(
        self,
        windows: Sequence[WindowTokens],
        tags: Sequence[Sequence[int]],
        begins: Sequence[Sequence[int]],
        rows: Sequence[Row],
        origins: Sequence[int],
        pad: int,
    ) -> None:
        self.tokens = Ragged([window.tokens for window in windows])
        self.words = Ragged([window.words for window in windows])
        self.cases = Ragged([window.cases for window in windows])
        self.tags, self.begins = Ragged(tags), Ragged(begins)
        self.rows, self.origins, self.pad = rows, origins, pad
        self.lengths = self.tokens.lengths.numpy()[:, None]
        self.counts = np.array([len(words) for words in tags], dtype=np.int64)

    def collate(self, batch: Batch) -> TaggedWords:
        rows = torch.from_numpy(batch.examples).to(self.tokens.flat.device, non_blocking=True)
        size = batch.sizes[0]
        words = max(1, size - 2)  # one size for each size of tokens: a shape of batches more is a graph more
        return TaggedWords(
            *self.tokens.pad(rows, size, self.pad),
            self.cases.pad(rows, size, 0)[0],
            *self.words.pad(rows, words, 0),
            self.tags.pad(rows, words, UNCOUNTED)[0],
            self.begins.pad(rows, words, 0)[0].bool(),
        )

    def fingerprint(self) -> str:
        return " ".join(part.fingerprint() for part in (self.tokens, self.words, self.tags, self.begins))


class SentenceInputs(TextInputs):
    """Texts as sentences: split into words, or into characters where the training data have it so."""

    def __init__(self, *, characters: bool) -> None:
        self.characters = characters

    def check(self, value: Any, name: str = "the input") -> Sentence:
        return Sentence.from_text(super().check(value, name), characters=self.characters)

    def of_row(self, row: Row) -> Sentence:
        return read_sentence(row, self.characters)


class TaggingProcessor(Processor[TaggingRecipe, TaggedWords]):
    """Every word of a text gets a tag, and tags give entities."""

    columns = ("text", "entities")
    metric = "entity_f1"
    added_tokens = 2
    tokenizer: Tokenizer
    default_shape = "tiny"
    inputs: SentenceInputs
    stored_kind = TaggerSettings
    stored: TaggerSettings

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig, stored: TaggerSettings) -> None:
        super().__init__(tokenizer, config, stored)
        self.labels, self.types, self.window, self.context = stored.labels, stored.types, stored.window, stored.context
        self.inputs = SentenceInputs(characters=stored.characters)
        self.decoder = TagDecoder(stored.labels, stored.tags)
        self.encoder = WordEncoder(tokenizer, longest=max(1, self.window // 4), unknown=bool(stored.unknown))

    @classmethod
    def read(cls, source: Files, columns: Columns = None, documents: str | None = None) -> Iterator[Row]:
        if isinstance(source, Mapping):
            raise DataError(
                "tagging reads one file with words and tags, or with texts and entities, not one file per column"
            )
        return read_tagged(source, columns)

    @classmethod
    def prepare(cls, rows: Sequence[Row], recipe: TaggingRecipe, start: Pretrained | None = None) -> TaggingProcessor:
        sentences = [Sentence.from_row(row) for row in rows]
        documents = group_documents(sentences, recipe.data.context)
        if recipe.data.context and len(documents) == len(rows) > 1:
            raise DataError(
                f"{rows[0].file}: no two neighbouring rows are of one document, which data.context = "
                f"{recipe.data.context} needs; name documents in a column `document`, or set data.context = 0"
            )
        labels = list_tags(collect_types(sentences, rows), recipe.loss.tags)
        if start is not None and sorted(start.labels) == sorted(labels):
            labels = list(start.labels)  # in their order, so that the output head can be taken over, too
        words = [word for sentence in sentences for word in sentence.word_texts()]
        tokenizer = recipe.text.make_tokenizer(words, start)
        config = cls.make_config(recipe, start, vocabulary=tokenizer.size, labels={"count": len(labels)})
        stored = TaggerSettings(
            labels=labels,
            tags=recipe.loss.tags,
            crf=recipe.loss.crf,
            letter_case=recipe.text.letter_case,
            convolutions=recipe.text.convolutions,
            unknown=recipe.text.unknown,
            characters=has_single_characters(sentences),
            window=choose_window(recipe.data.longest, config, tokenizer, documents),
            context=recipe.data.context,
        )
        return cls(tokenizer, config, stored)

    def examples(self, rows: Iterable[Row], report: Report, recipe: TaggingRecipe | None = None) -> TaggedExamples:
        used = [row for row in rows if report.admit(row, *self.check_row(row))]
        report.refuse_empty("sentence")
        sentences = [self.inputs.of_row(row) for row in used]
        views = [(self.window, self.context)]
        if recipe is not None and self.context:
            views = [*((self.window * quarters // 4, self.context) for quarters in LEARNED_QUARTERS), (self.window, 0)]
        parts = [
            part
            for size, context in views
            for part in self._tagged_windows(group_documents(sentences, context), size, apart=recipe is not None)
        ]
        windows, tags, begins, origins = zip(*parts, strict=True)
        return TaggedExamples(windows, tags, begins, used, origins, self.tokenizer.pad)

    def _tagged_windows(
        self, documents: Sequence[Sequence[Sentence]], size: int, *, apart: bool
    ) -> Iterator[tuple[WindowTokens, list[int], list[int], int]]:
        """Windows, the tags of their words, whether these begin sentences, and the row of the first of them."""
        first_row = 0
        for document, windows in zip(documents, self.encode(documents, size=size, apart=apart), strict=True):
            numbers = [number for sentence in document for number in self._tag_numbers(sentence)]
            owners = [row for row, sentence in enumerate(document, first_row) for _ in sentence.words]
            starts = [int(row != before) for before, row in pairwise([-1, *owners])]
            for window in windows:
                if window.words:
                    words = slice(window.window.first, window.window.last)
                    yield window, numbers[words], starts[words], owners[words.start]
            first_row += len(document)

    def _tag_numbers(self, sentence: Sentence) -> list[int]:
        # A label that training never saw cannot be learned; it counts as wrong where entities are scored.
        entities = [span for span in sentence.entities if span.label in self.types]
        return [self.decoder.numbers[tag] for tag in write_tags(entities, len(sentence.words), self.decoder.scheme)]

    def check_row(self, row: Row) -> RowCheck:
        sentence = self.inputs.of_row(row)
        if not sentence.words:
            return RowCheck("without a word")
        unseen = sum(span.label not in self.types for span in sentence.entities)
        flaws = {REPAIRED: sentence.repairs, MISPLACED: sentence.misplaced, UNSEEN: unseen}
        return RowCheck(flaws={flaw: count for flaw, count in flaws.items() if count})

    def answer_of(self, row: Row) -> str:
        sentence = self.inputs.of_row(row)
        return mark_entities(sentence.text, sentence.exact_entities())

    def encode(
        self, documents: Sequence[Sequence[Sentence]], *, size: int | None = None, apart: bool = False
    ) -> list[list[WindowTokens]]:
        """The windows of each document, of up to `size` pieces (the model's); all words are encoded in one call.

        With `apart`, for training, windows of a document that end with a sentence share nothing.
        """
        texts = [sentence.word_texts() for document in documents for sentence in document]
        encoded = iter(self.encoder.encode(list(chain(*texts))))
        windows = []
        for document in documents:
            *borders, count = accumulate((len(sentence.words) for sentence in document), initial=0)
            windows.append(
                make_windows(
                    list(islice(encoded, count)),
                    size=size or self.window,
                    ends=(self.tokenizer.start, self.tokenizer.end),
                    borders=borders,
                    context=self.context,
                    apart=apart and len(document) > 1,
                )
            )
        return windows

    def build(self) -> Tagger:
        stored = self.stored
        return Tagger(self.config, crf=stored.crf, cases=stored.letter_case, convolutions=stored.convolutions)


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
