"""Linear chains over tags: Viterbi's best sequence, the partition function of a CRF, and the probability of an entity.

A sequence scores the sum of its words' scores (`emissions`), of its steps from tag to tag, and of its ends. Without
learned steps these are 0 where legal; what is illegal is −∞. All functions take padded batches with lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from clearhead.tasks.tagging.schemes import Legality

IMPOSSIBLE = -1e9  # the score of an illegal step; finite, for the gradient of −∞ − −∞ is NaN
PAIRS = 2**24  # of tags, over all sentences of a batch, that are scored at once: 64 MB in float32
MODERATE = 100.0  # scores up to this: products of the probabilities of a few words do not become 0
LARGEST = 1e6  # emissions beyond this, or NaN, cannot make an illegal sequence the best one


Numbers = NDArray[np.float64]


class Steps(NamedTuple):
    """Start scores of tags, transition scores from tag (rows) to tag (columns), and end scores."""

    first: Float[Tensor, " tags"]
    between: Float[Tensor, "tags tags"]
    last: Float[Tensor, " tags"]

    @classmethod
    def legal(cls, legality: Legality, illegal: float = -torch.inf) -> Steps:
        """0 for what is legal, `illegal` for the rest."""
        zero = torch.zeros(())
        return cls(*(torch.where(torch.from_numpy(part), zero, illegal) for part in legality))

    def __add__(self, other: object) -> Steps:
        assert isinstance(other, Steps)
        return Steps(*(one + another for one, another in zip(self, other, strict=True)))

    def to(self, device: torch.device) -> Steps:
        return Steps(*(part.to(device) for part in self))


def viterbi(
    emissions: Float[Tensor, "batch words tags"], lengths: Int[Tensor, " batch"], steps: Steps
) -> Int[Tensor, "batch words"]:
    """The best sequence of each sample; 0 in the padding. Illegal sequences (−∞ in `steps`) never come out.

    >>> steps = Steps(torch.zeros(2), torch.tensor([[0.0, -torch.inf], [0.0, 0.0]]), torch.zeros(2))
    >>> viterbi(torch.tensor([[[1.0, 0.0], [0.0, 5.0], [2.0, 0.0]]]), torch.tensor([3]), steps)
    tensor([[1, 1, 0]])
    """
    # In NumPy: a step is a few small operations, each of which takes PyTorch several times as long to begin.
    scores = emissions.nan_to_num(0.0).clamp(-LARGEST, LARGEST).double().cpu().numpy()
    first, between, last = (part.double().cpu().numpy() for part in steps)
    arriving = _split_arriving(between, len(scores))
    ends, shortest = lengths.cpu().numpy()[:, None], int(lengths.min()) if len(lengths) else 0
    best, before = first + scores[:, 0], list[NDArray[np.int64]]()
    for word in range(1, scores.shape[1]):
        reached, origin = _find_best_origins(best, arriving)
        reached += scores[:, word]
        if word >= shortest:  # what lies beyond the end stays as it was
            reached = np.where(word < ends, reached, best)
            origin = np.where(word < ends, origin, np.arange(len(between)))
        best = reached
        before.append(origin)
    tag, rows = (best + last).argmax(1), np.arange(len(scores))
    path = [tag]
    for origin in reversed(before):
        tag = origin[rows, tag]
        path.append(tag)
    found = torch.from_numpy(np.stack(path[::-1], 1)).to(emissions.device)
    return found.masked_fill(torch.arange(scores.shape[1], device=found.device) >= lengths[:, None], 0)


def best_sequences(
    emissions: Float[Tensor, "batch words tags"], lengths: Int[Tensor, " batch"], steps: Steps, *, learned: bool
) -> Int[Tensor, "batch words"]:
    """As `viterbi`, which runs only where it must: if no steps are learned, best tags that are legal are the best."""
    if learned:
        return viterbi(emissions, lengths, steps)
    padding = torch.arange(emissions.shape[1], device=emissions.device) >= lengths[:, None]
    best = emissions.nan_to_num(0.0).argmax(-1).masked_fill(padding, 0)
    ends = best.gather(1, (lengths - 1).clamp(min=0)[:, None])[:, 0]
    inner = (steps.between[best[:, :-1], best[:, 1:]] == 0) | padding[:, 1:]
    wrong = ~(inner.all(1) & (steps.first[best[:, 0]] == 0) & (steps.last[ends] == 0)) & (lengths > 0)
    if wrong.any():
        best[wrong] = viterbi(emissions[wrong], lengths[wrong], steps)
    return best


def log_partition(
    emissions: Float[Tensor, "batch words tags"], lengths: Int[Tensor, " batch"], steps: Steps
) -> Float[Tensor, " batch"]:
    """The logarithm of the sum of exp(score) over all sequences, in at least float32."""
    return (forward_messages(emissions, lengths, steps)[:, -1] + steps.last).logsumexp(-1)


def sequence_scores(
    emissions: Float[Tensor, "batch words tags"],
    tags: Int[Tensor, "batch words"],
    lengths: Int[Tensor, " batch"],
    steps: Steps,
) -> Float[Tensor, " batch"]:
    """The score of one sequence of tags for each sample; `tags` in the padding do not matter, but must be tags."""
    emissions = _widen(emissions)
    real = torch.arange(tags.shape[1], device=tags.device) < lengths[:, None]
    own = emissions.gather(2, tags[:, :, None])[:, :, 0].masked_fill(~real, 0.0).sum(1)
    # gather, for the gradient of an index is slow, and CUDA graphs may not record it
    pairs = tags[:, :-1] * emissions.shape[2] + tags[:, 1:]
    moves = steps.between.flatten().gather(0, pairs.flatten()).view(pairs.shape).masked_fill(~real[:, 1:], 0.0).sum(1)
    ends = tags.gather(1, (lengths - 1).clamp(min=0)[:, None])[:, 0]
    return own + moves + steps.first.gather(0, tags[:, 0]) + steps.last.gather(0, ends)


def forward_messages(
    emissions: Float[Tensor, "batch words tags"], lengths: Int[Tensor, " batch"], steps: Steps
) -> Float[Tensor, "batch words tags"]:
    """Logarithms of the sums over all beginnings that have a tag at a word; beyond the end those of the last word."""
    emissions = _widen(emissions)
    message = steps.first + emissions[:, 0]
    found = [message]
    for word in range(1, emissions.shape[1]):
        reached = _sum_over_origins(message, steps.between) + emissions[:, word]
        message = torch.where((word < lengths)[:, None], reached, message)
        found.append(message)
    return torch.stack(found, 1)


def backward_messages(
    emissions: Float[Tensor, "batch words tags"], lengths: Int[Tensor, " batch"], steps: Steps
) -> Float[Tensor, "batch words tags"]:
    """Logarithms of the sums over all that may follow a tag at a word, the word's own score not included."""
    emissions = _widen(emissions)
    message = steps.last.expand(len(emissions), -1)
    found = [message]
    for word in range(emissions.shape[1] - 1, 0, -1):
        reached = _sum_over_origins(message + emissions[:, word], steps.between.T)
        message = torch.where((word < lengths)[:, None], reached, message)
        found.append(message)
    return torch.stack(found[::-1], 1)


