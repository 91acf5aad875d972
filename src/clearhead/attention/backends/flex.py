"""FlexAttention: masks and score changes compiled into one kernel, hidden blocks skipped.

PyTorch's part is imported at first use: it imports the compiler, which takes two seconds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention.call import Call
from clearhead.attention.masks import Mask
from clearhead.attention.tile_scores import TileScorer

BLOCK = 128  # queries and keys of a block
MAX_COMPILED_KINDS = 1024  # of masks, biases and sizes in one process


def explain_refusal(call: Call) -> str | None:
    """The reason why this backend cannot compute a call, or None."""
    if call.dropout:
        return "FlexAttention has no dropout"
    if call.q.device.type == "cpu" and call.needs_grad:
        return "FlexAttention has no backward pass on the CPU"
    if call.q.device.type == "cpu" and call.sinks is not None:
        return "FlexAttention gives no logsumexp on the CPU, which sinks need"
    if call.q.dtype == torch.float64:
        return "FlexAttention has no float64"
    if call.q.is_cuda and min(call.q.shape[3], call.v.shape[3]) < 16:
        return f"FlexAttention needs heads of at least 16 features, got {call.q.shape[3]} and {call.v.shape[3]}"
    if 0 in call.sizes:
        return "FlexAttention takes no empty tensors"
    return None


def run(call: Call) -> Float[Tensor, "batch heads queries d_v"]:
    from torch.nn.attention.flex_attention import AuxRequest

    _, heads, queries, keys = call.sizes
    q, k, v, scale = call.q, call.k, call.v, call.scale
    if isinstance(scale, Tensor):
        q, scale = q * scale.to(q.dtype), 1.0
    if q.device.type == "cpu":  # there FlexAttention checks requires_grad, even under no_grad
        q, k, v = q.detach(), k.detach(), v.detach()
    mask, masked = call.mask, None
    if mask is not None:
        masked = mask.once(("blocks", queries, keys, q.device), lambda: build_block_mask(mask, queries, keys, q.device))
    capped_or_biased = call.softcap is not None or call.bias is not None
    result = call_compiled(
        q,
        k,
        v,
        score_mod=TileScorer.of_call(call)._replace(mask=None).score_pairs if capped_or_biased else None,
        block_mask=masked,
        scale=scale,
        enable_gqa=heads != k.shape[1],
        return_aux=None if call.sinks is None else AuxRequest(lse=True),
    )
    if call.sinks is None:
        out: Tensor = result
        return out
    # exp(lse) / (exp(lse) + exp(sink)): the share that the sink leaves to the keys
    out, aux = result
    share = torch.sigmoid(aux.lse - call.sinks.view(1, -1, 1))
    return out * share[..., None].to(out.dtype)


def call_compiled(*arguments: Any, **options: Any) -> Any:
    """FlexAttention, compiled for each new kind of mask, bias and size; PyTorch would stop at eight."""
    if torch.compiler.is_compiling():
        from torch.nn.attention.flex_attention import flex_attention

        return flex_attention(*arguments, **options)
    with torch._dynamo.config.patch(recompile_limit=MAX_COMPILED_KINDS, accumulated_recompile_limit=MAX_COMPILED_KINDS):
        return compile_kernel()(*arguments, **options)


@functools.cache
def compile_kernel() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    # Not dynamic: sizes then enter a mask's function as symbols, on which PyTorch 2.11 fails.
    return torch.compile(flex_attention, fullgraph=True, dynamic=False)


def build_block_mask(mask: Mask, queries: int, keys: int, device: torch.device) -> Any:
    """The mask by blocks: hidden ones are skipped, fully visible ones not evaluated; nothing dense is built."""
    from torch.nn.attention.flex_attention import BlockMask

    any_visible, all_visible = mask.blocks(queries, keys, BLOCK, BLOCK, device)
    batch = max(len(any_visible), len(all_visible))
    shape = (batch, any_visible.shape[1], -(-queries // BLOCK), -(-keys // BLOCK))
    any_visible, all_visible = any_visible.expand(shape), all_visible.expand(shape)

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return mask.at(b, h, i, j, queries, keys)

    partial, whole = _list_blocks(any_visible & ~all_visible), _list_blocks(all_visible)
    return BlockMask.from_kv_blocks(*partial, *whole, BLOCK_SIZE=BLOCK, mask_mod=visible, seq_lengths=(queries, keys))


def _list_blocks(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """For each row the number of marked blocks, and their indices first."""
    which = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), which.to(torch.int32)
