"""Normalisation, word splitting, decoding and training of vocabularies, with Hugging Face's tokenizers library."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL = ("<pad>", "<s>", "</s>")
MASK = "<mask>"  # has the last number of a vocabulary that was trained with one
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
FIXED = len(SPECIAL) + len(BYTES)  # these come first in every vocabulary

COVERED_SHARE = 0.9998  # of all characters of the texts that are pieces; rarer ones are spelled in bytes
ALPHABET_SHARE = 0.75  # largest share of the pieces that are single characters
LONGEST_PIECE = 16  # characters
GAP = "\0"  # replaces characters without a piece; it has none itself

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


def make_word_splitter(*, exact: bool = False, whole: Sequence[str] = ()) -> pre_tokenizers.PreTokenizer:
    """Splits a text into words; with `exact`, runs of line breaks and of spaces stay together, too.

    The `whole` pieces, such as #Person1#, are never split.
    """
    pieces = [rf" ?(?:{'|'.join(list_patterns(whole))})"] if whole else []
    return pre_tokenizers.Split(Regex("|".join([*pieces, EXACT_WORDS if exact else WORDS])), "isolated")


def list_patterns(whole: Sequence[str]) -> list[str]:
    """Regular expressions of these pieces, the longest first."""
    return [re.escape(piece) for piece in sorted(whole, key=len, reverse=True)]


def make_engine(
    model: models.Model, *, lowercase: bool, spaced: bool, exact: bool = False, whole: Sequence[str] = ()
) -> Tokenizer:
    """A tokenizer of the library: this vocabulary model with our normaliser, word splitter and decoder."""
    engine = Tokenizer(model)
    if not exact:
        engine.normalizer = make_normalizer(lowercase, spaced, whole)
    elif lowercase:  # and nothing else is changed
        engine.normalizer = normalizers.Lowercase()
    engine.pre_tokenizer = make_word_splitter(exact=exact, whole=whole)
    engine.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return engine


def make_enclosing_processor(start: tuple[str, int], end: tuple[str, int] | None) -> processors.PostProcessor:
    """A post-processor that puts a text between two special tokens, or only after the first; with their numbers."""
    if end is None:
        return processors.TemplateProcessing(single=f"{start[0]} $A", special_tokens=[start])
    return processors.TemplateProcessing(single=f"{start[0]} $A {end[0]}", special_tokens=[start, end])


def train_vocabulary(
    texts: list[str],
    kind: str,
    vocabulary: int,
    last: Sequence[str] = (),
    *,
    exact: bool = False,
    whole: Sequence[str] = (),
) -> models.Model:
    """A vocabulary model of at most `vocabulary` pieces for normalised texts; bytes cover all other characters.

    Special tokens in `last` get the highest numbers. No text can contain them: word splitting takes them apart. With
    `exact`, the texts are not normalised: line breaks and runs of spaces may become pieces. The `whole` pieces, such as
    #Person1#, are part of it, each also with a space before it.
    """
    fixed = [space + piece for piece in whole for space in (" ", "")]
    room = vocabulary - FIXED - len(fixed) - len(last)
    if whole:
        texts = [re.sub("|".join(list_patterns(whole)), GAP, text) for text in texts]
    counts = Counter[str]()
    for text in texts:
        counts.update(text)
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    if kind == "character":
        characters = [character for character in ranked if character != GAP or not whole]
        return _make_bpe([*fixed, *characters[:room], *last], [], bool(fixed))
    alphabet = set(ranked[: _count_alphabet(ranked, counts, room)]) - {GAP}
    gaps = str.maketrans(dict.fromkeys(set(ranked) - alphabet, GAP))
    texts = [text.translate(gaps) for text in texts] if gaps else texts
    train = _train_bpe if kind == "bpe" else _train_unigram
    return train(texts, room, exact, fixed, last)


def _count_alphabet(ranked: list[str], counts: Counter[str], room: int) -> int:
    """How many of the most frequent characters become pieces."""
    wanted = COVERED_SHARE * counts.total()
    sums = accumulate(counts[character] for character in ranked)
    enough = next((count for count, covered in enumerate(sums, start=1) if covered >= wanted), len(ranked))
    return max(1, min(enough, int(ALPHABET_SHARE * room)))


def _train_bpe(texts: list[str], room: int, exact: bool, whole: list[str], last: Sequence[str]) -> models.Model:
    trainer = trainers.BpeTrainer(vocab_size=room, min_frequency=2, max_token_length=LONGEST_PIECE, show_progress=False)
    model = _run_trainer(models.BPE(), texts, trainer, exact)
    learned = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [(left, right) for left, right in model["merges"]]
    return _make_bpe([*whole, *learned, *last], merges, bool(whole))


def _make_bpe(pieces: Iterable[str], merges: list[tuple[str, str]], has_whole: bool) -> models.Model:
    """With whole pieces a word that is a piece is taken as it is: no merges lead to those."""
    vocabulary = {piece: number for number, piece in enumerate([*SPECIAL, *BYTES, *pieces])}
    return models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, ignore_merges=has_whole)


def _train_unigram(texts: list[str], room: int, exact: bool, whole: list[str], last: Sequence[str]) -> models.Model:
    unknown = "<unk>"
    trainer = trainers.UnigramTrainer(
        vocab_size=room + 1,  # the unknown token is removed below
        special_tokens=[unknown],
        unk_token=unknown,
        max_piece_length=LONGEST_PIECE,
        show_progress=False,
    )
    trained: dict[str, float] = dict(_run_trainer(models.Unigram(), texts, trainer, exact)["vocab"])
    del trained[unknown]
    scores = _make_deterministic(trained)
    lowest = min(scores.values())
    pieces = sorted(scores, key=lambda piece: (-scores[piece], piece))
    fixed = [(piece, lowest) for piece in (*SPECIAL, *BYTES)] + [(piece, 0.0) for piece in whole]
    # The library needs an id for unknown characters; with byte fallback it is never used.
    ranked = [*((piece, scores[piece]) for piece in pieces), *((piece, lowest) for piece in last)]
    return models.Unigram([*fixed, *ranked], unk_id=0, byte_fallback=True)


def _make_deterministic(scores: dict[str, float]) -> dict[str, float]:
    """Scores that do not depend on the iteration order of the trainer's hash maps.

    That order changes the last digits of sums. And unused characters get the lowest score plus 0.0001 times their
    index in that order: here all of them get the lowest.
    """
    lowest, step = min(scores.values()), 0.0001
    singles = [piece for piece in scores if len(piece) == 1]
    walked = lowest + step * len(singles)
    settled = {piece: lowest if len(piece) == 1 and score < walked else score for piece, score in scores.items()}
    return {piece: round(score, 4) for piece, score in settled.items()}


def _run_trainer(model: models.Model, texts: list[str], trainer: Any, exact: bool) -> dict[str, Any]:
    """Runs the library's trainer; the trained model as the library writes it to JSON."""
    engine = Tokenizer(model)
    engine.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(GAP, "removed"), make_word_splitter(exact=exact)]
    )
    engine.train_from_iterator(texts, trainer, length=len(texts))
    trained: dict[str, Any] = json.loads(engine.to_str())["model"]
    return trained
