"""Scores of all words of many sentences: windows of similar length go through the model together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.decode.prepacked_linear import decoding_view
from clearhead.tasks.tagging.tagger import Tagger
from clearhead.tasks.tagging.tagging_examples import WindowTokens
from clearhead.text.batches import Ragged, token_batches

TOKENS = 1024  # of a batch, pads included: what a CPU's cache holds is computed fastest


def score_words(model: Tagger, sentences: Sequence[Sequence[WindowTokens]], *, pad: int, most: int) -> list[Tensor]:
    """Scores (words, tags) of each sentence, put together from its windows, on the CPU.

    A batch has at most `most` windows, and no more than TOKENS tokens, pads included.
    """
    windows = [window for sentence in sentences for window in sentence if window.words]
    weight = model.vocabulary.words.weight
    device = weight.device
    if not weight.requires_grad:  # in training, packed weights would be those of an earlier step
        model = decoding_view(model)
    found: list[Tensor] = [torch.empty(0)] * len(windows)
    for places in token_batches([len(window.tokens) for window in windows], TOKENS, most):
        some = [windows[place] for place in places]
        tokens, lengths = _pad([window.tokens for window in some], pad, device)
        cases, _ = _pad([window.cases for window in some], 0, device)
        bigrams, _ = _pad([window.bigrams for window in some], 0, device)
        words, _ = _pad([window.words for window in some], 0, device)
        scores = model.word_scores(tokens, lengths, cases, bigrams, words).float().cpu()
        for place, row, window in zip(places, scores, some, strict=True):
            found[place] = row[: len(window.words)]
    parts = iter(found)
    none = torch.empty(0, model.config.labels or 0)
    return [torch.cat([none, *(next(parts) for window in sentence if window.words)]) for sentence in sentences]


def _pad(rows: Sequence[Sequence[int]], fill: int, device: torch.device) -> tuple[Tensor, Tensor]:
    ragged = Ragged(rows)
    tokens, lengths = ragged.pad(torch.arange(len(rows)), int(ragged.lengths.max()), fill)
    return tokens.to(device), lengths.to(device)
