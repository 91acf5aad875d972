"""Minimum Bayes risk: of several possible captions, the one that is most like all of them (Eikema and Aziz 2020).

They are sampled, with `decode.views` from several slightly moved copies of the picture, and with `decode.neighbours`
there are also captions of similar training pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from clearhead.decode import Hypothesis, Writer
from clearhead.images import Augmentation
from clearhead.model import PictureToText
from clearhead.model.inference_view import inference_view
from clearhead.tasks.sequence_to_sequence import PartNumber, Search

if TYPE_CHECKING:
    from clearhead.tasks.captioning.captioning_task import Captioning

# How copies of a picture are moved, much less than in training
VIEWS = Augmentation(shift=0.04, zoom=0.08, rotation=4.0, brightness=0.0, contrast=0.0, saturation=0.0)
LONGEST = 6  # characters of an n-gram, as in chrF
RECALL = 4.0  # the weight of recall, beta² of chrF2


@torch.inference_mode()
def search_by_risk(
    task: Captioning,
    model: PictureToText,
    pictures: Sequence[Tensor],
    search: Search,
    prefixes: Sequence[list[int]],
    numbers: Sequence[PartNumber],
) -> list[list[Hypothesis]]:
    """The best hypotheses of each picture, the one of least risk first."""
    view, device = inference_view(model), model.vocabulary.words.weight.device
    found = list[list[Hypothesis]]()
    for first in range(0, len(pictures), search.batch):
        some = slice(first, first + search.batch)
        context = view.encode_pictures(make_views(task, torch.stack(list(pictures[some])).to(device)))
        limits = [search.limit(task.output_limit(picture)) for picture in pictures[some]]
        ends = {"start": task.target.start, "end": task.target.end}
        drawing = search._replace(sampling_options=sampling_options(task), beams=1)
        drawn = draw_samples(model, context, drawing, numbers[some], prefixes[some], limits, **ends)
        similar = find_similar(task, view, pictures[some], context) if not any(prefixes[some]) else [[] for _ in drawn]
        for samples, neighbours, limit in zip(drawn, similar, limits, strict=True):
            kept = [one for one in neighbours if len(one.tokens) < limit]
            ranks = [1 / rank for rank in range(1, len(kept) + 1)]
            whole = len(samples) * task.decode.neighbour_weight
            weights = [1.0] * len(samples) + [whole * weight / sum(ranks) for weight in ranks]
            order = rank_by_risk([task.decode_text(one) for one in [*samples, *kept]], weights)
            found.append([[*samples, *kept][place] for place in order[: search.best]])
    return found


def sampling_options(task: Captioning) -> dict[str, float]:
    return {"temperature": task.decode.sample_temperature, "min_p": task.decode.sample_min_p}


def make_views(
    task: Captioning, pictures: UInt8[Tensor, "pictures 3 height width"]
) -> Float[Tensor, "rows 3 height width"]:
    """Each picture, followed by its `decode.views` − 1 moved copies, as the model takes them.

    All pictures are moved in the same ways, so that a caption does not depend on what else is asked.
    """
    copies, rows = task.decode.views - 1, list[Tensor]()
    for picture in pictures.float() / 255:
        rows.append(picture[None])
        if copies:
            chance, background = torch.Generator().manual_seed(0), task.preprocessing.background
            rows.append(VIEWS(picture.expand(copies, -1, -1, -1), chance, background))
    return task.preprocessing.normalise(torch.cat(rows))


@torch.inference_mode()
def find_similar(
    task: Captioning,
    model: PictureToText,
    pictures: Sequence[UInt8[Tensor, "3 height width"]],
    context: Float[Tensor, "rows patches features"],
) -> list[list[Hypothesis]]:
    """The captions of similar training pictures, the nearest first, with the probability that the model gives them.

    That is the probability for the first view of a picture, of which `context` has several.
    """
    if task.memory is None or not task.decode.neighbours:
        return [[] for _ in pictures]
    sides = [pictures, [one.flip(-1) for one in pictures]] if task.decode.neighbour_mirrored else [pictures]
    asked = [task.describe_pictures(model, some) for some in sides]
    found, end, pad = list[list[Hypothesis]](), task.target.end, task.target.pad
    for row, captions in zip(
        context[:: task.decode.views], task.memory.find(asked, task.decode.neighbours), strict=True
    ):
        written = [[*tokens, end] for tokens in task.target.encode_all(captions)]
        longest = max(map(len, written))
        target = torch.tensor([[task.target.start, *one, *[pad] * (longest - len(one))] for one in written])
        target = target.to(context.device)
        chances = model.logits(model.decode(target[:, :-1], row.expand(len(written), -1, -1))).float().log_softmax(-1)
        gains = chances.gather(2, target[:, 1:, None])[:, :, 0].tolist()
        totals = [sum(gain[: len(one)]) for gain, one in zip(gains, written, strict=True)]
        found.append([Hypothesis.of(one, total, end) for one, total in zip(written, totals, strict=True)])
    return found


def draw_samples(
    model: PictureToText,
    context: Float[Tensor, "rows patches width"],
    search: Search,
    numbers: Sequence[PartNumber],
    prefixes: Sequence[list[int]],
    limits: Sequence[int],
    **ends: int,
) -> list[list[Hypothesis]]:
    """`search.samples` hypotheses of each number, which has one row of the context or several successive ones.

    What is drawn depends on the seed and the number alone.
    """
    copies = search.samples
    lengths = torch.full((len(numbers) * copies,), context.shape[1])
    each_row = context.repeat_interleave(len(lengths) // len(context), 0)
    writer = Writer(model, [[]] * len(lengths), context=each_row, context_lengths=lengths)
    rules: dict[str, Any] = {**ends, "max_length": []}
    for prefix, limit in zip(prefixes, limits, strict=True):
        rules["max_length"] += [limit + len(prefix)] * copies
    if any(prefixes):
        rules["prefix"] = [prefix for prefix in prefixes for _ in range(copies)]
    each = [PartNumber(number.given, number.part * copies + copy) for number in numbers for copy in range(copies)]
    found = [one[0] for one in search.run(writer, each, **rules)]
    return [found[first : first + copies] for first in range(0, len(found), copies)]


def rank_by_risk(texts: Sequence[str], weights: Sequence[float] | None = None) -> list[int]:
    """Places of the different texts, first the one with the highest mean chrF against all texts, by their weights.

    A text that occurs often counts as often; of equal ones the earlier comes first.

    >>> rank_by_risk(["red cat", "a blue dog", "red car", "red cat"])
    [0, 2, 1]
    """
    places = {text: place for place, text in reversed(list(enumerate(texts)))}
    distinct = sorted(places, key=places.__getitem__)
    number = {text: place for place, text in enumerate(distinct)}
    totals = np.bincount([number[text] for text in texts], weights, minlength=len(distinct))
    risk = -(compare_texts(distinct) @ totals)
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
