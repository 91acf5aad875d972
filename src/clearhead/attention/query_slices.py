"""A call restricted to consecutive queries: q, and the mask and bias that hold for them."""

from __future__ import annotations

import functools
import operator

from clearhead.attention import biases
from clearhead.attention.biases import Bias
from clearhead.attention.call import Call
from clearhead.attention.mask_kinds import Band, Both, Dense, Documents, Either, Padding, Prefix
from clearhead.attention.masks import Mask


def slice_queries(call: Call, start: int, stop: int) -> Call:
    """The same call for the queries from `start` to `stop` alone; each sees what it saw.

    >>> import torch
    >>> from clearhead.attention.call import check_call
    >>> x = torch.zeros(1, 1, 5, 2)
    >>> slice_queries(check_call(x, x, None, Mask.causal()), 3, 5).mask
    Mask.causal(offset=3)
    """
    queries, keys = call.sizes[2:]
    if (start, stop) == (0, queries):
        return call
    mask, bias = call.mask, call.bias
    if mask is not None:
        whole = mask
        mask = whole.once(
            ("queries", start, stop, queries, keys), lambda: _slice_mask(whole, slice(start, stop), queries, keys)
        )
    if bias is not None:
        bias = _slice_bias(bias, slice(start, stop), queries, keys)
    return call._replace(q=call.q[:, :, start:stop], mask=mask, bias=bias)


def _slice_mask(mask: Mask, rows: slice, queries: int, keys: int) -> Mask:
    """The mask of some of its queries; of a kind that is not known here, as dense booleans."""
    match mask:
        case Band():
            return Band(mask.left, mask.right, mask.start(queries, keys) + rows.start)
        case Prefix():
            return mask
        case Padding(hide_queries=False):
            return mask
        case Padding():
            real = Dense(mask.real_queries(queries, keys)[:, :, rows])
            return mask.hiding_queries(False) & real
        case Documents():
            return Documents(mask.ids, mask.of_queries(queries)[:, rows])
        case Dense():
            return Dense(mask.seen[:, :, rows]) if mask.seen.shape[2] > 1 else mask
        case Both():
            return functools.reduce(operator.and_, (_slice_mask(one, rows, queries, keys) for one in mask.masks))
        case Either():
            return functools.reduce(operator.or_, (_slice_mask(one, rows, queries, keys) for one in mask.masks))
    return Dense(mask.tile(rows, slice(0, keys), queries, keys))


def _slice_bias(bias: Bias, rows: slice, queries: int, keys: int) -> Bias:
    match bias:
        case biases.Dense():
            return bias.replace(bias.tile(rows, slice(0, keys), queries, keys))
        case biases.Alibi() | biases.Relative():
            moved = bias.replace(bias.parameter)
            moved.offset = (keys - queries if bias.offset is None else bias.offset) + rows.start
            return moved
    return biases.Dense(bias.tile(rows, slice(0, keys), queries, keys))
