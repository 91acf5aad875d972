"""The definition: plain, slow, right at any precision. Everything faster is judged by it, and imports none of it."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.attention.call import Call


def scores(call: Call) -> tuple[Tensor, Tensor]:
    """cap(q·kᵀ·scale) + bias, and which of them count: what a mask or a bias of −inf hides does not."""
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


def weights(call: Call) -> Tensor:
    """The softmax of the scores over the visible keys; zeros for a query that sees nothing."""
    found, visible = scores(call)
    # finfo.min, not -inf: the softmax of a fully hidden row would be 0/0, and its gradient NaN
    found = found.masked_fill(~visible, torch.finfo(found.dtype).min)
    if call.sinks is not None:
        sinks = call.sinks.to(found.dtype).view(1, -1, 1, 1).expand(*found.shape[:3], 1)
        found = torch.cat([found, sinks], dim=-1)
    return found.softmax(-1)[..., : call.k.shape[2]].masked_fill(~visible, 0.0)


def attend(call: Call) -> Tensor:
    kept = F.dropout(weights(call), call.dropout) if call.dropout else weights(call)
    return kept @ call.v.repeat_interleave(call.q.shape[1] // call.v.shape[1], dim=1)
