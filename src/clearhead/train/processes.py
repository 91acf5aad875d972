"""Processes: one, or several that train one model together (started by torchrun)."""

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

PATIENCE = timedelta(seconds=10)  # with a process that failed and has not said why
FAILED, SAID = "failed", "said"


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
    except Exception:
        _failed_first()  # before the others lose their connection to this one
        raise
    finally:
        dist.destroy_process_group()


@contextmanager
def telling() -> Iterator[bool]:
    """Whether this process is to say why the run failed: the first of torchrun's that did, for all of them.

    What happens to the others is the same mistake once more, or a connection that broke. They wait until it is said,
    because torchrun ends all processes as soon as one has ended.
    """
    mine, store = _failed_first(), _store()
    try:
        yield mine
    finally:
        if store is not None:
            with suppress(RuntimeError):
                store.set(SAID, "") if mine else store.wait([SAID], PATIENCE)


@cache
def _failed_first() -> bool:
    store = _store()
    try:
        return store is None or int(store.add(FAILED, 1)) == 1
    except RuntimeError:
        return True  # better twice than never


@cache
def _store() -> Any:
    """What torchrun lets its processes share, from before they are joined until all have ended; or None."""
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
