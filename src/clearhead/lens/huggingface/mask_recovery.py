"""Masks of transformers as `Mask`: structure recovered from dense booleans."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from clearhead.attention.masks import Mask

CELLS_AT_ONCE = 2**26  # of a dense mask that are read together


class Spans(NamedTuple):
    """For each query the visible keys `low` to `high`; both 0 where there are none."""

    low: Int[Tensor, "samples queries"]
    high: Int[Tensor, "samples queries"]
    keys: int

    @property
    def places(self) -> Int[Tensor, " queries"]:
        """Query positions among the keys, with the last query at the last key."""
        queries = self.low.shape[1]
        return torch.arange(self.keys - queries, self.keys)


@torch.inference_mode(False)  # inference tensors have no version counter
def recover_mask(seen: Bool[Tensor, "..."], *, causal: bool, window: int | None = None) -> Mask | None:
    """A structured mask equal to dense booleans: full, causal or a window, with padding at either end or both.

    If there is none it is the dense mask; that of one query is a copy, since decoding steps wait to be measured, and
    their mask may be written to. None means that all is visible. A single query cannot distinguish a causal
    mask from a full one, nor a window from padding: `causal` and `window` decide. The device is synchronised once.

    >>> seen = torch.ones(3, 3).tril().bool() & torch.tensor([[False, True, True]])
    >>> recover_mask(seen[None, None], causal=True)
    Mask.causal() & Mask.padding([2], side='left')
    """
    spans = _find_spans(seen)
    for left, right in () if spans is None else _candidate_bands(spans, causal, window):
        assert spans is not None
        padding = _find_padding(spans, left, right)
        if padding is not None:
            band = [] if left is None and right is None else [Mask.window(left, right)]
            parts = [*band, *(mask.to(seen.device) for mask in padding)]
            return functools.reduce(Mask.__and__, parts) if parts else None
    return Mask.visible(seen.clone() if seen.ndim < 2 or seen.shape[-2] == 1 else seen)


def _find_spans(seen: Tensor) -> Spans | None:
    """The visible span of each query, if it has no gaps and is the same for all heads; else None."""
    seen = seen[(None,) * (4 - seen.ndim)]
    for axis in (0, 1):
        if seen.stride(axis) == 0:
            seen = seen.narrow(axis, 0, 1)
    samples, heads, queries, keys = seen.shape
    if heads != 1 or keys < 2 or not queries or not samples:
        return None
    edges = []
    for rows in seen[:, 0].split(max(1, CELLS_AT_ONCE // (samples * keys)), 1):
        numbers = rows.view(torch.uint8)
        last = keys - numbers.flip(-1).argmax(-1)
        edges.append(torch.stack([numbers.argmax(-1), last, rows.sum(-1, dtype=torch.int32)]))
    low, high, count = torch.cat(edges, 2).cpu()
    low, high = low.masked_fill(count == 0, 0), high.masked_fill(count == 0, 0)
    return Spans(low, high, keys) if torch.equal(high - low, count) else None


def _candidate_bands(spans: Spans, causal: bool, window: int | None) -> Iterator[tuple[int | None, int | None]]:
    """Candidate windows (left, right), likeliest first; None is no limit."""
    if causal and window:
        yield window - 1, 0
    yield from ((None, 0), (None, None)) if causal else ((None, None), (None, 0))
    seeing = spans.high > spans.low
    reach = ((spans.places - spans.low)[seeing], (spans.high - 1 - spans.places)[seeing])
    if bool(seeing.any()):
        left, right = (max(0, int(side.max())) for side in reach)  # where all see less, padding is what hides the rest
        yield left, right


def _find_padding(spans: Spans, left: int | None, right: int | None) -> list[Mask] | None:
    """Padding that turns this window into the observed spans; None if there is none."""
    low, high, keys = spans
    least = torch.zeros_like(spans.places) if left is None else (spans.places - left).clamp(0, keys)
    most = torch.full_like(least, keys) if right is None else (spans.places + right + 1).clamp(0, keys)
    seeing = high > low
    first = low.masked_fill(~seeing, keys).amin(1)
    first = first.masked_fill((first <= least.min()) | ~seeing.any(1), 0)  # what the band hides from all is not padding
    last = high.amax(1)
    last = last.masked_fill((last >= most.max()) & seeing.any(1), keys)
    begin, end = torch.maximum(least, first[:, None]), torch.minimum(most, last[:, None])
    same = torch.where(seeing, (begin == low) & (end == high), end <= begin)
    if not bool(same.all()):
        return None
    right_padding = [Mask.padding(last)] if bool((last < keys).any()) else []
    return right_padding + ([Mask.padding(keys - first, side="left")] if bool(first.any()) else [])
