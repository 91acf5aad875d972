"""HostTransfer: copies of results from GPUs to pinned memory, on a stream of their own, while the model runs on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Shaped, UInt8
from torch import Tensor

from clearhead.lens.capture.watch_settings import get_free_bytes

CHUNK_BYTES = 2**25  # of results on a GPU, with which their copies begin
PACKED_BYTES = 2**20  # most of a tensor that is packed with others into one copy
BUDGET_SHARE = 0.1  # of a GPU's free memory, for results that wait there
PINNED_SHARE = 0.25  # of the free memory of this machine, for pinned memory: more is copied to pageable memory


class ArrivingTensors:
    """Tensors on their way to the CPU, by name; reading one waits for all copies of its HostTransfer."""

    def __init__(self, tensors: Mapping[str, Shaped[Tensor, "..."]], transfer: HostTransfer | None) -> None:
        self.tensors = dict(tensors)  # on the device, or as soon as their copies have begun on the CPU
        self.transfer = transfer  # None once they have arrived

    def __getitem__(self, name: str) -> Tensor:
        if self.transfer is not None:
            self.transfer.wait()
        return self.tensors[name]


class HostTransfer:
    """Sends tensors to the CPU without waiting for the GPU. Tensors must not be written to after `send`.

    What is on its way takes at most a tenth of the memory of each GPU that is free at first.

    >>> transfer = HostTransfer()
    >>> transfer.send({"entropy": torch.zeros(2)})["entropy"]
    tensor([0., 0.])
    """

    def __init__(self) -> None:
        self._queues: dict[torch.device, _DeviceQueue] = {}
        self._lock = threading.RLock()

    def send(self, tensors: Mapping[str, Shaped[Tensor, "..."]]) -> ArrivingTensors:
        """The same tensors on the CPU, once they are read; those that are there already are not copied."""
        device = next((tensor.device for tensor in tensors.values() if tensor.is_cuda), None)
        if device is None:
            return ArrivingTensors(tensors, None)
        with self._lock:
            if device not in self._queues:
                self._queues[device] = _DeviceQueue(device)
            arriving = ArrivingTensors(tensors, self)
            self._queues[device].add(arriving)
            return arriving

    def wait(self) -> None:
        """Returns when everything that was sent has arrived."""
        with self._lock:
            for queue in self._queues.values():
                queue.wait()


class _Copies(NamedTuple):
    """Copies that have begun."""

    done: torch.cuda.Event
    size: int  # bytes on the device
    arriving: Sequence[ArrivingTensors]


class _DeviceQueue:
    """What waits on one GPU to be copied, and what is being copied."""

    def __init__(self, device: torch.device) -> None:
        self.budget = int(BUDGET_SHARE * _get_free_device_bytes(device))
        self.pinned_left = int(PINNED_SHARE * (get_free_bytes() or 0))
        self.device, self.stream = device, torch.cuda.Stream(device)
        self.waiting: list[tuple[ArrivingTensors, torch.cuda.Event]] = []
        self.waiting_bytes = self.copied_bytes = 0
        self.copies: deque[_Copies] = deque()  # the oldest first

    def add(self, arriving: ArrivingTensors) -> None:
        self.waiting.append((arriving, torch.cuda.current_stream(self.device).record_event()))
        self.waiting_bytes += sum(tensor.nbytes for tensor in arriving.tensors.values() if tensor.is_cuda)
        if self.waiting_bytes >= min(CHUNK_BYTES, self.budget):
            self.start_copies()
        while self.copies and (self.copied_bytes + self.waiting_bytes > self.budget or self.copies[0].done.query()):
            self._finish_oldest()

    def wait(self) -> None:
        self.start_copies()
        while self.copies:
            self._finish_oldest()

    def start_copies(self) -> None:
        """Begins to copy what waits; the stream of the copies first waits for the kernels that compute it."""
        if not self.waiting:
            return
        arriving, computed = zip(*self.waiting, strict=True)
        size, self.waiting, self.waiting_bytes = self.waiting_bytes, [], 0
        places = [(group, name) for group in arriving for name, tensor in group.tensors.items() if tensor.is_cuda]
        with torch.no_grad(), torch.inference_mode(False), torch.cuda.stream(self.stream):
            for event in computed:
                self.stream.wait_event(event)
            sources = [group.tensors[name] for group, name in places]
            for source in sources:
                source.record_stream(self.stream)  # its memory may be used again once it has been copied
            for (group, name), target in zip(places, self._copy(sources), strict=True):
                group.tensors[name] = target
            self.copies.append(_Copies(self.stream.record_event(), size, arriving))
        self.copied_bytes += size

    def _copy(self, sources: Sequence[Tensor]) -> list[Tensor]:
        """The CPU tensors that these will be copied to."""
        small = [source for source in sources if source.nbytes <= PACKED_BYTES]
        packed = iter(unpack(self._copy_one(pack(small)), small) if small else [])
        return [next(packed) if source.nbytes <= PACKED_BYTES else self._copy_one(source) for source in sources]

    def _copy_one(self, source: Tensor) -> Tensor:
        pinned = source.nbytes <= self.pinned_left
        self.pinned_left -= source.nbytes if pinned else 0
        target = torch.empty(source.shape, dtype=source.dtype, pin_memory=pinned)
        return target.copy_(source, non_blocking=True)

    def _finish_oldest(self) -> None:
        copies = self.copies.popleft()
        copies.done.synchronize()
        self.copied_bytes -= copies.size
        for group in copies.arriving:
            group.transfer = None


def pack(tensors: Sequence[Shaped[Tensor, "..."]]) -> UInt8[Tensor, " bytes"]:
    """The bytes of tensors in one row, those of wide numbers first, so that each can be viewed in place."""
    ordered = sorted(tensors, key=lambda tensor: -tensor.itemsize)
    return torch.cat([tensor.contiguous().view(-1).view(torch.uint8) for tensor in ordered])


def unpack(row: UInt8[Tensor, " bytes"], like: Sequence[Shaped[Tensor, "..."]]) -> list[Shaped[Tensor, "..."]]:
    """The inverse of `pack`: views into the row, with the shapes and types of `like`.

    >>> tensors = [torch.tensor([1], dtype=torch.int16), torch.tensor([[0.5]])]
    >>> unpack(pack(tensors), tensors)
    [tensor([1], dtype=torch.int16), tensor([[0.5000]])]
    """
    order = sorted(range(len(like)), key=lambda number: -like[number].itemsize)
    pieces = row.split([like[number].nbytes for number in order])
    views = {
        number: piece.view(like[number].dtype).view(like[number].shape)
        for number, piece in zip(order, pieces, strict=True)
    }
    return [views[number] for number in range(len(like))]


def _get_free_device_bytes(device: torch.device) -> int:
    """The memory of a GPU that is free, or reserved by PyTorch and unused."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused
