"""InputKeeper: collects the q, k, masks and biases of a growing attention, from which weights are computed later."""

from __future__ import annotations

import weakref

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.attention.call import Call
from clearhead.attention.masks import Mask
from clearhead.lens.capture.growing_tensors import BatchHistory, join_pieces, select_rows
from clearhead.lens.capture.host_transfer import ArrivingTensors, HostTransfer
from clearhead.lens.record.kept_inputs import KeptInputs, Step, join_steps


class InputKeeper:
    """Collects the inputs of a growing attention and sends them to the CPU, each key once."""

    def __init__(self, transfer: HostTransfer) -> None:
        self.transfer = transfer
        self.q: list[tuple[int, ArrivingTensors]] = []  # with the time of each
        self.k: list[tuple[int, ArrivingTensors]] = []
        self.parts: list[tuple[int, Step]] = []
        self.stopped: list[frozenset[int]] = []  # rows of each part that had stopped
        self.keys = 0
        self.scale: float | Tensor = 1.0
        self.softcap: float | None = None
        self.sinks: Tensor | None = None

    def add(self, call: Call, first_query: int, first_key: int, history: BatchHistory) -> None:
        time = history.time
        self.stopped.append(history.stopped)
        queries, keys = call.q.shape[2], call.k.shape[2]
        self.q.append((time, self._send("q", call.q)))
        if first_key + keys > self.keys or not self.k:
            gap = max(0, first_key - self.keys)  # keys that a sliding cache dropped before the watch began
            new = call.k[:, :, max(0, self.keys - first_key) :]
            self.k.append((time, self._send("k", torch.nn.functional.pad(new, (0, 0, gap, 0)) if gap else new)))
            self.keys = first_key + keys
        mask = None if call.mask is None else _copy_mask(call.mask)
        bias = None if call.bias is None else call.bias.replace(_copy_to_host(call.bias.parameter))
        self.parts.append((time, Step(first_query, first_key, queries, keys, mask, bias)))
        if len(self.parts) == 1:
            self.scale = _copy_to_host(call.scale) if isinstance(call.scale, Tensor) else call.scale
            self.softcap, self.sinks = call.softcap, None if call.sinks is None else _copy_to_host(call.sinks)

    def _send(self, name: str, tensor: Tensor) -> ArrivingTensors:
        """Copied on its device first: caches overwrite what they return."""
        return self.transfer.send({name: tensor.detach().clone(memory_format=torch.contiguous_format)})

    def finish(self, history: BatchHistory, logsumexp: Float[Tensor, "samples heads queries"] | None) -> KeptInputs:
        """The KeptInputs, with samples in the order of the record."""
        q = join_pieces([(time, piece["q"]) for time, piece in self.q], history)
        k = join_pieces([(time, piece["k"]) for time, piece in self.k], history)
        lengths = torch.zeros(len(q), dtype=torch.long)
        for (time, part), stopped in zip(self.parts, self.stopped, strict=True):
            rows = history.paths(time)
            lengths += ((rows >= 0) & ~torch.isin(rows, torch.tensor(sorted(stopped)))) * part.queries
        parts = tuple(_select_samples(part, history.paths(time)) for time, part in self.parts)
        together = join_steps(parts, q.shape[2], k.shape[2], dense=False)
        if len(parts) > 1 and together is not None:
            parts = (Step(parts[0].first_query, 0, q.shape[2], k.shape[2], *together),)
        return KeptInputs(q, k, self.scale, self.softcap, self.sinks, parts, lengths, logsumexp)


def _select_samples(step: Step, rows: Int[Tensor, " samples"]) -> Step:
    """The same step for these samples; −1 marks a sample that had finished."""
    present = None if bool((rows >= 0).all()) else rows >= 0
    rows, mask, bias = rows.clamp(min=0), step.mask, step.bias
    if mask is not None:
        mask = mask.map(lambda tensor: select_rows(tensor, rows) if len(tensor) > 1 else tensor)
    if bias is not None and bias.batch > 1:
        bias = bias.replace(select_rows(bias.parameter, rows))
    return step._replace(mask=mask, bias=bias, present=present)


_copies: weakref.WeakKeyDictionary[Mask, tuple[list[int], Mask]] = weakref.WeakKeyDictionary()


def _copy_mask(mask: Mask) -> Mask:
    """A copy of a mask, shared by all layers that use it."""
    if any(tensor.is_inference() for tensor in mask.tensors()):
        return mask.map(_copy_to_host)  # inference tensors have no version counter
    changes = [tensor._version for tensor in mask.tensors()]
    if mask not in _copies or _copies[mask][0] != changes:
        _copies[mask] = (changes, mask.map(_copy_to_host))
    return _copies[mask][1]


def _copy_to_host(tensor: Tensor) -> Tensor:
    """A CPU copy that shares no memory: caches overwrite what they return."""
    return tensor.detach().to("cpu", copy=True).contiguous()
