"""HostTransfer: copies of results from GPUs to pinned memory, on a stream of their own, while the model runs on.

The first copies of a process are compared with synchronous ones: this has never run on a GPU. If they differ, the
synchronous ones count, and all later copies are synchronous.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Shaped, UInt8
from torch import Tensor

from clearhead.lens.capture.watch_settings import get_free_bytes

CHUNK = 2**25  # bytes of results on a GPU with which their copies begin
SMALL = 2**20  # bytes: smaller tensors are packed into one copy
BUDGET_SHARE = 0.1  # of a GPU's free memory, for results that wait there
CHECKED_COPIES = 8  # first chunks of a process and GPU that are compared with synchronous copies
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

    @property
    def names(self) -> list[str]:
        return list(self.tensors)


class _CopyCheck:
    """What is known in this process of copies on a stream of their own."""

    def __init__(self) -> None:
        self.trusted = True  # until one differed
        self.done: Counter[torch.device] = Counter()  # how many copies were compared

    def begins(self, device: torch.device) -> bool:
        """Whether the next copies are to be compared."""
        self.done[device] += 1
        return self.trusted and self.done[device] <= CHECKED_COPIES

    def withdraw(self, device: torch.device, names: Sequence[str]) -> None:
        """Makes all later copies synchronous, and says so."""
        self.trusted = False
        warnings.warn(
            f"results that were copied from {device} while the model ran on differ from a synchronous copy "
            f"({', '.join(dict.fromkeys(names))}). The record has the synchronous copy; from now on every chunk of "
            "results waits for its copy, in all watches of this process, which is slower. Please report it with your "
            "versions of PyTorch, CUDA and its driver",
            RuntimeWarning,
            stacklevel=2,
        )


_check = _CopyCheck()


class HostTransfer:
    """Sends tensors to the CPU without waiting for the GPU; `budget` bytes of each GPU may hold what is on its way.

    A budget of None is a tenth of the memory that is free at first. Tensors must not be written to after `send`.

    >>> transfer = HostTransfer()
    >>> transfer.send({"entropy": torch.zeros(2)})["entropy"]
    tensor([0., 0.])
    """

    def __init__(self, budget: int | None = None) -> None:
        self.budget = budget
        self._queues: dict[torch.device, _DeviceQueue] = {}
        self._lock = threading.RLock()

    def send(self, tensors: Mapping[str, Shaped[Tensor, "..."]]) -> ArrivingTensors:
        """The same tensors on the CPU, once they are read; those that are there already are not copied."""
        device = next((tensor.device for tensor in tensors.values() if tensor.is_cuda), None)
        if device is None:
            return ArrivingTensors(tensors, None)
        with self._lock:
            if device not in self._queues:
                self._queues[device] = _DeviceQueue(device, self.budget)
            arriving = ArrivingTensors(tensors, self)
            self._queues[device].add(arriving)
            return arriving

    def wait(self) -> None:
        """Returns when everything that was sent has arrived."""
        with self._lock:
            for queue in self._queues.values():
                queue.wait()


Place = tuple[ArrivingTensors, str]  # of a tensor: what it arrives with, and its name


class _Copies(NamedTuple):
    """Copies that have begun."""

    done: torch.cuda.Event
    size: int  # bytes on the device
    arriving: Sequence[ArrivingTensors]
    places: list[Place]
    expected: list[Tensor] | None  # the same on the device, where they are to be compared


class _DeviceQueue:
    """What waits on one GPU to be copied, and what is being copied."""

    def __init__(self, device: torch.device, budget: int | None) -> None:
        self.budget = int(BUDGET_SHARE * _get_free_device_bytes(device)) if budget is None else budget
        self.pinned_left = int(PINNED_SHARE * (get_free_bytes() or 0))
        self.device, self.stream = device, torch.cuda.Stream(device)
        self.waiting: list[tuple[ArrivingTensors, torch.cuda.Event]] = []
        self.waiting_bytes = self.copied_bytes = 0
        self.copies: deque[_Copies] = deque()  # the oldest first

    def add(self, arriving: ArrivingTensors) -> None:
        self.waiting.append((arriving, torch.cuda.current_stream(self.device).record_event()))
        self.waiting_bytes += sum(tensor.nbytes for tensor in arriving.tensors.values() if tensor.is_cuda)
        if self.waiting_bytes >= min(CHUNK, self.budget):
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
        checks = _check.begins(self.device)
        while checks and self.copies:  # so that no more than one chunk is held twice
            self._finish_oldest()
        with torch.no_grad(), torch.inference_mode(False):
            sources = [group.tensors[name] for group, name in places]
            if not _check.trusted:
                self._put(places, [source.cpu() for source in self._await(sources, computed)])
                self._mark_arrived(arriving)
                return
            expected = [source.clone() for source in self._await(sources, computed)] if checks else None
            size *= 1 if expected is None else 2
            with torch.cuda.stream(self.stream):
                self._put(places, self._copy(self._await(sources, computed)))
                self.copies.append(_Copies(self.stream.record_event(), size, arriving, places, expected))
        self.copied_bytes += size

    def _await(self, sources: list[Tensor], computed: Sequence[Any]) -> list[Tensor]:
        """The sources, which the current stream reads once these events say that they are computed."""
        stream = torch.cuda.current_stream(self.device)
        for event in computed:
            stream.wait_event(event)
        for source in sources:
            source.record_stream(stream)  # its memory may be used again once it has been copied
        return sources

    def _put(self, places: Sequence[Place], tensors: Sequence[Tensor]) -> None:
        for (group, name), tensor in zip(places, tensors, strict=True):
            group.tensors[name] = tensor

    def _mark_arrived(self, arriving: Sequence[ArrivingTensors]) -> None:
        for group in arriving:
            group.transfer = None

    def _copy(self, sources: Sequence[Tensor]) -> list[Tensor]:
        """The CPU tensors that these will be copied to."""
        small = [source for source in sources if source.nbytes <= SMALL]
        packed = iter(unpack(self._copy_one(pack(small)), small) if small else [])
        return [next(packed) if source.nbytes <= SMALL else self._copy_one(source) for source in sources]

    def _copy_one(self, source: Tensor) -> Tensor:
        pinned = source.nbytes <= self.pinned_left
        self.pinned_left -= source.nbytes if pinned else 0
        target = torch.empty(source.shape, dtype=source.dtype, pin_memory=pinned)
        return target.copy_(source, non_blocking=True)

    def _finish_oldest(self) -> None:
        copies = self.copies.popleft()
        copies.done.synchronize()
        self.copied_bytes -= copies.size
        different = [] if copies.expected is None else self._correct(copies.places, copies.expected)
        self._mark_arrived(copies.arriving)
        if different:
            _check.withdraw(self.device, different)

    def _correct(self, places: Sequence[Place], expected: Sequence[Tensor]) -> list[str]:
        """Replaces what differs from a synchronous copy; returns the names."""
        different = []
        for (group, name), tensor in zip(places, expected, strict=True):
            right = tensor.cpu()
            if not torch.equal(pack([group.tensors[name]]), pack([right])):  # of bytes: NaN equals itself
                group.tensors[name] = right
                different.append(name)
        return different


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
