"""Batch plans: every example once an epoch, few shapes, nothing over the budget, the same from the same seed."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.errors import DataError
from clearhead.text.batches import Batch, BatchPlan, Ragged

LENGTHS = st.lists(st.tuples(st.integers(1, 90), st.integers(1, 70)), min_size=1, max_size=200)


def lengths_like_text(examples: int = 5003) -> np.ndarray:
    chance = np.random.default_rng(7)
    source = np.clip(chance.lognormal(2.5, 0.7, examples), 1, 127).astype(np.int64)
    target = np.clip(source * chance.normal(1.1, 0.25, examples), 1, 127).astype(np.int64)
    return np.stack([source, target], axis=1)


@given(LENGTHS, st.integers(20, 900), st.integers(1, 9), st.integers(0, 5))
def test_every_example_is_in_every_epoch_exactly_once(lengths, tokens, shapes, epoch):
    plan = BatchPlan(np.array(lengths), tokens=tokens, seed=3, shapes=shapes)
    batches = plan.epoch(epoch)
    assert sorted(np.concatenate([batch.examples for batch in batches]).tolist()) == list(range(len(lengths)))
    assert len(batches) == plan.batches, "so that a position is one integer"


@given(LENGTHS, st.integers(20, 900), st.integers(1, 9))
def test_no_batch_is_over_its_budget_and_every_example_fits_its_sizes(lengths, tokens, shapes):
    lengths = np.array(lengths)
    for batch in BatchPlan(lengths, tokens=tokens, seed=3, shapes=shapes).epoch(0):
        assert (lengths[batch.examples] <= np.array(batch.sizes)).all()
        assert len(batch.examples) * sum(batch.sizes) <= tokens or len(batch.examples) == 1


@given(LENGTHS, st.integers(1, 9))
def test_shapes_are_few_and_the_same_in_every_epoch(lengths, shapes):
    plan = BatchPlan(np.array(lengths), tokens=300, seed=3, shapes=shapes)
    seen = [{(len(batch.examples), *batch.sizes) for batch in plan.epoch(epoch)} for epoch in range(3)]
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) <= 2 * shapes


def test_the_plan_follows_from_seed_and_epoch():
    def order(seed, epoch):
        plan = BatchPlan(lengths_like_text(), tokens=2000, seed=seed)
        return np.concatenate([batch.examples for batch in plan.epoch(epoch)]).tolist()

    assert order(1, 2) == order(1, 2)
    assert order(1, 2) != order(1, 3)
    assert order(1, 2) != order(2, 2)


def test_few_tokens_are_pads():
    lengths = lengths_like_text()

    def real(shapes):
        batches = BatchPlan(lengths, tokens=4000, seed=1, shapes=shapes).epoch(0)
        return lengths.sum() / sum(len(batch.examples) * sum(batch.sizes) for batch in batches)

    assert real(1) < 0.2 < 0.8 < real(16) < 0.85 < real(32)


def test_batches_of_one_shape_are_nearly_equally_full():
    for members, count in [(100, 8), (17, 8), (9, 8)]:
        plan = BatchPlan(np.full((members, 2), 5), tokens=10 * count, seed=1)
        sizes = [len(batch.examples) for batch in plan.epoch(0)]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_share_a_batch_without_gap_or_overlap(processes):
    batch = Batch(np.arange(7), (4, 4))
    parts = [batch.part(rank, processes) for rank in range(processes)]
    assert sorted(np.concatenate([part.examples for part in parts]).tolist()) == list(range(7))


def test_very_different_lengths_are_planned_quickly():
    chance = np.random.default_rng(5)
    lengths = chance.integers(1, 3000, (3001, 2))
    plan = BatchPlan(lengths, tokens=30_000, seed=1)
    assert len({batch.sizes for batch in plan.epoch(0)}) <= 16


def test_no_examples_are_refused():
    with pytest.raises(DataError, match="no examples"):
        BatchPlan(np.zeros((0, 2), dtype=np.int64), tokens=10, seed=0)


@given(st.lists(st.lists(st.integers(0, 30_000), max_size=9), min_size=1, max_size=9), st.integers(9, 12))
def test_ragged_sequences_come_back_padded(sequences, size):
    rows = torch.arange(len(sequences)).flip(0)
    padded, lengths = Ragged(sequences).pad(rows, size, fill=-100)
    for row, sequence in enumerate(reversed(sequences)):
        assert padded[row].tolist() == sequence + [-100] * (size - len(sequence))
        assert lengths[row] == len(sequence)
