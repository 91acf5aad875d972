"""The rules of text, as Hugging Face's tokenizers library runs them: what is normal, where words end, how to undo it.

Imported only when a tokenizer is made or loaded: the library belongs to an extra.
"""

from __future__ import annotations

import os

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

SPECIAL = ("<pad>", "<s>", "</s>")
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
FIXED = len(SPECIAL) + len(BYTES)  # these come first in every vocabulary

# Scripts that are written without spaces between words.
UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
LETTER = rf"[[\p{{L}}\p{{M}}]&&[^{UNSPACED}]]"
SYMBOL = r"[^\s\p{L}\p{M}\p{N}]"
LONGEST = 64  # of a word, in characters: keeps training fast where somebody left out every space

WORDS = "|".join(
    [
        r"(?<=\p{L})['’]\p{L}{1,2}(?!\p{L})",  # 't, 's, 'll: the second half of a contraction
        rf" ?{LETTER}{{1,{LONGEST}}}",  # a word takes the space before it along
        rf"[{UNSPACED}]{{1,{LONGEST}}}",  # 我 is the same piece after a space, after a word, and at the beginning
        r"\p{N}",  # numbers are spelled digit by digit
        rf" ?({SYMBOL})\1{{0,3}}",  # punctuation stands alone, or with its like: ... and ——
        r"(?m:.)",  # what is left: the space before a digit or an unspaced script
    ]
)


def normaliser(lowercase: bool, spaced: bool) -> normalizers.Normalizer:
    """NFKC, no control or invisible characters, single spaces, none at the ends; perhaps lower case.

    With `spaced`, a text that begins with a word gets a space before it, so that this word is the same piece as inside
    a sentence.
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
        steps += [normalizers.Prepend(" "), normalizers.Replace(Regex(rf"\A (?!{LETTER})"), "")]
    return normalizers.Sequence(steps)


def words() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(WORDS), "isolated")


def assembled(model: models.Model, *, lowercase: bool, spaced: bool) -> Tokenizer:
    """A model of pieces with the rules around it."""
    engine = Tokenizer(model)
    engine.normalizer = normaliser(lowercase, spaced)
    engine.pre_tokenizer = words()
    engine.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return engine


# The library's threads do not survive a fork. Its versions before 0.23 say so on stderr unless told before.
SWITCH = "TOKENIZERS_PARALLELISM"
_switched = False


def _before_fork() -> None:
    global _switched
    if SWITCH not in os.environ:
        os.environ[SWITCH], _switched = "false", True


def _after_fork_in_parent() -> None:
    global _switched
    if _switched:
        del os.environ[SWITCH]
        _switched = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent)
