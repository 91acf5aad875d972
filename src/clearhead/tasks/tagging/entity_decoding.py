"""From scores of words to entities: the best legal sequence of tags, and the probability of each entity in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.tasks.tagging.linear_chain import ChainProbabilities, Steps, best_sequences
from clearhead.tasks.tagging.schemes import Span, legal_sequences, read_tags, write_tags
from clearhead.text.batches import token_batches

AT_ONCE, WORDS = 256, 2**15  # sentences, and words with padding, that are decoded together


class ScoredSpan(NamedTuple):
    """An entity by its words, and how probable it is."""

    span: Span
    probability: float


class Decoder:
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
        found: list[list[ScoredSpan]] = [[] for _ in scores]
        counts = [len(one) for one in scores]
        for places in token_batches(counts, WORDS, AT_ONCE):
            places = [place for place in places if counts[place]]
            if places:
                self._decode_batch([scores[place] for place in places], places, steps, found, learned is not None)
        return found

    def _decode_batch(
        self,
        scores: list[Tensor],
        places: list[int],
        steps: Steps,
        found: list[list[ScoredSpan]],
        learned: bool,
    ) -> None:
        lengths = torch.tensor([len(one) for one in scores])
        emissions = torch.nn.utils.rnn.pad_sequence(scores, batch_first=True).float()
        paths = best_sequences(emissions, lengths, steps, learned=learned).tolist()
        spans = [
            read_tags([self.tags[tag] for tag in path[: len(one)]]) for path, one in zip(paths, scores, strict=True)
        ]
        rows = [row for row, some in enumerate(spans) if some]
        if not rows:
            return
        chain = ChainProbabilities(emissions[rows], lengths[rows], steps)
        for sample, row in enumerate(rows):
            found[places[row]] = [ScoredSpan(span, self._probability(chain, sample, span)) for span in spans[row]]

    def _probability(self, chain: ChainProbabilities, sample: int, span: Span) -> float:
        tags = write_tags([Span(0, span.end - span.begin, span.label)], span.end - span.begin, self.scheme)
        numbers = [self.numbers[tag] for tag in tags]
        continuing = [] if self.scheme == "bioes" else [self.numbers[f"I-{span.label}"]]
        return chain.probability(sample, span.begin, numbers, continuing)
