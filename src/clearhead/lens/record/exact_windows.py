"""Exact windows: q and k kept on the CPU, from which any part of the weights can be recomputed."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention.call import Call
from clearhead.attention.masks import Mask
from clearhead.errors import RecordError
from clearhead.lens.attention_names import to_python_number
from clearhead.lens.capture.batch_history import BatchHistory, join_pieces
from clearhead.lens.record.step_masks import Step, join_steps

CELLS = 2**22  # scores held at once where a whole row is needed


@dataclass(frozen=True)
class KeptInputs:
    """The inputs of an attention, on the CPU. Row 0 of q is the query at `first_query`, key 0 stands at position 0.

    An attention that grew has one part for each step, unless all of them follow one rule.
    """

    q: Float[Tensor, "batch heads queries d"]
    k: Float[Tensor, "batch kv_heads keys d"]
    scale: float | Tensor
    softcap: float | None
    sinks: Tensor | None
    parts: tuple[Step, ...]
    lengths: Tensor  # how many queries each sample has: fewer, where it was done before the others
    logsumexp: Float[Tensor, "batch heads queries"] | None = None  # None where only some queries were measured

    @property
    def first_query(self) -> int:
        return self.parts[0].first_query if self.parts else 0

    def call(self) -> Call:
        """All steps as one Call."""
        mask, bias = join_steps(self.parts, self.q.shape[2], self.k.shape[2])
        return Call(self.q, self.k, self.k, mask, self.scale, bias, self.softcap, self.sinks, 0.0)

    def compute_window(self, sample: int, place: int, queries: int | slice | None, keys: int | slice | None) -> Tensor:
        """The weights of some queries for some keys, by their positions, in one sample and one head."""
        rows = _select_positions(queries, self.first_query, self.q.shape[2], "queries")
        columns = _select_positions(keys, 0, self.k.shape[2], "keys")
        found = torch.zeros(len(rows), len(columns), dtype=torch.float64)
        for part, here in self._split_by_step(rows):
            scores = self._compute_scores(part, sample, place, here, columns)
            normaliser = self._compute_logsumexp(part, sample, place, here)
            weights = (scores - normaliser[:, None]).exp().masked_fill(normaliser[:, None] == -math.inf, 0.0)
            at = torch.tensor([rows.index(row) for row in here], dtype=torch.long)
            found[at] = weights
        real = self.first_query + int(self.lengths[sample])
        found[torch.tensor([row >= real for row in rows], dtype=torch.bool)] = 0.0
        return found.to(torch.promote_types(self.q.dtype, torch.float32))

    def _split_by_step(self, rows: range) -> Iterator[tuple[Step, range]]:
        """The steps that contain these queries, each with its share of them."""
        for part in self.parts:
            own = [row for row in (rows[0], rows[-1]) if row in part.rows] if rows else []
            if own or (rows and min(rows[0], rows[-1]) < part.first_query <= max(rows[0], rows[-1])):
                here = [row for row in rows if row in part.rows]
                if here:
                    yield part, rows[rows.index(here[0]) : rows.index(here[-1]) + 1]

    def _compute_scores(self, part: Step, sample: int, place: int, rows: range, columns: range) -> Tensor:
        """cap(q·k·scale) + bias in float64; −inf for what is hidden."""
        i, j = (torch.tensor(list(numbers), dtype=torch.long) for numbers in (rows, columns))
        group = self.q.shape[1] // self.k.shape[1]
        q, k = self.q[sample, place, i - self.first_query].double(), self.k[sample, place // group, j].double()
        scores = q @ k.T * (self.scale if isinstance(self.scale, float) else _scale_of_head(self.scale, place))
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        b, h = torch.tensor([[sample]]), torch.tensor([[place]])
        i, j = (i - part.first_query)[:, None], (j - part.first_key)[None, :]
        visible = (j >= 0) & (j < part.keys)
        j = j.clamp(0, max(part.keys - 1, 0))
        if part.bias is not None:
            scores = scores + part.bias.at(b, h, i, j, part.queries, part.keys).double()
        if part.mask is not None:
            visible = visible & part.mask.at(b, h, i, j, part.queries, part.keys)
        return scores.masked_fill(~visible, -math.inf)

    def _compute_logsumexp(self, part: Step, sample: int, place: int, rows: range) -> Tensor:
        if self.logsumexp is not None:
            at = torch.tensor(list(rows), dtype=torch.long) - self.first_query
            return self.logsumexp[sample, place, at].double()
        found, step = [], max(1, CELLS // max(1, self.k.shape[2]))
        for start in range(0, len(rows), step):
            scores = self._compute_scores(part, sample, place, rows[start : start + step], range(self.k.shape[2]))
            blind = (scores == -math.inf).all(-1)
            if self.sinks is not None:
                scores = torch.cat([scores, self.sinks[place].double().expand(len(scores), 1)], -1)
            found.append(scores.logsumexp(-1).masked_fill(blind, -math.inf))
        return torch.cat(found) if found else torch.zeros(0, dtype=torch.float64)


class InputKeeper:
    """Collects the inputs of a growing attention on the CPU, each key once."""

    def __init__(self) -> None:
        self.q: list[tuple[int, Tensor]] = []  # with the time at which it came
        self.k: list[tuple[int, Tensor]] = []
        self.parts: list[tuple[int, Step]] = []
        self.keys = 0
        self.scale: float | Tensor = 1.0
        self.softcap: float | None = None
        self.sinks: Tensor | None = None

    def add(self, call: Call, first_query: int, first_key: int, time: int) -> None:
        queries, keys = call.q.shape[2], call.k.shape[2]
        self.q.append((time, _copy_to_host(call.q)))
        if first_key + keys > self.keys or not self.k:
            new = _copy_to_host(call.k[:, :, max(0, self.keys - first_key) :])
            gap = max(0, first_key - self.keys)  # keys that a sliding cache had dropped before anybody watched
            self.k.append((time, torch.nn.functional.pad(new, (0, 0, gap, 0))))
            self.keys = first_key + keys
        mask = None if call.mask is None else _copy_mask(call.mask)
        bias = None if call.bias is None else call.bias.replace(_copy_to_host(call.bias.parameter))
        self.parts.append((time, Step(first_query, first_key, queries, keys, mask, bias)))
        if len(self.parts) == 1:
            self.scale = _copy_to_host(call.scale) if isinstance(call.scale, Tensor) else call.scale
            self.softcap, self.sinks = call.softcap, None if call.sinks is None else _copy_to_host(call.sinks)

    def finish(self, history: BatchHistory, logsumexp: Tensor | None) -> KeptInputs:
        """The KeptInputs, with samples in the order of the record."""
        q, k = join_pieces(self.q, history), join_pieces(self.k, history)
        lengths = torch.zeros(len(q), dtype=torch.long)
        for time, part in self.parts:
            lengths += (history.paths(time) >= 0) * part.queries
        parts = tuple(part.of_samples(history.paths(time)) for time, part in self.parts)
        together = join_steps(parts, q.shape[2], k.shape[2], dense=False)
        if len(parts) > 1 and together is not None:
            parts = (Step(parts[0].first_query, 0, q.shape[2], k.shape[2], *together),)
        return KeptInputs(q, k, self.scale, self.softcap, self.sinks, parts, lengths, logsumexp)


_copies: weakref.WeakKeyDictionary[Mask, tuple[list[int], Mask]] = weakref.WeakKeyDictionary()


def _copy_mask(mask: Mask) -> Mask:
    """A copy of a mask, shared by all layers that use it."""
    if any(tensor.is_inference() for tensor in mask.tensors()):
        return mask.map(_copy_to_host)  # these do not say whether they were changed since
    changes = [tensor._version for tensor in mask.tensors()]
    known = _copies.get(mask)
    if known is None or known[0] != changes:
        known = _copies[mask] = (changes, mask.map(_copy_to_host))
    return known[1]


def _copy_to_host(tensor: Tensor) -> Tensor:
    """A CPU copy that shares no memory: caches overwrite what they return."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def _scale_of_head(scale: Tensor, place: int) -> float:
    return float(scale.flatten()[place if scale.numel() > 1 else 0])


def _select_positions(wanted: int | slice | None, first: int, count: int, what: str) -> range:
    """The positions that an integer or a slice selects from `first` on."""
    if wanted is None:
        return range(first, first + count)
    wanted = to_python_number(wanted)
    if isinstance(wanted, slice):
        stop = first + count
        start, end, step = wanted.indices(stop)
        return range(max(start, first) if step > 0 else start, end if step > 0 else max(end, first - 1), step)
    if isinstance(wanted, bool) or not isinstance(wanted, int):
        raise RecordError(f"{what} are chosen by a position, or a slice of positions, got {wanted!r}")
    if not first <= wanted < first + count:
        raise RecordError(f"there are {what} at positions {first} to {first + count - 1}, not at {wanted!r}")
    return range(wanted, wanted + 1)
