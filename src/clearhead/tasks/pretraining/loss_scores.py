"""Loss and perplexity of a model on texts, for tasks that are judged by nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from clearhead.tasks.base import AnyTask, Examples, Scores
from clearhead.tasks.finite_scores import check_finite
from clearhead.text.batches import BatchPlan

if TYPE_CHECKING:
    from clearhead.text import Row

TOKENS = 8192  # of a batch, pads included
MOST = 700.0  # the largest loss whose perplexity is a float


@torch.no_grad()
def measure_loss(task: AnyTask, model: nn.Module, rows: Sequence[Row]) -> tuple[Examples[Any], Scores]:
    """The examples that a task makes of these rows, and the model's mean loss on them with its perplexity.

    The model computes in evaluation mode. A `note` says which rows were left out, if any were.
    """
    from clearhead.text import Report

    report = Report()
    device = next(model.parameters()).device
    examples = task.examples(rows, report).to(device)
    training = model.training
    model.eval()
    plan = BatchPlan(examples.lengths, tokens=TOKENS, seed=0)
    total = sum(float(task.loss(model, examples.collate(batch))) for batch in plan.epoch(0))
    model.train(training)
    loss = total / int(examples.counts.sum())
    check_finite(torch.tensor(loss))
    scores: Scores = {"loss": round(loss, 4), "perplexity": round(math.exp(min(loss, MOST)), 2)}
    return examples, {**scores, "note": str(report)} if report.dropped else scores
