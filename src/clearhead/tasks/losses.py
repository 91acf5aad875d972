"""Losses that several tasks share, and a check that scores are numbers."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.errors import DecodeError
from clearhead.model.transformer import Vocabulary

UNCOUNTED = -100  # the label of a place that is not predicted, such as a pad


def token_loss(
    words: Vocabulary,
    hidden: Float[Tensor, "batch tokens width"],
    labels: Int[Tensor, "batch tokens"],
    smoothing: float,
) -> Float[Tensor, ""]:
    """The cross-entropy of the right words, summed over all places that count.

    With `smoothing` ε the target is 1 − ε on the right word and ε spread over all (Szegedy et al. 2016).
    """
    logits = words.logits(hidden).flatten(0, 1)
    return F.cross_entropy(logits, labels.flatten(), ignore_index=UNCOUNTED, reduction="sum", label_smoothing=smoothing)


def masked_token_loss(
    words: Vocabulary,
    hidden: Float[Tensor, "batch tokens width"],
    tokens: Int[Tensor, "batch tokens"],
    places: Bool[Tensor, "batch tokens"],
) -> Float[Tensor, ""]:
    """The mean cross-entropy of the tokens at `places`, which the model did not see; 0 if there are none."""
    total = token_loss(words, hidden, tokens.masked_fill(~places, UNCOUNTED), 0.0)
    return total / places.sum().clamp(min=1)


def check_finite(scores: Tensor) -> None:
    """Refuses scores that are NaN or infinite: no answer follows from them, and JSON has no such numbers."""
    if not bool(scores.isfinite().all()):
        raise DecodeError("the model's scores are NaN or infinite; check its weights and its input")
