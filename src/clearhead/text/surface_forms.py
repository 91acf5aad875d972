"""Surface forms of tokens: each piece of a text with the characters that the text itself has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from clearhead.text.tokenizer import HUGGINGFACE, SPACE_MARK, Tokenizer

BYTE = re.compile(r"<0x[0-9A-F]{2}>")
CONTINUES = "##"  # WordPiece's mark of a piece that continues a word


def surface_forms(tokenizer: Tokenizer, text: str) -> tuple[list[int], list[str]]:
    """The numbers of a text, and each of its pieces as the text has it, with the tokenizer's mark in front.

    A piece keeps the tokenizer's spelling where the text has no characters of its own for it: bytes of a character,
    and pieces that share one.

    >>> tokenizer = Tokenizer.train(["low, low, low"], vocabulary=300, lowercase=True)
    >>> surface_forms(tokenizer, "Ｌow LOW")[1]
    ['▁Ｌow', '▁LOW']
    """
    numbers = tokenizer.encode(text)
    pieces, [(aligned, offsets)] = tokenizer.pieces(numbers), tokenizer.encode_with_offsets([text])
    if aligned != numbers:  # the script converter read more than a character at once
        return numbers, pieces
    shared = _find_overlaps(offsets)
    return numbers, [
        piece if index in shared else _replace(tokenizer, piece, text[begin:end])
        for index, (piece, (begin, end)) in enumerate(zip(pieces, offsets, strict=True))
    ]


def mark_word(tokenizer: Tokenizer, word: str) -> str:
    """A whole word as one piece, as `surface_forms` would give it.

    >>> mark_word(Tokenizer.train(["low"], vocabulary=300), "住")
    '▁住'
    """
    return SPACE_MARK + word if tokenizer.settings["kind"] in ("bpe", "unigram") else word


def _find_overlaps(offsets: Sequence[tuple[int, int]]) -> set[int]:
    """The indices of pieces that share characters with a neighbour."""
    shared = set[int]()
    for index, ((begin, end), (next_begin, next_end)) in enumerate(pairwise(offsets)):
        if begin < end and next_begin < next_end and next_begin < end:
            shared |= {index, index + 1}
    return shared


def _replace(tokenizer: Tokenizer, piece: str, surface: str) -> str:
    if not surface.strip() or BYTE.fullmatch(piece):
        return piece
    if tokenizer.settings["kind"] != HUGGINGFACE:
        return (SPACE_MARK if piece.startswith(SPACE_MARK) else "") + surface
    if piece.startswith(CONTINUES):
        return CONTINUES + surface
    return piece if piece.startswith((SPACE_MARK, "Ġ")) else surface
