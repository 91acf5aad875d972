"""The rule that a square of booleans follows: Hugging Face writes causal masks of padded batches out, n × n of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.attention.masks import Mask

CELLS = 2**26  # of a square, looked at together


class Spans(NamedTuple):
    """Of each query, (samples, queries), the keys from `low` to `high` are seen; where that is none, both are 0."""

    low: Tensor
    high: Tensor
    keys: int

    @property
    def places(self) -> Tensor:
        """Where the queries stand among the keys, if both end together."""
        queries = self.low.shape[1]
        return torch.arange(self.keys - queries, self.keys)


@torch.inference_mode(False)  # whose tensors do not say whether they were changed
def ruled(seen: Tensor, *, causal: bool, window: int | None = None) -> Mask | None:
    """The mask of O(n) that shows exactly the same: full, causal or a window, with padding at either end, or both.

    If there is none it is the square itself. None means that all is seen. Of one query alone nobody can tell a causal
    mask from a full one, nor a window from padding: `causal` and `window` say what to take it for. The device is waited
    for once.

    >>> seen = torch.ones(3, 3).tril().bool() & torch.tensor([[False, True, True]])
    >>> ruled(seen[None, None], causal=True)
    Mask.causal() & Mask.padding([2], side='left')
    """
    spans = _spans(seen)
    for left, right in () if spans is None else _bands(spans, causal, window):
        assert spans is not None
        found = _padding(spans, left, right)
        if found is not None:
            band = [] if left is None and right is None else [Mask.window(left, right)]
            parts = [*band, *(mask.to(seen.device) for mask in found)]
            return functools.reduce(Mask.__and__, parts) if parts else None
    return Mask.visible(seen)


def _spans(seen: Tensor) -> Spans | None:
    """What each query sees, if it has no gaps and is the same for all heads."""
    seen = seen[(None,) * (4 - seen.ndim)]
    for axis in (0, 1):
        if seen.stride(axis) == 0:
            seen = seen.narrow(axis, 0, 1)
    samples, heads, queries, keys = seen.shape
    if heads != 1 or keys < 2 or not queries or not samples:
        return None
    found = []
    for rows in seen[:, 0].split(max(1, CELLS // (samples * keys)), 1):
        numbers = rows.view(torch.uint8)
        last = keys - numbers.flip(-1).argmax(-1)
        found.append(torch.stack([numbers.argmax(-1), last, rows.sum(-1, dtype=torch.int32)]))
    low, high, count = torch.cat(found, 2).cpu()
    low, high = low.masked_fill(count == 0, 0), high.masked_fill(count == 0, 0)
    return Spans(low, high, keys) if torch.equal(high - low, count) else None


def _bands(spans: Spans, causal: bool, window: int | None) -> Iterator[tuple[int | None, int | None]]:
    """How far queries may see to both sides, the likeliest first; None is no limit."""
    if causal and window:
        yield window - 1, 0
    yield from ((None, 0), (None, None)) if causal else ((None, None), (None, 0))
    some = spans.high > spans.low
    reach = ((spans.places - spans.low)[some], (spans.high - 1 - spans.places)[some])
    if bool(some.any()):
        left, right = (max(0, int(side.max())) for side in reach)  # where all see less, padding is what hides the rest
        yield left, right


def _padding(spans: Spans, left: int | None, right: int | None) -> list[Mask] | None:
    """What hides the keys that this band would show, and no others; None if nothing does."""
    low, high, keys = spans
    least = torch.zeros_like(spans.places) if left is None else (spans.places - left).clamp(0, keys)
    most = torch.full_like(least, keys) if right is None else (spans.places + right + 1).clamp(0, keys)
    some = high > low
    first = low.masked_fill(~some, keys).amin(1)
    first = first.masked_fill((first <= least.min()) | ~some.any(1), 0)  # what the band hides from all is not padding
    last = high.amax(1)
    last = last.masked_fill((last >= most.max()) & some.any(1), keys)
    begin, end = torch.maximum(least, first[:, None]), torch.minimum(most, last[:, None])
    same = torch.where(some, (begin == low) & (end == high), end <= begin)
    if not bool(same.all()):
        return None
    found = [Mask.padding(last)] if bool((last < keys).any()) else []
    return found + ([Mask.padding(keys - first, side="left")] if bool(first.any()) else [])
