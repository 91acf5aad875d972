"""The loop's arithmetic: cutting a batch into several, or sharing it out, changes nothing but roundings."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from clearhead.errors import ConfigError, TrainingError
from clearhead.tasks.answerer import Evaluation
from clearhead.tasks.sequence_to_sequence.text_to_text import PairObjective
from clearhead.text import Report, Row
from clearhead.text.batches import Batch
from clearhead.train import loop, updater
from clearhead.train.data import TrainingData
from clearhead.train.loop import Trainer
from clearhead.train.observers import Moment, Observer
from clearhead.train.processes import Processes
from clearhead.train.recipe import check_recipe
from clearhead.train.run_folder import Checkpoints
from tests.train.corpus import sentences

ALONE = Processes(0, 1, torch.device("cpu"))
SHAPE = {"shape": "tiny", "width": 16, "heads": 2, "feedforward": 32, "layers": 1}


def trainer(
    folder: Path, *, dropout: float = 0.0, smoothing: float = 0.1, dev: bool = False, processes=None, seed=5, **train
) -> Trainer:
    rows = [Row(pair, "train.tsv", line) for line, pair in enumerate(sentences(53), start=1)]
    text = {"tokenizer": "character", "vocabulary": 300, "shared": False}
    values = {"task": "translation", "data": {"train": "train.tsv"}, "text": text}
    values |= {"model": {**SHAPE, "dropout": dropout}, "loss": {"label_smoothing": smoothing}, "seed": seed}
    values["train"] = {"batch_tokens": 160, "shapes": 3, "warmup": 2, "learning_rate": 0.01, **train}
    recipe = check_recipe(values, "test")
    processor = recipe.kind.processor.prepare(rows, recipe)
    torch.manual_seed(5)
    model, checkpoints = processor.build(), Checkpoints(folder / "checkpoints", recipe.train.keep, ALONE)
    held = processor.examples(rows[:7], Report()) if dev else None
    objective = recipe.kind.objective(processor, recipe)
    data = TrainingData(recipe, recipe.kind, objective, processor.examples(rows, Report()), held)
    return Trainer(data, model, checkpoints, processes or ALONE)


def scored(loss: float, **scores: float) -> tuple[float, Evaluation]:
    """What an evaluation on dev gives."""
    return loss, Evaluation(scores, [], [])


def weights(run: Trainer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in run.updater.parameters.values()])


@pytest.mark.parametrize("parts", [4, 3])  # 53 sentences in 3 windows of 4 and a shorter one, or unequal parts
def test_accumulated_batches_equal_one_big_batch(tmp_path, parts):
    whole, cut = (trainer(tmp_path, precision="float64") for _ in range(2))
    chance = np.random.default_rng(1)
    for step in range(1, 5):
        chosen = chance.permutation(53)[: 53 - 5 * step]
        sizes = tuple(int(size) for size in whole.examples.lengths[chosen].max(0))
        together, _ = whole.updater.update([Batch(chosen, sizes)], step)
        shared, _ = cut.updater.update([Batch(part, sizes) for part in np.array_split(chosen, parts)], step)
        assert abs(float(together - shared)) <= 1e-10 * float(together)
    assert (weights(whole) - weights(cut)).abs().max() < 1e-10


def test_pads_change_nothing(tmp_path):
    tight, loose = (trainer(tmp_path, precision="float64") for _ in range(2))
    chosen = np.arange(11)
    longest = tight.examples.lengths[chosen].max(0)
    tight.updater.update([Batch(chosen, (int(longest[0]), int(longest[1])))], 1)
    loose.updater.update([Batch(chosen, (int(longest[0]) + 5, int(longest[1]) + 3))], 1)
    assert (weights(tight) - weights(loose)).abs().max() < 1e-10


def test_the_last_window_of_an_epoch_may_be_short(tmp_path):
    run = trainer(tmp_path, accumulate=4, steps=50)
    assert run.plan.batches % 4, "else this tests nothing"
    assert run.steps_per_epoch == math.ceil(run.plan.batches / 4)
    seen = []
    run.updater.update = lambda window, step: seen.append(window) or (torch.tensor(1.0), torch.tensor(1.0))
    run.train = run.train.model_copy(update={"steps": run.steps_per_epoch, "evaluate_every": 1000})
    run.save = lambda: None
    run.run()
    assert sorted(np.concatenate([batch.examples for window in seen for batch in window]).tolist()) == list(range(53))
    assert len(seen[-1]) == run.plan.batches % 4


def test_gradient_checkpointing_changes_no_number(tmp_path):
    plain, again = trainer(tmp_path, dropout=0.2), trainer(tmp_path, dropout=0.2, checkpointing=True)
    for step, batch in enumerate(plain.plan.epoch(0)[:3], start=1):
        plain.updater.update([batch], step)
        again.updater.update([batch], step)
    assert torch.equal(weights(plain), weights(again))


def test_a_loss_that_is_not_a_number_stops_the_run_and_names_its_lines(tmp_path):
    run = trainer(tmp_path, steps=9, evaluate_every=100)
    objective = run.data.objective
    spoil = objective.token_loss
    objective.token_loss = lambda *given: spoil(*given) * (math.nan if run.position.step == 3 else 1.0)
    with pytest.raises(TrainingError, match=r"loss became nan .* lines: train\.tsv:\d+, train\.tsv:\d+"):
        run.run()
    assert run.position.step == 4
    assert not run.checkpoints.steps()


def test_a_moving_average_is_what_is_evaluated_and_kept(tmp_path):
    run = trainer(tmp_path, average="ema", decay=0.5, steps=3)
    first = weights(run)
    run.updater.update([run.plan.epoch(0)[0]], 1)
    newest = weights(run)
    share = 1 - (1 + 1) / (10 + 1)
    with run.updater.use_average():
        torch.testing.assert_close(weights(run), first + share * (newest - first))
    assert torch.equal(weights(run), newest)


def test_patience_ends_a_run_that_gets_no_better(tmp_path):
    run = trainer(tmp_path, dev=True, steps=100, evaluate_every=2, patience=2, keep=1)
    scores = iter([1.0, 3.0, 2.0, 3.0, 9.0])
    run._score_dev = lambda dev: scored(1.0, bleu=next(scores))
    position = run.run()
    assert (position.stopped, position.step, position.best_step) == ("patience", 8, 4)
    assert run.checkpoints.steps() == [4, 8], "the best stays, and the newest"


def test_the_smallest_loss_is_the_best(tmp_path):
    run = trainer(tmp_path, dev=True, steps=6, evaluate_every=2, metric="loss")
    scores = iter([3.0, 1.0, 2.0])
    run._score_dev = lambda dev: scored(next(scores), bleu=0.0)
    assert run.run().best_step == 4


def test_among_equal_scores_the_lower_loss_is_the_best_and_patience_waits_for_it(tmp_path):
    run = trainer(tmp_path, dev=True, steps=100, evaluate_every=2, patience=2)
    found = iter([(9.0, 0.0), (8.0, 0.0), (7.0, 0.0), (7.5, 0.0), (7.0, 0.0)])  # the score is 0 for long at first
    run._score_dev = lambda dev: (lambda loss, bleu: scored(loss, bleu=bleu))(*next(found))
    position = run.run()
    assert (position.best_step, position.best_loss, position.stopped, position.step) == (6, 7.0, "patience", 10)


def test_smoothing_is_for_training_alone(tmp_path):
    run, plain = (trainer(tmp_path, smoothing=smoothing, dev=True) for smoothing in (0.3, 0.0))
    assert run._score_dev(run.dev)[0] == plain._score_dev(plain.dev)[0]
    batch = run.examples.collate(run.plan.epoch(0)[0])
    losses = [float(one.data.objective.loss(one.model.train(), batch).detach()) for one in (run, plain)]
    assert losses[0] != losses[1]


@pytest.mark.parametrize("count", [2, 3])
def test_batches_that_must_not_be_split_go_to_one_process_each(tmp_path, monkeypatch, count):
    monkeypatch.setattr(PairObjective, "splits_batches", False)
    monkeypatch.setattr(updater, "distribute", lambda step, *_, **__: step)  # no process group is needed to plan
    runs = [trainer(tmp_path, processes=Processes(rank, count, torch.device("cpu"))) for rank in range(count)]
    window = runs[0].plan.epoch(0)[:4]
    shares = [run.updater.share_window(window) for run in runs]
    assert len({len(share) for share in shares}) == 1, "all do equally many passes"
    whole = [tuple(batch.examples) for share in shares for batch, weight in share if weight]
    assert sorted(whole) == sorted(tuple(batch.examples) for batch in window)
    assert runs[0].batches_per_step == count


@pytest.mark.parametrize("count", [2, 3])
def test_batches_that_may_be_split_are_shared_by_all_processes(tmp_path, monkeypatch, count):
    monkeypatch.setattr(updater, "distribute", lambda step, *_, **__: step)
    runs = [trainer(tmp_path, processes=Processes(rank, count, torch.device("cpu"))) for rank in range(count)]
    window = [*runs[0].plan.epoch(0)[:3], Batch(np.array([7]), (9, 9))]  # the last is too small for all
    shares = [run.updater.share_window(window) for run in runs]
    assert {len(share) for share in shares} == {4}
    for number, batch in enumerate(window):
        parts = [share[number] for share in shares]
        examples = [example for part, weight in parts if weight for example in part.examples]
        assert sorted(examples) == sorted(batch.examples)
    assert runs[0].batches_per_step == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"learning_rate": 0.02}, r"train\.learning_rate = 0\.01 \(now 0\.02\)"),
        ({"seed": 6}, r"seed = 5 \(now 6\)"),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused_by_key(tmp_path, changes, said):
    trainer(tmp_path, steps=3, evaluate_every=100).run()
    with pytest.raises(ConfigError, match=f"step 3 was trained with {said}; restore the setting"):
        trainer(tmp_path, steps=9, evaluate_every=100, **changes).resume(3)
    trainer(tmp_path, steps=9, evaluate_every=100, log_every=7, patience=3).resume(3)


def test_slow_steps_are_shown_and_saved_by_the_clock(tmp_path, monkeypatch):
    run = trainer(tmp_path, steps=6, evaluate_every=100, log_every=100, keep=1)
    now, shown = [0.0], []
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    update = run.updater.update

    def slow(window, step):
        now[0] += 250.0
        return update(window, step)

    class Watcher(Observer):
        def progressed(self, moment: Moment) -> None:
            shown.append((moment.step, moment.metrics["loss"] > 0))

    run.updater.update, run.observers, run.shown, run.saved = slow, [Watcher()], 0.0, 0.0
    kept = []
    save = run.save
    run.save = lambda: kept.append(run.position.step) or save()
    run.run()
    assert shown == [(step, True) for step in range(1, 6)]
    assert kept == [3, 6], "every ten minutes, and at the end"


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
    run = trainer(tmp_path, steps=150, evaluate_every=1000, log_every=10, learning_rate=0.02, smoothing=0.0)
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
    for name, tensor in straight.updater.average.items():
        assert torch.equal(tensor, second.updater.average[name])
    assert replace(straight.position, seconds=0.0) == replace(second.position, seconds=0.0)
