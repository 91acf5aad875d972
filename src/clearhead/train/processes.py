"""Processes: one, or several that train one model together (started by torchrun)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from clearhead.model.devices import resolve_device


@dataclass(frozen=True)
class Processes:
    """Which of how many this process is, and the device that it works on."""

    rank: int
    count: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the one that writes files and talks."""
        return self.rank == 0

    def wait(self) -> None:
        """Until all have come here."""
        if self.count > 1:
            dist.barrier()

    def agree(self, value: float) -> float:
        """What the first process says, so that all do the same."""
        if self.count == 1:
            return value
        said = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.broadcast(said, 0)
        return float(said)

    def sum(self, *values: float) -> list[float]:
        """These numbers, added up over all processes."""
        if self.count == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return [float(value) for value in total.tolist()]


@contextmanager
def joined(device: str) -> Iterator[Processes]:
    """The group that torchrun started, or this process alone."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    rank, local = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
    place = resolve_device(device, local)
    if count == 1:
        yield Processes(0, 1, place)
        return
    if place.type == "cuda":
        torch.cuda.set_device(place)
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield Processes(rank, count, place)
    finally:
        dist.destroy_process_group()
