"""Documents: whole texts to learn a language from, read from text files or from the column of a table."""

from __future__ import annotations

import contextlib
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Literal

from clearhead.errors import ConfigError, DataError
from clearhead.formatting import suggest_name
from clearhead.text.corpora import Row, check_file, read, read_lines, unpacked_name

COLUMN = "text"
Documents = Literal["file", "lines", "paragraphs"]
KINDS = ("file", "lines", "paragraphs")
PYTHON_LIBRARY = "made:python-library"
INSTALLED = {"site-packages", "dist-packages"}


def read_documents(
    source: str | Path | Mapping[str, str | Path],
    documents: str = "file",
    columns: Sequence[str] | Mapping[str, str] | None = None,
) -> Iterator[Row]:
    """The documents of a file, each a row with one value, its text.

    A `.txt` file (also packed) is one document (`"file"`), or each of its lines is one (`"lines"`), or each paragraph
    (`"paragraphs"`: blank lines separate them). Blank lines are no documents of their own. Of a folder all `.txt` files
    in it and below it are read, by name. A TSV, CSV or JSONL has a document in each row, in its column `text`;
    `clearhead.text.read` explains `columns`. `made:python-library` are the modules of Python's own library. Line breaks
    are line feeds in every document, whatever the file has; the one at the end of the file is kept.

    >>> from tempfile import mkdtemp
    >>> file = Path(mkdtemp()) / "poems.txt"
    >>> _ = file.write_text("Moon\\nbright\\n\\n\\nRiver\\n", encoding="utf-8")
    >>> [row.values[0] for row in read_documents(file, "paragraphs")]
    ['Moon\\nbright', 'River']
    """
    if documents not in KINDS:
        raise ConfigError(f"documents: {documents!r} is not known; {suggest_name(documents, KINDS)}")
    if str(source) == PYTHON_LIBRARY:
        return _read_python_library()
    if not isinstance(source, Mapping) and Path(source).expanduser().is_dir():
        return _read_folder(Path(source).expanduser(), documents)
    if isinstance(source, Mapping) or columns is not None or not is_plain_text(Path(source)):
        return read(source, [COLUMN], columns)
    return _read_plain(check_file(Path(source)), documents)


def _read_plain(path: Path, documents: str) -> Iterator[Row]:
    if documents == "file":
        return _read_whole(path)
    return _read_lines(path) if documents == "lines" else _read_paragraphs(path)


def split_document(row: Row, share: float) -> tuple[Row, Row]:
    """The first part of a document, and its last `share` by characters.

    >>> split_document(Row(("abcdefghij",), "a.txt", 1), 0.2)
    (Row(values=('abcdefgh',), file='a.txt', line=1), Row(values=('ij',), file='a.txt', line=1))
    """
    text: str = row.values[0]
    first = int(len(text) * (1 - share))
    if not text[:first].strip() or not text[first:].strip():
        raise DataError(
            f"{row.where}: a document of {len(text)} characters cannot be split into {1 - share:g} and {share:g}, for "
            "one part would be blank; give more text, or a dev file of its own"
        )
    line = row.line + text.count("\n", 0, first)
    return row._replace(values=(text[:first],)), Row((text[first:],), row.file, line)


def _read_folder(folder: Path, documents: str) -> Iterator[Row]:
    paths = sorted(path for path in folder.rglob("*") if is_plain_text(path) and path.is_file())
    if not paths:
        raise DataError(f"{folder} has no .txt file in it or below it")
    return chain.from_iterable(_read_plain(path, documents) for path in paths)


def _read_python_library() -> Iterator[Row]:
    """The modules of the library that this Python has, without installed packages; those in UTF-8."""
    folder = Path(sysconfig.get_path("stdlib"))
    for path in sorted(folder.rglob("*.py")):
        if not INSTALLED.intersection(path.relative_to(folder).parts):
            with contextlib.suppress(UnicodeDecodeError, OSError):
                yield Row((path.read_text(encoding="utf-8"),), str(path), 1)


def is_plain_text(path: Path) -> bool:
    """Whether a file is text without columns, by its name: .txt, also packed."""
    return unpacked_name(path).endswith(".txt")


def _plain_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file, which end in a line feed, not in a carriage return before it."""
    for line, text in read_lines(path):
        yield line, f"{text[:-2]}\n" if text.endswith("\r\n") else text


def _read_whole(path: Path) -> Iterator[Row]:
    yield Row(("".join(text for _, text in _plain_lines(path)),), str(path), 1)


def _read_lines(path: Path) -> Iterator[Row]:
    for line, text in _plain_lines(path):
        if text.strip():
            yield Row((text.removesuffix("\n"),), str(path), line)


def _read_paragraphs(path: Path) -> Iterator[Row]:
    for blank, lines in groupby(_plain_lines(path), key=lambda pair: not pair[1].strip()):
        if not blank:
            first, *rest = lines
            text = first[1] + "".join(text for _, text in rest)
            yield Row((text.removesuffix("\n"),), str(path), first[0])
