"""FileInputs: inputs that are files, such as pictures or sounds.

A row's input is the path of a file, or its content in memory. Data are tables of paths and texts (paths are relative to
the table's folder), folders with `name.png` beside `name.txt`, or made by a program: `made:pairs.train`.
"""

from __future__ import annotations

import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from clearhead.errors import ConfigError, DataError
from clearhead.formatting import parse_whole_number, suggest_name
from clearhead.tasks.processor import Columns, Files, TextInputs
from clearhead.text import Report, Row, read

MADE = "made:"  # before the name of data that a program makes
TEXT = ".txt"
PARTS = ("train", "dev", "test")  # of data that a program makes; no input is in two of them
SAMPLES = 8

# Makes inputs with their texts: of a part ("train", "dev", "test"), and how many (None: as many as it likes).
Generator = Callable[[str, int | None], Iterator[tuple[Any, str]]]


class LoadedInput(NamedTuple):
    """The decoded content of an input with its path or another name to show, or why it cannot be used."""

    name: str
    content: Any = None
    problem: str = ""  # in words that follow a number, such as "with a missing sound file"
    error: str = ""  # of its file


class FileInputs(TextInputs, ABC):
    """Reads, decodes and writes input files; a subclass says how, for its kind of file."""

    suffixes: ClassVar[tuple[str, ...]]  # of its files in a folder of data; the first is that of samples
    generators: ClassVar[Mapping[str, Generator]] = MappingProxyType({})

    @abstractmethod
    def load_file(self, path: Path) -> Any:
        """The content of a file; DataError, which begins with the path, if it cannot be read."""

    @abstractmethod
    def load_value(self, value: Any) -> Any:
        """The content of an input that is given in memory; DataError if it is none."""

    @abstractmethod
    def save_file(self, content: Any, path: Path) -> None:
        """Writes the content of an input to a file, as a sample."""

    @classmethod
    def read(cls, source: Files, names: tuple[str, ...], columns: Columns = None) -> Iterator[Row]:
        """Rows of paths and texts, by these names, from a table or a folder, or the rows that a program makes."""
        if not isinstance(source, Mapping):
            if is_generated(source):
                return _generate(str(source), cls.generators)
            if Path(source).expanduser().is_dir():
                return _read_folder(Path(source).expanduser(), cls.kind, cls.suffixes)
        return resolve_paths(read(source, names, columns), names)

    def load_rows(self, rows: Iterable[Row]) -> list[Row]:
        """The rows with the content of their inputs, or with the problem that it has."""
        return [row._replace(values=(self._load_checked(row.values[0]), *row.values[1:])) for row in rows]

    def keep_readable(self, rows: Iterable[Row], report: Report) -> list[Row]:
        """The rows that can be used, with the content of their inputs; the others are dropped in the report."""
        loaded, readable = self.load_rows(rows), list[Row]()
        for row in loaded:
            if problem := self.find_problem(row):
                report.drop(row, problem)
            else:
                readable.append(row)
        if loaded and not readable:
            errors = [row.values[0].error for row in loaded if row.values[0].error]
            raise DataError(f"no row is left to use: {report}{f'; the first error: {errors[0]}' if errors else ''}")
        return readable

    def find_problem(self, row: Row) -> str | None:
        """Why a row cannot be used: its file is missing or unreadable, or it has no text."""
        return self._load_checked(row.values[0]).problem or (None if str(row.values[1]).strip() else "without a text")

    def _load_checked(self, source: Any) -> LoadedInput:
        if isinstance(source, LoadedInput):
            return source
        try:
            return self.load_input(source)
        except DataError as error:
            missing = isinstance(source, (str, Path)) and not os.path.exists(source)
            problem = f"with {'a missing' if missing else 'an unreadable'} {self.kind} file"
            return LoadedInput(self.describe(source), None, problem, str(error))

    def load_input(self, source: Any) -> LoadedInput:
        """The content of an input: of a file by its path, or of what is in memory."""
        if isinstance(source, LoadedInput):
            if source.error:
                raise DataError(source.error)
            return source
        if isinstance(source, (str, Path)):
            if not str(source).strip():
                raise DataError(f"the path of a {self.kind} file is needed, got an empty text")
            if re.match(r"\w+://", str(source)):
                raise DataError(f"{source}: a {self.kind} is read from a file, not from an address")
            return LoadedInput(str(source), self.load_file(self._check_file(Path(source).expanduser())))
        return LoadedInput(self.describe(source), self.load_value(source))

    def _check_file(self, path: Path) -> Path:
        """Refuses what is no file with something in it; a named pipe, which would be waited for, is not opened."""
        if not os.path.exists(path):
            raise DataError(f"{path}: there is no such file")
        if not path.is_file():
            raise DataError(f"{path} is {'a folder' if path.is_dir() else 'no regular file'}, not a {self.kind} file")
        if not path.stat().st_size:
            raise DataError(f"{path} is empty")
        return path

    def check(self, source: Any, name: str = "the input") -> Any:
        """An input of `predict`: a path, or the content of a file, which is decoded at once."""
        if isinstance(source, str) and not source.strip():
            raise DataError(f"{name} is empty; the path of a {self.kind} file is needed")
        if isinstance(source, (str, Path, LoadedInput)):
            return source
        try:
            return self.load_input(source)
        except DataError as error:
            raise DataError(f"{name}: {error}") from None

    def is_single(self, inputs: Any) -> bool:
        return not isinstance(inputs, (list, Iterator)) and not _is_list_of_inputs(inputs)

    @property
    def example(self) -> str:
        return f"{self.kind}{self.suffixes[0]}"

    def decode_file(self, name: str, content: bytes) -> LoadedInput:
        suffix = PurePath(name).suffix.lower()
        with TemporaryDirectory() as folder:
            path = Path(folder) / f"input{suffix if suffix in self.suffixes else ''}"
            path.write_bytes(content)
            try:
                return LoadedInput(name, self.load_file(path))
            except DataError as error:
                raise DataError(str(error).replace(str(path), name)) from None

    def describe(self, source: Any) -> str:
        name = str(source) if isinstance(source, (str, Path)) else getattr(source, "name", None)
        return name if isinstance(name, str) else f"a {self.kind} in memory"

    def identify(self, row: Row) -> str:
        source = row.values[0]
        if not isinstance(source, LoadedInput) or source.error:
            return self.describe(source)
        return hashlib.sha256(np.ascontiguousarray(source.content).tobytes()).hexdigest()

    def show_row(self, row: Row) -> str:
        name = self.describe(row.values[0])
        return row.where if name == f"a {self.kind} in memory" else name

    def write_samples(self, folder: Path, rows: Sequence[Row]) -> list[Path]:
        """Writes the inputs of some rows with their texts, as a folder of data; the paths of the inputs."""
        written = []
        for number, row in enumerate(self.load_rows(rows[:SAMPLES]), 1):
            if self.find_problem(row) is None:
                path = folder / f"{number}{self.suffixes[0]}"
                self.save_file(row.values[0].content, path)
                path.with_suffix(TEXT).write_text(f"{row.values[1]}\n", encoding="utf-8")
                written.append(path)
        return written


