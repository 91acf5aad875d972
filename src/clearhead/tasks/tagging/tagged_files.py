"""Files of tagged sentences: CoNLL columns (one word per line), and JSONL with a text and its entities.

A row has two values: the text, and a JSON text that says what is in it. Of columns that is an object of "words"
(characters from and to), "tags", "scheme" and "document"; of JSONL the list of entities, or an object of "entities" and
"document" where the file names documents. Tags stay as they are in the file until a task reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from clearhead.errors import ConfigError, DataError
from clearhead.formatting import suggest_name
from clearhead.tasks.tagging.schemes import detect_scheme, is_tag
from clearhead.tasks.tagging.sentences import join_words, parse_entities
from clearhead.text import Row
from clearhead.text.corpora import (
    check_file,
    describe_type,
    read_lines,
    read_objects,
    refuse_line,
    strip_line_end,
    unpacked_name,
)

NAMES = ("text", "entities")  # of JSONL
SKIP, WORD, TAG, DOCUMENT = "-", "word", "tag", "document"  # of columns; JSONL may have a document, too
DOCUMENT_START = "-DOCSTART-"
BYTE_ORDER_MARK = "\ufeff"


class _Layout(NamedTuple):
    """How many columns a file has, and which are the word, its tag and its document, if it is named."""

    columns: int
    word: int
    tag: int
    document: int | None = None


def read_tagged(source: str | Path, columns: Sequence[str] | Mapping[str, str] | None = None) -> Iterator[Row]:
    """The sentences of a file: JSONL if its name ends in .jsonl (or .jsonl.gz, .jsonl.xz), else columns.

    For a JSONL `columns` gives its own names, {"text": "sentence", "entities": "spans"}. Otherwise it lists the fields
    in order, ["word", "-", "tag"], where the word is not the first or the tag not the last. Documents are named by a
    column `document`; without one, each -DOCSTART- of a file of columns begins a document.
    """
    path = check_file(Path(source))
    name = unpacked_name(path)
    if name.endswith((".jsonl", ".json")):
        return _read_jsonl(path, _json_names(columns))
    if name.endswith(".csv"):
        raise DataError(f"{path}: tagging reads CoNLL columns (.conll, .txt, .tsv, …) and .jsonl, not {path.suffix}")
    return _read_columns(path, _column_names(columns))


def _json_names(columns: Sequence[str] | Mapping[str, str] | None) -> tuple[str, str, str]:
    """The names of text, entities and document in the file."""
    if columns is None or (not isinstance(columns, Mapping) and tuple(columns) == NAMES):
        return (*NAMES, DOCUMENT)
    if not isinstance(columns, Mapping) or set(columns) - {*NAMES, DOCUMENT}:
        raise ConfigError(
            'columns of a JSONL must be { text = "…", entities = "…", document = "…" }, '
            f"where … are the names of these fields in the file; got {columns}"
        )
    return columns.get("text", "text"), columns.get("entities", "entities"), columns.get(DOCUMENT, DOCUMENT)


def _column_names(columns: Sequence[str] | Mapping[str, str] | None) -> list[str] | None:
    if columns is None or (not isinstance(columns, Mapping) and tuple(columns) == NAMES):
        return None
    if isinstance(columns, (Mapping, str)) or sorted(set(columns) - {SKIP, DOCUMENT}) != [TAG, WORD]:
        raise ConfigError(f'columns of a CoNLL file name each field, such as ["word", "-", "tag"]; got {columns}')
    if len(set(columns) - {SKIP}) != sum(name != SKIP for name in columns):
        raise ConfigError(f"columns name a field more than once: {', '.join(columns)}")
    return list(columns)


class _Line(NamedTuple):
    number: int
    word: str
    tag: str
    document: str  # its name, or how many began before


def _read_columns(path: Path, names: list[str] | None) -> Iterator[Row]:
    sentences = list(_group_lines(path, names))
    if not sentences:
        raise DataError(f"{path} has no word in it")
    scheme = detect_scheme([line.tag for line in sentence] for sentence in sentences)
    # Where all words are single characters nothing stands between them: one character a line, as Chinese files have it.
    characters = all(len(line.word) == 1 for sentence in sentences for line in sentence)
    for sentence in sentences:
        text, words = join_words([line.word for line in sentence], characters=characters)
        marked = {"words": words, "tags": [line.tag for line in sentence], "scheme": scheme}
        marked["document"] = sentence[0].document
        yield Row((text, json.dumps(marked, ensure_ascii=False)), str(path), sentence[0].number)


def _group_lines(path: Path, names: list[str] | None) -> Iterator[list[_Line]]:
    """The lines of each sentence; sentences end at blank lines and at -DOCSTART-."""
    layout: _Layout | None = None
    sentence: list[_Line] = []
    documents = 0
    for number, raw in read_lines(path):
        text = strip_line_end(raw).lstrip(BYTE_ORDER_MARK)
        fields = _split_fields(text)
        if not text.strip() or fields[0] == DOCUMENT_START:
            if sentence:
                yield sentence
            sentence = []
            documents += bool(text.strip())
            continue
        if layout is None and not _is_comment(fields, layout):
            layout = _make_layout(path, number, text, fields, names)
        if _is_comment(fields, layout):
            continue
        assert layout is not None
        sentence.append(_parse_line(path, number, text, fields, layout, documents))
    if sentence:
        yield sentence


def _split_fields(text: str) -> list[str]:
    """At tabs if there are any, else at spaces; other white space may be a word."""
    if "\t" in text:
        return [field.strip(" ") for field in text.rstrip("\t").split("\t")]
    return [field for field in text.split(" ") if field]


def _is_comment(fields: list[str], layout: _Layout | None) -> bool:
    """Whether a line begins with # and cannot be a word with its tag."""
    if not fields[0].startswith("#"):
        return False
    if layout is None:
        return len(fields) < 2 or not is_tag(fields[-1])
    return len(fields) != layout.columns or not is_tag(fields[layout.tag])


