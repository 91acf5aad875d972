"""The loop's arithmetic: cutting a batch into several, or sharing it out, changes nothing but roundings."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from clearhead.errors import TrainingError
from clearhead.tasks import Translation
from clearhead.text import Report, Row
from clearhead.text.batches import Batch
from clearhead.train.checkpoints import Checkpoints
from clearhead.train.loop import Trainer
from clearhead.train.observers import Moment, Observer
from clearhead.train.processes import Processes
from clearhead.train.recipe import Text, Train
from tests.train.corpus import sentences

ALONE = Processes(0, 1, torch.device("cpu"))
SHAPE = {"shape": "tiny", "width": 16, "heads": 2, "feedforward": 32, "layers": 1}


def trainer(folder: Path, *, dropout: float = 0.0, dev: bool = False, observers=(), **train) -> Trainer:
    rows = [Row(pair, "train.tsv", line) for line, pair in enumerate(sentences(53), start=1)]
    text = Text(tokenizer="character", vocabulary=300, shared=False)
    task = Translation.prepared(rows, text, {**SHAPE, "dropout": dropout}, {})
    examples = task.examples(rows, Report())
    settings = Train(**{"batch_tokens": 160, "shapes": 3, "warmup": 2, "learning_rate": 0.01, **train})
    torch.manual_seed(5)
    checkpoints = Checkpoints(folder / "checkpoints", settings.keep, ALONE)
    held = (task.examples(rows[:7], Report()), rows[:7]) if dev else None
    return Trainer(settings, task, task.build(), examples, held, checkpoints, ALONE, observers, seed=5)


def weights(run: Trainer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in run.parameters.values()])


@pytest.mark.parametrize("parts", [4, 3])  # 53 sentences in 3 windows of 4 and a shorter one, or unequal parts
def test_accumulated_batches_equal_one_big_batch(tmp_path, parts):
    whole, cut = (trainer(tmp_path, precision="float64") for _ in range(2))
    chance = np.random.default_rng(1)
    for step in range(1, 5):
        chosen = chance.permutation(53)[: 53 - 5 * step]
        sizes = tuple(int(size) for size in whole.examples.lengths[chosen].max(0))
        together, _ = whole.update([Batch(chosen, sizes)], step)
        shared, _ = cut.update([Batch(part, sizes) for part in np.array_split(chosen, parts)], step)
        assert abs(float(together - shared)) <= 1e-10 * float(together)
    assert (weights(whole) - weights(cut)).abs().max() < 1e-10


def test_pads_change_nothing(tmp_path):
    tight, loose = (trainer(tmp_path, precision="float64") for _ in range(2))
    chosen = np.arange(11)
    longest = tight.examples.lengths[chosen].max(0)
    tight.update([Batch(chosen, (int(longest[0]), int(longest[1])))], 1)
    loose.update([Batch(chosen, (int(longest[0]) + 5, int(longest[1]) + 3))], 1)
    assert (weights(tight) - weights(loose)).abs().max() < 1e-10


def test_the_last_window_of_an_epoch_may_be_short(tmp_path):
    run = trainer(tmp_path, accumulate=4, steps=50)
    assert run.plan.batches % 4, "else this tests nothing"
    assert run.windows == math.ceil(run.plan.batches / 4)
    seen = []
    run.update = lambda window, step: seen.append(window) or (torch.tensor(1.0), torch.tensor(1.0))
    run.train = run.train.model_copy(update={"steps": run.windows, "evaluate_every": 1000})
    run.save = lambda: None
    run.run()
    assert sorted(np.concatenate([batch.examples for window in seen for batch in window]).tolist()) == list(range(53))
    assert len(seen[-1]) == run.plan.batches % 4


def test_gradient_checkpointing_changes_no_number(tmp_path):
    plain, again = trainer(tmp_path, dropout=0.2), trainer(tmp_path, dropout=0.2, checkpointing=True)
    for step, batch in enumerate(plain.plan.epoch(0)[:3], start=1):
        plain.update([batch], step)
        again.update([batch], step)
    assert torch.equal(weights(plain), weights(again))


def test_a_loss_that_is_not_a_number_stops_the_run_and_names_its_lines(tmp_path):
    run = trainer(tmp_path, steps=9, evaluate_every=100)
    spoil = run.task.token_loss
    run.task.token_loss = lambda *given: spoil(*given) * (math.nan if run.position.step == 3 else 1.0)
    with pytest.raises(TrainingError, match=r"loss became nan .* lines: train\.tsv:\d+, train\.tsv:\d+"):
        run.run()
    assert run.position.step == 4
    assert not run.checkpoints.steps()


def test_a_moving_average_is_what_is_evaluated_and_kept(tmp_path):
    run = trainer(tmp_path, average="ema", decay=0.5, steps=3)
    first = weights(run)
    run.update([run.plan.epoch(0)[0]], 1)
    newest = weights(run)
    share = 1 - (1 + 1) / (10 + 1)
    with run.averaged():
        torch.testing.assert_close(weights(run), first + share * (newest - first))
    assert torch.equal(weights(run), newest)


def test_patience_ends_a_run_that_gets_no_better(tmp_path):
    run = trainer(tmp_path, dev=True, steps=100, evaluate_every=2, patience=2, keep=1)
    scores = iter([1.0, 3.0, 2.0, 3.0, 9.0])
    run.evaluate = lambda: {"bleu": next(scores), "loss": 1.0}
    position = run.run()
    assert (position.stopped, position.step, position.best_step) == ("patience", 8, 4)
    assert run.checkpoints.steps() == [4, 8], "the best stays, and the newest"


def test_the_smallest_loss_is_the_best(tmp_path):
    run = trainer(tmp_path, dev=True, steps=6, evaluate_every=2, metric="loss")
    scores = iter([3.0, 1.0, 2.0])
    run.evaluate = lambda: {"bleu": 0.0, "loss": next(scores)}
    assert run.run().best_step == 4


def test_time_ends_a_run_and_its_schedule(tmp_path):
    run = trainer(tmp_path, steps=100_000, minutes=0.02, schedule="linear", evaluate_every=100_000, log_every=1)
    rates = []

    class Rates(Observer):
        def logged(self, moment: Moment) -> None:
            rates.append(moment.metrics["learning_rate"])

    run.observers = [Rates()]
    assert run.run().stopped == "time"
    assert rates[-1] < 0.2 * max(rates)


def test_training_learns(tmp_path):
    run = trainer(tmp_path, steps=150, evaluate_every=1000, log_every=10, learning_rate=0.02, label_smoothing=0.0)
    losses = []

    class Losses(Observer):
        def logged(self, moment: Moment) -> None:
            losses.append(moment.metrics["loss"])

    run.observers = [Losses()]
    run.run()
    assert losses[-1] < 0.35 * losses[0]


def test_a_run_goes_on_from_a_checkpoint_as_if_nothing_had_happened(tmp_path):
    straight = trainer(tmp_path / "a", dropout=0.3, steps=9, evaluate_every=100, average="ema")
    straight.run()
    first = trainer(tmp_path / "b", dropout=0.3, steps=4, evaluate_every=100, average="ema")
    first.run()
    second = trainer(tmp_path / "b", dropout=0.3, steps=9, evaluate_every=100, average="ema")
    second.resume(4)
    second.run()
    assert torch.equal(weights(straight), weights(second))
    for name, tensor in straight.average.items():
        assert torch.equal(tensor, second.average[name])
    assert replace(straight.position, seconds=0.0) == replace(second.position, seconds=0.0)
