"""Probes: the weight that each query gives to one chosen key, in O(n·d)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.attention.call import Call
from clearhead.errors import ShapeError


def compute_probe_weights(
    call: Call,
    keys: Int[Tensor, "#batch queries"] | Int[Tensor, " queries"],
    logsumexp: Float[Tensor, "batch heads queries"],
    *,
    rows: range | None = None,
) -> Float[Tensor, "batch heads queries"]:
    """What each query gives to the key that is named for it, in O(n·d); 0 if that is hidden or there is none such.

    `keys` are of all samples, or of each; `rows` says which queries these are, if not all, and `logsumexp` is theirs.

    >>> from clearhead.attention.call import check_call
    >>> x = torch.zeros(1, 1, 4, 2)
    >>> everywhere = torch.full((1, 1, 4), math.log(4))
    >>> compute_probe_weights(check_call(x, x, None, None), torch.tensor([-1, 0, 1, 2]), everywhere)
    tensor([[[0.0000, 0.2500, 0.2500, 0.2500]]])
    """
    batch, heads, queries, size = call.sizes
    rows = range(queries) if rows is None else rows
    named = (keys if keys.ndim == 2 else keys[None]).to(call.q.device, torch.long)
    if named.shape[1] != len(rows) or len(named) not in (1, batch):
        raise ShapeError(
            f"one key is needed for each of {len(rows)} queries, the same for all samples or for each of {batch}; "
            f"got keys of shape {tuple(keys.shape)}"
        )
    if tuple(logsumexp.shape) != (batch, heads, len(rows)):
        raise ShapeError(f"logsumexp must be {(batch, heads, len(rows))}, got {tuple(logsumexp.shape)}")
    if size == 0:
        return torch.zeros_like(logsumexp)
    with torch.no_grad(), torch.autocast(call.q.device.type, enabled=False):
        scores, seen = _score_pairs(call, rows, named.clamp(0, size - 1))
        there = ((named >= 0) & (named < size))[:, None]
        return torch.where(there & seen & (logsumexp != -math.inf), (scores - logsumexp).exp(), 0.0)


def _score_pairs(call: Call, rows: range, j: Tensor) -> tuple[Tensor, Tensor]:
    """The score of each query with its chosen key, and whether that is visible: (batch, heads, rows)."""
    (batch, heads, queries, keys), (kv_heads, d) = call.sizes, (call.k.shape[1], call.k.shape[3])
    dtype, device = torch.promote_types(call.q.dtype, torch.float32), call.q.device
    scale = call.scale.to(dtype) if isinstance(call.scale, Tensor) else call.scale
    q = call.q[:, :, rows.start : rows.stop : rows.step].to(dtype) * scale
    if len(j) == 1:
        k = call.k[:, :, j[0]].to(dtype)
    else:
        k = call.k.gather(2, j[:, None, :, None].expand(batch, kv_heads, -1, d)).to(dtype)
    scores = (q.unflatten(1, (kv_heads, -1)) * k[:, :, None]).sum(-1).flatten(1, 2)
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    i = torch.tensor(rows, dtype=torch.long, device=device)
    b, h = torch.arange(batch, device=device).view(-1, 1, 1), torch.arange(heads, device=device).view(1, -1, 1)
    seen = torch.ones((), dtype=torch.bool, device=device)
    if call.bias is not None:
        scores = scores + call.bias.at(b, h, i, j[:, None], queries, keys).to(dtype)
    if call.mask is not None:
        seen = call.mask.at(b, h, i, j[:, None], queries, keys)
    return scores, seen & (scores != -math.inf)
