"""Token texts for display, from any tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from clearhead.errors import RecordError

SPACE = "▁"  # SentencePiece's, and clearhead's own
ESCAPED = re.compile("[\udc80-\udcff]")  # what Python makes of a byte that is no UTF-8


def make_namer(namer: Any) -> Callable[[int], str]:
    """A function from token id to text, made from a tokenizer of ours or Hugging Face's, or from a callable.

    Where every character of a token stands for a byte, as in GPT-2's, Llama 3's and Qwen's, it is the text of these.
    """
    if hasattr(namer, "pieces"):
        return lambda number: _format_token(namer.pieces([number])[0], number)
    for method in ("convert_ids_to_tokens", "id_to_token"):
        if hasattr(namer, method):
            read, name = _find_byte_decoder(namer), getattr(namer, method)
            # Added verbatim to the vocabulary, such as <|im_start|>
            find_added = getattr(namer, "get_added_tokens_decoder", lambda: getattr(namer, "added_tokens_decoder", ()))
            added = set(find_added())
            return lambda number: _format_token(name(number), number, None if number in added else read)
    if hasattr(namer, "decode"):
        return lambda number: _format_token(namer.decode([number]), number)
    if callable(namer):
        return lambda number: _format_token(namer(number), number)
    raise RecordError(
        f"a {type(namer).__name__} cannot name tokens; pass a tokenizer, or a function from a number to its text"
    )


def decode_byte_characters(token: str, bytes_of: Mapping[str, int]) -> str:
    """Decodes a byte-level token to text; other tokens are returned unchanged.

    >>> [decode_byte_characters(token, byte_alphabet()) for token in ("Ġlow", "æĪĳ", "çĪ", "åĮĹäº", "北京")]
    ['▁low', '我', '<0xE7><0x88>', '北<0xE4><0xBA>', '北京']
    """
    if not all(mark in bytes_of for mark in token):
        return token
    text = bytes(bytes_of[mark] for mark in token).decode("utf-8", "surrogateescape").replace(" ", SPACE)
    return ESCAPED.sub(lambda escaped: f"<0x{ord(escaped[0]) - 0xDC00:02X}>", text)


@cache
def byte_alphabet() -> dict[str, int]:
    """GPT-2's byte-level alphabet as {character: byte}: printable bytes are themselves, the rest U+0100 and up."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + number): byte for number, byte in enumerate(others)}


def _format_token(name: object, number: int, bytes_of: Mapping[str, int] | None = None) -> str:
    if not isinstance(name, str):
        return f"<{number}>"  # a number that the tokenizer does not know
    return name if bytes_of is None else decode_byte_characters(name, bytes_of)


def _find_byte_decoder(tokenizer: Any) -> Mapping[str, int] | None:
    """The {character: byte} table of a byte-level tokenizer; None for others."""
    decoder = getattr(tokenizer, "byte_decoder", None)  # of those written in Python
    if isinstance(decoder, Mapping):
        return decoder
    engine = getattr(tokenizer, "backend_tokenizer", tokenizer)
    parts = [getattr(engine, name, None) for name in ("normalizer", "pre_tokenizer", "decoder")]
    return byte_alphabet() if any(map(_works_on_bytes, parts)) else None


def _works_on_bytes(part: Any) -> bool:
    """Whether a component of a tokenizer, or one inside it, is of the type ByteLevel, by its JSON."""
    try:
        return re.search(rb'"type": *"ByteLevel"', part.__getstate__()) is not None
    except Exception:  # the library's own: components written in Python have no description
        return False
