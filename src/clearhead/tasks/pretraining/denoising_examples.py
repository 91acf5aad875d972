"""Texts for denoising: spans of words are masked and sentences shuffled anew for each epoch, on the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from clearhead.tasks.losses import UNCOUNTED
from clearhead.tasks.pretraining.document_windows import BEGINS, INSIDE, SPECIAL, TextWindow, find_sentences
from clearhead.tasks.pretraining.masked_examples import make_generator
from clearhead.tasks.processor import Examples
from clearhead.tasks.sequence_to_sequence.pairs import Pairs
from clearhead.text.batches import Batch, Ragged

if TYPE_CHECKING:
    from clearhead.tasks.pretraining.pretraining_settings import Masking
    from clearhead.text import Row, Tokenizer

LAST = 0.9  # the sort key of a row's end token; those of sentences are below 0.5


def choose_spans(
    roles: Int[Tensor, " tokens"], share: float, span: float, generator: torch.Generator
) -> Bool[Tensor, " tokens"]:
    """Chooses random spans of whole words: about this share of all words, in spans of `span` words on average.

    Every row ends with a token of the role SPECIAL, which is never chosen and ends the spans before it.
    """
    words = (roles != INSIDE).cumsum(0) - 1  # of each token
    firsts = roles[roles != INSIDE]
    place, ordinary = torch.arange(len(firsts), device=roles.device), firsts == BEGINS
    chance = torch.rand(2, len(firsts), generator=generator, device=roles.device, dtype=torch.float64)
    begins = (chance[0] < -math.log(1 - share) / span) & ordinary
    # Lengths are geometric: a span goes on after each word with the probability 1 − 1/span.
    lengths = 1 + (chance[1].log() / math.log(1 - 1 / span)).floor() if span > 1 else torch.ones_like(chance[1])
    row_end = torch.where(ordinary, len(firsts), place).flip(0).cummin(0).values.flip(0)
    ends = torch.where(begins, (place + lengths).long().minimum(row_end), 0)
    return ((ends.cummax(0).values > place) & ordinary)[words]


class DenoisingExamples(Examples[Pairs]):
    """Windows of documents as targets; `draw` makes a noisy source of each."""

    def __init__(
        self, windows: Sequence[TextWindow], rows: list[Row], tokenizer: Tokenizer, masking: Masking, seed: int
    ) -> None:
        start, end = tokenizer.start, tokenizer.end
        self.texts = Ragged([[*one.tokens, end] for one in windows])
        self.roles = Ragged([[*one.roles, SPECIAL] for one in windows])
        self.sentences = Ragged([[*flags, 1] for flags in find_sentences(windows, tokenizer)])
        self.target = Ragged([[start, *one.tokens, end] for one in windows])
        self.rows, self.origins = rows, [one.row for one in windows]
        self.pad, self.masking, self.seed, self.epoch = tokenizer.pad, masking, seed, 0
        self.mask = tokenizer.pad if tokenizer.mask is None else tokenizer.mask
        self.counts = self.target.lengths.numpy() - 1  # every word but the start is predicted
        self.lengths = np.stack([self.texts.lengths.numpy(), self.counts], axis=1)
        self.draw(0)

    def draw(self, epoch: int) -> None:
        """Makes the noisy sources of all texts, which depend on the seed and the epoch alone.

        Each span of chosen words becomes one mask token; then the sentences of each text are shuffled.
        """
        tokens, roles, lengths = self.texts.flat[:-1], self.roles.flat[:-1], self.texts.lengths
        generator = make_generator(tokens.device, self.seed, epoch)
        row = torch.arange(len(lengths), device=tokens.device).repeat_interleave(lengths)
        chosen = choose_spans(roles, self.masking.share, self.masking.span, generator)
        first = chosen.clone()  # tokens of the spans
        first[1:] &= ~chosen[:-1]
        kept = ~chosen | first
        source, row_kept = tokens.masked_fill(first, self.mask)[kept], row[kept]
        if self.masking.shuffle:
            sentence = self.sentences.flat[:-1].cumsum(0) - 1
            count = int(sentence[-1]) + 1
            keys = torch.rand(count, generator=generator, device=tokens.device, dtype=torch.float64) / 2
            key = torch.where(roles == SPECIAL, LAST, keys[sentence])
            source = source[(row_kept + key[kept]).sort(stable=True).indices]
        left = torch.zeros_like(lengths).index_add_(0, row_kept, torch.ones_like(row_kept))
        self.source, self.epoch = Ragged.from_flat(source, left), epoch

    def to(self, device: torch.device) -> DenoisingExamples:
        for part in (self.texts, self.roles, self.sentences, self.target, self.source):
            part.to(device)
        return self

    def collate(self, batch: Batch) -> Pairs:
        rows = torch.from_numpy(batch.examples).to(self.texts.flat.device, non_blocking=True)
        source, lengths = self.source.pad(rows, batch.sizes[0], self.pad)
        target, _ = self.target.pad(rows, batch.sizes[1] + 1, UNCOUNTED)
        read, written = target[:, :-1], target[:, 1:]
        return Pairs(source, lengths, read.masked_fill(read == UNCOUNTED, self.pad), written.contiguous())

    def where(self, example: int) -> str:
        return self.rows[self.origins[example]].where

    def fingerprint(self) -> str:
        return f"{self.texts.fingerprint()} {self.roles.fingerprint()}"

    def state(self) -> dict[str, Tensor]:
        return {"epoch": torch.tensor(self.epoch)}

    def restore(self, state: dict[str, Tensor]) -> None:
        self.draw(int(state["epoch"]))
