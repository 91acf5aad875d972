"""Processor: what a task learns from its data and stores with the model; its inputs; rows of data become examples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clearhead.errors import CheckpointError, ConfigError, DataError
from clearhead.model import ModelConfig
from clearhead.model.config import nest_options
from clearhead.tasks.losses import UNCOUNTED
from clearhead.tasks.settings import Section, TaskRecipe, validate
from clearhead.text import Report, Row, Tokenizer, read
from clearhead.text.batches import Batch, Ragged
from clearhead.text.report import Flaw

if TYPE_CHECKING:
    from typing import Self

    from clearhead.tasks.pretrained import Pretrained
RecipeT = TypeVar("RecipeT", bound=TaskRecipe)
BatchT = TypeVar("BatchT", bound=tuple[Tensor, ...])
Files = str | Path | Mapping[str, str | Path]  # one file, or one for each column
Columns = Sequence[str] | Mapping[str, str] | None


class RowCheck(NamedTuple):
    """Why a row can neither be learned from nor scored; or the flaws of one that is used all the same, with counts."""

    problem: str | None = None  # in words that follow a number, such as "without a label"
    flaws: Mapping[Flaw, int] = MappingProxyType({})  # `evaluate` says them in a note


class Examples(ABC, Generic[BatchT]):
    """A data set as tensors, from which batches are collated.

    `lengths` is (examples, sides), what batches are planned by; `counts` says how many predictions of an example the
    loss is a sum over, so that every process knows a window's total without asking the others.
    """

    lengths: NDArray[np.int64]
    counts: NDArray[np.int64]
    rows: Sequence[Row]  # that the examples were made of
    origins: Sequence[int] | None = None  # for each example the index of its row; None: each row is one example
    on_device: ClassVar[tuple[str, ...]] = ()  # attributes that belong on the device of the batches

    def __len__(self) -> int:
        return len(self.lengths)

    @abstractmethod
    def collate(self, batch: Batch) -> BatchT:
        """The tensors of one batch as a NamedTuple of tensors, on the device that `to` named.

        Nothing but tensors: CUDA graphs copy a batch field by field, and tell batches apart by their shapes.
        """

    def to(self, device: torch.device) -> Self:
        """Moves the data to the device of the batches."""
        for name in self.on_device:
            setattr(self, name, getattr(self, name).to(device))
        return self

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of the examples and their order."""

    def state(self) -> dict[str, Tensor]:
        """What `Objective.refresh` changes during training; checkpoints store it."""
        return {}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Takes over what `state` gave."""

    def where(self, example: int) -> str:
        """The file and line that an example came from."""
        return self.rows[example if self.origins is None else self.origins[example]].where


class RedrawnExamples(Examples[BatchT]):
    """Base class of examples of which something is drawn at random for each epoch, from a seed and the epoch alone."""

    epoch = 0

    @abstractmethod
    def draw(self, epoch: int) -> None:
        """Draws what belongs to this epoch, and remembers it."""

    def state(self) -> dict[str, Tensor]:
        return {"epoch": torch.tensor(self.epoch)}

    def restore(self, state: dict[str, Tensor]) -> None:
        self.draw(int(state["epoch"]))


class LabelledTexts(NamedTuple):
    """A batch: texts as tokens, and the number of each one's label, or a multi-hot matrix (texts, labels)."""

    tokens: Tensor
    lengths: Tensor
    labels: Tensor


class TextExamples(Examples[LabelledTexts]):
    """Texts as tokens, each with the number of its label (UNCOUNTED: none), or with a multi-hot row over all labels."""

    on_device = ("texts", "labels")

    def __init__(
        self,
        texts: Sequence[Sequence[int]],
        labels: Sequence[int] | Sequence[Sequence[float]],
        rows: list[Row],
        pad: int,
    ) -> None:
        self.texts, self.labels, self.rows, self.pad = Ragged(texts), torch.tensor(labels), rows, pad
        self.lengths = self.texts.lengths.numpy()[:, None]
        self.counts = np.array([label != UNCOUNTED for label in labels], dtype=np.int64)

    def collate(self, batch: Batch) -> LabelledTexts:
        rows = torch.from_numpy(batch.examples).to(self.labels.device, non_blocking=True)
        return LabelledTexts(*self.texts.pad(rows, batch.sizes[0], self.pad), self.labels[rows])

    def fingerprint(self) -> str:
        return f"{self.texts.fingerprint()} {Ragged([self.labels.flatten().int().tolist()]).fingerprint()}"


