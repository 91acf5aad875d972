"""Loss and perplexity of a model on texts, for tasks that are judged by nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from clearhead.tasks.answerer import Scores
from clearhead.tasks.losses import check_finite
from clearhead.tasks.processor import AnyProcessor, Examples
from clearhead.text.batches import BatchPlan

if TYPE_CHECKING:
    from clearhead.text import Row

TOKENS = 8192  # of a batch, pads included
LARGEST_LOSS = 700.0  # whose perplexity is a float


@torch.no_grad()
def measure_loss(
    processor: AnyProcessor, model: nn.Module, loss: Callable[[Any, Any], Tensor], rows: Sequence[Row]
) -> tuple[Examples[Any], Scores]:
    """The examples of these rows, and the model's mean loss on them with its perplexity.

    A `note` says which rows were left out, if any were.
    """
    from clearhead.text import Report

    report = Report()
    examples = processor.examples(rows, report).to(next(model.parameters()).device)
    plan = BatchPlan(examples.lengths, tokens=TOKENS, seed=0)
    total = sum(float(loss(model, examples.collate(batch))) for batch in plan.epoch(0))
    mean = total / int(examples.counts.sum())
    check_finite(torch.tensor(mean))
    scores: Scores = {"loss": round(mean, 4), "perplexity": round(math.exp(min(mean, LARGEST_LOSS)), 2)}
    return examples, {**scores, "note": str(report)} if report.dropped else scores
