"""PyTorch's fused kernels (flash, memory-efficient, cuDNN, the CPU's flash): `scaled_dot_product_attention`.

They take a causal mask aligned at the top left, or a dense mask. Other inputs are transformed, so that nothing
quadratic is built:
- Right-padded self-attention under a causal mask is the causal kernel, with the pad rows zeroed afterwards.
- Pad keys under a causal mask, and attention sinks, become a further feature of q and k: a column in which only
  the keys concerned differ, so that their scores come out hugely negative, or equal to the sink.
- Values narrower or wider than keys are padded with zeros: the kernels need equal widths.
"""

from __future__ import annotations

import functools
import operator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead.attention.call import Call
from clearhead.attention.mask_kinds import Band, Dense, Padding, Prefix
from clearhead.attention.masks import Mask
from clearhead.attention.sdpa_logsumexp import call_sdpa

# The most elements that a dense mask or the weights may have before `auto` takes another backend: 64 MiB of float32.
# Fewer where another one is fast: FlexAttention on a GPU, `tiled` on a CPU (both measured).
AFFORDABLE = 2**24
CHEAP_ON_GPU = 2**22
CHEAP_ON_CPU = 2**20
# Extra features of q and k are divided by the scale or hide by their size: a smaller scale is applied to q instead.
SMALLEST_SCALE = 2.0**-10


Simple = Padding | Prefix | Dense


class Arguments(NamedTuple):
    """What `scaled_dot_product_attention` is called with, and how its output becomes ours."""

    q: Float[Tensor, "batch heads queries d"]
    k: Float[Tensor, "batch kv_heads keys d"]
    v: Float[Tensor, "batch kv_heads keys d"]
    attn_mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None
    dropout: float
    causal: bool
    scale: float
    shared_heads: bool
    rows: Bool[Tensor, "batch heads queries 1"] | None  # with 1 where equal; False sees nothing
    first_row: int
    value_width: int


class Structure(NamedTuple):
    """A mask in three parts: causal or not, masks that hide whole keys or rows, and the rest, which must be dense."""

    causal: bool
    simple: tuple[Simple, ...]
    rest: tuple[Mask, ...]


def explain_refusal(call: Call) -> str | None:
    """The reason why this backend cannot compute a call, or None."""
    if call.softcap is not None:
        return "no kernel behind scaled_dot_product_attention caps scores"
    return None


def run(call: Call) -> Float[Tensor, "batch heads queries d_v"]:
    a = build_arguments(call)
    out = call_sdpa(a.q, a.k, a.v, a.attn_mask, a.dropout, a.causal, scale=a.scale, enable_gqa=a.shared_heads)
    if a.first_row:
        out = out[:, :, a.first_row :]
    if a.value_width != out.shape[3]:
        out = out[..., : a.value_width]
    if a.rows is None:
        return out
    return torch.where(a.rows, out, 0.0) if out.requires_grad else out.masked_fill_(~a.rows, 0.0)


def count_dense_numbers(call: Call) -> int:
    """The number of elements that grow with queries × keys."""
    batch, heads, queries, keys = call.sizes
    learned_bias = call.bias is not None and call.needs_grad and call.bias.parameter.requires_grad
    on_cpu = call.q.device.type == "cpu"
    # For these PyTorch has only its unfused path, which builds the weights.
    if (on_cpu and (call.dropout or learned_bias)) or (not on_cpu and call.q.dtype == torch.float64):
        return batch * heads * queries * keys
    structure = split_mask(call.mask, queries, keys)
    if not structure.rest and call.bias is None:
        return 0
    batches, spread = [part.batch or 1 for part in structure.rest], [part.heads or 1 for part in structure.rest]
    if call.bias is not None:
        batches.append(call.bias.batch)
        spread.append(call.bias.heads)
    return max(batches) * max(spread) * queries * keys


def split_mask(mask: Mask | None, queries: int, keys: int) -> Structure:
    causal = False
    simple: list[Simple] = []
    rest: list[Mask] = []
    for part in () if mask is None else mask.parts():
        if isinstance(part, Band):
            first = part.start(queries, keys)
            sees_back = part.left is None or part.left >= first + queries - 1
            if sees_back and (part.right is None or part.right >= keys - 1 - first):
                continue  # it hides nothing, as for one query of a growing cache
            if sees_back and part.right == 0 and first == 0:
                causal = True
            else:
                rest.append(part)
        elif isinstance(part, (Padding, Prefix)) or (isinstance(part, Dense) and part.keys_only):
            simple.append(part)
        else:
            rest.append(part)
    return Structure(causal, tuple(simple), tuple(rest))


