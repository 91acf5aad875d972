"""Pieces of a text: each with the characters that the text itself has, and which of them begin a word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clearhead.text.tokenizer import AT_ONCE, HUGGINGFACE, SPACE_MARK, Tokenizer

BYTE = re.compile(r"<0x[0-9A-F]{2}>")
CONTINUES = "##"  # WordPiece's mark of a piece that continues a word
# Characters of scripts without spaces between words: Thai to Khmer, kana, Bopomofo, Chinese.
UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u312f\u3400-\u9fff\uf900-\ufaff]")
LONG_CHARACTER = range(0xE0, 0xF8)  # first bytes of characters of three or four bytes


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


class EncodedWords(NamedTuple):
    """The tokens of a text, and for each whether it begins a word."""

    tokens: NDArray[np.int64]
    starts: NDArray[np.bool_]


def encode_words(tokenizer: Tokenizer, texts: Sequence[str]) -> list[EncodedWords]:
    """The tokens of each text with the beginnings of its words, without start and end.

    Words are those of the tokenizer's word splitting. In scripts without spaces each piece is a word. A space that is a
    piece by itself goes with the word after it.

    >>> tokenizer = Tokenizer.train(["low lower", "我爱你", "我爱他"] * 3, vocabulary=275)
    >>> [text] = encode_words(tokenizer, ["lower 我爱你"])
    >>> list(zip(tokenizer.pieces(text.tokens.tolist()), text.starts.tolist()))
    [('▁low', True), ('er', False), ('▁', True), ('我爱', False), ('你', True)]
    """
    alone, space = _pieces_alone(tokenizer)
    encoded: list[EncodedWords] = []
    for first in range(0, len(texts), AT_ONCE):
        for encoding in tokenizer.encode_pieces(texts[first : first + AT_ONCE]):
            tokens = np.array(encoding.ids, dtype=np.int64)
            words = np.array([-1 if word is None else word for word in encoding.word_ids], dtype=np.int64)
            starts = np.ones(len(tokens), dtype=np.bool_)
            starts[1:] = ((words[1:] != words[:-1]) | alone[tokens[1:]]) & (tokens[:-1] != space)
            encoded.append(EncodedWords(tokens, starts))
    return encoded


@lru_cache(maxsize=8)
def _pieces_alone(tokenizer: Tokenizer) -> tuple[NDArray[np.bool_], int]:
    """Which numbers of the vocabulary begin a word wherever they are, and the number of the space (−1: none)."""
    pieces = [tokenizer.engine.id_to_token(number) or "" for number in range(tokenizer.size)]
    alone = np.array([UNSPACED.match(piece.removeprefix("▁")) is not None for piece in pieces], dtype=np.bool_)
    if tokenizer.settings["kind"] != HUGGINGFACE:
        first = tokenizer.end + 1
        alone[[first + byte for byte in LONG_CHARACTER]] = True
    return alone, next((number for number, piece in enumerate(pieces) if piece in (" ", "▁")), -1)