def _make_layout(path: Path, number: int, text: str, fields: list[str], names: list[str] | None) -> _Layout:
    if names is not None:
        if len(fields) != len(names):
            refuse_line(path, number, f"{len(fields)} columns for the {len(names)} names {', '.join(names)}", text)
        document = names.index(DOCUMENT) if DOCUMENT in names else None
        return _Layout(len(names), names.index(WORD), names.index(TAG), document)
    if len(fields) < 2:
        refuse_line(path, number, "one column, where a word and its tag are wanted, with a tab or space between", text)
    return _Layout(len(fields), 0, len(fields) - 1)


def _parse_line(path: Path, number: int, text: str, fields: list[str], layout: _Layout, documents: int) -> _Line:
    if len(fields) != layout.columns:
        count = "1 column" if len(fields) == 1 else f"{len(fields)} columns"
        refuse_line(path, number, f"{count} where the first line has {layout.columns}", text)
    word, tag = fields[layout.word], fields[layout.tag]
    if not word:
        refuse_line(path, number, "a tag without a word", text)
    if not is_tag(tag):
        refuse_line(path, number, f"{tag[:40]!r} is no tag; wanted is O, or B-, I-, E-, S- or M- and a label", text)
    return _Line(number, word, tag, str(documents) if layout.document is None else fields[layout.document])


def _read_jsonl(path: Path, names: tuple[str, str, str]) -> Iterator[Row]:
    for number, example in read_objects(path, names[:2]):
        for name, kind, wanted in zip(names[:2], (str, list), ("a text", "a list"), strict=True):
            if name not in example:
                refuse_line(path, number, f"no {name!r}; {suggest_name(name, example)}")
            if not isinstance(example[name], kind):
                refuse_line(path, number, f"{name!r} must be {wanted}, not {describe_type(example[name])}")
        text = example[names[0]]
        spans = parse_entities(example[names[1]], text, f"{path}:{number}")
        entities = [{"start": span.begin, "end": span.end, "label": span.label} for span in spans]
        named = names[2] in example
        marked = {"entities": entities, "document": json.dumps(example[names[2]])} if named else entities
        yield Row((text, json.dumps(marked, ensure_ascii=False)), str(path), number)
