"""DevEvaluator: the loss and the scores on the development data during training."""

from __future__ import annotations

import torch

from clearhead.tasks.answerer import Evaluation
from clearhead.text.batches import BatchPlan
from clearhead.train.data import TrainingData
from clearhead.train.observers import Sample
from clearhead.train.parallel import unshard_weights
from clearhead.train.processes import Processes
from clearhead.train.updater import Updater

SAMPLES = 3  # answers that are shown at each evaluation


class DevEvaluator:
    """Evaluates the averaged weights of an `Updater` on the development data."""

    def __init__(self, data: TrainingData, updater: Updater, processes: Processes) -> None:
        assert data.dev is not None
        self.data, self.examples, self.updater, self.processes = data, data.dev, updater, processes

    @torch.no_grad()
    def evaluate(self) -> tuple[float, Evaluation]:
        """The loss over all examples, and the scores over the first rows, with the objective's quick options."""
        examples, updater, train = self.examples.to(self.processes.device), self.updater, self.data.recipe.train
        plan = BatchPlan(examples.lengths, tokens=4 * train.batch_tokens, seed=0, shapes=train.shapes)
        total = 0.0
        # Eager: layers are compiled for training; dev would compile them again, and decoding at every length.
        with updater.use_average(), updater.autocast(), torch.compiler.set_stance("force_eager"):
            updater.model.eval()
            for batch, weight in updater.share_window(plan.epoch(0)):
                total += float(updater.compute_loss(examples.collate(batch)) * weight)
            with unshard_weights(updater.model):
                answerer = self.data.task.answerer(self.data.processor, updater.model)
                found = self.data.objective.evaluate(answerer, self.data.dev_rows[: train.evaluate_lines])
            updater.model.train()
        return self.processes.sum(total)[0] / int(examples.counts.sum()), found

    def pick_samples(self, found: Evaluation) -> list[Sample]:
        """The first few rows with the model's answers."""
        processor = self.data.processor
        return [
            Sample(processor.inputs.show_row(row), prediction.text, processor.answer_of(row))
            for row, prediction in zip(found.rows[:SAMPLES], found.predictions, strict=False)
        ]
