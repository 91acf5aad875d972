"""Learning the pieces of a vocabulary from text; the same text gives the same pieces."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from clearhead.text.engine import BYTES, FIXED, SPECIAL, words

COVERED = 0.9998  # of all characters are pieces of their own; rarer ones are spelled in bytes
ALPHABET = 0.75  # of the pieces are single characters, at most
LONGEST = 16  # of a piece, in characters
GAP = "\n"  # stands for a character without a piece; no normal text has one


def learned(texts: list[str], kind: str, vocabulary: int) -> models.Model:
    """A model of at most `vocabulary` pieces for these texts, which are normal already; no text is unknown to it."""
    room = vocabulary - FIXED
    counts = Counter[str]()
    for text in texts:
        counts.update(text)
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    if kind == "character":
        return _bpe(ranked[:room], [])
    kept = set(ranked[: _alphabet(ranked, counts, room)])
    gaps = str.maketrans(dict.fromkeys(set(ranked) - kept, GAP))
    texts = [text.translate(gaps) for text in texts] if gaps else texts
    return _learned_bpe(texts, room) if kind == "bpe" else _learned_unigram(texts, room)


def _alphabet(ranked: list[str], counts: Counter[str], room: int) -> int:
    """How many characters become pieces of their own."""
    wanted = COVERED * counts.total()
    sums = accumulate(counts[character] for character in ranked)
    enough = next((place for place, covered in enumerate(sums, start=1) if covered >= wanted), len(ranked))
    return max(1, min(enough, int(ALPHABET * room)))


def _learned_bpe(texts: list[str], room: int) -> models.Model:
    trainer = trainers.BpeTrainer(vocab_size=room, min_frequency=2, max_token_length=LONGEST, show_progress=False)
    model = _trained(models.BPE(), texts, trainer)
    return _bpe(
        sorted(model["vocab"], key=model["vocab"].__getitem__), [(left, right) for left, right in model["merges"]]
    )


def _bpe(pieces: Iterable[str], merges: list[tuple[str, str]]) -> models.Model:
    vocabulary = {piece: number for number, piece in enumerate([*SPECIAL, *BYTES, *pieces])}
    return models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True)


def _learned_unigram(texts: list[str], room: int) -> models.Model:
    unknown = "<unk>"
    trainer = trainers.UnigramTrainer(
        vocab_size=room + 1,  # the unknown one goes away again
        special_tokens=[unknown],
        unk_token=unknown,
        max_piece_length=LONGEST,
        show_progress=False,
    )
    found: dict[str, float] = dict(_trained(models.Unigram(), texts, trainer)["vocab"])
    del found[unknown]
    scores = _settled(found)
    lowest = min(scores.values())
    pieces = sorted(scores, key=lambda piece: (-scores[piece], piece))
    fixed = [(piece, lowest) for piece in (*SPECIAL, *BYTES)]
    # The library wants a number for unknown characters; with byte fallback it is never given out.
    return models.Unigram([*fixed, *((piece, scores[piece]) for piece in pieces)], unk_id=0, byte_fallback=True)


def _settled(scores: dict[str, float]) -> dict[str, float]:
    """Scores that do not depend on the order in which the trainer happened to walk through its hash maps.

    Sums differ in their last digits. And characters that no piece needed get the lowest score plus 0.0001 for each one
    before them, in the order of the walk: here all of them get the lowest.
    """
    lowest, step = min(scores.values()), 0.0001
    singles = [piece for piece in scores if len(piece) == 1]
    walked = lowest + step * len(singles)
    settled = {piece: lowest if len(piece) == 1 and score < walked else score for piece, score in scores.items()}
    return {piece: round(score, 4) for piece, score in settled.items()}


def _trained(model: models.Model, texts: list[str], trainer: Any) -> dict[str, Any]:
    """What the library's trainer found, as it would write it into a file."""
    engine = Tokenizer(model)
    engine.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(GAP, "removed"), words()])
    engine.train_from_iterator(texts, trainer, length=len(texts))
    found: dict[str, Any] = json.loads(engine.to_str())["model"]
    return found
