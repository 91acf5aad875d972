"""Processes: the rank, number and device of the processes that train one model (one, or started by torchrun)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from clearhead.model.devices import resolve_device

PATIENCE = timedelta(seconds=10)  # wait for the report of the process that failed first
FAILED, REPORTED = "failed", "reported"


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
    place = resolve_device(device, local)
    if count == 1:
        yield Processes(0, 1, place)
        return
    if place.type == "cuda":
        torch.cuda.set_device(place)
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield Processes(rank, count, place)
    except Exception:
        _is_first_failure()  # before the others lose their connection to this one
        raise
    finally:
        dist.destroy_process_group()


@contextmanager
def elect_reporter() -> Iterator[bool]:
    """True in the one process that reports why the run failed: the first that failed.

    The others fail for the same reason, or because their connection broke. They wait until the report is made,
    because torchrun ends all processes as soon as one has ended.
    """
    mine, store = _is_first_failure(), _connect_store()
    try:
        yield mine
    finally:
        if store is not None:
            with suppress(RuntimeError):
                store.set(REPORTED, "") if mine else store.wait([REPORTED], PATIENCE)


@cache
def _is_first_failure() -> bool:
    store = _connect_store()
    try:
        return store is None or int(store.add(FAILED, 1)) == 1
    except RuntimeError:
        return True  # a message that comes twice is better than none


@cache
def _connect_store() -> Any:
    """The key-value store that torchrun keeps for its processes until all have ended; None without torchrun."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    try:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(  # type: ignore[attr-defined]
            host, port, is_master=False, timeout=PATIENCE, wait_for_workers=False
        )
    except (KeyError, ValueError, RuntimeError):
        return None
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"clearhead/{again}", store)  # type: ignore[attr-defined]
