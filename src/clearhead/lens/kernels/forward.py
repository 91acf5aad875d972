"""Attention and its logsumexp from one fused kernel of PyTorch's: with it at hand, measuring takes a pass less."""

from __future__ import annotations

import torch
from torch import Tensor

from clearhead.attention.inputs import Call
from clearhead.attention.mask_kinds import Band


def attended(call: Call) -> tuple[Tensor, Tensor] | None:
    """The output and the logsumexp, (batch, heads, queries); None where no fused kernel gives both.

    They come from cuDNN on Hopper and later, from FlashAttention before, in half precision on CUDA; masks are none, or
    causal with as many queries as keys. The logsumexp costs nothing; the output may differ in its last bits from what
    `scaled_dot_product_attention` gives, which chooses for itself.
    """
    queries, keys = call.sizes[2:]
    band = call.mask if isinstance(call.mask, Band) else None
    causal = band is not None and (band.left, band.right, band.start(queries, keys), queries) == (None, 0, 0, keys)
    if call.mask is not None and not causal:
        return None
    if call.bias is not None or call.softcap is not None or call.sinks is not None or call.dropout:
        return None
    q, k, v = call.q, call.k, call.v
    if isinstance(call.scale, Tensor) or not q.is_cuda or q.dtype not in (torch.bfloat16, torch.float16):
        return None
    if q.shape[3] % 8 or q.shape[3] > 128 or v.shape[3] != q.shape[3] or 0 in call.sizes:
        return None
    if torch.cuda.get_device_capability(q.device)[0] >= 9:
        found = torch.ops.aten._scaled_dot_product_cudnn_attention(
            q, k, v, None, True, 0.0, causal, False, scale=call.scale
        )
    else:
        found = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=call.scale)
    return found[0], found[1].reshape(q.shape[:3])


def logsumexp_of(call: Call) -> Tensor | None:
    """The logsumexp alone, for a call whose output nobody needs anew; None as above."""
    found = attended(call)
    return None if found is None else found[1]
