"""The measures of one attention, defined in plain code that builds all weights; faster methods are judged by it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor

from clearhead.attention import reference
from clearhead.attention.call import Call, slice_queries
from clearhead.attention.mask_kinds import Band
from clearhead.attention.masks import Mask
from clearhead.errors import ClearheadError, RecordError

MAX_TOP = 2**20  # top keys of each query: memory is allocated for all of them, even if there are fewer keys


@dataclass(frozen=True)
class Measures:
    """Statistics of one attention. `queries` are the measured ones: all, or every n-th.

    A query that sees nothing has a logsumexp of −inf, a peak_key of −1, and 0 everywhere else. If its weights
    are NaN, its keys are −1, too. No float tensor shares memory with another: the lens adds to some in place.
    """

    logsumexp: Float[Tensor, "batch heads queries"]  # ln Σ exp(score), sinks included
    entropy: Float[Tensor, "batch heads queries"]  # −Σ w ln w, in nats: 0 for one key, ln n for n equal weights
    peak: Float[Tensor, "batch heads queries"]  # the largest weight
    peak_key: Int[Tensor, "batch heads queries"]  # its key; of equal ones the first
    distance: Float[Tensor, "batch heads queries"]  # Σ w |position of query − position of key|
    first: Float[Tensor, "batch heads queries"]  # the weight of the first visible key
    top_keys: Int[Tensor, "batch heads queries top"]  # largest first, then −1
    top_weights: Float[Tensor, "batch heads queries top"]  # then 0
    received: Float[Tensor, "batch heads keys"] | None  # Σ over queries; None if not requested
    map: Float[Tensor, "batch heads rows columns"]  # the weights, summed in blocks
    max_score: Float[Tensor, "batch heads"] | None = None  # before the softmax, over these queries; −inf for none
    span_mass: Float[Tensor, "batch heads queries spans"] | None = None  # Σ w over the keys of each span
    span_names: tuple[str, ...] = ()  # of the last axis of `span_mass`

    @property
    def mass(self) -> dict[str, Float[Tensor, "batch heads queries"]]:
        """The weight on each span of keys, by the names given as `spans`."""
        masses = () if self.span_mass is None else self.span_mass.unbind(-1)
        return _SpanMasses(zip(self.span_names, masses, strict=True))


class _SpanMasses(dict[str, Tensor]):
    """Masses by span; for an unknown name the error says which there are."""

    def __missing__(self, name: object) -> Tensor:
        names = f"there are {', '.join(map(repr, self))}" if self else "none were given"
        raise RecordError(f"no span is called {name!r}; {names}: spans={{{name!r}: slice(…)}} measures it")


Spans = Mapping[str, range]  # of keys, by name


class MeasureJob(NamedTuple):
    """One attention, the queries to measure, and the detail requested."""

    call: Call
    rows: range  # the queries
    offset: int  # query i is at the position of key `offset + i`
    blocks: tuple[int, int]  # measured queries × keys summed in one pixel of the map; 0, 0 for no map
    top: int
    received: bool
    logsumexp: Float[Tensor, "batch heads rows"] | None  # of these rows, if a fused kernel computed it
    spans: Spans = MappingProxyType({})  # may reach beyond the last key

    def start_at_first_row(self) -> MeasureJob:
        """The same job on a call whose first query is the first measured one, and whose last is the last."""
        first, end = (self.rows[0], self.rows[-1] + 1) if self.rows else (0, 0)
        return self._replace(
            call=slice_queries(self.call, first, end),
            rows=range(0, end - first, self.rows.step),
            offset=self.offset + first,
        )


def check_counts(error: type[ClearheadError], *, least: int = 0, most: int | None = None, **counts: int) -> None:
    """Raises `error` for a count that is no integer, or is out of range."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise error(f"{name} must be a whole number of at least {least}, got {value!r}")
        if most is not None and value > most:
            raise error(f"{name} must be a whole number of at most {most:,}, got {value!r}")


