"""How tasks that learn from texts alone read their files and split them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clearhead.tasks.language_model.language_settings import DocumentData
from clearhead.tasks.settings import Data
from clearhead.text.documents import is_plain_text, read_documents, split_document

if TYPE_CHECKING:
    from clearhead.text import Row


class DocumentReading:
    """Mixin of tasks: rows are documents, and what of a `.txt` file is one is `documents` of the recipe's `[data]`."""

    documents: str

    @classmethod
    def read(
        cls,
        source: str | Path | Mapping[str, str | Path],
        columns: Sequence[str] | Mapping[str, str] | None = None,
    ) -> Iterator[Row]:
        """The documents of a file; a `.txt` is one document."""
        return read_documents(source, columns=columns)

    @classmethod
    def read_source(cls, source: str | Path | Mapping[str, str | Path], data: Data) -> Iterator[Row]:
        """The documents of one of the files that a recipe's `[data]` names."""
        assert isinstance(data, DocumentData)
        return read_documents(source, data.documents, data.columns)

    def read_rows(
        self,
        source: str | Path | Mapping[str, str | Path],
        columns: Sequence[str] | Mapping[str, str] | None = None,
    ) -> Iterator[Row]:
        """The documents of a file that is to be scored, read as the training data were."""
        return read_documents(source, self.documents, columns)

    def shares_columns(self, source: str | Path) -> bool:
        """A plain text is documents, also if the training file was a table."""
        return not is_plain_text(Path(source))

    @classmethod
    def split_off(cls, rows: list[Row], share: float, seed: int) -> tuple[list[Row], list[Row]]:
        """A random share of the documents for dev; of a single one, its end."""
        if len(rows) != 1:
            return super().split_off(rows, share, seed)  # type: ignore[misc, no-any-return]
        first, last = split_document(rows[0], share)
        return [first], [last]
