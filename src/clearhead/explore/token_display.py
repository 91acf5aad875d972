"""How tokens are displayed: without the marks of their tokenizer, and which of them belong to one word."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from clearhead.lens.record.call_metadata import TokenChance
from clearhead.lens.record.token_labels import SPACE, byte_alphabet

BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# The names of special tokens in common vocabularies. Other text in brackets stays text: </script>, <iostream>, [0].
ANGLE_NAMES = (
    r"/?s|cls|sep|pad|unk|mask|bos|eos|sos|eot|eod|start|end|blank|[|｜][^<>\s]{1,40}[|｜]|\d+|2[a-z]{2,3}"
    r"|(?:mask|unused|extra_id|special|reserved\w*)_?\d+|(?:start|end)_of_\w{1,30}|fim_\w{1,30}"
)
SQUARE_NAMES = r"CLS|SEP|PAD|UNK|MASK|BOS|EOS|/?INST|unused_?\d+"
SPECIAL = re.compile(rf"<(?:{ANGLE_NAMES})>|\[(?:{SQUARE_NAMES})\]", re.IGNORECASE)
SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
DELIMITERS = frozenset(".,;:!?。，、；：！？…")
BLANKS = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})
_Piece = tuple[str | bytes, bool]  # a text, or bytes that may be part of a character; whether it opens a word


class DisplayedToken(NamedTuple):
    """A token as it is displayed."""

    shown: str
    glued: bool  # whether it continues the word of the token before
    special: bool = False  # start, end or padding


def display_tokens(tokens: Sequence[str]) -> list[DisplayedToken]:
    """Displays tokens without their marks for spaces; bytes become the character that they encode together.

    >>> [word.shown for word in display_tokens(["▁lower", "est", "<0xE5>", "<0xA5>", "<0xB9>", "▁", "</s>"])]
    ['lower', 'est', '她₁', '她₂', '她₃', '␣', '⟨/s⟩']
    >>> display_tokens(["▁lower", "est"])[1]
    DisplayedToken(shown='est', glued=True, special=False)
    >>> [word.shown for word in display_tokens(["[CLS]", "token", "##ization"])]
    ['⟨CLS⟩', 'token', 'ization']
    >>> [word.shown for word in display_tokens(["Hello", "Ġworld", "ä½łå¥½"])]
    ['Hello', 'world', '你好']
    >>> [word.shown for word in display_tokens(["▁我<0xE7>", "<0x88><0xB1>", "你"])]
    ['我爱₁', '爱₂', '你']
    """
    return [DisplayedToken(*token) for token in zip(*display_token_lists(tokens), strict=True)]


def display_token_lists(tokens: Sequence[str]) -> tuple[list[str], list[bool], list[bool]]:
    """The same as three lists (shown, glued, special), which is faster for very many tokens."""
    different = list(dict.fromkeys(tokens))
    marks = {token for token in different if _is_special(token)}
    parse = _choose_parser([token for token in different if token not in marks])
    pieces = {token: (f"⟨{token[1:-1]}⟩", True) if token in marks else parse(token) for token in different}
    if any(isinstance(content, bytes) for content, _ in pieces.values()):
        shown = [_show_blanks(text) for text in _join_bytes([pieces[token][0] for token in tokens])]
    else:
        visible = {token: _show_blanks(str(content)) for token, (content, _) in pieces.items()}
        shown = [visible[token] for token in tokens]
    special = [token in marks for token in tokens]
    opens = [pieces[token][1] for token in tokens]
    glued = [not (new or before) for new, before in zip(opens, [True, *special[:-1]], strict=True)] if tokens else []
    return shown, glued, special


def find_delimiters(shown: Sequence[str], special: Sequence[bool]) -> list[bool]:
    """Which displayed tokens are punctuation or special tokens, the first one excepted."""
    marks = [is_punctuation(text) or end for text, end in zip(shown, special, strict=True)]
    return [False, *marks[1:]] if marks else []


def is_punctuation(text: str) -> bool:
    return text[:1] in DELIMITERS and set(text) <= DELIMITERS


def display_next_tokens(rows: Sequence[Sequence[TokenChance] | None]) -> list[list[TokenChance] | None]:
    """Candidates for the next token with their probabilities, displayed; None for rows that are not known.

    >>> display_next_tokens([[("▁a", 0.5)], None])
    [[('a', 0.5)], None]
    """

    def display(row: Sequence[TokenChance]) -> list[TokenChance]:
        return [(display_tokens([token])[0].shown, chance) for token, chance in row if math.isfinite(chance)]

    return [None if row is None else display(row) for row in rows]


def _show_blanks(text: str) -> str:
    return text if text.strip() else (text or " ").translate(BLANKS)


def _join_bytes(contents: Sequence[str | bytes]) -> list[str]:
    """The texts of tokens; neighbouring bytes are decoded together."""
    texts: list[str] = []
    for raw, run in groupby(contents, lambda content: isinstance(content, bytes)):
        pieces: list[Any] = list(run)
        texts += _decode_bytes(pieces) if raw else pieces
    return texts


def _is_special(token: str) -> bool:
    likely = token[-1:] in (">", "]")  # regular expressions are slow for very many tokens
    return likely and SPECIAL.fullmatch(token) is not None and BYTE.fullmatch(token) is None


def _choose_parser(tokens: Sequence[str]) -> Callable[[str], _Piece]:
    """The parser for the tokenizer's marks: SentencePiece, WordPiece, byte-level BPE, or plain words."""
    if any(token.startswith(SPACE) or BYTE.search(token) for token in tokens):
        return _parse_sentencepiece
    if any(token.startswith("##") for token in tokens):
        return lambda token: (token.removeprefix("##"), not token.startswith("##"))
    if any("\u0100" <= mark <= "\u0143" for token in tokens for mark in token) and all(map(_is_bytes, tokens)):
        return _parse_byte_level
    return lambda token: (token, True)