def is_generated(source: str | Path) -> bool:
    """Whether this names data that a program makes, not a file.

    >>> is_generated("made:pairs.train"), is_generated("scenes.tsv")
    (True, False)
    """
    return str(source).startswith(MADE)


def _generate(source: str, generators: Mapping[str, Generator]) -> Iterator[Row]:
    """The rows that a program makes for a source such as `made:pairs.train:1000`."""
    name, _, count = source.removeprefix(MADE).partition(":")
    kind, _, part = name.partition(".")
    if kind not in generators:
        raise ConfigError(f"{source}: no program makes {kind!r}; {suggest_name(kind, generators)}")
    number = parse_whole_number(count)
    if part not in PARTS or (count and not number):
        raise ConfigError(f"{source}: write {MADE}{kind}.train, .dev or .test, then :1000 for 1,000 rows")
    made = generators[kind](part, number)
    return (Row(values, f"{MADE}{name}", line) for line, values in enumerate(made, 1))


def _read_folder(folder: Path, kind: str, suffixes: Sequence[str]) -> Iterator[Row]:
    """Files with a text file of the same name beside them, in this folder and those below it, by name."""
    paths = sorted(path for path in folder.rglob("*") if not path.is_dir() and not path.name.startswith("."))
    inputs = [path for path in paths if path.suffix.lower() in suffixes]
    if not inputs:
        raise DataError(f"{folder} has no {kind} files ({', '.join(suffixes)}) with a {TEXT} file beside each")
    return (Row((str(path), _read_beside(path)), str(path), 0) for path in inputs)


def resolve_paths(rows: Iterable[Row], columns: tuple[str, ...]) -> Iterator[Row]:
    """Rows whose paths are relative to the folder of their table, without a header line that names the columns."""
    for row in rows:
        path = row.values[0].strip()
        if row.line == 1 and row.values == columns and not (Path(row.file).parent / path).exists():
            continue
        resolved = str(Path(row.file).parent / Path(path).expanduser()) if path else ""
        yield row._replace(values=(resolved, *row.values[1:]))


def _read_beside(path: Path) -> str:
    """The text in the file of the same name, as one line; "" if there is none."""
    beside = path.with_suffix(TEXT)
    try:
        return " ".join(beside.read_text(encoding="utf-8-sig").split())
    except FileNotFoundError:
        return ""
    except (UnicodeDecodeError, OSError) as error:
        raise DataError(f"{beside} cannot be read as UTF-8: {error}") from None


def _is_list_of_inputs(inputs: Any) -> bool:
    """Whether a tuple holds several inputs: (samples, rate) is one sound, and a NamedTuple is one input."""
    if not isinstance(inputs, tuple) or hasattr(inputs, "_fields"):
        return False
    return not (len(inputs) == 2 and not isinstance(inputs[1], (str, Path)) and np.ndim(inputs[1]) == 0)
