"""Normalisation, word splitting and decoding of text, built from Hugging Face's tokenizers library.

Imported only when a tokenizer is made or loaded, because the library is an optional dependency.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

SPECIAL = ("<pad>", "<s>", "</s>")
MASK = "<mask>"  # has the last number of a vocabulary that was trained with one
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
FIXED = len(SPECIAL) + len(BYTES)  # these come first in every vocabulary

# Scripts that are written without spaces between words.
UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
LETTER = rf"[[\p{{L}}\p{{M}}]&&[^{UNSPACED}]]"
SYMBOL = r"[^\s\p{L}\p{M}\p{N}]"
LONGEST_WORD = 64  # characters: keeps training fast on text without spaces

WORDS = "|".join(
    [
        r"(?<=\p{L})['’]\p{L}{1,2}(?!\p{L})",  # 't, 's, 'll: the second half of a contraction
        rf" ?{LETTER}{{1,{LONGEST_WORD}}}",  # a word includes the space before it
        rf"[{UNSPACED}]{{1,{LONGEST_WORD}}}",  # 我 is the same piece after a space, after a word, and at the beginning
        r"\p{N}",  # numbers are spelled digit by digit
        rf" ?({SYMBOL})\1{{0,3}}",  # punctuation: one mark, or the same one repeated, as in ... and ——
        r"(?m:.)",  # what is left: the space before a digit or an unspaced script
    ]
)
# In a text that is kept as it is: line breaks, and spaces but for the one before a word.
EXACT_WORDS = rf"\n{{1,{LONGEST_WORD}}}| {{1,{LONGEST_WORD}}}(?= )|{WORDS}"


def make_normalizer(lowercase: bool, spaced: bool, whole: Sequence[str] = ()) -> normalizers.Normalizer:
    """Normaliser: NFKC, no control or invisible characters, single spaces, none at the ends; optionally lower case.

    With `spaced`, a text that begins with a word (or one of the `whole` pieces) gets a space before it, so that this
    word is the same piece as inside a sentence.
    """
    steps = [
        normalizers.Replace(Regex(r"[[\p{Cc}\u00AD\u200B\u2060\uFEFF]&&[^\s]]"), ""),
        normalizers.NFKC(),
        # Lower case can undo NFKC: İ becomes two characters.
        *([normalizers.Lowercase(), normalizers.NFKC()] if lowercase else []),
        normalizers.Replace(Regex(r"\s+"), " "),
        normalizers.Strip(),
    ]
    if spaced:
        words = "|".join([LETTER, *list_patterns(whole)])
        steps += [normalizers.Prepend(" "), normalizers.Replace(Regex(rf"\A (?!{words})"), "")]
    return normalizers.Sequence(steps)


def make_exact_normalizer(lowercase: bool) -> normalizers.Normalizer | None:
    """Normaliser of a tokenizer that keeps texts as they are, but for their case if `lowercase` says so."""
    return normalizers.Lowercase() if lowercase else None


def make_word_splitter(*, exact: bool = False, whole: Sequence[str] = ()) -> pre_tokenizers.PreTokenizer:
    """Splits a text into words; with `exact`, runs of line breaks and of spaces stay together, too.

    The `whole` pieces, such as #Person1#, are never split.
    """
    pieces = [rf" ?(?:{'|'.join(list_patterns(whole))})"] if whole else []
    return pre_tokenizers.Split(Regex("|".join([*pieces, EXACT_WORDS if exact else WORDS])), "isolated")


def list_patterns(whole: Sequence[str]) -> list[str]:
    """Regular expressions of these pieces, the longest first."""
    return [re.escape(piece) for piece in sorted(whole, key=len, reverse=True)]


def make_tokenizer(
    model: models.Model, *, lowercase: bool, spaced: bool, exact: bool = False, whole: Sequence[str] = ()
) -> Tokenizer:
    """A tokenizer of the library: this vocabulary model with our normaliser, word splitter and decoder."""
    engine = Tokenizer(model)
    normalizer = make_exact_normalizer(lowercase) if exact else make_normalizer(lowercase, spaced, whole)
    if normalizer is not None:
        engine.normalizer = normalizer
    engine.pre_tokenizer = make_word_splitter(exact=exact, whole=whole)
    engine.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return engine


def make_enclosing_processor(start: tuple[str, int], end: tuple[str, int] | None) -> processors.PostProcessor:
    """A post-processor that puts a text between two special tokens, or only after the first; with their numbers."""
    if end is None:
        return processors.TemplateProcessing(single=f"{start[0]} $A", special_tokens=[start])
    return processors.TemplateProcessing(single=f"{start[0]} $A {end[0]}", special_tokens=[start, end])