class TextInputs:
    """Inputs that are texts. A subclass reads files, or other values in memory."""

    kind: ClassVar[Literal["text", "picture", "sound"]] = "text"

    @property
    def example(self) -> str:
        """What an input on a command line looks like."""
        return '"…"'

    def check(self, value: Any, name: str = "the input") -> Any:
        """An input of `predict`, if it is of the right kind; messages call it by the name."""
        if not isinstance(value, str):
            raise DataError(f"{name} must be a text, got {value!r:.60}")
        return value

    def is_single(self, inputs: Any) -> bool:
        """Whether `predict` was given one input, not several."""
        return isinstance(inputs, (str, Path))

    def describe(self, value: Any) -> str:
        """An input as a text: itself, or the name of a file."""
        return str(value)

    def of_row(self, row: Row) -> Any:
        """The input for `predict` in a row."""
        return row.values[0]

    def load_rows(self, rows: Iterable[Row]) -> list[Row]:
        """The rows with the content of their inputs in memory, where these are files."""
        return list(rows)

    def identify(self, row: Row) -> str:
        """A text that two rows share if they have the same input."""
        return str(self.of_row(row)).strip()

    def show_row(self, row: Row) -> str:
        """The input of a row as it is shown beside a prediction; of a file its path."""
        return self.describe(self.of_row(row))

    def decode_file(self, name: str, content: bytes) -> Any:
        """The input in the bytes of a file that somebody sent; `name` is only shown."""
        raise DataError("this model takes a text, not a file")

    def write_samples(self, folder: Path, rows: Sequence[Row]) -> list[Path]:
        """Writes a few inputs to try a finished model with, where inputs are files; their paths."""
        return []


class PairInputs(TextInputs):
    """Inputs that are pairs of texts: two, or one with a tab between."""

    @property
    def example(self) -> str:
        return "$'…\\t…'"

    def check(self, value: Any, name: str = "the input") -> tuple[str, str]:
        parts = value.split("\t") if isinstance(value, str) else value
        fits = isinstance(parts, (list, tuple)) and len(parts) == 2 and all(isinstance(part, str) for part in parts)
        if not fits:
            raise DataError(f"{name} must be two texts with a tab between, got {value!r:.60}")
        return parts[0], parts[1]

    def is_single(self, inputs: Any) -> bool:
        pair = isinstance(inputs, tuple) and len(inputs) == 2 and all(isinstance(part, str) for part in inputs)
        return isinstance(inputs, str) or (pair and not any("\t" in part for part in inputs))

    def describe(self, value: Any) -> str:
        return "\t".join(self.check(value))

    def of_row(self, row: Row) -> tuple[str, str]:
        return row.values[0], row.values[1]


