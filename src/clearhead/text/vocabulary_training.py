"""Trains a vocabulary (BPE, unigram or characters) from texts; the same texts give the same vocabulary."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from clearhead.text.hf_tokenizers import BYTES, FIXED, SPECIAL, list_patterns, make_word_splitter

COVERED_SHARE = 0.9998  # of all characters of the texts that are pieces; rarer ones are spelled in bytes
ALPHABET_SHARE = 0.75  # largest share of the pieces that are single characters
LONGEST_PIECE = 16  # characters
GAP = "\0"  # replaces characters without a piece; it has none itself


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
