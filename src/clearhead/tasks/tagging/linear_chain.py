"""Linear chains over tags: Viterbi's best sequence, the partition function of a CRF, and entities with probabilities.

A sequence scores the sum of its words' scores (`emissions`), of its steps from tag to tag, and of its ends. Without
learned steps these are 0 where legal; what is illegal is −∞. All functions take padded batches with lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from clearhead.model.layers import at_least_float
from clearhead.tasks.tagging.schemes import Legality, Span, legal_sequences, read_tags, write_tags
from clearhead.text.batches import token_batches

IMPOSSIBLE = -1e9  # the score of an illegal step; finite, for the gradient of −∞ − −∞ is NaN
MODERATE_SCORE = 100.0  # up to this products of the probabilities of a few words do not become 0
LARGEST_SCORE = 1e6  # emissions beyond this, or NaN, cannot make an illegal sequence the best one
SENTENCES_AT_ONCE = 256  # that are decoded together
WORDS_AT_ONCE = 2**15  # with padding
TAG_PAIRS_AT_ONCE = 2**24  # over all sentences of a batch: 128 MB in float64

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
        return Steps(*(part + added for part, added in zip(self, other, strict=True)))

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
    scores = _bounded(emissions).numpy()
    first, between, last = (part.double().cpu().numpy() for part in steps)
    arriving, rows, tags = np.ascontiguousarray(between.T), np.arange(len(scores)), np.arange(len(between))
    ends, shortest = lengths.cpu().numpy()[:, None], int(lengths.min()) if len(lengths) else 0
    best, before = first + scores[:, 0], list[NDArray[np.int64]]()
    for word in range(1, scores.shape[1]):
        sums = best[:, None, :] + arriving
        origin = sums.argmax(2)
        reached = sums[rows[:, None], tags, origin] + scores[:, word]
        if word >= shortest:  # what lies beyond the end stays as it was
            reached = np.where(word < ends, reached, best)
            origin = np.where(word < ends, origin, tags)
        best = reached
        before.append(origin)
    path = [(best + last).argmax(1)]
    for origin in reversed(before):
        path.append(origin[rows, path[-1]])
    sequences = torch.from_numpy(np.stack(path[::-1], 1)).to(emissions.device)
    return sequences.masked_fill(torch.arange(scores.shape[1], device=sequences.device) >= lengths[:, None], 0)


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
    emissions: Float[Tensor, "batch words tags"],
    lengths: Int[Tensor, " batch"],
    steps: Steps,
    begins: Bool[Tensor, "batch words"] | None = None,
) -> Float[Tensor, " batch"]:
    """The logarithm of the sum of exp(score) over all sequences, in at least float32.

    `begins` marks words with which another sentence begins: the one before ends there, and no step crosses its end.
    """
    emissions = at_least_float(emissions)
    message = steps.first + emissions[:, 0]
    for word in range(1, emissions.shape[1]):
        reached = (message[:, :, None] + steps.between).logsumexp(1)
        if begins is not None:
            anew = (message + steps.last).logsumexp(-1, keepdim=True) + steps.first
            reached = torch.where(begins[:, word, None], anew, reached)
        message = torch.where((word < lengths)[:, None], reached + emissions[:, word], message)
    return (message + steps.last).logsumexp(-1)


def sequence_scores(
    emissions: Float[Tensor, "batch words tags"],
    tags: Int[Tensor, "batch words"],
    lengths: Int[Tensor, " batch"],
    steps: Steps,
    begins: Bool[Tensor, "batch words"] | None = None,
) -> Float[Tensor, " batch"]:
    """The score of one sequence of tags for each sample; `tags` in the padding do not matter, but must be tags.

    `begins` as for `log_partition`.
    """
    emissions = at_least_float(emissions)
    real = torch.arange(tags.shape[1], device=tags.device) < lengths[:, None]
    words = emissions.gather(2, tags[:, :, None])[:, :, 0].masked_fill(~real, 0.0).sum(1)
    # gather, for the gradient of an index is slow, and CUDA graphs may not record it
    pairs = tags[:, :-1] * emissions.shape[2] + tags[:, 1:]
    moves = steps.between.flatten().gather(0, pairs.flatten()).view(pairs.shape)
    if begins is not None:
        borders = steps.last.gather(0, tags[:, :-1].flatten()) + steps.first.gather(0, tags[:, 1:].flatten())
        moves = torch.where(begins[:, 1:], borders.view(pairs.shape), moves)
    moves = moves.masked_fill(~real[:, 1:], 0.0).sum(1)
    ends = tags.gather(1, (lengths - 1).clamp(min=0)[:, None])[:, 0]
    return words + moves + steps.first.gather(0, tags[:, 0]) + steps.last.gather(0, ends)


def _bounded(emissions: Tensor) -> Tensor:
    return emissions.nan_to_num(0.0).clamp(-LARGEST_SCORE, LARGEST_SCORE).double().cpu()


def chain_messages(
    scores: Numbers, lengths: NDArray[np.int64], steps: Sequence[Numbers], *, moderate: bool
) -> tuple[Numbers, Numbers]:
    """Forward and backward messages (batch, words, tags): logarithms of sums over all beginnings and over all ends.

    Forward, all beginnings that have a tag at a word; beyond the end those of the last word. Backward, all that may
    follow a tag at a word, the word's own score not included. With `moderate`, all scores are at most
    MODERATE_SCORE. A sum over tags is then a product of matrices of probabilities up to 1: many times as fast as a sum
    of logarithms.
    """
    (first, between, last), ends = steps, lengths[:, None]
    words, shortest = scores.shape[1], int(ends.min()) if len(ends) else 0
    onward, back = (np.exp(between), np.exp(between.T)) if moderate else (between, between.T)
    reach = _multiply if moderate else _add_logarithms
    forward, backward = np.empty_like(scores), np.empty_like(scores)
    forward[:, 0], backward[:, -1] = first + scores[:, 0], last
    with np.errstate(divide="ignore"):  # the logarithm of 0 is −∞
        for word in range(1, words):
            message = reach(forward[:, word - 1], onward) + scores[:, word]
            forward[:, word] = message if word < shortest else np.where(word < ends, message, forward[:, word - 1])
        for word in range(words - 1, 0, -1):
            message = reach(backward[:, word] + scores[:, word], back)
            backward[:, word - 1] = message if word < shortest else np.where(word < ends, message, backward[:, word])
    return forward, backward


def _multiply(message: Numbers, steps: Numbers) -> Numbers:
    """For each tag the logarithm of the sum over all tags before it, whose probabilities are multiplied by `steps`."""
    largest = message.max(1, keepdims=True)
    reached: Numbers = np.log(np.exp(message - largest) @ steps) + largest
    return reached


def _add_logarithms(message: Numbers, steps: Numbers) -> Numbers:
    reached: Numbers = np.logaddexp.reduce(message[:, :, None] + steps, axis=1)
    return reached


class ChainProbabilities:
    """Marginal probabilities of spans of tags, by the forward-backward algorithm.

    In float64: a probability is a difference of sums over all words, which in float32 is wrong by 1e-3 for 2,000 words.
    """

    def __init__(
        self, emissions: Float[Tensor, "batch words tags"], lengths: Int[Tensor, " batch"], steps: Steps
    ) -> None:
        self.emissions = _bounded(emissions).numpy()
        first, self.between, last = (part.double().clamp(min=IMPOSSIBLE).cpu().numpy() for part in steps)
        scores = (first, self.between, last)
        largest = max(float(part.max()) for part in (np.abs(self.emissions), *scores))
        self.forward, self.backward = chain_messages(
            self.emissions, lengths.cpu().numpy(), scores, moderate=largest <= MODERATE_SCORE
        )
        self.total = torch.from_numpy(self.forward[:, -1] + last).logsumexp(-1).numpy()
        self.lengths = lengths.tolist()

    def probability(self, sample: int, begin: int, tags: list[int], continuing: list[int]) -> float:
        """That the words from `begin` have these tags, and that none of `continuing` follows."""
        end = begin + len(tags)
        score = self.forward[sample, begin, tags[0]]
        for word, (tag, following) in enumerate(pairwise(tags), start=begin + 1):
            score = score + self.between[tag, following] + self.emissions[sample, word, following]
        after = self.backward[sample, end - 1, tags[-1]]
        if end < self.lengths[sample] and continuing:
            rest = self.between[tags[-1]] + self.emissions[sample, end] + self.backward[sample, end]
            rest[continuing] = IMPOSSIBLE
            after = torch.from_numpy(rest).logsumexp(0).item()
        return float(min(1.0, max(0.0, float(torch.tensor(score + after - self.total[sample]).exp()))))


class ScoredSpan(NamedTuple):
    """An entity by its words, and how probable it is."""

    span: Span
    probability: float


class TagDecoder:
    """Finds the best legal tag sequence from word scores, and from learned CRF transitions if there are any."""

    def __init__(self, tags: Sequence[str], scheme: str) -> None:
        self.tags, self.scheme = list(tags), scheme
        self.numbers = {tag: number for number, tag in enumerate(tags)}
        self.legality = legal_sequences(tags)

    @torch.no_grad()
    def decode(self, scores: Sequence[Tensor], learned: Steps | None) -> list[list[ScoredSpan]]:
        """The entities of sentences, from scores (words, tags) of each.

        The probability is that of this entity, exactly, among all legal sequences of tags of the sentence.
        """
        steps = Steps.legal(self.legality)
        if learned is not None:
            steps = steps + Steps(*(part.detach().cpu() for part in learned))
        entities: list[list[ScoredSpan]] = [[] for _ in scores]
        at_once = max(1, min(SENTENCES_AT_ONCE, TAG_PAIRS_AT_ONCE // len(self.tags) ** 2))
        for numbers in token_batches([len(words) for words in scores], WORDS_AT_ONCE, at_once):
            numbers = [number for number in numbers if len(scores[number])]
            decoded = self._decode_batch([scores[number] for number in numbers], steps, learned is not None)
            for number, spans in zip(numbers, decoded, strict=True):
                entities[number] = spans
        return entities

    def _decode_batch(self, scores: list[Tensor], steps: Steps, learned: bool) -> list[list[ScoredSpan]]:
        if not scores:
            return []
        lengths = torch.tensor([len(words) for words in scores])
        emissions = torch.nn.utils.rnn.pad_sequence(scores, batch_first=True).float()
        paths = best_sequences(emissions, lengths, steps, learned=learned).tolist()
        spans = [
            read_tags([self.tags[tag] for tag in path[: len(words)]]) for path, words in zip(paths, scores, strict=True)
        ]
        rows = [row for row, entities in enumerate(spans) if entities]
        decoded: list[list[ScoredSpan]] = [[] for _ in spans]
        if rows:
            chain = ChainProbabilities(emissions[rows], lengths[rows], steps)
            for sample, row in enumerate(rows):
                decoded[row] = [ScoredSpan(span, self._probability(chain, sample, span)) for span in spans[row]]
        return decoded

    def _probability(self, chain: ChainProbabilities, sample: int, span: Span) -> float:
        tags = write_tags([Span(0, span.end - span.begin, span.label)], span.end - span.begin, self.scheme)
        numbers = [self.numbers[tag] for tag in tags]
        continuing = [] if self.scheme == "bioes" else [self.numbers[f"I-{span.label}"]]
        return chain.probability(sample, span.begin, numbers, continuing)
