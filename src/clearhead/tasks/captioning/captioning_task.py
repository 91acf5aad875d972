"""The declaration of the task captioning, with its loss and its baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.model import PictureToText
from clearhead.tasks.answerer import Baseline
from clearhead.tasks.captioning.caption_examples import Captions
from clearhead.tasks.captioning.caption_generation import CaptionAnswerer, CaptionTracer
from clearhead.tasks.captioning.caption_processor import CaptionProcessor
from clearhead.tasks.captioning.caption_scores import score_captions
from clearhead.tasks.captioning.caption_settings import CaptionRecipe
from clearhead.tasks.losses import token_loss
from clearhead.tasks.objective import Objective
from clearhead.tasks.task import Task

if TYPE_CHECKING:
    from clearhead.text import Row

PICTURES_AT_ONCE = 256  # that the baseline compares with all training pictures in one product


class CaptionObjective(Objective[CaptionProcessor, CaptionRecipe, PictureToText, Captions]):
    def __init__(self, processor: CaptionProcessor, recipe: CaptionRecipe) -> None:
        super().__init__(processor, recipe)
        self.token_loss = token_loss

    def loss(self, model: PictureToText, batch: Captions) -> Float[Tensor, ""]:
        hidden = model.decode(batch.target, model.encode_pictures(batch.pictures))
        smoothing = self.recipe.loss.label_smoothing if model.training else 0.0
        return self.token_loss(model.vocabulary, hidden, batch.labels, smoothing)

    def compile_loss(self) -> None:
        self.token_loss = torch.compile(token_loss, dynamic=True)


def score_nearest(processor: CaptionProcessor, train: Sequence[Row], rows: Sequence[Row]) -> Baseline:
    """The caption of the training picture with the most similar pixels."""
    trained = [row for row in processor.inputs.load_rows(train) if not processor.row_problem(row)]
    asked = processor.inputs.load_rows(rows)
    pixels = (torch.stack([row.values[0].content for row in part]).flatten(1).float() for part in (trained, asked))
    captions = [str(trained[place].values[1]) for place in find_nearest(*pixels).tolist()]
    scores = score_captions(captions, [str(row.values[1]) for row in asked])
    return Baseline("nearest neighbour by pixels", scores)


def find_nearest(
    trained: Float[Tensor, "trained features"], asked: Float[Tensor, "asked features"]
) -> Int[Tensor, " asked"]:
    """The row of `trained` with the smallest Euclidean distance to each row of `asked`; of equals the first.

    >>> find_nearest(torch.tensor([[0.0, 1.0], [5.0, 5.0]]), torch.tensor([[4.0, 4.0], [0.0, 0.0]]))
    tensor([1, 0])
    """
    squares = trained.square().sum(1)
    return torch.cat([(squares - 2 * part @ trained.T).argmin(1) for part in asked.split(PICTURES_AT_ONCE)])


TASK = Task(
    name="captioning",
    recipe=CaptionRecipe,
    processor=CaptionProcessor,
    objective=CaptionObjective,
    answerer=CaptionAnswerer,
    tracer=CaptionTracer,
    metrics=("bleu", "chrf", "exact"),
    input_kind="picture",
    baseline=score_nearest,
)
