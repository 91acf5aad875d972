"""MeasureQueue: small attentions, and decoding steps, wait and are measured together.

Measuring takes some dozens of operations or launches, for one small attention as for many together. On a CPU, PyTorch's
threads also go on spinning for milliseconds after each operation of the model, beside those of the lens.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention.call import Call
from clearhead.errors import LensError
from clearhead.lens.capture.part_measurement import Part, PartMeasurement
from clearhead.lens.capture.watch_settings import MeasureDetail
from clearhead.lens.measures.definition import MeasureJob, Measures
from clearhead.lens.measures.measure_dispatch import run_job
from clearhead.lens.record.kept_inputs import Step, join_steps

if TYPE_CHECKING:
    from clearhead.lens.capture.growing_call import GrowingAttention

MAX_STEPS = 64  # decoding steps of one attention that wait
WAITING_BYTES = 2**26  # most bytes of q and k of attentions that wait on a CPU
JOB_BYTES = 2**25  # most bytes of those that are measured together there, which copies them twice
GPU_SCORES = 2**27  # most scores of an attention that waits on a GPU
GPU_BYTES = 2**28  # most bytes of q and k of attentions that wait there


class MeasureQueue:
    """The attentions of one watch that wait.

    The first queries of attentions of one shape, such as those of all layers, are measured together; so are decoding
    steps of one attention.
    """

    def __init__(self) -> None:
        self.layers: list[_WaitingLayer] = []
        self.bytes = 0  # of q and k of these
        self._steps: dict[GrowingAttention, _WaitingSteps] = {}
        self._lock = threading.RLock()

    def add(self, attention: GrowingAttention, part: Part) -> None:
        """Measures a part of an attention, after what waits of it, or lets it wait."""
        with self._lock:
            steps = self._steps.get(attention)
            if steps is None:
                self.flush(attention)  # its first queries
            else:
                self._refuse_changed_keys(attention)
            whole = part.first_key == 0 and part.tokens is None and attention.detail.measures_all_queries
            waits = part.appended and bool(attention.pieces) and whole and not _has_parameters(part.call)
            if steps is not None and waits and steps.accepts(part):
                steps.add(part)
                return
            self.flush(attention)
            if waits and part.call.q.shape[2] == 1:
                self._steps[attention] = _WaitingSteps(part)
                return
            if not attention.pieces and _can_wait(attention.detail, part):
                self._add_layer(attention, part)
                return
        measure_together([PartMeasurement(attention, part)])

    @torch.inference_mode(False)
    @torch.no_grad()
    def flush(self, attention: GrowingAttention) -> None:
        """Measures what waits of an attention, and what is measured together with it."""
        with self._lock:
            if any(layer.attention is attention for layer in self.layers):
                self.flush_layers()
            if attention in self._steps:
                self._refuse_changed_keys(attention)
                for part in self._steps.pop(attention).join():
                    measure_together([PartMeasurement(attention, part)])

    @torch.inference_mode(False)
    @torch.no_grad()
    def flush_layers(self) -> None:
        """Measures all attentions that wait for others."""
        with self._lock:
            waiting, self.layers, self.bytes = self.layers, [], 0
            while waiting:
                alike = [layer for layer in waiting if layer.kind == waiting[0].kind]
                waiting = [layer for layer in waiting if layer.kind != waiting[0].kind]
                while alike:  # lets go of what has been measured
                    together, alike = alike[: alike[0].together], alike[alike[0].together :]
                    measure_together([PartMeasurement(layer.attention, layer.part) for layer in together])

    def _add_layer(self, attention: GrowingAttention, part: Part) -> None:
        """Lets a part wait with copies of q and k, since models may write to them later."""
        size = count_bytes(part.call)
        most = GPU_BYTES if part.call.q.is_cuda else WAITING_BYTES
        if self.bytes + size > most:
            self.flush_layers()
        q, k = (x.detach().clone(memory_format=torch.contiguous_format) for x in (part.call.q, part.call.k))
        call = part.call._replace(q=q, k=k, v=k)
        kind: tuple[Any, ...] = (q.shape, k.shape, q.dtype, q.device, call.scale, call.softcap, id(call.mask))
        kind += (attention.cross, part.first_query, part.first_key, part.grows, part.logsumexp is None)
        together = sys.maxsize if q.is_cuda else max(1, JOB_BYTES // max(1, size))
        self.layers.append(_WaitingLayer(attention, part._replace(call=call), kind, together))
        self.bytes += size
        if self.bytes >= most:
            self.flush_layers()

    def _refuse_changed_keys(self, attention: GrowingAttention) -> None:
        if self._steps[attention].has_changed_keys():
            del self._steps[attention]
            raise LensError(
                f"the cached keys of {attention.name!r} were written to in place before their last steps were "
                "measured; assign changed keys as a new tensor, as in layer.keys = changed"
            )


def _can_wait(detail: MeasureDetail, part: Part) -> bool:
    """Whether an attention is small, and has nothing that differs from sample to sample or from layer to layer."""
    call = part.call
    if part.norms is not None or part.tokens is not None or detail.has_own_probes:
        return False
    if call.bias is not None or _has_parameters(call):
        return False
    if call.mask is not None and call.mask.tensors():  # which may differ by sample, and be written to later
        return False
    if call.q.is_cuda:
        return math.prod(call.sizes) <= GPU_SCORES
    return 2 * count_bytes(call) <= WAITING_BYTES  # otherwise it would wait for none, or for one other


def _has_parameters(call: Call) -> bool:
    """Whether a call has tensors of the model, which may change before it is measured."""
    return isinstance(call.scale, Tensor) or call.sinks is not None


class _WaitingLayer(NamedTuple):
    """The first queries of an attention."""

    attention: GrowingAttention
    part: Part
    kind: tuple[Any, ...]  # equal for those that can be measured together
    together: int  # most that are measured together


class _WaitingSteps:
    """Steps of one query each, whose keys were appended to those of the step before, at position 0 of the document.

    Only the keys of the last step are held: no keys that a cache has let go.
    """

    def __init__(self, first: Part) -> None:
        self.steps: list[Step] = []
        self.q: list[Float[Tensor, "batch heads 1 d"]] = []
        self.logsumexp: list[Float[Tensor, "batch heads 1"] | None] = []
        self.add(first)

    def accepts(self, part: Part) -> bool:
        """Whether a step directly follows those that wait, and could be measured with them."""
        last, call = self.last.call, part.call
        if call.q.shape[2] != 1 or len(self.steps) >= MAX_STEPS:
            return False
        follows = call.k.shape[2] == last.k.shape[2] + 1 and len(call.q) == len(last.q)
        return follows and (call.scale, call.softcap) == (last.scale, last.softcap)

    def add(self, part: Part) -> None:
        call = part.call
        self.steps.append(Step(part.first_query, 0, 1, call.k.shape[2], call.mask, call.bias))
        self.q.append(call.q)
        self.logsumexp.append(part.logsumexp)
        self.last, self._version = part, _get_version(call.k)

    def has_changed_keys(self) -> bool:
        """Whether somebody wrote to the keys of the last step, which inference tensors do not tell."""
        return self._version != _get_version(self.last.call.k)

    def join(self) -> list[Part]:
        """The steps as one part, or, where no mask or bias fits all, as one part each."""
        last, first = self.last, self.steps[0].first_query
        mask_and_bias = join_steps(self.steps, len(self.steps), last.call.k.shape[2], dense=False)
        if mask_and_bias is None:
            return [self._cut_keys(*step) for step in zip(self.steps, self.q, self.logsumexp, strict=True)]
        mask, bias = mask_and_bias
        q = self.q[0] if len(self.q) == 1 else torch.cat(self.q, 2)
        call = last.call._replace(q=q, mask=mask, bias=bias)
        return [last._replace(call=call, first_query=first, logsumexp=_join_logsumexp(self.logsumexp, 2))]

    def _cut_keys(self, step: Step, q: Tensor, logsumexp: Tensor | None) -> Part:
        """One step by itself, with its own keys out of those of the last."""
        k, v = (x[:, :, : step.keys] for x in (self.last.call.k, self.last.call.v))
        call = self.last.call._replace(q=q, k=k, v=v, mask=step.mask, bias=step.bias)
        return self.last._replace(call=call, first_query=step.first_query, logsumexp=logsumexp)


def _get_version(tensor: Tensor) -> int | None:
    """How often a tensor was written to in place."""
    return None if tensor.is_inference() else tensor._version


def _join_logsumexp(parts: Sequence[Tensor | None], axis: int) -> Tensor | None:
    """All of them in one tensor; None if one is not known."""
    tensors = [part for part in parts if part is not None]
    return torch.cat(tensors, axis) if len(tensors) == len(parts) else None


def count_bytes(call: Call) -> int:
    return call.q.nbytes + call.k.nbytes


def measure_together(measurements: Sequence[PartMeasurement]) -> None:
    """Measures parts of attentions, whose jobs are of the same shape, each job once for all of them."""
    while jobs := [job for measurement in measurements if (job := measurement.next_job()) is not None]:
        measures = run_job(join_jobs(jobs))
        results = [measures] if len(jobs) == 1 else split_measures(measures, len(jobs))
        for measurement, result in zip(measurements, results, strict=True):
            measurement.add(result)
    for measurement in measurements:
        measurement.finish()


def join_jobs(jobs: Sequence[MeasureJob]) -> MeasureJob:
    """Several jobs as one, with the samples of all."""
    first = jobs[0]
    if len(jobs) == 1:
        return first
    k = torch.cat([job.call.k for job in jobs])
    call = first.call._replace(q=torch.cat([job.call.q for job in jobs]), k=k, v=k)
    return first._replace(call=call, logsumexp=_join_logsumexp([job.logsumexp for job in jobs], 0))


def split_measures(measures: Measures, count: int) -> list[Measures]:
    """The measures of each of `count` jobs that were joined, as views."""
    chunks: dict[str, Any] = {
        field.name: tensor.chunk(count)
        for field in fields(measures)
        if isinstance(tensor := getattr(measures, field.name), Tensor)
    }
    return [replace(measures, **{name: parts[n] for name, parts in chunks.items()}) for n in range(count)]
