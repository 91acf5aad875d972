"""Which pieces of a text begin a word, so that whole words can be masked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clearhead.text.tokenizer import AT_ONCE, HUGGINGFACE, Tokenizer

# Characters of scripts without spaces between words: Thai to Khmer, kana, Bopomofo, Chinese.
UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u312f\u3400-\u9fff\uf900-\ufaff]")
LONG_CHARACTER = range(0xE0, 0xF8)  # first bytes of characters of three or four bytes


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
