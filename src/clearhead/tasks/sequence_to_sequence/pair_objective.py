"""The loss of tasks from text to text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention import Mask
from clearhead.model import EncoderDecoder, PointerGenerator
from clearhead.model.pointer_generator import pointer_loss
from clearhead.tasks.losses import token_loss
from clearhead.tasks.objective import Objective
from clearhead.tasks.processor import RecipeT
from clearhead.tasks.sequence_to_sequence.pair_processor import PairRecipeT, Pairs, TextToTextProcessor

ProcessorT = TypeVar("ProcessorT", bound=TextToTextProcessor[Any])


def pair_loss(
    model: EncoderDecoder,
    batch: Pairs,
    smoothing: float = 0.0,
    token_loss: Callable[..., Tensor] = token_loss,
    pointer_loss: Callable[..., Tensor] = pointer_loss,
) -> Float[Tensor, ""]:
    """The cross-entropy of the target's words, summed; the losses may be compiled ones."""
    # The target needs no mask of its own: its pads come last, so causality hides them from every word.
    mask = Mask.padding(batch.lengths)
    if isinstance(model, PointerGenerator):
        context = model.encode(batch.source, mask)
        hidden = model.decode(batch.target, context, context_mask=mask)
        return pointer_loss(model, hidden, context, batch.source, batch.target, mask, batch.labels, smoothing)
    return token_loss(model.vocabulary, model(batch.source, batch.target, mask), batch.labels, smoothing)


class TextToTextObjective(Objective[ProcessorT, RecipeT, EncoderDecoder, Pairs]):
    label_smoothing: float = 0.0

    def __init__(self, processor: ProcessorT, recipe: RecipeT) -> None:
        super().__init__(processor, recipe)
        self.token_loss, self.pointer_loss = token_loss, pointer_loss

    def loss(self, model: EncoderDecoder, batch: Pairs) -> Float[Tensor, ""]:
        smoothing = self.label_smoothing if model.training else 0.0
        both: tuple[Callable[..., Tensor], ...] = self.token_loss, self.pointer_loss
        return pair_loss(model, batch, smoothing, *both)

    def compile_loss(self) -> None:
        self.token_loss = torch.compile(token_loss, dynamic=True)
        self.pointer_loss = torch.compile(pointer_loss, dynamic=True)

    @property
    def quick_options(self) -> Mapping[str, Any]:
        return {"beams": 1}


class PairObjective(TextToTextObjective[ProcessorT, PairRecipeT]):
    """The objective of translation and summaries, whose recipes have a `[loss]`."""

    def __init__(self, processor: ProcessorT, recipe: PairRecipeT) -> None:
        super().__init__(processor, recipe)
        self.label_smoothing = recipe.loss.label_smoothing
