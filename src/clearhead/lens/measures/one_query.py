"""The measures of one query, as in a decoding step: one pass without tiles, as planning them would take longer."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.attention.call import Call
from clearhead.attention.mask_kinds import Band, Both
from clearhead.attention.masks import Mask
from clearhead.attention.tile_scores import TileScorer, VisibleRun, multiply_heads, scale_queries
from clearhead.lens.measures import top_keys
from clearhead.lens.measures.definition import MeasureJob, Measures, resize_last_axis, stack_spans


def run(job: MeasureJob) -> Measures:
    """The measures from the weights of one query: O(keys) memory. None is a view of another."""
    call, (row,), keys = job.call, job.rows, job.call.k.shape[2]
    columns, mask = _find_visible_keys(call, row)
    scores = _compute_scores(call, row, columns, mask)
    best, order = top_keys.find_largest_of_few(scores, max(job.top, 1))
    hidden = best == -math.inf
    weights, logsumexp = _compute_softmax(scores, call.sinks, best[..., :1])
    if mask is not None or call.bias is not None:
        weights, logsumexp = (x.masked_fill(hidden[..., :1], y) for x, y in ((weights, 0.0), (logsumexp, -math.inf)))
    largest = weights.gather(-1, order)
    missing = hidden | largest.isnan()
    order = (order + columns.start if columns.start else order).masked_fill(missing, -1)
    first = weights[..., :1]
    if mask is not None or call.bias is not None:
        first = weights.gather(-1, (scores > -math.inf).byte().argmax(-1, keepdim=True))
    position = job.offset + row
    apart = torch.arange(
        columns.start - position, columns.stop - position, dtype=weights.dtype, device=weights.device
    ).abs_()
    received = F.pad(weights, (columns.start, keys - columns.stop)) if weights.shape[-1] < keys else weights
    return Measures(
        logsumexp=logsumexp,
        entropy=torch.special.entr(weights).sum(-1, keepdim=True),
        peak=largest[..., :1],
        peak_key=order[..., :1].clone(),
        distance=(weights * apart).sum(-1, keepdim=True),
        first=first.clone(),
        top_keys=resize_last_axis(order, job.top, -1)[:, :, None],
        top_weights=resize_last_axis(largest.masked_fill(missing, 0.0), job.top, 0)[:, :, None],
        received=received if job.received else None,
        map=_sum_pixels(received, *job.blocks)[:, :, None],
        max_score=best[..., 0],
        span_mass=stack_spans(
            received[..., span.start : span.stop].sum(-1, keepdim=True) for span in job.spans.values()
        ),
        span_names=tuple(job.spans),
    )


def _find_visible_keys(call: Call, row: int) -> tuple[slice, Mask | None]:
    """The keys within all bands of the mask for this query, and the remaining mask, if any."""
    queries, keys = call.sizes[2:]
    low, high, others = 0, keys, []
    for part in () if call.mask is None else call.mask.parts():
        if isinstance(part, Band):
            span = part.span(row, queries, keys)
            low, high = max(low, span.start), min(high, span.stop)
        else:
            others.append(part)
    if low >= high:
        return slice(0, keys), call.mask
    return slice(low, high), None if not others else others[0] if len(others) == 1 else Both(tuple(others))


def _compute_scores(call: Call, row: int, columns: slice, mask: Mask | None) -> Tensor:
    """The scores of one query with some keys, (batch, heads, keys); −inf where hidden."""
    rows = slice(row, row + 1)
    k = call.k[:, :, columns].to(torch.promote_types(call.q.dtype, torch.float32))
    products = multiply_heads(scale_queries(call.q[:, :, rows], call.scale), k)
    run = VisibleRun(columns, (columns,))
    return TileScorer.of_call(call)._replace(mask=mask).score_tile_(products, rows, run)[:, :, 0]


def _compute_softmax(scores: Tensor, sinks: Tensor | None, largest: Tensor) -> tuple[Tensor, Tensor]:
    """The weights and the logsumexp; NaN for a row that sees nothing."""
    if sinks is None:
        weights = scores.softmax(-1)
        return weights, largest - weights.amax(-1, keepdim=True).log_()
    scores = torch.cat([scores, sinks.to(scores.dtype).view(1, -1, 1).expand(len(scores), -1, -1)], -1)
    return scores.softmax(-1)[..., :-1], scores.logsumexp(-1, keepdim=True)


def _sum_pixels(received: Tensor, height: int, width: int) -> Tensor:
    """The weights as a row of the map."""
    if not height:
        return received.new_zeros(*received.shape[:2], 0)
    if width == 1:
        return received.clone()
    blocks: Tensor = F.pad(received, (0, -received.shape[-1] % width)).unflatten(-1, (-1, width))
    return blocks.sum(-1)
