"""Copies of results to the CPU, while the GPU computes on."""

import pytest
import torch

from clearhead.lens.capture import host_transfer
from clearhead.lens.capture.host_transfer import HostTransfer, pack, unpack

FLOATS = torch.tensor([[0.1, -torch.inf, torch.nan], [3.0, 4.0, 5.0]])
KINDS = {
    "bytes": torch.arange(3, dtype=torch.uint8),
    "floats": FLOATS,
    "turned": FLOATS.T,
    "every second": torch.arange(10, dtype=torch.int32)[::2],
    "long": torch.arange(4),
    "whole": torch.tensor([[[7, -1]]], dtype=torch.int32),
    "none": torch.zeros(2, 3, 0),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "one": torch.tensor(2.5),
}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def assert_same(found, wanted):
    for name, tensor in wanted.items():
        assert found[name].device.type == "cpu"
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0, equal_nan=True)


def test_packed_tensors_are_what_they_were_and_do_not_overlap():
    found = dict(zip(KINDS, unpack(pack(list(KINDS.values())), list(KINDS.values())), strict=True))
    assert_same(found, KINDS)
    found["floats"].zero_()
    assert_same(found, {name: tensor for name, tensor in KINDS.items() if name != "floats"})


def test_what_is_on_the_cpu_is_not_copied():
    assert HostTransfer().send(KINDS)["floats"] is FLOATS


@needs_gpu
@pytest.mark.parametrize(("small", "chunk", "share"), [(5, 2**25, 0.1), (2**20, 1, 0.1), (2**20, 2**25, 0)])
def test_small_and_large_tensors_arrive_in_their_order(monkeypatch, small, chunk, share):
    monkeypatch.setattr(host_transfer, "PACKED_BYTES", small)
    monkeypatch.setattr(host_transfer, "CHUNK_BYTES", chunk)
    monkeypatch.setattr(host_transfer, "BUDGET_SHARE", share)
    given = KINDS | {"here": torch.ones(2)}
    found = HostTransfer().send({name: one if name == "here" else one.cuda() for name, one in given.items()})
    assert list(found.tensors) == list(given)
    assert_same(found, given)


@needs_gpu
@pytest.mark.parametrize("share", [0.1, 0.0, 1e-4])
def test_copies_follow_slow_kernels_and_memory_is_not_reused_before_they_end(monkeypatch, share):
    """Each result is computed behind a long product, and its memory is given up at once to the next one."""
    monkeypatch.setattr(host_transfer, "BUDGET_SHARE", share)
    transfer, arriving = HostTransfer(), []
    a = torch.randn(4096, 4096, device="cuda")
    for number in range(40):
        a = (a @ a) / 64
        arriving.append(transfer.send({"value": a[:1].mul(0).nan_to_num().add(number).expand(300, -1).contiguous()}))
    for number, one in enumerate(arriving):
        assert bool((one["value"] == number).all()), number


@needs_gpu
def test_results_of_several_streams_arrive():
    transfer, arriving = HostTransfer(), []
    for number in range(6):
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(10_000_000)
            arriving.append(transfer.send({"value": torch.full((1000,), float(number), device="cuda")}))
    assert [float(one["value"].mean()) for one in arriving] == [float(number) for number in range(6)]


@needs_gpu
def test_what_waits_on_the_gpu_stays_within_the_budget(monkeypatch):
    budget = 2**26
    monkeypatch.setattr(host_transfer, "BUDGET_SHARE", 1)
    monkeypatch.setattr(host_transfer, "_get_free_device_bytes", lambda device: budget)
    transfer, start = HostTransfer(), torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    arriving = [transfer.send({"value": torch.ones(2**22, device="cuda")}) for _ in range(40)]
    assert torch.cuda.max_memory_allocated() - start <= budget + 2 * 2**24
    assert all(float(one["value"].sum()) == 2**22 for one in arriving)


class DeviceTensor(torch.Tensor):
    """A CPU tensor that says it is on a GPU, and counts how much memory such tensors hold."""

    is_cuda = True

    def record_stream(self, stream):
        """Nothing to keep: the copy is made at once."""


class ImmediateStream:
    """A CUDA stream, and its events, in which everything is done at once; `done` says what query() answers."""

    done = False

    def __init__(self, device=None):
        self.device = device

    def record_event(self):
        return self

    def wait_event(self, event):
        """Nothing to wait for."""

    def synchronize(self):
        """Nothing to wait for."""

    def query(self):
        return self.done


@pytest.fixture
def stub_gpu(monkeypatch):
    """HostTransfer on CPU tensors, for what it counts: `events` are (copies begun, bytes) in their order."""
    empty = torch.empty
    monkeypatch.setattr(torch.cuda, "Stream", ImmediateStream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: torch.no_grad())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: ImmediateStream(device))
    monkeypatch.setattr(torch, "empty", lambda *sizes, pin_memory=False, **options: empty(*sizes, **options))
    monkeypatch.setattr(host_transfer, "_get_free_device_bytes", lambda device: 10_000)


def device(tensor):
    return tensor.clone().as_subclass(DeviceTensor)


@pytest.mark.parametrize(("small", "chunk", "share"), [(5, 2**25, 0.1), (2**20, 1, 0.1), (2**20, 2**25, 0)])
def test_tensors_arrive_whatever_is_packed_and_whenever_copies_begin(stub_gpu, monkeypatch, small, chunk, share):
    monkeypatch.setattr(host_transfer, "PACKED_BYTES", small)
    monkeypatch.setattr(host_transfer, "CHUNK_BYTES", chunk)
    monkeypatch.setattr(host_transfer, "BUDGET_SHARE", share)
    given = KINDS | {"here": torch.ones(2)}
    transfer = HostTransfer()
    found = [transfer.send({name: one if name == "here" else device(one) for name, one in given.items()}) for _ in "ab"]
    for one in found:
        assert list(one.tensors) == list(given)
        assert_same({name: one[name].as_subclass(torch.Tensor) for name in given}, given)


def test_results_wait_on_the_gpu_up_to_the_budget_and_are_copied_together(stub_gpu, monkeypatch):
    monkeypatch.setattr(host_transfer, "CHUNK_BYTES", 400)
    transfer = HostTransfer()  # a tenth of 10,000 bytes
    held = []
    for _ in range(12):
        transfer.send({"value": device(torch.zeros(40))})  # 160 bytes
        (queue,) = transfer._queues.values()
        held.append((queue.waiting_bytes, queue.copied_bytes))
    assert held[:6] == [(160, 0), (320, 0), (0, 480), (160, 480), (320, 480), (0, 960)]
    assert held[6:9] == [(160, 480), (320, 480), (0, 960)]  # the oldest copies were waited for
    assert max(map(sum, held)) <= 1000
    monkeypatch.setattr(ImmediateStream, "done", True)
    transfer.send({"value": device(torch.zeros(40))})
    assert (queue.waiting_bytes, queue.copied_bytes) == (160, 0)  # copies that are over hold nothing
    transfer.wait()
    assert (queue.waiting_bytes, queue.copied_bytes, len(queue.copies)) == (0, 0, 0)
