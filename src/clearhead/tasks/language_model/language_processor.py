"""The stored parts of tasks that learn from documents alone, and of a language model among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from clearhead.errors import CheckpointError, ConfigError, DataError
from clearhead.model import Decoder, ModelConfig
from clearhead.tasks.language_model.language_settings import LanguageDecode, LanguageModelRecipe
from clearhead.tasks.language_model.packed_examples import PackedExamples
from clearhead.tasks.processor import BatchT, Columns, Files, Processor
from clearhead.tasks.segmentation import join_texts
from clearhead.tasks.settings import validate
from clearhead.text.documents import read_documents
from clearhead.text.packed_documents import PackedDocuments, PackedRows

if TYPE_CHECKING:
    from typing import Self

    from clearhead.tasks.pretrained import Pretrained
    from clearhead.text import Report, Row, Tokenizer

EMPTY = "empty"
DOCUMENT_STARTS = 0.05  # share of rows that begin a document, from which on a prompt is read as the beginning of one
ESTIMATED_DOCUMENTS = 200  # documents from which that share is estimated
DocumentRecipeT = TypeVar("DocumentRecipeT", bound=LanguageModelRecipe)


class DocumentProcessor(Processor[DocumentRecipeT, BatchT]):
    """Base class: rows are documents, and what of a `.txt` file is one is `documents` of the recipe's `[data]`."""

    columns: tuple[str, ...] = ("text",)
    metric = "loss"
    documents: str

    @classmethod
    def read(cls, source: Files, columns: Columns = None, documents: str | None = None) -> Iterator[Row]:
        return read_documents(source, documents or "file", columns)


class LanguageProcessor(DocumentProcessor[LanguageModelRecipe, PackedRows]):
    added_tokens = 0
    default_shape = "modern"
    predicts_tokens = True
    stacks = ("decoder",)
    tokenizer: Tokenizer

    def __init__(
        self,
        tokenizer: Tokenizer,
        config: ModelConfig,
        *,
        context: int,
        documents: str = "file",
        prompt_end: str = "",
        prompt_start: bool = True,
        decode: LanguageDecode | None = None,
    ) -> None:
        self.tokenizer, self.config, self.context, self.documents = tokenizer, config, context, documents
        self.prompt_end = prompt_end
        self.prompt_start = prompt_start  # whether a prompt is read as the beginning of a document
        self.decode = decode or LanguageDecode()

    @property
    def settings(self) -> dict[str, Any]:
        own = ("context", "documents", "prompt_end", "prompt_start")
        return {**{name: getattr(self, name) for name in own}, "decode": self.decode.model_dump()}

    @classmethod
    def prepare(cls, rows: Sequence[Row], recipe: LanguageModelRecipe, start: Pretrained | None = None) -> Self:
        tokenizer = recipe.text.make_tokenizer((row.values[0] for row in rows), start)
        config = cls.make_config(recipe, start, vocabulary=tokenizer.size)
        processor = cls(tokenizer, config, context=recipe.data.longest, documents=recipe.data.documents)
        sample = rows[:: -(-len(rows) // ESTIMATED_DOCUMENTS)]
        lengths = [len(tokens) for tokens in tokenizer.encode_all([row.values[0] for row in sample])]
        packed_rows = sum(-(-length // processor.context) for length in lengths)
        processor.prompt_start = len(sample) >= DOCUMENT_STARTS * packed_rows
        processor.configure(recipe)
        return processor

    def configure(self, recipe: LanguageModelRecipe) -> None:
        # Of pre-training, [decode] has settings of beam search, too.
        self.decode = LanguageDecode(**recipe.decode.model_dump(include=set(LanguageDecode.model_fields)))
        self.prompt_end = recipe.text.prompt_end

    def examples(
        self, rows: Iterable[Row], report: Report, recipe: LanguageModelRecipe | None = None
    ) -> PackedExamples:
        rows = list(rows)
        used: list[Row] = []
        documents: list[list[int]] = []
        for row, document in zip(rows, self.encode_documents(rows), strict=True):
            if self.row_problem(row):
                report.drop(row, EMPTY)
            else:
                report.keep()
                if len(document) - 1 > self.context:
                    report.remark(f"longer than the context of {self.context} tokens, so read in parts")
                used.append(row)
                documents.append(document)
        if not used:
            raise DataError(f"no document is left to use: {report}")
        seed = None if recipe is None else recipe.seed
        return PackedExamples(PackedDocuments(documents, self.context, seed=seed, pad=self.tokenizer.pad), used)

    def encode_documents(self, rows: Sequence[Row]) -> list[list[int]]:
        """The tokens of each document, with its start and end."""
        texts = self.tokenizer.encode_all([row.values[0] for row in rows])
        return [[self.tokenizer.start, *text, self.tokenizer.end] for text in texts]

    def row_problem(self, row: Row) -> str | None:
        return None if self.tokenizer.normal(row.values[0][:1000]).strip() or row.values[0].strip() else EMPTY

    def encode_prompt(self, prompt: str) -> list[int]:
        """The tokens of a prompt, as the beginning of a document where prompts are read so."""
        if self.prompt_end:
            prompt = self._join_lines(prompt)
        return self.start_prompt(self.tokenizer.encode(prompt + self.prompt_end))

    def _join_lines(self, prompt: str) -> str:
        """The prompt with nothing inside that ends one: parts between are joined, lines too if a line break ends it."""
        parts = prompt.splitlines() if self.prompt_end.isspace() else prompt.split(self.prompt_end)
        return join_texts([part.strip() for part in parts])

    def start_prompt(self, tokens: list[int]) -> list[int]:
        """The tokens of a prompt after the start, where prompts are read as beginnings of documents."""
        return [self.tokenizer.start, *tokens] if self.prompt_start or not tokens else tokens

    def build(self) -> Decoder:
        return Decoder(self.config)

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder)

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> Self:
        from clearhead.text import Tokenizer

        tokenizer, values = Tokenizer.load(folder), dict(settings)
        if tokenizer.size > config.vocabulary:
            raise CheckpointError(
                f"the tokenizer of {folder} has {tokenizer.size} tokens, but its model {config.vocabulary}; "
                "copy the folder again"
            )
        try:
            decode = validate(LanguageDecode, values.pop("decode", {}))
            return cls(tokenizer, config, decode=decode, **values)
        except (ConfigError, TypeError) as error:
            raise CheckpointError(f"the settings of {folder} are invalid: {error}") from None
