"""A call restricted to consecutive queries, or to some heads, with the mask and bias that hold for them."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence

import torch
from torch import Tensor

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
            return functools.reduce(operator.and_, (_slice_mask(part, rows, queries, keys) for part in mask.masks))
        case Either():
            return functools.reduce(operator.or_, (_slice_mask(part, rows, queries, keys) for part in mask.masks))
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


def slice_heads(call: Call, heads: Sequence[int] | None) -> Call:
    """The same call for these heads alone; None for all."""
    if heads is None:
        return call
    group = call.q.shape[1] // call.k.shape[1]
    groups = [head // group for head in heads]
    shared = [number for number, _ in itertools.groupby(groups)]
    each = len(heads) // max(1, len(shared))
    if [number for number in shared for _ in range(each)] == groups:
        groups = shared  # the selected heads share keys as evenly as all do
    rows, keys = (torch.tensor(list(numbers), dtype=torch.long, device=call.q.device) for numbers in (heads, groups))

    def select(tensor: Tensor, axis: int) -> Tensor:
        return tensor.index_select(axis, rows) if tensor.shape[axis] > 1 else tensor

    mask, bias = call.mask, call.bias
    if bias is not None and bias.heads > 1:
        bias = bias.replace(select(bias.parameter, 0 if bias.parameter.ndim == 1 else 1))
    return call._replace(
        q=call.q.index_select(1, rows),
        k=call.k.index_select(1, keys),
        v=call.v.index_select(1, keys),
        mask=mask if mask is None or mask.heads is None else mask.map(lambda t: select(t, 1) if t.ndim == 4 else t),
        bias=bias,
        scale=select(call.scale, 0) if isinstance(call.scale, Tensor) else call.scale,
        sinks=None if call.sinks is None else call.sinks.index_select(0, rows),
    )
