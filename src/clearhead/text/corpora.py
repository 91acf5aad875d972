"""Files of examples, read one row at a time: TSV, CSV, JSONL, TXT, or one text file per column; also .gz and .xz.

Everything is UTF-8, with or without a byte-order mark, and a line ends at a line feed and nowhere else: a file without
any, whose lines end in carriage returns, is refused. Errors name the file and the line, and
nothing is skipped except blank lines at the end.
"""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from io import BufferedIOBase
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

from clearhead.errors import ConfigError, DataError
from clearhead.formatting import format_count, suggest_name

KINDS = (".tsv", ".csv", ".jsonl", ".txt")
PACKED = {".gz": gzip.open, ".xz": lzma.open}
SKIP = "-"  # in `columns`: a field that is not wanted
CHINESE = re.compile("[\u4e00-\u9fff]{2}")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
OTHER_BEGINNINGS = {
    b"\xff\xfe": "it begins like UTF-16",
    b"\xfe\xff": "it begins like UTF-16",
    b"\x1f\x8b": "it begins like a gzip file, whose name should end in .gz",
    b"\xfd7zXZ": "it begins like an xz file, whose name should end in .xz",
    b"PK\x03\x04": "it begins like a zip file or a spreadsheet",
}


class Row(NamedTuple):
    """The values of one example in the wanted columns, with its file and line (from 1; 0: the whole file)."""

    values: tuple[Any, ...]
    file: str
    line: int

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


def read(
    source: str | Path | Mapping[str, str | Path],
    wanted: Sequence[str],
    columns: Sequence[str] | Mapping[str, str] | None = None,
    *,
    labels: Sequence[str] = (),
    lists: bool = False,
) -> Iterator[Row]:
    """The rows of a corpus, with the values of the `wanted` columns in that order, whatever the order in the file.

    `columns` says where they are; None: they have these names, in this order. A `.tsv` has no header line: columns[i]
    names its i-th field, and "-" skips one. A `.csv` has a header line with the names in it, a `.jsonl` one object a
    line with texts under these names; {"source": "zh", …} says that the file calls `source` zh. The fields of a `.txt`
    have a space between, and the last one takes the rest of the line; its `columns` must be given, such as
    ["label", "text"]. A `source` that is a mapping gives each column a file of its own, one text per line, and needs no
    `columns`. A name that ends in `.gz` or `.xz` is unpacked on the way, and `.json` is
    read as `.jsonl`. Files are streamed, never held whole; wrong `columns`
    and missing files are refused before the first row. In the columns `labels` a `.jsonl` may have integers, true and
    false instead of texts: {"label": 1} is read as "1". With `lists` a value in it may also be a list of texts.

    >>> from tempfile import mkdtemp
    >>> file = Path(mkdtemp()) / "pairs.tsv"
    >>> _ = file.write_text("1\\tHello.\\t你好\\n2\\tBye.\\t再见\\n", encoding="utf-8")
    >>> [row.values for row in read(file, ["source", "target"], columns=["-", "target", "source"])]
    [('你好', 'Hello.'), ('再见', 'Bye.')]
    """
    if not wanted or SKIP in wanted or len(set(wanted)) < len(wanted):
        raise ConfigError(f"the wanted columns must be different names, at least one; got {list(wanted)}")
    if isinstance(source, Mapping):
        if missing := [column for column in wanted if column not in source]:
            raise DataError(f"no file is given for {_join(missing)}; there is one for {_join(source)}")
        return _read_parallel([check_file(Path(source[column])) for column in wanted])
    names = list(wanted) if columns is None else _map_names(wanted, columns)
    path = check_file(Path(source))
    kind = file_kind(path)
    if kind == ".csv":
        return _read_csv(path, names)
    if kind == ".jsonl":
        labelled = [name for name, column in zip(names, wanted, strict=True) if column in labels]
        return _read_jsonl(path, names, labelled, lists)
    if kind == ".txt" and (columns is None or isinstance(columns, Mapping)):
        raise ConfigError(
            f"{path}: say which fields the lines of a .txt have, as columns = {json.dumps(list(wanted)[::-1])}, where "
            "the last takes the rest of the line; or give each column a file of its own"
        )
    if isinstance(columns, Mapping):
        raise ConfigError(
            f"{path}: a TSV has no header line with {_join(names)} in it; give columns as the list of its fields "
            f"in their order, such as {json.dumps(list(wanted))}, or save it as .csv with the header {','.join(names)}"
        )
    return _read_fields(path, wanted, wanted if columns is None else columns, " " if kind == ".txt" else "\t")


def _map_names(wanted: Sequence[str], columns: Sequence[str] | Mapping[str, str]) -> list[str]:
    """The names of the wanted columns in a file with named columns."""
    if isinstance(columns, str):
        raise ConfigError(f"columns must be a list of names, or a mapping of {_join(wanted)} to names; got {columns!r}")
    if missing := [column for column in wanted if column not in columns]:
        raise ConfigError(f"columns must name {_join(missing)}; they name {_join(columns) or 'nothing'}")
    if not isinstance(columns, Mapping):
        names, all_names = list(wanted), list(columns)
    elif unknown := [column for column in columns if column not in wanted]:
        raise ConfigError(f"columns name {_join(unknown)}, which is none of {_join(wanted)}")
    else:
        names = all_names = [columns[column] for column in wanted]
    if twice := [name for name in names if all_names.count(name) > 1]:
        raise ConfigError(f"columns name {twice[0]!r} more than once: {_join(all_names)}")
    return names