def multiply_messages(
    emissions: Float[Tensor, "batch words tags"], lengths: Int[Tensor, " batch"], steps: Steps
) -> tuple[Float[Tensor, "batch words tags"], Float[Tensor, "batch words tags"]]:
    """Forward and backward messages in float64, of a chain whose scores are at most MODERATE; −∞ if impossible.

    A sum over tags is a product of matrices of probabilities, of which the largest is 1: many times as fast as
    `forward_messages`, and it has no gradient.
    """
    scores, ends = emissions.double().cpu().numpy(), lengths.cpu().numpy()[:, None]
    first, between, last = (part.double().cpu().numpy() for part in steps)
    words, shortest = scores.shape[1], int(ends.min()) if len(ends) else 0
    onward, back = np.exp(between), np.exp(between.T)
    forward, backward = np.empty_like(scores), np.empty_like(scores)
    forward[:, 0], backward[:, -1] = first + scores[:, 0], last
    with np.errstate(divide="ignore"):  # the logarithm of 0 is −∞
        for word in range(1, words):
            message = _multiply(forward[:, word - 1], onward) + scores[:, word]
            forward[:, word] = message if word < shortest else np.where(word < ends, message, forward[:, word - 1])
        for word in range(words - 1, 0, -1):
            message = _multiply(backward[:, word] + scores[:, word], back)
            backward[:, word - 1] = message if word < shortest else np.where(word < ends, message, backward[:, word])
    return torch.from_numpy(forward), torch.from_numpy(backward)


