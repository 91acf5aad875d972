"""Objective: what a task does in training only: its loss, and what is fitted with the finished weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.tasks.losses import token_loss
from clearhead.tasks.processor import BatchT, Examples, Processor, RecipeT, RedrawnExamples
from clearhead.text import Row

ProcessorT = TypeVar("ProcessorT", bound=Processor[Any, Any])
ModelT = TypeVar("ModelT", bound=nn.Module)


class Objective(ABC, Generic[ProcessorT, RecipeT, ModelT, BatchT]):
    """Base class of objectives, generic in the types of the processor, the recipe, the model and its batch."""

    # Whether the loss of a batch is the sum of the losses of its parts. If not (negatives from the same batch),
    # processes take whole batches instead of sharing each.
    splits_batches: bool = True
    # Whether all batches of a run have (nearly) the same shape: then they are compiled for it, not for any.
    fixed_shapes: ClassVar[bool] = False

    def __init__(self, processor: ProcessorT, recipe: RecipeT) -> None:
        self.processor, self.recipe = processor, recipe
        self.token_loss: Callable[..., Tensor] = token_loss

    @abstractmethod
    def loss(self, model: ModelT, batch: BatchT) -> Float[Tensor, ""]:
        """The sum of the losses of all predictions in a batch, as one number.

        Smoothing and the like only while `model.training`: dev is judged by the plain loss.
        """

    def compile_loss(self) -> None:
        """Compiles the parts of the loss outside the layers."""
        self.token_loss = torch.compile(token_loss, dynamic=not self.fixed_shapes)

    def refresh(self, model: ModelT, examples: Examples[BatchT], epoch: int) -> None:
        """Changes the training examples at the beginning of an epoch, such as negatives mined with these weights.

        The model is in evaluation mode. What changes must be in the examples' `state`, so that runs resume exactly.
        """
        if isinstance(examples, RedrawnExamples):
            examples.draw(epoch)

    @property
    def quick_options(self) -> Mapping[str, Any]:
        """Options of the evaluations during training, where speed matters more than the last tenth of a score."""
        return MappingProxyType({})

    def calibrate(
        self, model: ModelT, train: Sequence[Row], dev: Sequence[Row], unlabelled: Sequence[Row] = ()
    ) -> str | None:
        """Fits what the processor stores but training does not learn: temperatures, thresholds, an index.

        Called once with the finished weights, before the model is scored and saved. `dev` may be empty; `unlabelled`
        rows have no answers. Returns what the user should know about it, if anything.
        """
        return None

    def carry_over(self, model: ModelT, folder: Path) -> str | None:
        """Takes over what actions changed in the model folder that a resumed run replaces; a message if they did.

        Called after the finished model was scored, before it is saved.
        """
        return None


AnyObjective = Objective[Any, Any, Any, Any]