def choose_blocks(queries: int, keys: int, pixels: int) -> tuple[int, int]:
    """The smallest block sizes for which the map has at most `pixels` rows and columns."""
    return (-(-queries // pixels), -(-keys // pixels)) if pixels else (0, 0)


def locate_first_query(mask: Mask | None, queries: int, keys: int) -> int:
    """The key position of the first query: the mask's offset, or else the one that aligns the last query and key."""
    band = find_band(mask)
    return keys - queries if band is None else band.start(queries, keys)


def find_band(mask: Mask | None) -> Band | None:
    """The first causal mask or window in a mask, which gives its queries positions; None if there is none."""
    if isinstance(mask, Band):
        return mask
    bands = (find_band(part) for part in getattr(mask, "masks", ()))
    return next((band for band in bands if band is not None), None)


def measure_by_definition(job: MeasureJob) -> Measures:
    """All measures from the full weights, slowly, at any precision (half precision is promoted)."""
    dtype = torch.promote_types(job.call.q.dtype, torch.float32)
    call = job.call._replace(**{name: getattr(job.call, name).to(dtype) for name in "qkv"})
    rows = torch.tensor(job.rows, dtype=torch.long, device=call.q.device)
    scores, visible = (t.expand(call.sizes)[:, :, rows] for t in reference.scores(call))
    weights, keys = reference.weights(call)[:, :, rows], call.k.shape[2]
    scores = scores.masked_fill(~visible, -math.inf)
    sinks = [] if call.sinks is None else [call.sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)]
    seeing = visible.any(-1)
    apart = (rows[:, None] + job.offset - torch.arange(keys, device=rows.device)).abs()
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)
    padded = resize_last_axis(weights, max(keys, 1), 0)
    peak = padded.amax(-1)
    ranked = order.masked_fill((ordered == -math.inf) | peak.isnan()[..., None], -1)
    top_keys = resize_last_axis(ranked, job.top, -1)
    return Measures(
        logsumexp=torch.cat([scores, *sinks], -1).logsumexp(-1).masked_fill(~seeing, -math.inf),
        entropy=torch.special.entr(weights).sum(-1),
        peak=peak,
        peak_key=resize_last_axis(ranked, 1, -1)[..., 0].clone(),
        distance=(weights * apart).sum(-1),
        first=(weights * (visible & (visible.cumsum(-1) == 1))).sum(-1),
        top_keys=top_keys,
        top_weights=padded.gather(-1, top_keys.clamp(min=0)).masked_fill(top_keys < 0, 0.0),
        received=weights.sum(2) if job.received else None,
        map=sum_blocks(sum_blocks(weights, job.blocks[0], 2), job.blocks[1], 3),
        max_score=torch.nn.functional.pad(scores.flatten(2), (0, 1), value=-math.inf).amax(-1),
        span_mass=stack_spans(weights[..., span.start : span.stop].sum(-1) for span in job.spans.values()),
        span_names=tuple(job.spans),
    )


def stack_spans(masses: Iterable[Float[Tensor, "batch heads queries"]]) -> Tensor | None:
    """The masses of all spans along a last axis; None without spans."""
    masses = list(masses)
    return torch.stack(masses, -1) if masses else None


def sum_blocks(x: Num[Tensor, "..."], block: int, axis: int) -> Num[Tensor, "..."]:
    """Sums over blocks of an axis, the last one possibly short; an empty axis for blocks of 0.

    >>> sum_blocks(torch.tensor([1, 2, 3, 4, 5]), 2, 0)
    tensor([3, 7, 5])
    """
    if block == 0:
        return x.narrow(axis, 0, 0)
    edges = torch.arange(0, x.shape[axis], block, device=x.device)
    index = torch.arange(x.shape[axis], device=x.device) // block
    shape = [len(edges) if a == axis else n for a, n in enumerate(x.shape)]
    return x.new_zeros(shape).index_add_(axis, index, x)


def resize_last_axis(x: Num[Tensor, "..."], size: int, fill: int) -> Num[Tensor, "..."]:
    """Cuts or pads the last axis to `size`."""
    missing = max(0, size - x.shape[-1])
    return torch.cat([x[..., :size], x.new_full((*x.shape[:-1], missing), fill)], -1) if missing else x[..., :size]
