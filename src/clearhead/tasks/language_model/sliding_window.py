"""Losses of documents of any length: a window slides over each, and every token is predicted once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F

from clearhead.errors import DataError
from clearhead.model import Decoder
from clearhead.model.layers import at_least_float
from clearhead.tasks.answerer import Prediction, Scores
from clearhead.tasks.losses import UNCOUNTED, check_finite
from clearhead.text.batches import pad_sequences, token_batches

CPU_BATCH_TOKENS = 4096  # pads included
GPU_BATCH_TOKENS = 65_536


@dataclass(frozen=True)
class DocumentLoss(Prediction):
    """How well a document was predicted: the sum of the losses of its tokens, in nats, and how many they are."""

    nats: float = 0.0
    tokens: int = 0  # predicted: all of the text, and its end


class Window(NamedTuple):
    """A span of a document's tokens that the model reads at once; the first ones only as context."""

    document: int
    begin: int
    end: int  # of the tokens that are read; each predicts the next one
    counted: int  # the first of them whose prediction counts


def slide_windows(predictions: Sequence[int], context: int, stride: int) -> list[Window]:
    """Windows of at most `context` tokens over documents with these numbers of predictions; each counts once.

    The window moves on by `stride`: after the first one, a token is predicted from context − stride tokens at least.

    >>> slide_windows([7], context=4, stride=2)
    [Window(document=0, begin=0, end=4, counted=0), Window(document=0, begin=2, end=6, counted=4), \
Window(document=0, begin=4, end=7, counted=6)]
    """
    windows = []
    for document, total in enumerate(predictions):
        begin = done = 0
        while done < total:
            end = min(begin + context, total)
            windows.append(Window(document, begin, end, done))
            begin, done = begin + stride, end
    return windows


@torch.no_grad()
def score_documents(
    model: Decoder, documents: Sequence[Sequence[int]], *, context: int, stride: int, pad: int = 0
) -> list[DocumentLoss]:
    """The loss of each document, given with its start and end token; `slide_windows` says what each token sees."""
    windows = slide_windows([len(document) - 1 for document in documents], context, stride)
    device = model.vocabulary.words.weight.device
    sums = torch.zeros(len(documents), dtype=torch.float64, device=device)
    budget = CPU_BATCH_TOKENS if device.type == "cpu" else GPU_BATCH_TOKENS
    for members in token_batches([window.end - window.begin for window in windows], budget):
        batch = [windows[member] for member in members]
        reads = [documents[window.document][window.begin : window.end] for window in batch]
        wanted = [_wanted_tokens(window, documents[window.document]) for window in batch]
        (tokens, _), (labels, _) = pad_sequences(reads, pad, device), pad_sequences(wanted, UNCOUNTED, device)
        # Pads come last, so causality hides them from every token.
        logits = at_least_float(model.logits(model(tokens)))
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=UNCOUNTED, reduction="none")
        numbers = torch.tensor([window.document for window in batch], device=device)
        sums.index_add_(0, numbers, losses.double().view(labels.shape).sum(1))
    check_finite(sums)
    return [
        DocumentLoss("", nats=nats, tokens=len(document) - 1)
        for nats, document in zip(sums.tolist(), documents, strict=True)
    ]


def _wanted_tokens(window: Window, document: Sequence[int]) -> list[int]:
    """The token after each of a window's tokens; UNCOUNTED for those that are only context."""
    return [UNCOUNTED] * (window.counted - window.begin) + list(document[window.counted + 1 : window.end + 1])


def score_losses(losses: Sequence[DocumentLoss], size: int) -> Scores:
    """Loss in nats a token, perplexity, and bits for each of the `size` bytes of all documents in UTF-8.

    >>> score_losses([DocumentLoss("", nats=8 * math.log(2), tokens=4)], 16)
    {'loss': 1.3863, 'perplexity': 4.0, 'bits_per_byte': 0.5}
    """
    if not losses:
        raise DataError("there are no rows to score")
    nats, tokens = sum(loss.nats for loss in losses), sum(loss.tokens for loss in losses)
    loss = nats / tokens
    return {
        "loss": round(loss, 4),
        "perplexity": round(math.exp(min(loss, 700.0)), 4),
        "bits_per_byte": round(nats / math.log(2) / size, 4),
    }
