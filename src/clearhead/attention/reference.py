"""The definition of attention in plain code, at any precision. Faster code is judged by it, and imports none of it."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead.attention.call import Call


def scores(call: Call) -> tuple[Float[Tensor, "batch heads queries keys"], Bool[Tensor, "..."]]:
    """cap(q·kᵀ·scale) + bias, and which scores are visible: those that neither the mask nor a bias of −inf hides."""
    queries, keys = call.q.shape[2], call.k.shape[2]
    k = call.k.repeat_interleave(call.q.shape[1] // call.k.shape[1], dim=1)
    scale = call.scale.to(call.q.dtype) if isinstance(call.scale, Tensor) else call.scale
    scores = call.q @ k.mT * scale
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    visible = torch.ones((), dtype=torch.bool, device=scores.device)
    if call.mask is not None:
        visible = call.mask.dense(queries, keys, scores.device)
    if call.bias is not None:
        bias = call.bias.dense(queries, keys).to(scores.dtype)
        visible = visible & (bias > -math.inf)
        scores = scores + bias.masked_fill(bias == -math.inf, 0.0)
    return scores, visible


def weights(call: Call) -> Float[Tensor, "batch heads queries keys"]:
    """The softmax of the scores over the visible keys; zeros for a query that sees nothing."""
    values, visible = scores(call)
    # finfo.min, not -inf: the softmax of a fully hidden row would be 0/0, and its gradient NaN
    values = values.masked_fill(~visible, torch.finfo(values.dtype).min)
    if call.sinks is not None:
        sinks = call.sinks.to(values.dtype).view(1, -1, 1, 1).expand(*values.shape[:3], 1)
        values = torch.cat([values, sinks], dim=-1)
    return values.softmax(-1)[..., : call.k.shape[2]].masked_fill(~visible, 0.0)


def attend(call: Call) -> Float[Tensor, "batch heads queries d_v"]:
    dropped = F.dropout(weights(call), call.dropout) if call.dropout else weights(call)
    return dropped @ call.v.repeat_interleave(call.q.shape[1] // call.v.shape[1], dim=1)
