"""Documents cut into windows of tokens, with the beginnings of words and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clearhead.errors import DataError
from clearhead.text import Report, Row, Tokenizer
from clearhead.text.pieces import encode_words

INSIDE, BEGINS, SPECIAL = 0, 1, 2  # roles of tokens: inside a word, its first, or start or end of the text
SENTENCE_ENDS = (".", "!", "?", "。", "！", "？", "...", "…")
EMPTY = "without a text"


class TextWindow(NamedTuple):
    """Tokens of a document that are read together, the role of each, and the row that they come from."""

    tokens: list[int]
    roles: list[int]
    row: int


def cut_windows(starts: NDArray[np.bool_], longest: int) -> list[tuple[int, int]]:
    """Begin and end of windows of at most `longest` tokens and about equal length, cut where words begin.

    A word of more tokens than a window is cut wherever the window ends.

    >>> cut_windows(np.array([True, True, False, True, True]), 4)
    [(0, 3), (3, 5)]
    """
    total = len(starts)
    size = -(-total // max(1, -(-total // longest)))
    windows, begin = [], 0
    while begin < total:
        end = min(begin + size, total)
        cut = next((place for place in range(end, begin, -1) if place == total or starts[place]), end)
        windows.append((begin, cut))
        begin = cut
    return windows


def make_text_windows(
    rows: Iterable[Row], tokenizer: Tokenizer, longest: int, report: Report
) -> tuple[list[TextWindow], list[Row]]:
    """The windows of all documents, and the rows that were used; the report says which were empty or cut."""
    rows = list(rows)
    windows: list[TextWindow] = []
    used: list[Row] = []
    for row, text in zip(rows, encode_words(tokenizer, [row.values[0] for row in rows]), strict=True):
        if not len(text.tokens):
            report.drop(row, EMPTY)
            continue
        report.keep()
        places = cut_windows(text.starts, longest)
        if len(places) > 1:
            report.remark(f"longer than {longest} tokens (read in parts)")
        for begin, end in places:
            roles = text.starts[begin:end].astype(np.int64)
            roles[0] = BEGINS  # also of a word that was cut
            windows.append(TextWindow(text.tokens[begin:end].tolist(), roles.tolist(), len(used)))
        used.append(row)
    if not used:
        raise DataError(f"no text is left to use: {report}")
    return windows, used


def find_sentences(windows: Sequence[TextWindow], tokenizer: Tokenizer) -> list[list[int]]:
    """For each token of each window 1 if it begins a sentence, else 0.

    A sentence ends with a piece that is an end mark; a digit after it, as in 3.14, belongs to the same sentence.
    """
    pieces = [(tokenizer.engine.id_to_token(number) or "").strip() for number in range(tokenizer.size)]
    ends = {number for number, piece in enumerate(pieces) if piece in SENTENCE_ENDS}
    digits = {number for number, piece in enumerate(pieces) if piece.isdigit() or piece in SENTENCE_ENDS}
    found = []
    for tokens, roles, _ in windows:
        follows = zip(tokens, tokens[1:], roles[1:], strict=False)
        found.append(
            [1, *(int(one in ends and other not in digits and role == BEGINS) for one, other, role in follows)]
        )
    return found
