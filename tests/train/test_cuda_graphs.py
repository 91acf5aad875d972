"""Recorded passes on a GPU give what the passes themselves give."""

import pytest
import torch

from clearhead.train.processes import Processes
from tests.train import test_loop

pytestmark = [
    pytest.mark.unchecked,
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),  # PyTorch's advice; float32 is meant here
    pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs want a GPU"),
]


@pytest.fixture
def on_gpu(monkeypatch):
    monkeypatch.setattr(test_loop, "ALONE", Processes(0, 1, torch.device("cuda")))


def test_recorded_passes_train_as_plain_ones(on_gpu, tmp_path):
    plain = test_loop.trainer(tmp_path, precision="float32", steps=30, evaluate_every=1000)
    recorded = test_loop.trainer(tmp_path, precision="float32", steps=30, evaluate_every=1000, compile=True)
    assert recorded.updater.graphed is not None
    for step in range(1, 31):
        batch = plain.plan.epoch(step // 4)[step % 4]
        one, _ = plain.updater.update([batch], step)
        other, _ = recorded.updater.update([batch], step)
        torch.testing.assert_close(one, other, rtol=2e-3, atol=0.0)
    assert any(recording is not None for recording in recorded.updater.graphed._graphs.values()), (
        "else nothing was tested"
    )


def test_accumulated_recordings_equal_one_batch(on_gpu, tmp_path):
    one, four = (test_loop.trainer(tmp_path, precision="float32", compile=True) for _ in range(2))
    batches = one.plan.epoch(0)[:3]
    for step in range(1, 6):
        together, _ = one.updater.update(batches, step)
        again, _ = four.updater.update(list(reversed(batches)), step)
        torch.testing.assert_close(together, again, rtol=2e-3, atol=0.0)


def test_dropout_draws_anew_at_every_replay(on_gpu, tmp_path):
    run = test_loop.trainer(tmp_path, dropout=0.5, precision="float32", compile=True, learning_rate=1e-12)
    batch = run.plan.epoch(0)[0]
    losses = {round(float(run.updater.update([batch], step)[0]), 4) for step in range(1, 9)}
    assert len(losses) == 8
    assert round(float(run.updater.update([batch], 8)[0]), 4) in losses, "and the same of the same step"
