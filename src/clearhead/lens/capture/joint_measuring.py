"""JointMeasuring: small attentions of one shape, such as those of a model's layers, wait and are measured together.

Measuring one takes some dozens of operations or launches, whatever its size; together they take as many in all. On a
CPU, PyTorch's threads also go on spinning for milliseconds after each operation of the model, beside those of the lens.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead.attention.call import Call
from clearhead.lens.measures.definition import MeasureJob, Measures
from clearhead.lens.measures.measure_dispatch import run_job

BYTES = 2**26  # most bytes of q and k that wait on a CPU
JOB_BYTES = 2**25  # most bytes of those that are measured together there, which copies them twice
GPU_SCORES, GPU_BYTES = 2**27, 2**28  # most scores of an attention that waits on a GPU, and most bytes of q and k

Measuring = Generator[MeasureJob, Measures, None]  # yields jobs, and is sent what they measure


class _Waiting(NamedTuple):
    kind: tuple[Any, ...]  # equal for those that can be measured together
    together: int  # most that are measured together
    begin: Callable[[], Measuring]


class JointMeasuring:
    """The attentions of one watch that wait. On a GPU their q and k count as results: `budget` bytes at most."""

    def __init__(self, budget: int | None = None) -> None:
        self.gpu_bytes = GPU_BYTES if budget is None else min(GPU_BYTES, budget)
        self.waiting: list[_Waiting] = []
        self.bytes = 0
        self._lock = threading.RLock()

    def accepts(self, call: Call) -> bool:
        """Whether an attention is small, and has nothing that differs from sample to sample or from layer to layer."""
        if isinstance(call.scale, Tensor) or call.bias is not None or call.sinks is not None:
            return False
        if call.mask is not None and call.mask.tensors():  # which may differ by sample, and be written to later
            return False
        if call.q.is_cuda:
            return math.prod(call.sizes) <= GPU_SCORES and self.gpu_bytes > 0
        return 2 * count_bytes(call) <= BYTES  # otherwise it would wait for none, or for one other

    def add(self, call: Call, other: tuple[Any, ...], begin: Callable[[Call], Measuring]) -> None:
        """Lets a call wait; `begin` gets a copy of it, since models may write to q and k later.

        Calls with equal `other` values may be measured together.
        """
        with self._lock:
            most = self.gpu_bytes if call.q.is_cuda else BYTES
            if self.bytes + count_bytes(call) > most:
                self.flush()
            q, k = (one.detach().clone(memory_format=torch.contiguous_format) for one in (call.q, call.k))
            own = call._replace(q=q, k=k, v=k)
            kind = (q.shape, k.shape, q.dtype, q.device, call.scale, call.softcap, id(call.mask), *other)
            size = count_bytes(own)
            together = sys.maxsize if q.is_cuda else max(1, JOB_BYTES // max(1, size))
            self.waiting.append(_Waiting(kind, together, lambda: begin(own)))
            self.bytes += size
            if self.bytes >= most:
                self.flush()

    @torch.inference_mode(False)
    @torch.no_grad()
    def flush(self) -> None:
        """Measures all that wait."""
        with self._lock:
            waiting, self.waiting, self.bytes = self.waiting, [], 0
            while waiting:
                alike = [one for one in waiting if one.kind == waiting[0].kind]
                waiting = [one for one in waiting if one.kind != waiting[0].kind]
                while alike:  # lets go of what has been measured
                    some, alike = alike[: alike[0].together], alike[alike[0].together :]
                    measure_together([one.begin() for one in some])


def count_bytes(call: Call) -> int:
    return call.q.nbytes + call.k.nbytes


def measure_together(measurings: Sequence[Measuring]) -> None:
    """Runs measurings that yield jobs of the same shape, each job once for all of them."""
    jobs = [job for one in measurings if (job := next(one, None)) is not None]
    while jobs:
        found = run_job(join_jobs(jobs))
        results = [found] if len(jobs) == 1 else split_measures(found, len(jobs))
        jobs = []
        for measuring, result in zip(measurings, results, strict=True):
            with suppress(StopIteration):
                jobs.append(measuring.send(result))


def join_jobs(jobs: Sequence[MeasureJob]) -> MeasureJob:
    """Several jobs as one, with the samples of all."""
    first = jobs[0]
    if len(jobs) == 1:
        return first
    known = [job.logsumexp for job in jobs if job.logsumexp is not None]
    k = torch.cat([job.call.k for job in jobs])
    return first._replace(
        call=first.call._replace(q=torch.cat([job.call.q for job in jobs]), k=k, v=k),
        logsumexp=torch.cat(known) if len(known) == len(jobs) else None,
    )


def split_measures(found: Measures, count: int) -> list[Measures]:
    """The measures of each of `count` jobs that were joined, as views."""
    parts: dict[str, Any] = {
        field.name: value.chunk(count)
        for field in fields(found)
        if isinstance(value := getattr(found, field.name), Tensor)
    }
    return [replace(found, **{name: part[number] for name, part in parts.items()}) for number in range(count)]
