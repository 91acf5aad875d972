"""Tables in, tables out: `predict` answers the rows of a CSV, TSV or JSONL in further columns."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from clearhead.cli.program import READ_AHEAD, TABLE, flush_output, one_line, print_output
from clearhead.errors import ConfigError, DataError
from clearhead.formatting import escape_control, format_count, print_message
from clearhead.predictor import Predictor
from clearhead.tasks import Prediction
from clearhead.tasks.processor import AnyProcessor, Columns
from clearhead.text.corpora import (
    BYTE_ORDER_MARK,
    SKIP,
    file_kind,
    get_value,
    open_bytes,
    read_csv_fields,
    read_fields,
    read_objects,
)

DATE = re.compile(r"\d{4}([-/.]|年)\d{1,2}([-/.]|月)\d{1,2}[^\t]{0,20}\t")  # in the first of several fields


class Table:
    """A file whose rows are inputs of a model; all of its rows are checked before the first is given.

    `columns` says where the texts are; None: where they were in the training data (`usual`), or under the task's names,
    or in the only column. The lines of a `.tsv` are all rows, unless its first one has these names.
    """

    def __init__(self, path: Path, processor: AnyProcessor, columns: Columns, usual: Columns) -> None:
        self.path, self.kind, self.wanted = path, file_kind(path), list(processor.input_columns)
        self.header, self.names, self.inputs = self._find_columns(processor, columns, usual)
        with open_bytes(path) as file:
            first = file.readline()
        self.mark = "\ufeff" if first.startswith(BYTE_ORDER_MARK) else ""
        self.end = "\r\n" if first.endswith(b"\r\n") else "\n"
        self.taken = {name for line, cells in self.rows() if self.read_texts(line, cells) for name in cells}
        if not self.taken:
            raise DataError(f"{path} has a header line and no rows")

    def _find_columns(
        self, processor: AnyProcessor, columns: Columns, usual: Columns
    ) -> tuple[list[str] | None, list[str], list[str]]:
        """The header line, if there is one, the names of all columns, and of those with the texts."""
        maps = [given for given in (columns, None if columns else usual) if isinstance(given, Mapping)]
        choices = [[given.get(column, column) for column in self.wanted] for given in maps]
        choices += [] if isinstance(columns, Mapping) else [self.wanted]
        line, first = next(self._read())
        names, found = list(first), any(set(choice) <= set(first) for choice in choices)
        header = names if self.kind == ".csv" or isinstance(columns, Mapping) or (found and not columns) else None
        if self.kind == ".tsv" and header is None:
            layouts = [columns] if columns else [usual or (), processor.columns, self.wanted]
            names = self._name_fields(len(names), [list(layout) for layout in layouts], exact=not columns)
        # Columns without a name of their own are called by their place.
        nameless = {"", SKIP} | {name for name in names if names.count(name) > 1}
        keys = [f"field_{place}" if name in nameless else name for place, name in enumerate(names, 1)]
        choices += [keys] if len(keys) == len(self.wanted) == 1 and not columns else []
        for inputs in choices:
            if set(inputs) <= set(keys):
                return header, keys, inputs
        raise DataError(
            f"{self.path}:{line}: the columns are {', '.join(names)}; say which have the texts, each once: "
            f"--columns {self._example}"
        )

    @property
    def _example(self) -> str:
        return ",".join(f"{column}=NAME" for column in self.wanted)

    def _read(self) -> Iterator[tuple[int, Any]]:
        """The objects or lists of fields of all lines, that of the header included."""
        if self.kind == ".jsonl":
            return read_objects(self.path, self.wanted)
        return read_csv_fields(self.path) if self.kind == ".csv" else read_fields(self.path)

    def _name_fields(self, count: int, layouts: Sequence[list[str]], *, exact: bool) -> list[str]:
        """Names of the fields of a `.tsv` without a header line: of the first layout that fits."""
        for layout in layouts:
            if set(self.wanted) <= set(layout) and (count == len(layout) or (count > len(layout) and not exact)):
                if count > len(self.wanted) and exact:
                    fields = ", ".join(layout)
                    print_message(f"clearhead: {self.path} has no header line; its fields are taken for {fields}")
                return layout + [SKIP] * (count - len(layout))
        raise DataError(
            f"{self.path}:1: {format_count(count, 'field')}, and no header line with {' and '.join(self.wanted)}; name "
            f"the fields in order, as --columns -,{','.join(self.wanted)}, or those of a header line, as --columns "
            f"{self._example}"
        )

    def rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The lines of all rows, from the file's beginning, and their cells by their columns."""
        for line, cells in islice(self._read(), self.kind != ".jsonl" and self.header is not None, None):
            yield line, cells if self.kind == ".jsonl" else dict(zip(self.names, cells, strict=True))

    def read_texts(self, line: int, cells: dict[str, Any]) -> list[str]:
        """The texts of a row in the input columns."""
        return [str(get_value(cells, name, self.path, line)) for name in self.inputs]

    def name_cells(self, keys: Iterable[str], taken: set[str]) -> dict[str, str]:
        """Names for further columns; one that the table has gets `predicted_` before it."""
        names = {key: key for key in keys}
        for key in names:
            while names[key] in taken:
                names[key] = f"predicted_{names[key]}"
            if names[key] != key:
                print_message(f"clearhead: {self.path} has a column {key}; the model's is called {names[key]}")
        return names

    def format_head(self, added: Iterable[str]) -> str:
        """The header line, if there is one, with the names of further columns."""
        if self.kind == ".jsonl":
            return ""
        return self.mark + ("" if self.header is None else self._format_fields([*self.header, *added]))

    def format_row(self, cells: dict[str, Any], added: Mapping[str, Any]) -> str:
        """A row with further cells, and its line end."""
        if self.kind == ".jsonl":
            return json.dumps({**cells, **added}, ensure_ascii=False) + "\n"
        fields = map(_format_cell, added.values())
        return self._format_fields([*cells.values(), *(fields if self.kind == ".csv" else map(one_line, fields))])

    def _format_fields(self, fields: Sequence[str]) -> str:
        if self.kind == ".tsv":
            return "\t".join(fields) + self.end
        buffer = io.StringIO(newline="")
        csv.writer(buffer).writerow(fields)
        return buffer.getvalue().removesuffix("\r\n") + self.end