def build_arguments(call: Call) -> Arguments:
    _, heads, queries, keys = call.sizes
    q, k, v, causal, scale = call.q, call.k, call.v, False, call.scale
    if isinstance(scale, Tensor):
        q, scale = q * scale.to(q.dtype), 1.0
    elif scale < SMALLEST_SCALE:
        q, scale = q * scale, 1.0
    structure = split_mask(call.mask, queries, keys)
    seen: Tensor | None = None
    rows: Tensor | None = None
    if structure.rest or call.bias is not None:
        seen, rows = _build_dense_bias(call)
    else:
        causal = structure.causal
        if structure.simple:
            assert call.mask is not None
            seen, rows = call.mask.once(
                ("keys and rows", queries, keys),
                lambda: _find_visible_keys_and_rows(structure, queries, keys, q.device),
            )
        if causal and seen is not None:
            q, k = _hide_by_extra_feature(q, k, seen)
            seen = None
    first_row = 0
    if call.sinks is not None:
        q, k, v, seen, first_row = _add_sinks(call.sinks, scale, q, k, v, seen, causal)
    shared_heads = heads != k.shape[1]
    if shared_heads and q.is_cuda and (seen is not None or q.dtype == torch.float32):
        # Of the CUDA kernels only flash and cuDNN share heads, and neither takes these.
        k, v = (t.repeat_interleave(heads // t.shape[1], dim=1) for t in (k, v))
        shared_heads = False
    width = max(q.shape[3], v.shape[3])
    if width > call.q.shape[3]:
        width += -width % 8  # the CUDA kernels need it; padding by PyTorch costs more
    q, k, v = (t if t.shape[3] == width else F.pad(t, (0, width - t.shape[3])) for t in (q, k, v))
    q, k, v = (t if t.stride(3) == 1 else t.contiguous() for t in (q, k, v))  # else no fused kernel takes them
    return Arguments(q, k, v, seen, call.dropout, causal, scale, shared_heads, rows, first_row, call.v.shape[3])


def _find_visible_keys_and_rows(
    structure: Structure, queries: int, keys: int, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    """The visible keys, (batch, 1, 1, keys), and the rows that see anything, (batch, 1, queries, 1)."""
    seen: list[Tensor] = []
    rows: list[Tensor] = []
    for part in structure.simple:
        if isinstance(part, Padding) and part.hide_queries:
            rows.append(part.real_queries(queries, keys))
            if structure.causal and part.side == "right" and queries == keys:
                continue  # the keys before a real query are all real
        seen.append(part.visible_keys(keys))
    if not seen:
        return None, functools.reduce(operator.and_, rows) if rows else None
    key_seen = functools.reduce(operator.and_, seen)
    if structure.causal:
        last = torch.arange(queries, device=device).clamp(max=keys - 1)  # the last key that each query reaches
        alive = (key_seen.cumsum(-1) > 0)[..., last].transpose(2, 3)
    else:
        alive = key_seen.any(-1, keepdim=True)
        key_seen = key_seen | ~alive  # kernels differ on rows that see nothing: cuDNN's come out wrong
    return key_seen, functools.reduce(operator.and_, rows, alive)


def _build_dense_bias(call: Call) -> tuple[Tensor, Tensor]:
    """Mask and bias as one dense tensor in which every row sees something, and which rows really do."""
    _, _, queries, keys = call.sizes
    bias = None if call.bias is None else call.bias.dense(queries, keys).to(call.q.dtype)
    seen = None if bias is None else bias > -torch.inf
    if call.mask is not None:
        mask, device = call.mask, call.q.device
        of_mask = mask.once(("dense", queries, keys, device), lambda: mask.dense(queries, keys, device))
        seen = of_mask if seen is None else seen & of_mask
    assert seen is not None
    alive = seen.any(-1, keepdim=True)
    seen = seen | ~alive
    if bias is None:
        return seen, alive
    # A row that sees nothing is shown everything, with a bias of 0, and zeroed afterwards.
    bias = torch.where(alive, bias, 0.0).expand(*torch.broadcast_shapes(bias.shape, seen.shape))
    return bias.masked_fill(~seen, -torch.inf), alive


def _hide_by_extra_feature(q: Tensor, k: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """One more feature, in which the product with a hidden key is hugely negative and with others zero."""
    huge = 2.0**15  # the square of it times any sensible scale drowns every score, and float16 holds it
    seen = seen.transpose(2, 3)
    column = torch.where(seen, 0.0, -huge).to(k.dtype).expand(*k.shape[:3], 1)
    k = torch.cat([torch.where(seen, k, 0.0), column], dim=-1)  # without its own features nothing outweighs the column
    return F.pad(q, (0, 1), value=huge), k


def _add_sinks(
    sinks: Tensor, scale: float, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, int]:
    """One more key in front, which every query scores with its head's sink, and whose value is zero."""
    least = -(2.0**15) if q.dtype == torch.float16 else -(2.0**60)  # stands for -inf, which times zero is NaN
    precise = torch.promote_types(q.dtype, torch.float32)
    wanted = (sinks.to(precise).view(1, -1, 1, 1) / scale).clamp(min=least)
    high = wanted.to(q.dtype)
    low = (wanted - high).to(q.dtype)  # two columns: half precision would round the sink too coarsely
    q = torch.cat([q, high.expand(*q.shape[:3], 1), low.expand(*q.shape[:3], 1)], dim=-1)
    sink = F.pad(k.new_zeros(k.shape[0], k.shape[1], 1, k.shape[3]), (0, 2), value=1.0)
    k = torch.cat([sink, F.pad(k, (0, 2))], dim=2)
    v = F.pad(v, (0, 0, 1, 0))
    if seen is not None:
        seen = seen.expand(*seen.shape[:3], k.shape[2] - 1)
        seen = F.pad(seen, (1, 0), value=True if seen.dtype == torch.bool else 0.0)
    if causal:  # one more query in front keeps the others on the diagonal
        q = F.pad(q, (0, 0, 1, 0))
    return q, k, v, seen, int(causal)
