"""Language models: the recipe, options of the commands, and stored parts; documents become packed rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from pydantic import Field

from clearhead.errors import ConfigError
from clearhead.model import Decoder, ModelConfig
from clearhead.tasks.pretrained import Pretrained
from clearhead.tasks.processor import BatchT, Columns, Files, Processor, RedrawnExamples, RowCheck
from clearhead.tasks.segmentation import join_texts
from clearhead.tasks.settings import Data, Options, Section, TaskRecipe, Text, option
from clearhead.text import Report, Row, Tokenizer
from clearhead.text.batches import Batch
from clearhead.text.documents import read_documents
from clearhead.text.packed_documents import PackedDocuments, PackedRows

EMPTY = "empty"
DOCUMENT_STARTS = 0.05  # share of rows that begin a document, from which on a prompt is read as the beginning of one
ESTIMATED_DOCUMENTS = 200  # documents from which that share is estimated
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
    no_repeat_ngram: int = Field(0, ge=0)  # length in tokens of runs that may not be repeated; 0: all may
    repetition_penalty: float = Field(1.0, gt=0)  # above 1, tokens that came before become less probable
    longest: int = Field(256, ge=1)  # tokens that are written


class LanguageModelRecipe(TaskRecipe):
    data: DocumentData
    text: DocumentText = DocumentText()
    decode: LanguageDecode = LanguageDecode()


class LanguageSettings(Section):
    """The settings that a model folder keeps."""

    context: int = Field(ge=1)  # tokens that the model reads at once
    documents: str = "file"
    prompt_end: str = ""
    prompt_start: bool = True  # whether a prompt is read as the beginning of a document
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
        None, "Length in tokens of runs that may not be repeated, also of the prompt; 0: all may.", only=WRITE, ge=0
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
        changes = {name: getattr(self, name) for name in LanguageDecode.model_fields}
        changes = {name: value for name, value in changes.items() if value is not None}
        if self.temperature == 0 and (named := [name for name in CUTS if name in changes]):
            raise ConfigError(
                f"{', '.join(named)}: no effect without sampling (temperature 0); set a temperature, such as 1"
            )
        if "" in self.stop:
            raise ConfigError("stop: an empty text would stop at once; give a text, or leave it out")
        return decode.model_copy(update=changes)


DocumentRecipeT = TypeVar("DocumentRecipeT", bound=LanguageModelRecipe)


class PackedExamples(RedrawnExamples[PackedRows]):
    """Packed rows, all equally long; `rows` are the documents, and long ones are cut elsewhere in each epoch."""

    on_device = ("packed",)

    def __init__(self, packed: PackedDocuments, rows: Sequence[Row]) -> None:
        self.packed, self.rows = packed, rows
        self.lengths = np.full((packed.rows, 1), packed.context, dtype=np.int64)
        self.counts = packed.counts

    def collate(self, batch: Batch) -> PackedRows:
        return self.packed.gather(torch.from_numpy(batch.examples))

    def draw(self, epoch: int) -> None:
        self.packed.draw_cuts(epoch)
        self.epoch, self.counts = epoch, self.packed.counts

    def fingerprint(self) -> str:
        return self.packed.fingerprint()

    def where(self, example: int) -> str:
        return self.rows[self.packed.first_document(example)].where


class DocumentProcessor(Processor[DocumentRecipeT, BatchT]):
    """Base class: rows are documents, and what of a `.txt` file is one is `documents` of the recipe's `[data]`."""

    columns: tuple[str, ...] = ("text",)
    metric = "loss"

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig, stored: Any) -> None:
        super().__init__(tokenizer, config, stored)
        self.documents = stored.documents

    @classmethod
    def read(cls, source: Files, columns: Columns = None, documents: str | None = None) -> Iterator[Row]:
        return read_documents(source, documents or "file", columns)


class LanguageProcessor(DocumentProcessor[LanguageModelRecipe, PackedRows]):
    added_tokens = 0
    default_shape = "modern"
    predicts_tokens = True
    stacks = ("decoder",)
    tokenizer: Tokenizer
    stored_kind: ClassVar[type[LanguageSettings]] = LanguageSettings
    stored: LanguageSettings

    @classmethod
    def prepare(
        cls, rows: Sequence[Row], recipe: LanguageModelRecipe, start: Pretrained | None = None
    ) -> LanguageProcessor:
        tokenizer = recipe.text.make_tokenizer((row.values[0] for row in rows), start)
        config = cls.make_config(recipe, start, vocabulary=tokenizer.size)
        context, sample = recipe.data.longest, rows[:: -(-len(rows) // ESTIMATED_DOCUMENTS)]
        lengths = [len(tokens) for tokens in tokenizer.encode_all([row.values[0] for row in sample])]
        packed_rows = sum(-(-length // context) for length in lengths)
        prompt_start = len(sample) >= DOCUMENT_STARTS * packed_rows
        stored = cls.stored_kind(context=context, documents=recipe.data.documents, prompt_start=prompt_start)
        processor = cls(tokenizer, config, stored)
        processor.configure(recipe)
        return processor

    def configure(self, recipe: LanguageModelRecipe) -> None:
        # Of pre-training, [decode] has settings of beam search, too.
        decode = LanguageDecode(**recipe.decode.model_dump(include=set(LanguageDecode.model_fields)))
        self.store(decode=decode, prompt_end=recipe.text.prompt_end)

    def examples(
        self, rows: Iterable[Row], report: Report, recipe: LanguageModelRecipe | None = None
    ) -> PackedExamples:
        used = [row for row in rows if report.admit(row, self.check_row(row).problem)]
        report.refuse_empty("document")
        documents, context = self.encode_documents(used), self.stored.context
        for document in documents:
            if len(document) - 1 > context:
                report.remark(f"longer than the context of {context} tokens, so read in parts")
        seed = None if recipe is None else recipe.seed
        return PackedExamples(PackedDocuments(documents, context, seed=seed, pad=self.tokenizer.pad), used)

    def encode_documents(self, rows: Sequence[Row]) -> list[list[int]]:
        """The tokens of each document, with its start and end."""
        texts = self.tokenizer.encode_all([row.values[0] for row in rows])
        return [[self.tokenizer.start, *text, self.tokenizer.end] for text in texts]

    def check_row(self, row: Row) -> RowCheck:
        text = row.values[0]
        return RowCheck(None if self.tokenizer.normal(text[:1000]).strip() or text.strip() else EMPTY)

    def encode_prompt(self, prompt: str) -> list[int]:
        """The tokens of a prompt, as the beginning of a document where prompts are read so."""
        end = self.stored.prompt_end
        if end:  # nothing inside ends a prompt: parts between are joined, lines too if a line break ends it
            parts = prompt.splitlines() if end.isspace() else prompt.split(end)
            prompt = join_texts([part.strip() for part in parts])
        return self.start_prompt(self.tokenizer.encode(prompt + end))

    def start_prompt(self, tokens: list[int]) -> list[int]:
        """The tokens of a prompt after the start, where prompts are read as beginnings of documents."""
        return [self.tokenizer.start, *tokens] if self.stored.prompt_start or not tokens else tokens

    def build(self) -> Decoder:
        return Decoder(self.config)
