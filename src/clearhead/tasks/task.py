"""Task: what turns raw data into batches, batches into a loss, and a trained model's output into answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clearhead.errors import ConfigError
from clearhead.model import Decoder, Encoder, EncoderDecoder, ModelConfig
from clearhead.tasks.reading import Reading

if TYPE_CHECKING:
    from clearhead.text import Report, Row
    from clearhead.text.batches import Batch

Model = Encoder | Decoder | EncoderDecoder


class Prediction(NamedTuple):
    """An answer: its text, how sure the model is, what else it thought of, and what the user should know."""

    text: str
    score: float | None = None
    alternatives: Sequence[tuple[str, float]] = ()
    notes: Sequence[str] = ()


class Examples(ABC):
    """A data set, ready for batches.

    `lengths` is (examples, sides), what batches are planned by; `counts` says how many predictions of an example the
    loss is a sum over, so that every process knows a window's total without asking the others.
    """

    lengths: NDArray[np.int64]
    counts: NDArray[np.int64]
    rows: Sequence[Row]  # that the examples were made of

    def __len__(self) -> int:
        return len(self.lengths)

    @abstractmethod
    def batch(self, batch: Batch) -> Any:
        """The tensors of one batch, on the device that `to` named."""

    @abstractmethod
    def to(self, device: torch.device) -> Examples:
        """Moves the data to where the batches are wanted."""

    @abstractmethod
    def where(self, example: int) -> str:
        """The file and line that an example came from."""

    @abstractmethod
    def fingerprint(self) -> str:
        """The same for the same examples in the same order, and for no others."""


class Task(ABC):
    """One kind of work. A subclass is one file of this folder: its data, loss, metric, prediction."""

    name: ClassVar[str]
    architecture: ClassVar[type[Model]]
    columns: ClassVar[tuple[str, ...]]  # of its data
    metrics: ClassVar[tuple[str, ...]]  # what it is scored by, beside the loss; larger is better
    metric: ClassVar[str]  # the one of them that the best model is chosen by
    defaults: ClassVar[dict[str, Any]]  # of prediction; a recipe's [decode] changes them
    config: ModelConfig
    settings: dict[str, Any]  # whatever else the task must know again after loading, as JSON

    def build(self) -> Model:
        """A new model, with random weights."""
        return self.architecture(self.config)

    @classmethod
    def read(
        cls,
        source: str | Path | Mapping[str, str | Path],
        columns: Sequence[str] | Mapping[str, str] | None = None,
    ) -> Iterator[Row]:
        """Rows of a file, with their values in the task's order; `clearhead.text.read` says what `columns` may be."""
        from clearhead.text import read

        return read(source, cls.columns, columns)

    @classmethod
    @abstractmethod
    def prepared(cls, rows: Sequence[Row], text: Any, shape: dict[str, Any], settings: dict[str, Any]) -> Task:
        """From training data: tokenizers trained, sizes of the model known."""

    @abstractmethod
    def examples(self, rows: Iterable[Row], report: Report, limits: Any = None) -> Examples:
        """Rows as numbers; those that cannot be used are dropped, and the report says why."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any, smoothing: float) -> Tensor:
        """The sum of the losses of all predictions in a batch, as one number."""

    @abstractmethod
    def predict(self, model: Model, inputs: Sequence[str], **options: Any) -> list[Prediction]:
        """An answer for every input, in their order."""

    @abstractmethod
    def evaluate(self, model: Model, rows: Sequence[Row], **options: Any) -> dict[str, float | str]:
        """Scores of a model's answers, and the signatures of how they were computed."""

    def readings(self, model: Model, text: str, *, answer: str | None = None) -> list[Reading]:
        """How a model reads a text and its answer, one for each forward pass; for those who want to look at it."""
        raise self._unread()

    def read_through(self, model: Model, reading: Reading) -> Tensor | None:
        """One forward pass over it: the scores of all tokens at each place where one is written, if any are."""
        raise self._unread()

    def pieces(self, kind: str, numbers: Sequence[int]) -> list[str]:
        """Tokens of a reading as they can be shown."""
        raise self._unread()

    def _unread(self) -> ConfigError:
        return ConfigError(f"{self.name} does not say how a model reads a text, so there is nothing to look at")

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Writes what turns raw input into tokens."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> Task:
        """Reads it again."""
