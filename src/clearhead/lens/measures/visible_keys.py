"""Visible keys: how many each query sees (which bounds its entropy), how many queries see each, single weights."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.attention.biases import Dense as DenseBias
from clearhead.attention.call import Call
from clearhead.attention.mask_kinds import Band, Padding, Prefix
from clearhead.attention.mask_kinds import Dense as DenseMask
from clearhead.attention.masks import Mask
from clearhead.attention.tile_scores import TileScorer, find_visible_runs, scale_queries
from clearhead.errors import ShapeError

CHUNK_CELLS = 2**22  # of a mask, evaluated at once
MIN_BLOCK_KEYS = 64  # of a block for which the mask is asked whether all or none are visible


def count_visible_keys(call: Call, rows: range) -> Int[Tensor, "batch heads rows"]:
    """The number of keys that these queries may see; batch and heads are 1 where nothing differs.

    Bands, and masks that hide the same keys from all queries, are counted in O(n) on the CPU, where two dozen small
    steps are faster than as many kernels. Other masks are counted tile by tile on their device.

    >>> from clearhead import Mask
    >>> from clearhead.attention.call import check_call
    >>> x = torch.zeros(1, 1, 5, 2)
    >>> count_visible_keys(check_call(x, x, None, Mask.window(2) & Mask.padding([4])), range(5))
    tensor([[[1, 2, 3, 3, 2]]])
    """
    return _count(call, rows, of_keys=False)


def count_seeing_queries(call: Call, rows: range) -> Int[Tensor, "batch heads keys"]:
    """By how many of these queries each key may be seen; batch and heads are 1 where nothing differs."""
    return _count(call, rows, of_keys=True)


def _count(call: Call, rows: range, *, of_keys: bool) -> Tensor:
    mask, keys = call.mask, call.k.shape[2]
    if isinstance(call.bias, DenseBias) and bool((call.bias.parameter == -math.inf).any()):
        return _count_by_tiles(call, rows, True, of_keys=of_keys)
    if mask is None:
        return torch.full((1, 1, keys), len(rows)) if of_keys else torch.full((1, 1, len(rows)), keys)

    def count() -> Tensor:
        if len(rows) == 1 and all(isinstance(part, Band) for part in mask.parts()):  # a decoding step
            spans = [part.span(rows[0], *call.sizes[2:]) for part in mask.parts() if isinstance(part, Band)]
            seen = torch.zeros(1, 1, keys, dtype=torch.long)
            seen[..., max(span.start for span in spans) : min(span.stop for span in spans)] = 1
            return seen if of_keys else seen.sum(-1, keepdim=True)
        limits = _find_limits(call, mask, rows)
        if limits is None:
            return _count_by_tiles(call, rows, False, of_keys=of_keys)
        return _count_covering(limits) if of_keys else _count_within(limits)

    counts: Tensor = mask.once(("lens visible", call.sizes[2:], rows, call.q.device, of_keys), count)
    return counts


class Limits(NamedTuple):
    """A mask that is a band and hidden keys: row n sees the shown keys from low[n] to high[n], if it is real."""

    low: Int[Tensor, " rows"]
    high: Int[Tensor, " rows"]
    shown: Bool[Tensor, "batch heads keys"]
    real: Bool[Tensor, "batch heads #rows"]


def _find_limits(call: Call, mask: Mask, rows: range) -> Limits | None:
    """The limits of each row; None for masks of other kinds."""
    queries, keys = call.q.shape[2], call.k.shape[2]
    index = torch.arange(rows.start, rows.stop, rows.step)
    low, high = torch.zeros_like(index), torch.full_like(index, keys)
    shown = torch.ones(1, 1, 1, keys, dtype=torch.bool)
    real = torch.ones(1, 1, 1, dtype=torch.bool)
    for part in mask.parts():
        if isinstance(part, Band):
            position = index + part.start(queries, keys)
            low = low if part.left is None else torch.maximum(low, position - part.left)
            high = high if part.right is None else torch.minimum(high, position + part.right + 1)
        elif isinstance(part, (Prefix, Padding)) or (isinstance(part, DenseMask) and part.keys_only):
            on_cpu = part.to("cpu")
            assert isinstance(on_cpu, (Prefix, Padding, DenseMask))
            shown = shown & on_cpu.visible_keys(keys)
            if isinstance(on_cpu, Padding) and on_cpu.hide_queries:
                real = real & on_cpu.real_queries(queries, keys)[..., 0][:, :, index]
        else:
            return None
    low, high = low.clamp(0, keys), high.clamp(0, keys)
    return Limits(low, torch.maximum(low, high), shown[:, :, 0], real)


def _count_within(limits: Limits) -> Tensor:
    """The number of keys that each row sees."""
    before = torch.nn.functional.pad(limits.shown.cumsum(-1), (1, 0))  # the number of visible keys before each
    return (before[..., limits.high] - before[..., limits.low]) * limits.real


def _count_covering(limits: Limits) -> Tensor:
    """The number of rows that see each key."""
    real = limits.real.long().expand(*limits.real.shape[:2], len(limits.low))
    changes = torch.zeros(*real.shape[:2], limits.shown.shape[-1] + 1, dtype=torch.long)
    changes.index_add_(2, limits.low, real).index_add_(2, limits.high, -real)
    return changes.cumsum(-1)[..., :-1] * limits.shown


def _count_by_tiles(call: Call, rows: range, hiding: bool, *, of_keys: bool = False) -> Tensor:
    """The number of keys that each row sees, or with `of_keys` of rows that see each key, by evaluating the mask."""
    (_, _, queries, keys), device, mask, bias = call.sizes, call.q.device, call.mask, call.bias
    parts = [part for part in (mask, bias if hiding else None) if part is not None]
    batch, heads = max(part.batch or 1 for part in parts), max(part.heads or 1 for part in parts)
    step = max(1, CHUNK_CELLS // max(1, batch * heads * keys))
    height = step * rows.step
    runs = find_visible_runs(mask, queries, keys, height, max(MIN_BLOCK_KEYS, keys // 256), device)
    counts = torch.zeros(batch, heads, keys if of_keys else len(rows), dtype=torch.long, device=device)
    for number, (columns, partial) in enumerate(runs):
        low, high = (max(0, -(-(edge * height - rows.start) // rows.step)) for edge in (number, number + 1))
        tile_rows = rows[low:high]
        if not tile_rows:
            continue
        if of_keys:
            counts[:, :, columns] += len(tile_rows)
        else:
            counts[:, :, low:high] = columns.stop - columns.start
        for piece in (columns,) if hiding else partial:
            tile = slice(tile_rows.start, tile_rows.stop, tile_rows.step), piece, queries, keys
            visible = torch.ones((), dtype=torch.bool, device=device) if mask is None else mask.tile(*tile, device)
            if hiding and bias is not None:
                visible = visible & (bias.tile(*tile) > -math.inf)
            visible = visible.expand(*visible.shape[:2], len(tile_rows), piece.stop - piece.start)
            if of_keys:
                counts[:, :, piece] -= (~visible).sum(-2)
            else:
                counts[:, :, low:high] -= (~visible).sum(-1)
    return counts


def compute_probe_weights(
    call: Call, keys: Int[Tensor, " rows"], logsumexp: Float[Tensor, "batch heads rows"], rows: range
) -> Float[Tensor, "batch heads rows"]:
    """The weight that each of these queries gives to its key, in O(n·d); 0 if that is hidden or does not exist.

    `logsumexp` is that of these queries.
    """
    size = call.k.shape[2]
    if keys.shape != (len(rows),):
        raise ShapeError(f"keys must be shaped (queries,) = ({len(rows)},), got {tuple(keys.shape)}")
    if size == 0:
        return torch.zeros_like(logsumexp)
    with torch.no_grad(), torch.autocast(call.q.device.type, enabled=False):
        named = keys.to(call.q.device, torch.long)
        scores = _score_chosen_keys(call, rows, named.clamp(0, size - 1))
        exists = (named >= 0) & (named < size)
        visible = exists & (scores != -math.inf) & (logsumexp != -math.inf)
        return torch.where(visible, (scores - logsumexp).exp(), 0.0)


def _score_chosen_keys(call: Call, rows: range, j: Tensor) -> Tensor:
    """The score of each query with its key, (batch, heads, rows); −inf if that is hidden."""
    batch, heads = call.sizes[:2]
    q = scale_queries(call.q[:, :, rows.start : rows.stop : rows.step], call.scale)
    k = call.k[:, :, j].to(q.dtype)
    products = (q.unflatten(1, (k.shape[1], -1)) * k[:, :, None]).sum(-1).flatten(1, 2)
    i = torch.tensor(rows, dtype=torch.long, device=q.device)
    b, h = torch.arange(batch, device=q.device).view(-1, 1, 1), torch.arange(heads, device=q.device).view(1, -1, 1)
    return TileScorer.of_call(call).score_pairs(products, b, h, i, j)
