"""Tokens as words: what each shows, and which of them are one word, in the spelling of any tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from clearhead.lens.record.token_labels import SPACE, byte_alphabet

BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPECIAL = re.compile(r"<\|?[^<>\s]{1,40}\|?>|\[[A-Za-z_0-9]{1,40}\]")
SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
BLANKS = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})


class Word(NamedTuple):
    """A token as it is shown."""

    shown: str
    glued: bool  # to the token before it, with which it makes a word
    special: bool = False  # a start, an end, a pad


def words(tokens: Sequence[str]) -> list[Word]:
    """How tokens are shown: without their marks for spaces, bytes as the character that they spell together.

    >>> [word.shown for word in words(["▁lower", "est", "<0xE5>", "<0xA5>", "<0xB9>", "▁", "</s>"])]
    ['lower', 'est', '她₁', '她₂', '她₃', '␣', '⟨/s⟩']
    >>> words(["▁lower", "est"])[1]
    Word(shown='est', glued=True, special=False)
    >>> [word.shown for word in words(["[CLS]", "token", "##ization"])]
    ['⟨CLS⟩', 'token', 'ization']
    >>> [word.shown for word in words(["Hello", "Ġworld", "ä½łå¥½"])]
    ['Hello', 'world', '你好']
    >>> [word.shown for word in words(["▁我<0xE7>", "<0x88><0xB1>", "你"])]
    ['我爱₁', '爱₂', '你']
    """
    return [Word(*one) for one in zip(*spelled(tokens), strict=True)]


def spelled(tokens: Sequence[str]) -> tuple[list[str], list[bool], list[bool]]:
    """The same as three lists, what is shown, glued and special: for very many tokens."""
    different = dict.fromkeys(tokens)
    spell = _spelling(list(different))
    known = {
        token: _Piece(f"⟨{token[1:-1]}⟩", True, special=True) if _special(token) else spell(token)
        for token in different
    }
    if any(isinstance(piece.content, bytes) for piece in known.values()):
        shown = [_visible(text) for text in _contents([known[token] for token in tokens])]
    else:
        visible = {token: _visible(str(piece.content)) for token, piece in known.items()}
        shown = [visible[token] for token in tokens]
    special = [known[token].special for token in tokens]
    opens = [known[token].opens for token in tokens]
    glued = [not (new or before) for new, before in zip(opens, [True, *special[:-1]], strict=True)] if tokens else []
    return shown, glued, special


def _visible(text: str) -> str:
    return text if text.strip() else (text or " ").translate(BLANKS)


def _contents(pieces: Sequence[_Piece]) -> list[str]:
    """What the pieces say; bytes are read together with their neighbours."""
    found: list[str] = []
    for raw, run in groupby(pieces, lambda piece: isinstance(piece.content, bytes)):
        contents = [piece.content for piece in run]
        found += _decoded([bytes(one) for one in contents if not isinstance(one, str)]) if raw else map(str, contents)
    return found


class _Piece(NamedTuple):
    content: str | bytes  # bytes may be a part of a character
    opens: bool  # a new word
    special: bool = False


def _special(token: str) -> bool:
    return SPECIAL.fullmatch(token) is not None and BYTE.fullmatch(token) is None


def _spelling(tokens: Sequence[str]) -> Callable[[str], _Piece]:
    """The tokenizer's way of spelling, guessed from the marks in what it wrote."""
    if any(token.startswith(SPACE) or BYTE.search(token) for token in tokens):
        return _with_space_marks
    if any(token.startswith("##") for token in tokens):
        return lambda token: _Piece(token.removeprefix("##"), not token.startswith("##"))
    plain = [token for token in tokens if not _special(token)]
    if any("\u0100" <= mark <= "\u0143" for token in plain for mark in token) and all(map(_is_bytes, plain)):
        return _in_bytes
    return lambda token: _Piece(token, True)


def _with_space_marks(token: str) -> _Piece:
    text, opens = token.removeprefix(SPACE).replace(SPACE, " "), token.startswith((SPACE, "\n"))
    if BYTE.search(token) is None:
        return _Piece(text, opens)
    parts = BYTE.split(text)  # what stands between two bytes, then the second of them, and so on
    pairs = zip(parts[::2], ["", *parts[1::2]], strict=True)
    return _Piece(b"".join(bytes.fromhex(byte) + some.encode("utf-8", "surrogatepass") for some, byte in pairs), opens)


def _in_bytes(token: str) -> _Piece:
    """GPT-2's spelling: every character stands for one byte."""
    raw = bytes(byte_alphabet()[mark] for mark in token)
    opens = raw[:1] in (b" ", b"\n")
    return _Piece(raw.removeprefix(b" ") or raw, opens)


def _is_bytes(token: str) -> bool:
    return all(mark in byte_alphabet() for mark in token)


def _decoded(pieces: Sequence[bytes]) -> list[str]:
    """The text of each piece; of a character that several spell, each shows it with its number."""
    whole, owners = b"".join(pieces), [place for place, piece in enumerate(pieces) for _ in piece]
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
