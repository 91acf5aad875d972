"""TextInputs: how the inputs of a task are checked, compared and shown; here each is a text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from clearhead.errors import DataError

if TYPE_CHECKING:
    from clearhead.text import Row


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
