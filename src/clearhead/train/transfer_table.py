"""The table that a run prints when it starts from trained weights: what was taken, what is new, what was left."""

from __future__ import annotations

import io
import re
import sys

from clearhead.formatting import escape_control
from clearhead.tasks.pretrained import Transfer

COLUMNS = ("taken", "new", "left")
WIDTH = 100  # characters of a line where there is no terminal

# Parts of a model by the names of their parameters, in the order of the table; {0} and {1} are groups of the match.
PARTS = (
    (r"(source_)?vocabulary\.words\..*", "{0}word embeddings"),
    (r"patches\..*", "patch embeddings"),
    (r"(encoder|decoder)\.(?:positions|segments|embedding_norm)\..*", "{0} positions, segments and embedding norm"),
    (r"(encoder|decoder)\.layers\.(\d+)\.cross_.*", "{0} cross-attention, layer {1}"),
    (r"(encoder|decoder)\.layers\.(\d+)\..*", "{0} layer {1}"),
    (r"(encoder|decoder)\.final_norm\..*", "{0} final norm"),
    (r"vocabulary\..*", "output head over the vocabulary"),
    (r"pooler\..*", "pooler"),
    (r"(?:to_labels|first_tag|next_tag|last_tag|ngrams)\b.*", "output head over the labels"),
    (r"(?:copy_|gate_matches).*", "copying from the source"),
    (r"([^.]+).*", "{0}"),
)


def summarise_transfer(transfer: Transfer) -> list[tuple[str, ...]]:
    """The rows of the table: a part of the model, and how many tensors (and weights) of it are taken, new and left.

    Neighbouring layers of the same fate are one row.

    >>> taken = {"encoder.layers.0.x": 2_000_000, "encoder.layers.1.x": 2_000_000}
    >>> summarise_transfer(Transfer(taken, {"to_labels.bias": 3}, {}))
    [('encoder layers 0–1', '2 (4.0 M)', '', ''), ('output head over the labels', '', '1 (3)', '')]
    """
    found: dict[tuple[int, str], dict[str, list[int]]] = {}
    for column, names in zip(COLUMNS, transfer, strict=True):
        for name, size in names.items():
            found.setdefault(find_part(name), {}).setdefault(column, []).append(size)
    rows: list[tuple[str, dict[str, list[int]]]] = []
    for (_, part), counts in sorted(found.items(), key=lambda item: (item[0][0], _natural(item[0][1]))):
        if rows and (joined := _join_layers(rows[-1][0], part)) and rows[-1][1].keys() == counts.keys():
            rows[-1] = joined, {column: rows[-1][1][column] + counts[column] for column in counts}
        else:
            rows.append((part, counts))
    return [
        (escape_control(part, keep=""), *(_format_sizes(counts.get(column, [])) for column in COLUMNS))
        for part, counts in rows
    ]


def find_part(name: str) -> tuple[int, str]:
    """The part of a model that a parameter belongs to, and its place in the table.

    >>> find_part("decoder.layers.3.cross_attention.to_q.weight")[1], find_part("source_vocabulary.words.weight")[1]
    ('decoder cross-attention, layer 3', 'source word embeddings')
    """
    for place, (pattern, part) in enumerate(PARTS):
        if match := re.fullmatch(pattern, name):
            return place, part.format(*((group or "").replace("_", " ") for group in match.groups()))
    return len(PARTS), name


def print_transfer(transfer: Transfer) -> None:
    """Prints the table to stderr; plain text if it is no terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", *COLUMNS, box=None, pad_edge=False, header_style="bold")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in summarise_transfer(transfer):
        table.add_row(*map(Text, row))
    sizes = [_format_sizes(list(names.values())) for names in transfer]
    table.add_row(*map(Text, ("all: tensors (weights)", *sizes)), style="bold")
    terminal, buffer = sys.stderr.isatty(), io.StringIO()
    Console(file=buffer, force_terminal=terminal, width=None if terminal else WIDTH).print(table)
    print("\n".join(f"  {line}".rstrip() for line in buffer.getvalue().splitlines()), file=sys.stderr, flush=True)


def _join_layers(before: str, after: str) -> str | None:
    """The name of neighbouring layers together: "layer 0" and "layer 1" are "layers 0–1"."""
    first = re.fullmatch(r"(.*layer)s? (\d+)(?:–(\d+))?", before)
    second = re.fullmatch(r"(.*layer) (\d+)", after)
    if not first or not second or first[1] != second[1] or int(first[3] or first[2]) + 1 != int(second[2]):
        return None
    return f"{first[1]}s {first[2]}–{second[2]}"


def _natural(part: str) -> list[tuple[str, int]]:
    """A key that sorts "layer 9" before "layer 10"."""
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", part)]


def _format_sizes(sizes: list[int]) -> str:
    return f"{len(sizes)} ({format_weights(sum(sizes))})" if sizes else ""


def format_weights(count: int) -> str:
    """A number of weights: millions where there are many.

    >>> format_weights(66_362_880), format_weights(4_321), format_weights(2)
    ('66.4 M', '4.3 K', '2')
    """
    for unit, size in (("M", 1e6), ("K", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return str(count)