def _parse_sentencepiece(token: str) -> _Piece:
    text, opens = token.removeprefix(SPACE).replace(SPACE, " "), token.startswith((SPACE, "\n"))
    if "<0x" not in token or BYTE.search(token) is None:
        return text, opens
    parts = BYTE.split(text)  # text, byte, text, byte, …
    pairs = zip(parts[::2], ["", *parts[1::2]], strict=True)
    return b"".join(bytes.fromhex(byte) + part.encode("utf-8", "surrogatepass") for part, byte in pairs), opens


def _parse_byte_level(token: str) -> _Piece:
    """GPT-2's alphabet: every character stands for one byte."""
    raw = bytes(byte_alphabet()[mark] for mark in token)
    opens = raw[:1] in (b" ", b"\n")
    return raw.removeprefix(b" ") or raw, opens


def _is_bytes(token: str) -> bool:
    return all(mark in byte_alphabet() for mark in token)


def _decode_bytes(pieces: Sequence[bytes]) -> list[str]:
    """The text of each piece; a character that several pieces share is shown by each with a number."""
    whole, owners = b"".join(pieces), [number for number, piece in enumerate(pieces) for _ in piece]
    shown, start = [""] * len(pieces), 0
    while start < len(whole):
        size = next((size for size in range(1, 5) if _is_character(whole[start : start + size])), 0)
        mark = whole[start : start + size].decode() if size else f"⟨{whole[start]:02X}⟩"
        size = size or 1
        sharers = list(dict.fromkeys(owners[start : start + size]))
        for number, owner in enumerate(sharers, 1):
            shown[owner] += mark if len(sharers) == 1 else f"{mark}{number}".translate(SUBSCRIPTS)
        start += size
    return shown


def _is_character(raw: bytes) -> bool:
    try:
        return len(raw.decode()) == 1
    except UnicodeDecodeError:
        return False
