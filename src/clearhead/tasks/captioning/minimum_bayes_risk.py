"""Minimum Bayes risk: of several possible captions, the one that is most like all of them (Eikema and Aziz 2020).

They are sampled, with `decode.views` from several slightly moved copies of the picture. With `decode.neighbours` there
are also captions of similar training pictures, and with `decode.recombine` new ones made of their words.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, islice
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
NEAREST = 200  # training captions among which similar ones are chosen
DENSE = 1500  # n-grams up to which texts are compared by a product of matrices
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
        known = weigh_captions(task, view, pictures[some]) if not any(prefixes[some]) else [{} for _ in drawn]
        first_views = context[:: task.decode.views]
        for row, samples, weights, limit in zip(first_views, drawn, known, limits, strict=True):
            by_text = {task.decode_text(one): one for one in reversed(samples)}
            ranked = rank_captions(task, [task.decode_text(one) for one in samples], weights)
            short = (text for text in ranked if text in by_text or len(task.target.encode_all([text])[0]) < limit)
            best = list(islice(short, search.best))
            by_text |= give_probabilities(task, view, row, [text for text in best if text not in by_text])
            found.append([by_text[text] for text in best] or samples[:1])
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


def weigh_captions(
    task: Captioning, model: PictureToText, pictures: Sequence[UInt8[Tensor, "3 height width"]]
) -> list[dict[str, float]]:
    """The weights of training captions for each picture, the nearest first."""
    if task.memory is None or not task.decode.neighbours:
        return [{} for _ in pictures]
    sides = [pictures, [one.flip(-1) for one in pictures]] if task.decode.neighbour_mirrored else [pictures]
    return task.memory.weigh([task.describe_pictures(model, some) for some in sides])


def rank_captions(task: Captioning, samples: Sequence[str], known: Mapping[str, float]) -> list[str]:
    """Possible captions, the one most like samples and known captions first; a known one counts by its weight."""
    if task.memory is None or not known:
        return [samples[place] for place in rank_by_risk(samples)]
    decode, exchange = task.decode, task.memory.recombination
    references = [*samples, *known]
    weights = np.array([1 / len(samples)] * len(samples) + [decode.neighbour_weight * one for one in known.values()])
    nearest = list(known)[:NEAREST]
    risk = -(compare_texts(nearest, references) @ weights)
    likeliest = [nearest[place] for place in np.argsort(risk, kind="stable")]
    similar = list(dict.fromkeys(chain.from_iterable(zip(likeliest, nearest, strict=True))))[: decode.neighbours]
    new = exchange.find_new(similar) if decode.recombine != "no" else []
    possible = list(dict.fromkeys([*samples, *similar, *new]))
    if decode.recombine == "only":
        possible = [text for text in possible if text not in exchange.known] or possible
    risk = -(compare_texts(possible, references) @ weights)
    return [possible[place] for place in np.argsort(risk, kind="stable")]


@torch.inference_mode()
def give_probabilities(
    task: Captioning, model: PictureToText, context: Float[Tensor, "patches features"], captions: Sequence[str]
) -> dict[str, Hypothesis]:
    """Captions as hypotheses, with the probability that the model gives them for a picture."""
    if not captions:
        return {}
    end, pad = task.target.end, task.target.pad
    written = [[*tokens, end] for tokens in task.target.encode_all(captions)]
    longest = max(map(len, written))
    target = torch.tensor([[task.target.start, *one, *[pad] * (longest - len(one))] for one in written])
    target = target.to(context.device)
    chances = model.logits(model.decode(target[:, :-1], context.expand(len(written), -1, -1))).float().log_softmax(-1)
    gains = chances.gather(2, target[:, 1:, None])[:, :, 0].tolist()
    totals = [sum(gain[: len(one)]) for gain, one in zip(gains, written, strict=True)]
    hypotheses = (Hypothesis.of(one, total, end) for one, total in zip(written, totals, strict=True))
    return dict(zip(captions, hypotheses, strict=True))


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


def rank_by_risk(texts: Sequence[str]) -> list[int]:
    """Places of the different texts, first the one with the highest mean chrF against all texts.

    A text that occurs often counts as often; of equal ones the earlier comes first.

    >>> rank_by_risk(["red cat", "a blue dog", "red car", "red cat"])
    [0, 2, 1]
    """
    places = {text: place for place, text in reversed(list(enumerate(texts)))}
    distinct = sorted(places, key=places.__getitem__)
    risk = -compare_texts(distinct, texts).sum(1)
    return [places[distinct[one]] for one in np.argsort(risk, kind="stable")]


def compare_texts(texts: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """chrF, from 0 to 1, of each text (rows) against each reference (columns)."""
    sizes = (len(texts), len(references))
    precision, recall, orders = np.zeros(sizes), np.zeros(sizes), np.zeros(sizes)
    marks = [[_mark_ngrams(text) for text in some] for some in (texts, references)]
    for length in range(LONGEST):
        own, other = ([one[length] for one in some] for some in marks)
        totals, wanted = (np.array([len(one) for one in some]) for some in (own, other))
        both = (totals[:, None] > 0) & (wanted[None] > 0)  # only n-grams that fit into both texts are counted
        shared = _count_shared(own, other)
        precision += np.where(both, shared / np.maximum(totals[:, None], 1), 0)
        recall += np.where(both, shared / np.maximum(wanted[None], 1), 0)
        orders += both
    precision, recall = precision / np.maximum(orders, 1), recall / np.maximum(orders, 1)
    below = RECALL * precision + recall
    return np.where(below > 0, (1 + RECALL) * precision * recall / np.where(below > 0, below, 1), 0)


@functools.lru_cache(maxsize=2**14)
def _mark_ngrams(text: str) -> list[np.ndarray]:
    """Numbers for the n-grams of each length, without spaces; the second time that one occurs has another number."""
    plain, found = "".join(text.split()), list[np.ndarray]()
    for length in range(1, LONGEST + 1):
        parts = [plain[start : start + length] for start in range(len(plain) - length + 1)]
        seen = Counter[str]()
        found.append(np.array([hash((part, _count_up(seen, part))) for part in parts], dtype=np.int64))
    return found


def _count_up(counts: Counter[str], key: str) -> int:
    counts[key] += 1
    return counts[key]


def _count_shared(own: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> np.ndarray:
    """How many numbers each of some sets (rows) shares with each of others (columns)."""
    sizes = (len(own), len(other))
    rows, columns = (np.repeat(np.arange(len(some)), [len(one) for one in some]) for some in (own, other))
    distinct, place = np.unique(np.concatenate([*own, *other]), return_inverse=True)
    mine, theirs = place[: len(rows)], place[len(rows) :]
    if len(distinct) <= DENSE:  # most sets share most numbers
        marks = [np.zeros((size, len(distinct)), np.float32) for size in sizes]
        marks[0][rows, mine] = marks[1][columns, theirs] = 1
        return marks[0] @ marks[1].T
    order = np.argsort(theirs, kind="stable")
    starts = np.searchsorted(theirs[order], np.arange(len(distinct) + 1))
    counts = starts[mine + 1] - starts[mine]
    first = np.repeat(starts[mine] - (np.cumsum(counts) - counts), counts)
    pairs = np.repeat(rows, counts) * sizes[1] + columns[order][first + np.arange(counts.sum())]
    return np.bincount(pairs, minlength=sizes[0] * sizes[1]).reshape(sizes)