def file_kind(path: Path) -> str:
    """The ending of a file of data, without `.gz` or `.xz`; a `.json` has an object a line, as a `.jsonl`."""
    suffix = Path(unpacked_name(path)).suffix.replace(".jsonl", ".json").replace(".json", ".jsonl")
    if suffix not in KINDS:
        raise DataError(
            f"{path}: unknown file type; use {_join(KINDS)}, each also with .gz or .xz, or give one text file per "
            "column, with one text per line"
        )
    return suffix


def unpacked_name(path: Path) -> str:
    """The name of a file in lower case, without the ending of a packed one."""
    name = path.name.lower()
    return name[: -len(Path(name).suffix)] if Path(name).suffix in PACKED else name


def open_bytes(path: Path) -> BufferedIOBase:
    """The file, unpacked on the way if its name says that it is packed."""
    opener: Any = PACKED.get(path.suffix.lower(), open)
    return cast(BufferedIOBase, opener(path, "rb"))


def check_file(path: Path) -> Path:
    """The path of an existing file; else an error with a suggestion."""
    path = path.expanduser()
    if path.is_dir():
        inside = sorted(child.name for child in path.iterdir())[:8]
        raise DataError(f"{path} is a folder, a file is needed; it contains {_join(inside) or 'nothing'}")
    if path.exists():
        return path
    beside = [child.name for child in path.parent.iterdir()] if path.parent.is_dir() else []
    hint = suggest_name(path.name, beside, otherwise="")
    raise DataError(f"no file {path}{hint and '; '}{hint}")


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Each line with its number and its end; lines end at a line feed only, not at other Unicode line breaks."""
    line = 0
    try:
        with open_bytes(path) as file:
            for line, raw in enumerate(file, start=1):
                text = _decode_line(raw, path, line)
                if line == 1 and "\r" in text.rstrip("\r") and not text.endswith("\n"):  # no line feed in the file
                    raise DataError(
                        f"{path}: its lines end in carriage returns alone, as those of an old Mac; convert them to "
                        "line feeds, as tr '\\r' '\\n' does"
                    )
                yield line, text
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        kind = "xz" if path.suffix.lower() == ".xz" else "gzip"
        raise DataError(f"{path}:{line + 1}: the {kind} file is damaged or incomplete: {error}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    if line == 0:
        raise DataError(f"{path} is empty")


def _decode_line(raw: bytes, path: Path, line: int) -> str:
    if line == 1:
        raw = raw.removeprefix(BYTE_ORDER_MARK)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        hints = [hint for beginning, hint in OTHER_BEGINNINGS.items() if line == 1 and raw.startswith(beginning)]
        with suppress(UnicodeDecodeError):
            if CHINESE.search(raw.decode("gb18030")):
                hints.append("it may be GB18030, as Excel saves Chinese; save it as CSV UTF-8, or convert it by iconv")
        raise DataError(
            f"{path}:{line}: not UTF-8: byte 0x{raw[error.start]:02X} at place {error.start + 1} of the line "
            f"({error.reason}); {hints[0] if hints else 'save the file as UTF-8'}"
        ) from None


def _is_blank(*texts: str) -> bool:
    return not any(text.strip() for text in texts)


def strip_line_end(text: str) -> str:
    """The line without its line feed, and without a carriage return before it."""
    return text.removesuffix("\n").removesuffix("\r")


def _read_fields(path: Path, wanted: Sequence[str], columns: Sequence[str], separator: str) -> Iterator[Row]:
    """Rows of a file whose fields have a tab between, or spaces: then the last one takes the rest of the line."""
    indices = [list(columns).index(column) for column in wanted]
    for line, fields in read_fields(path, separator, -1 if separator == "\t" else len(columns) - 1):
        if len(fields) < len(columns):
            problem = f"{format_count(len(fields), 'field')} for the {len(columns)} columns {_join(columns)}"
            refuse_line(path, line, problem, separator.join(fields))
        yield Row(tuple(fields[index] for index in indices), str(path), line)


def read_fields(path: Path, separator: str = "\t", most: int = -1) -> Iterator[tuple[int, list[str]]]:
    """The fields of each line, split at most `most` times; a line with another number than the first is refused."""
    count, lines = 0, read_lines(path)
    for line, text in lines:
        fields = strip_line_end(text).split(separator, most)
        if line > 1 and len(fields) != count:
            if _is_blank(text) and all(_is_blank(rest) for _, rest in lines):
                return
            refuse_line(path, line, f"{format_count(len(fields), 'field')} where the first line has {count}", text)
        count = len(fields)
        yield line, fields


def _read_csv(path: Path, wanted: Sequence[str]) -> Iterator[Row]:
    rows = read_csv_fields(path)
    line, header = next(rows)
    if missing := [column for column in wanted if column not in header]:
        refuse_line(path, line, f"the header line has no {_join(missing)}; {suggest_name(missing[0], header)}")
    if twice := [column for column in wanted if header.count(column) > 1]:
        refuse_line(path, line, f"the header line has {_join(twice)} more than once; rename all but one")
    indices = [header.index(column) for column in wanted]
    for line, fields in rows:
        yield Row(tuple(fields[index] for index in indices), str(path), line)


def read_csv_fields(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The header line of a `.csv` and then its rows, at least one, each with the line that it begins in."""
    rows = csv.reader((text for _, text in read_lines(path)), strict=True)
    line, count, records = 1, 0, 0
    try:
        for fields in rows:
            if records and len(fields) != count:
                if _is_blank(*fields) and all(_is_blank(*rest) for rest in rows):
                    break
                problem = f"{format_count(len(fields), 'field')} where the header line has {count}"
                refuse_line(path, line, problem, ",".join(fields))
            yield line, fields
            count, records = len(fields), records + 1
            line = rows.line_num + 1  # a quoted field may go over several lines
    except csv.Error as error:
        refuse_line(path, line, f"not CSV: {error}")
    if records < 2:
        raise DataError(f"{path} has a header line and no rows")


