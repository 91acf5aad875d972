"""The loss of tasks from text to text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention import Mask
from clearhead.model import EncoderDecoder, PointerGenerator
from clearhead.model.pointer_generator import pointer_loss
from clearhead.tasks.losses import token_loss
from clearhead.tasks.objective import Objective
from clearhead.tasks.sequence_to_sequence.pair_processor import PairProcessor, PairRecipeT, Pairs

PairProcessorT = TypeVar("PairProcessorT", bound=PairProcessor[Any])


class PairObjective(Objective[PairProcessorT, PairRecipeT, EncoderDecoder, Pairs]):
    def __init__(self, processor: PairProcessorT, recipe: PairRecipeT) -> None:
        super().__init__(processor, recipe)
        self.token_loss, self.pointer_loss = token_loss, pointer_loss

    @property
    def label_smoothing(self) -> float:
        return self.recipe.loss.label_smoothing

    def loss(self, model: EncoderDecoder, batch: Pairs) -> Float[Tensor, ""]:
        # The target needs no mask of its own: its pads come last, so causality hides them from every word.
        mask, smoothing = Mask.padding(batch.lengths), self.label_smoothing if model.training else 0.0
        if isinstance(model, PointerGenerator):
            context = model.encode(batch.source, mask)
            hidden = model.decode(batch.target, context, context_mask=mask)
            read = batch.source, batch.target
            return self.pointer_loss(model, hidden, context, *read, mask, batch.labels, smoothing)
        hidden = model(batch.source, batch.target, mask)
        return self.token_loss(model.vocabulary, hidden, batch.labels, smoothing)

    def compile_loss(self) -> None:
        self.token_loss = torch.compile(token_loss, dynamic=True)
        self.pointer_loss = torch.compile(pointer_loss, dynamic=True)

    @property
    def quick_options(self) -> Mapping[str, Any]:
        return {"beams": 1}