def _format_cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def predict_table(predictor: Predictor, path: Path, columns: Columns, *, as_json: bool, **options: Any) -> None:
    """Prints the rows of a table with the model's answers; with `as_json` an object for each row."""
    processor, checked = predictor.processor, predictor.task.read_options("predict", options)
    if isinstance(columns, Mapping) and (
        unknown := ", ".join(name for name in columns if name not in processor.columns)
    ):
        wanted = ", ".join(processor.input_columns)
        raise ConfigError(f"--columns names {unknown}; {predictor.task.name} reads {wanted}")
    table, names = Table(path, processor, columns, predictor.columns), dict[str, str]()
    whole = as_json or table.kind == ".jsonl"  # objects as those of --json
    if checked.ranked and not whole:
        raise ConfigError(f"{path} has one row for each input, so --best has no place in it; use --json")
    for cells, texts, answer in _answer_rows(predictor, table, checked.batch, options):
        given = answer.to_json() if whole else answer.to_cells()
        if not names:
            taken = table.taken - set(table.inputs) if as_json else table.taken if whole or table.header else set()
            names = table.name_cells(["input", *given] if as_json else given, taken)
            _print("" if as_json else table.format_head(names.values()))
        added = {names[key]: value for key, value in given.items()}
        if as_json:
            others = {name: value for name, value in cells.items() if name not in table.inputs}
            print_output(json.dumps({names["input"]: "\t".join(texts), **others, **added}, ensure_ascii=False))
        else:
            _print(table.format_row(cells, added))


def _answer_rows(
    predictor: Predictor, table: Table, batch_size: int, options: Mapping[str, Any]
) -> Iterator[tuple[dict[str, Any], list[str], Prediction]]:
    """The cells of each row, its texts and its answer, whose notes are printed."""
    rows, number = table.rows(), 0
    while batch := list(islice(rows, batch_size if batch_size == 1 else READ_AHEAD * batch_size)):
        texts = [table.read_texts(*row) for row in batch]
        inputs = [tuple(parts) if len(parts) > 1 else parts[0] for parts in texts]
        answers = predictor.predict(inputs, inputs_before=number, **options)
        for (line, cells), parts, answer in zip(batch, texts, answers, strict=True):
            for note in answer.notes:
                print_message(f"clearhead: {table.path}:{line}: {note}")
            yield cells, parts, answer
        number += len(batch)
        flush_output()


def _print(text: str) -> None:
    """Prints part of a table unchanged; on a terminal control characters, which may come from the file, are escaped."""
    sys.stdout.write(escape_control(text) if sys.stdout.isatty() else text)


def remark_once(texts: Iterable[str], name: str, column: str) -> Iterator[str]:
    """The texts; a message about the first that looks like a row of a table, or its name, says how it is read."""
    remark = ""
    for number, text in enumerate(texts, 1):
        if not remark and (remark := _remark_on(text, column)):
            print_message(f"clearhead: {name} {number} {remark}")
        yield text


def _remark_on(text: str, column: str) -> str:
    advice = "and all of it is read as one text; to read a column, name the file: clearhead predict MODEL"
    if text.lstrip().startswith("{"):
        with suppress(ValueError, RecursionError):
            json.loads(text)
            return f"is a JSON object, {advice} FILE.jsonl --columns {column}=KEY"
    if DATE.match(text):
        return f"begins with a date and a tab, {advice} FILE.tsv --columns -,{column}"
    if TABLE.search(text) and not re.search(r"\s", text):
        return "looks like the name of a table, and is read as a text; a table is a file that exists, given as INPUT"
    return ""