def _read_jsonl(path: Path, wanted: Sequence[str], labels: Sequence[str], lists: bool) -> Iterator[Row]:
    for line, example in read_objects(path, wanted):
        values = (get_value(example, column, path, line, column in labels, lists) for column in wanted)
        yield Row(tuple(values), str(path), line)


def read_objects(path: Path, wanted: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a `.jsonl` with their lines; `wanted` are the names that a message asks for."""
    lines = read_lines(path)
    for line, text in lines:
        try:
            example = json.loads(strip_line_end(text))
        except json.JSONDecodeError as error:
            if line > 1 and _is_blank(text) and all(_is_blank(rest) for _, rest in lines):
                return
            # its own count of lines would be of this line alone
            refuse_line(path, line, f"not JSON: {error.msg} at place {error.colno}", text)
        except (ValueError, RecursionError) as error:
            refuse_line(path, line, f"not JSON: {error}", text)
        if not isinstance(example, dict):
            refuse_line(path, line, f"an object with {_join(wanted)} is needed, not {describe_type(example)}", text)
        yield line, example


def get_value(
    example: dict[str, Any], column: str, path: Path, line: int, label: bool = False, lists: bool = False
) -> str | tuple[str, ...]:
    """The text under a name; of a label also a number as text, and with `lists` also a list of texts."""
    if column not in example:
        refuse_line(path, line, f"no {column!r}; {suggest_name(column, example)}")
    value = example[column]
    if label and type(value) in (int, bool):
        return json.dumps(value)
    if lists and isinstance(value, list):
        return tuple(_check_text(item, f"{column}[{index}]", path, line, label) for index, item in enumerate(value))
    return _check_text(value, column, path, line, label)


def _check_text(value: Any, column: str, path: Path, line: int, label: bool) -> str:
    if not isinstance(value, str):
        wanted = "a text, an integer, true or false" if label else "a text"
        said = "a number with a fraction" if label and isinstance(value, float) else describe_type(value)
        refuse_line(path, line, f"{column!r} must be {wanted}, not {said}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        refuse_line(
            path, line, f"{column!r} has half a character, \\u{ord(value[error.start]):04x}, at {error.start + 1}"
        )
    return value


def _read_parallel(paths: Sequence[Path]) -> Iterator[Row]:
    readers = [read_lines(path) for path in paths]
    line = 0
    for line, texts in enumerate(zip_longest(*readers), start=1):
        if None in texts:
            counts = [
                line - 1 if text is None else line + sum(1 for _ in reader)
                for text, reader in zip(texts, readers, strict=True)
            ]
            said = ", ".join(f"{path} has {count:,}" for path, count in zip(paths, counts, strict=True))
            raise DataError(f"parallel files must have the same number of lines: {said}")
        yield Row(tuple(strip_line_end(text) for _, text in texts), str(paths[0]), line)


def refuse_line(path: Path, line: int, problem: str, text: str | None = None) -> NoReturn:
    """Raises a DataError with the file, the line, what is wrong with it, and the line itself if it is given."""
    shown = "" if text is None else f": {_shorten_line(strip_line_end(text))}"
    raise DataError(f"{path}:{line}: {problem}{shown}")


def _shorten_line(text: str) -> str:
    if _is_blank(text):
        return "the line is empty; delete it"
    return repr(text if len(text) <= 60 else text[:60] + "…")


def describe_type(value: Any) -> str:
    """The kind of a JSON value in words: "a list"."""
    kinds = {dict: "an object", list: "a list", bool: "true or false", int: "a number", float: "a number"}
    return "null" if value is None else kinds.get(type(value), "a text")


def _join(names: Any) -> str:
    return ", ".join(map(str, names))