class Processor(ABC, Generic[RecipeT, BatchT]):
    """Base class of the stored parts of tasks, generic in the types of its recipe and its batch."""

    columns: tuple[str, ...]  # of its data; a processor may have others, such as those of pairs of texts
    metric: str  # the one of the task's metrics that the best model is chosen by
    added_tokens: ClassVar[int] = 1  # that a text has beside its own: its end, or its start and end
    default_shape: ClassVar[str] = "classic"  # of a recipe whose [model] has no shape
    predicts_tokens: ClassVar[bool] = False  # whether its model has scores over the vocabulary
    stacks: ClassVar[tuple[str, ...]] = ("encoder",)  # the stacks of layers of its model, in this order
    # Placeholders for sizes that the data decide, while the recipe is checked before the data are read.
    placeholder_sizes: ClassVar[Mapping[str, Any]] = {"vocabulary": 1}
    inputs: TextInputs = TextInputs()
    config: ModelConfig
    # Of the inputs; models that start from these weights take it over. None if there is none for all texts.
    tokenizer: Tokenizer | None = None
    labels: Sequence[str] = ()  # of the model's output head, if it has one
    stored_kind: ClassVar[type[Section]] = Section  # the class of `stored`
    stored: Section  # the settings in a model folder
    documents: str | None = None  # where rows are documents: what of a `.txt` file is one, as in `[data]`
    # What the data chose where the recipe says "auto", by the key in the recipe. `Objective.calibrate` may add to it.
    chosen_settings: Mapping[str, str] = MappingProxyType({})

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig, stored: Section) -> None:
        self.tokenizer, self.config, self.stored = tokenizer, config, stored

    def store(self, **settings: Any) -> None:
        """Changes settings that are stored with the model."""
        self.stored = self.stored.model_copy(update=settings)

    @classmethod
    def read(cls, source: Files, columns: Columns = None, documents: str | None = None) -> Iterator[Row]:
        """The rows of a file, values in the order of the task's columns; `clearhead.text.read` explains `columns`.

        `documents` says what of a `.txt` file is a row, where rows are documents.
        """
        return read(source, cls.columns, columns)

    @classmethod
    @abstractmethod
    def prepare(cls, rows: Sequence[Row], recipe: RecipeT, start: Pretrained | None = None) -> Self:
        """From training data: tokenizers trained, labels collected, sizes of the model known.

        With trained weights to `start` from, their tokenizer and the sizes of their model are taken over.
        """

    @property
    def input_columns(self) -> Sequence[str]:
        """The columns of an input: all but the answer's, if there is one."""
        return self.columns[:-1] or self.columns

    def configure(self, recipe: RecipeT) -> None:
        """Takes over what a resumed run may change, such as settings of decoding."""

    @abstractmethod
    def examples(self, rows: Iterable[Row], report: Report, recipe: RecipeT | None = None) -> Examples[BatchT]:
        """Rows as numbers; those that cannot be used are dropped, and the report says why.

        With a recipe they are for training, and its limits hold.
        """

    def check_row(self, row: Row) -> RowCheck:
        """What is wrong in a row, if anything."""
        return RowCheck()

    def answer_of(self, row: Row) -> str:
        """The right answer, to be shown beside a prediction."""
        return str(row.values[-1])

    @abstractmethod
    def build(self) -> nn.Module:
        """A new model with random weights and the task's output head; the only place where one is made."""

    @classmethod
    def make_config(cls, recipe: RecipeT, start: Pretrained | None = None, **sizes: Any) -> ModelConfig:
        """The model that a recipe's [model] describes, with the sizes that the data decide.

        With trained weights to `start` from, their model with the recipe's changes, such as another dropout.
        """
        options = dict(recipe.model)
        shape = str(options.pop("shape", cls.default_shape))
        if start is None:
            config = ModelConfig.named(shape, **sizes)
        else:
            config = start.adapt_config(cls.stacks, predicts_tokens=cls.predicts_tokens, parts=sizes.keys())
            if cls.stacks == ("decoder",) == start.stacks:
                # Some checkpoints have scores for more tokens than their tokenizer: they stay, so that logits do.
                sizes["vocabulary"] = max(sizes["vocabulary"], config.vocabulary)
            config = config.change(**sizes)
        return config.change(**nest_options(options))

    @property
    def settings(self) -> dict[str, Any]:
        """What `load` needs beside the files of `save`, as JSON."""
        return self.stored.model_dump()

    def save(self, folder: Path) -> None:
        """Writes the tokenizers and whatever else turns raw input into tensors."""
        if self.tokenizer is not None:
            self.tokenizer.save(folder)

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> Self:
        """The inverse of `save`; settings and sizes that make no sense are refused."""
        processor = cls(Tokenizer.load(folder), config, cls.read_settings(folder, settings))
        if problem := compare_sizes(processor):
            raise CheckpointError(f"{folder} has {problem}; copy the folder again")
        return processor

    @classmethod
    def read_settings(cls, folder: Path, settings: dict[str, Any]) -> Any:
        """The settings in a model folder, validated: a `stored_kind`."""
        try:
            return validate(cls.stored_kind, settings)
        except ConfigError as error:
            raise CheckpointError(f"the settings of {folder} are damaged: {error}") from None


AnyProcessor = Processor[Any, Any]


def compare_sizes(processor: AnyProcessor) -> str | None:
    """How the numbers of labels and tokens differ from those that the model is built for; None if they are equal."""
    labels, config = len(processor.labels), processor.config
    tokens = config.vocabulary if processor.tokenizer is None else processor.tokenizer.size
    # A decoder alone may have scores for more tokens than its tokenizer: see make_config.
    fits = tokens <= config.vocabulary if processor.stacks == ("decoder",) else tokens == config.vocabulary
    if labels == config.label_count and fits:
        return None
    return f"{labels} labels and {tokens} tokens, but its model {config.label_count} and {config.vocabulary}"
