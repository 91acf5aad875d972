"""The loss of tagging: of whole sequences by a CRF, or of single words, and of hidden pieces beside it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead.tasks.losses import UNCOUNTED, masked_token_loss
from clearhead.tasks.objective import SMALL_CORPUS, Objective
from clearhead.tasks.tagging.linear_chain import IMPOSSIBLE, Steps, log_partition, sequence_scores
from clearhead.tasks.tagging.tagger import Tagger
from clearhead.tasks.tagging.tagging_processor import TaggedWords, TaggingProcessor, TaggingRecipe


class TaggingObjective(Objective[TaggingProcessor, TaggingRecipe, Tagger, TaggedWords]):
    def __init__(self, processor: TaggingProcessor, recipe: TaggingRecipe) -> None:
        super().__init__(processor, recipe)
        self._legal: Steps | None = None  # on the device of the loss: CUDA graphs record no copies to it

    @classmethod
    def fit(cls, rows: int, *, gpu: bool) -> dict[str, dict[str, Any]]:
        sections = super().fit(rows, gpu=gpu)
        if "train" not in sections:  # a large model on a GPU
            return sections
        sections["model"] |= {"positions": "rotary", "scale_embeddings": False, "dropout": 0.3}
        steps = 1000 if rows < SMALL_CORPUS else 4000
        sections["train"] |= {"learning_rate": 2e-3, "warmup": 100, "schedule": "linear"}
        sections["train"] |= {"steps": steps, "evaluate_every": steps // 10}
        return sections

    def loss(self, model: Tagger, batch: TaggedWords) -> Float[Tensor, ""]:
        share = self.recipe.text.unknown if model.training else 0.0
        tokens = batch.tokens
        if share:
            hidden_pieces = draw_hidden(batch, share)
            tokens = tokens.masked_fill(hidden_pieces, self.processor.encoder.unknown_piece)
        hidden = model.encode(tokens, batch.lengths, batch.cases)
        loss = self._tag_loss(model, model.word_scores(hidden, batch.words), batch)
        if share and self.recipe.loss.masked:
            guesses = masked_token_loss(model.vocabulary, model.dropout(hidden), batch.tokens, hidden_pieces)
            loss = loss + self.recipe.loss.masked * batch.word_lengths.sum() * guesses
        return loss

    def _tag_loss(
        self, model: Tagger, scores: Float[Tensor, "batch words tags"], batch: TaggedWords
    ) -> Float[Tensor, ""]:
        learned = model.steps()
        if learned is not None:
            if self._legal is None or self._legal.first.device != scores.device:
                self._legal = Steps.legal(self.processor.decoder.legality, IMPOSSIBLE).to(scores.device)
            steps = learned + self._legal
            right = sequence_scores(scores, batch.tags.clamp(min=0), batch.word_lengths, steps)
            return (log_partition(scores, batch.word_lengths, steps) - right).sum()
        return F.cross_entropy(
            scores.flatten(0, 1),
            batch.tags.flatten(),
            ignore_index=UNCOUNTED,
            reduction="sum",
            label_smoothing=self.recipe.loss.label_smoothing if model.training else 0.0,
        )


def draw_hidden(batch: TaggedWords, share: float) -> Bool[Tensor, "batch tokens"]:
    """Which pieces are read as unknown: a random share of all but start and end."""
    tokens = batch.tokens
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    inner = (positions > 0) & (positions < batch.lengths[:, None] - 1)
    return inner & (torch.rand(tokens.shape, device=tokens.device) < share)
