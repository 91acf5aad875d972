"""Fills <mask> in texts with the likeliest pieces of a masked language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead.attention import Mask
from clearhead.errors import DataError
from clearhead.model import Encoder
from clearhead.tasks.answerer import Prediction
from clearhead.tasks.losses import check_finite
from clearhead.tasks.text_windows import padded_batches
from clearhead.text import Tokenizer

MASK = "<mask>"  # what a user writes
CANDIDATES = 5  # of each mask, at least
BATCH_TOKENS = 8192  # pads included


class Candidate(NamedTuple):
    """A piece that may stand for a mask, as text, and its probability."""

    text: str
    score: float


@dataclass(frozen=True)
class FilledText(Prediction):
    """A text with its masks filled, and the likeliest candidates for each mask."""

    candidates: Sequence[Sequence[Candidate]] = ()
    alternatives: Sequence[tuple[str, float]] = ()  # whole texts, where there is one mask

    def to_json(self) -> dict[str, Any]:
        masks = [[{"text": text, "score": score} for text, score in candidates] for candidates in self.candidates]
        return {"output": self.text, "masks": masks, "notes": list(self.notes)}

    def ranking(self) -> list[tuple[str, float | None]]:
        return list(self.alternatives) or [(self.text, None)]


def encode_masked(tokenizer: Tokenizer, text: str, mask: int) -> list[int]:
    """The tokens of a text in which <mask> is written, without start and end; each <mask> is one mask token."""
    tokens: list[int] = []
    for number, part in enumerate(text.split(MASK)):
        tokens += [mask] * (number > 0) + (tokenizer.encode(part) if part.strip() else [])
    return tokens


def insert_pieces(text: str, pieces: Sequence[str]) -> str:
    """The text with each <mask> replaced by the next piece; its space is left out where there is one already.

    >>> insert_pieces("I <mask> you<mask>", [" love", "!"]), insert_pieces("<mask> it", [" Love"])
    ('I love you!', 'Love it')
    """
    first, *parts = text.split(MASK)
    for piece, part in zip(pieces, parts, strict=True):
        spaced = not first or first[-1].isspace()
        first += (piece.lstrip() if spaced else piece) + part
    return first


def check_length(tokens: int, limit: int) -> None:
    """Refuses a text of more tokens, start and end included, than a model reads at once."""
    if tokens > limit:
        raise DataError(
            f"a text of {tokens:,} tokens is longer than the {limit:,} that the model reads at once; shorten it"
        )


@torch.no_grad()
def fill_masks(
    model: Encoder, tokenizer: Tokenizer, texts: Sequence[str], mask: int, *, limit: int, best: int, most: int
) -> list[FilledText]:
    """Fills all masks of the texts; of several in one text the surest first, and the others given that one.

    A text with masks has at most `limit` tokens, start and end included.
    """
    tokens = [
        [tokenizer.start, *encode_masked(tokenizer, text, mask), tokenizer.end] if MASK in text else []
        for text in texts
    ]
    check_length(max(map(len, tokens), default=0), limit)
    ranked: list[dict[int, list[tuple[int, float]]]] = [{} for _ in texts]  # tokens and probabilities by position
    while unfinished := [number for number, text in enumerate(tokens) if mask in text]:
        rows = [tokens[number] for number in unfinished]
        device = model.vocabulary.words.weight.device
        for batch, padded, lengths in padded_batches(rows, tokenizer.pad, device, tokens=BATCH_TOKENS, most=most):
            for row, masks in zip(batch, _rank_tokens(model, tokenizer, padded, lengths, mask, best), strict=True):
                number = unfinished[row]
                position, candidates = max(masks.items(), key=lambda item: item[1][0][1])  # the surest
                ranked[number][position] = candidates
                tokens[number][position] = candidates[0][0]
    both = zip(texts, ranked, strict=True)
    return [_describe(tokenizer, text, [masks[position] for position in sorted(masks)], best) for text, masks in both]


def _rank_tokens(
    model: Encoder, tokenizer: Tokenizer, padded: Tensor, lengths: Tensor, mask: int, best: int
) -> list[dict[int, list[tuple[int, float]]]]:
    """The likeliest tokens, with probabilities, at every mask of each row; never a special token."""
    hidden = model(padded, mask=Mask.padding(lengths, queries=True))
    inside = torch.arange(padded.shape[1], device=padded.device) < lengths[:, None]
    where = ((padded == mask) & inside).nonzero()
    scores = model.logits(hidden[where[:, 0], where[:, 1]]).float()
    check_finite(scores)
    scores[:, [tokenizer.pad, tokenizer.start, tokenizer.end, mask]] = -torch.inf
    top = scores.softmax(-1).topk(min(max(best, CANDIDATES), scores.shape[1]))
    ranked: list[dict[int, list[tuple[int, float]]]] = [{} for _ in padded]
    columns = (where.tolist(), top.indices.tolist(), top.values.tolist())
    for (row, position), tokens, chances in zip(*columns, strict=True):
        ranked[row][position] = list(zip(tokens, chances, strict=True))
    return ranked


def _describe(tokenizer: Tokenizer, text: str, masks: Sequence[Sequence[tuple[int, float]]], best: int) -> FilledText:
    if not masks:
        return FilledText(text, [f"the text has no {MASK} to fill"])
    candidates = [[Candidate(piece_text(tokenizer, token), chance) for token, chance in ranked] for ranked in masks]
    filled = insert_pieces(text, [of_mask[0].text for of_mask in candidates])
    if len(candidates) > 1:
        notes = [f"alternatives to each {MASK} are in --json"] if best > 1 else []
        return FilledText(filled, notes, candidates)
    others = [(insert_pieces(text, [candidate.text]), candidate.score) for candidate in candidates[0][:best]]
    return FilledText(filled, [], candidates, others)


def piece_text(tokenizer: Tokenizer, token: int) -> str:
    """A piece as it continues a text, with the space before it if it has one; a byte that is no character is �."""
    piece = tokenizer.pieces([token])[0]
    if piece.startswith("##"):  # BERT's pieces inside a word
        return piece.removeprefix("##")
    spaced = piece.startswith(("▁", "Ġ")) or tokenizer.settings["kind"] == "huggingface"
    return " " * spaced + tokenizer.decode([token]).strip()
