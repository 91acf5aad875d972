"""Processes: the rank, number and device of the processes that train one model (one, or started by torchrun)."""

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
    """The rank of this process, the number of processes, and the device of this one."""

    rank: int
    count: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    def wait(self) -> None:
        """Waits until all processes have called it (a barrier)."""
        if self.count > 1:
            dist.barrier()

    def agree(self, value: float) -> float:
        """The value of the first process, in all of them, so that all decide alike."""
        if self.count == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.broadcast(shared, 0)
        return float(shared)

    def sum(self, *values: float) -> list[float]:
        """The sum of each number over all processes."""
        if self.count == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return [float(value) for value in total.tolist()]


@contextmanager
def join_processes(device: str) -> Iterator[Processes]:
    """Joins the process group that torchrun started; without torchrun, just this process."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    rank, local = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
    resolved = resolve_device(device, local)
    if count == 1:
        yield Processes(0, 1, resolved)
        return
    if resolved.type == "cuda":
        torch.cuda.set_device(resolved)
    dist.init_process_group("nccl" if resolved.type == "cuda" else "gloo")
    try:
        yield Processes(rank, count, resolved)
    finally:
        dist.destroy_process_group()
