"""Minimum Bayes risk: of several sampled texts, the one that is most like all of them (Eikema and Aziz 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.decode import Hypothesis, Writer
from clearhead.model import EncoderDecoder
from clearhead.tasks.sequence_to_sequence import PartNumber, Search

TEMPERATURE = 1.0  # of the samples
LONGEST = 6  # characters of an n-gram, as in chrF
RECALL = 4.0  # the weight of recall, beta² of chrF2


def draw_samples(
    model: EncoderDecoder,
    context: Float[Tensor, "rows context width"],
    search: Search,
    numbers: Sequence[PartNumber],
    prefixes: Sequence[list[int]],
    limits: Sequence[int],
    **ends: int,
) -> list[list[Hypothesis]]:
    """`search.samples` hypotheses of each row; what is drawn depends on the seed and the number of the row alone."""
    copies = search.samples
    lengths = torch.full((len(context) * copies,), context.shape[1])
    writer = Writer(model, [[]] * len(lengths), context=context.repeat_interleave(copies, 0), context_lengths=lengths)
    rules: dict[str, Any] = {**ends, "max_length": []}
    for prefix, limit in zip(prefixes, limits, strict=True):
        rules["max_length"] += [limit + len(prefix)] * copies
    if any(prefixes):
        rules["prefix"] = [prefix for prefix in prefixes for _ in range(copies)]
    each = [PartNumber(number.given, number.part * copies + copy) for number in numbers for copy in range(copies)]
    drawing = search._replace(sampling_options={"temperature": TEMPERATURE}, beams=1)
    found = [one[0] for one in drawing.run(writer, each, **rules)]
    return [found[first : first + copies] for first in range(0, len(found), copies)]


def rank_by_risk(texts: Sequence[str]) -> list[int]:
    """Places of the different texts, first the one with the highest mean chrF against all texts.

    A text that was sampled often counts as often; of equal ones the earlier comes first.

    >>> rank_by_risk(["red cat", "a blue dog", "red car", "red cat"])
    [0, 2, 1]
    """
    places = {text: place for place, text in reversed(list(enumerate(texts)))}
    distinct = sorted(places, key=places.__getitem__)
    number = {text: place for place, text in enumerate(distinct)}
    often = np.bincount([number[text] for text in texts], minlength=len(distinct))
    risk = -(compare_texts(distinct) @ often)
    return [places[distinct[one]] for one in np.argsort(risk, kind="stable")]


def compare_texts(texts: Sequence[str]) -> np.ndarray:
    """chrF, from 0 to 1, of each text (rows) where each other one (columns) is the reference."""
    precision = np.zeros((len(texts), len(texts)))
    recall, orders = np.zeros_like(precision), np.zeros_like(precision)
    plain = ["".join(text.split()) for text in texts]
    for length in range(1, LONGEST + 1):
        counts = _count_ngrams(plain, length)
        totals = counts.sum(1)
        shared = np.stack([np.minimum(row, counts).sum(1) for row in counts])
        both = (totals[:, None] > 0) & (totals[None] > 0)  # only n-grams that fit into both texts are counted
        precision += np.where(both, shared / np.maximum(totals[:, None], 1), 0)
        recall += np.where(both, shared / np.maximum(totals[None], 1), 0)
        orders += both
    precision, recall = precision / np.maximum(orders, 1), recall / np.maximum(orders, 1)
    below = RECALL * precision + recall
    return np.where(below > 0, (1 + RECALL) * precision * recall / np.where(below > 0, below, 1), 0)


def _count_ngrams(texts: Sequence[str], length: int) -> np.ndarray:
    """How often each n-gram of this length (columns) occurs in each text (rows)."""
    columns: dict[str, int] = {}
    found = [
        [columns.setdefault(text[start : start + length], len(columns)) for start in range(len(text) - length + 1)]
        for text in texts
    ]
    return np.stack([np.bincount(own, minlength=len(columns)) for own in found])
