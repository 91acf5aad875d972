"""DevEvaluator: the loss and the scores on the development data during training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from clearhead.tasks.base import Evaluation, Examples
from clearhead.text import Row
from clearhead.text.batches import BatchPlan
from clearhead.train.observers import Sample
from clearhead.train.parallel import unshard_weights
from clearhead.train.processes import Processes
from clearhead.train.recipe import Train
from clearhead.train.updater import Updater

SAMPLES = 3  # answers that are shown at each evaluation


class DevEvaluator:
    """Evaluates the averaged weights of an `Updater` on the development data."""

    def __init__(
        self, train: Train, updater: Updater, examples: Examples[Any], rows: Sequence[Row], processes: Processes
    ) -> None:
        self.train, self.updater, self.processes = train, updater, processes
        self.examples, self.rows = examples, rows

    @torch.no_grad()
    def evaluate(self) -> tuple[float, Evaluation]:
        """The loss over all examples, and the scores over the first rows, with the task's quick options."""
        examples, updater, task = self.examples.to(self.processes.device), self.updater, self.updater.task
        plan = BatchPlan(examples.lengths, tokens=4 * self.train.batch_tokens, seed=0, shapes=self.train.shapes)
        total = 0.0
        # Eager: layers are compiled for training; dev would compile them again, and decoding at every length.
        with updater.use_average(), updater.autocast(), torch.compiler.set_stance("force_eager"):
            updater.model.eval()
            for batch, weight in updater.share_window(plan.epoch(0)):
                total += float(updater.compute_loss(examples.collate(batch)) * weight)
            with unshard_weights(updater.model):
                rows = self.rows[: self.train.evaluate_lines]
                found = task.evaluate(updater.model, rows, task.quick_options())
            updater.model.train()
        return self.processes.sum(total)[0] / int(examples.counts.sum()), found

    def pick_samples(self, found: Evaluation) -> list[Sample]:
        """The first few rows with the model's answers."""
        task = self.updater.task
        return [
            Sample(task.show_input(row), prediction.text, task.answer_of(row))
            for row, prediction in zip(found.rows[:SAMPLES], found.predictions, strict=False)
        ]