class ChainProbabilities:
    """Marginal probabilities of spans of tags, by the forward-backward algorithm.

    In float64: a probability is a difference of sums over all words, which in float32 is wrong by 1e-3 for 2,000 words.
    """

    def __init__(
        self, emissions: Float[Tensor, "batch words tags"], lengths: Int[Tensor, " batch"], steps: Steps
    ) -> None:
        steps = Steps(*(part.double().clamp(min=IMPOSSIBLE) for part in steps))
        emissions = emissions.nan_to_num(0.0).clamp(-LARGEST, LARGEST).double().cpu()
        lengths, steps = lengths.cpu(), steps.to(emissions.device)
        if float(emissions.abs().max()) <= MODERATE and all(float(part.max()) <= MODERATE for part in steps):
            forward, backward = multiply_messages(emissions, lengths, steps)
        else:
            forward = forward_messages(emissions, lengths, steps)
            backward = backward_messages(emissions, lengths, steps)
        total = (forward[:, -1] + steps.last).logsumexp(-1)
        parts = (emissions, forward, backward, steps.between, total)
        self.emissions, self.forward, self.backward, self.between, self.total = (part.numpy() for part in parts)
        self.lengths = lengths.tolist()

    def probability(self, sample: int, begin: int, tags: list[int], continuing: list[int]) -> float:
        """That the words from `begin` have these tags, and that none of `continuing` follows."""
        end = begin + len(tags)
        score = self.forward[sample, begin, tags[0]]
        for word, (one, other) in enumerate(pairwise(tags), start=begin + 1):
            score = score + self.between[one, other] + self.emissions[sample, word, other]
        after = self.backward[sample, end - 1, tags[-1]]
        if end < self.lengths[sample] and continuing:
            following = self.between[tags[-1]] + self.emissions[sample, end] + self.backward[sample, end]
            following[continuing] = IMPOSSIBLE
            after = torch.from_numpy(following).logsumexp(0).item()
        return float(min(1.0, max(0.0, float(torch.tensor(score + after - self.total[sample]).exp()))))


def _find_best_origins(best: Numbers, arriving: Sequence[Numbers]) -> tuple[Numbers, NDArray[np.int64]]:
    """The best score with which each tag is reached, and the tag before it; (batch, tags) each."""
    rows, values, origins = np.arange(len(best))[:, None], list[Numbers](), list[NDArray[np.int64]]()
    for part in arriving:
        sums = best[:, None, :] + part
        origins.append(sums.argmax(2))
        values.append(sums[rows, np.arange(len(part)), origins[-1]])
    return (values[0], origins[0]) if len(values) == 1 else (np.concatenate(values, 1), np.concatenate(origins, 1))


def _multiply(message: Numbers, steps: Numbers) -> Numbers:
    """For each tag the logarithm of the sum over all tags before it, whose probabilities are multiplied by `steps`."""
    largest = message.max(1, keepdims=True)
    found: Numbers = np.log(np.exp(message - largest) @ steps) + largest
    return found


def _sum_over_origins(message: Tensor, between: Tensor) -> Tensor:
    """For each tag the logarithm of the sum over all tags before it; (batch, tags).

    All pairs of tags at once where they are few; of many, some columns at a time, computed again in the backward pass.
    """
    size = _columns_at_once(len(between), len(message))
    if size >= len(between):
        return _reach(message, between)
    parts = between.split(size, 1)
    if not torch.is_grad_enabled():
        return torch.cat([_reach(message, part) for part in parts], 1)
    return torch.cat([checkpoint(_reach, message, part, use_reentrant=False) for part in parts], 1)


def _reach(message: Tensor, between: Tensor) -> Tensor:
    return (message[:, :, None] + between).logsumexp(1)


def _split_arriving(between: Numbers, batch: int) -> list[Numbers]:
    """The steps that arrive at each tag, one row each, in parts of which a batch has at most PAIRS pairs of tags."""
    size, arriving = _columns_at_once(len(between), batch), np.ascontiguousarray(between.T)
    return [arriving[begin : begin + size] for begin in range(0, len(between), size)]


def _columns_at_once(tags: int, batch: int) -> int:
    return max(1, PAIRS // max(1, batch * tags))


def _widen(emissions: Tensor) -> Tensor:
    """In float32 if they come in half precision: sums of many of them need it."""
    return emissions if emissions.dtype in (torch.float32, torch.float64) else emissions.float()
