"""Call: the validated inputs of one attention, errors for inputs that do not fit, and parts of a call."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention import biases
from clearhead.attention.biases import Bias
from clearhead.attention.mask_kinds import Band, Both, Dense, Documents, Either, Padding, Prefix
from clearhead.attention.masks import Mask, as_mask
from clearhead.errors import DeviceError, DtypeError, ShapeError

Scale = float | Float[Tensor, "*heads"]  # one for all heads, or one each
AnyBias = Bias | Float[Tensor, "..."]  # a tensor broadcasts to (batch, heads, queries, keys)


class Call(NamedTuple):
    """One attention to compute, with inputs in one form."""

    q: Float[Tensor, "batch heads queries d"]
    k: Float[Tensor, "batch kv_heads keys d"]
    v: Float[Tensor, "batch kv_heads keys d_v"]
    mask: Mask | None
    scale: float | Float[Tensor, "_ 1 1"]
    bias: Bias | None
    softcap: float | None
    sinks: Float[Tensor, " heads"] | None
    dropout: float

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys)"""
        return (self.q.shape[0], self.q.shape[1], self.q.shape[2], self.k.shape[2])

    @property
    def needs_grad(self) -> bool:
        bias = None if self.bias is None else self.bias.parameter
        tensors = (self.q, self.k, self.v, self.scale, self.sinks, bias)
        return torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in tensors)


def check_call(
    q: Float[Tensor, "batch heads queries d"],
    k: Float[Tensor, "batch kv_heads keys d"],
    v: Float[Tensor, "batch kv_heads keys d_v"] | None,
    mask: Mask | None,
    *,
    scale: Scale | None = None,
    bias: AnyBias | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
    dropout: float = 0.0,
) -> Call:
    """The inputs in one form, or an error that names what does not fit. Without `v`, `k` takes its place."""
    named = {"q": q, "k": k, "v": k if v is None else v}
    _check_tensors(named)
    q, k, v = _common_dtype(named)
    mask = None if mask is None or q.shape[0] == 0 else as_mask(mask)
    heads, d = q.shape[1], q.shape[3]
    if bias is not None and not isinstance(bias, Bias):
        bias = biases.Dense(bias)
    if softcap is not None and not 0 < softcap < math.inf:
        raise ShapeError(f"softcap must be a positive number, got {softcap}; None switches it off")
    if not 0 <= dropout < 1:
        raise ShapeError(f"dropout must be at least 0 and less than 1, got {dropout}")
    scale = 1 / math.sqrt(d) if scale is None else _check_scale(scale, heads)
    if sinks is not None and (not isinstance(sinks, Tensor) or tuple(sinks.shape) != (heads,)):
        got = tuple(sinks.shape) if isinstance(sinks, Tensor) else type(sinks).__name__
        raise ShapeError(f"sinks must be a tensor with one number per head, shaped ({heads},), got {got}")
    call = Call(q, k, v, mask, scale, bias, None if softcap is None else float(softcap), sinks, dropout)
    for checked in (mask, bias):
        if checked is not None:
            checked.check(*call.sizes)
    _check_devices(call)
    return call


def _check_tensors(named: dict[str, Tensor]) -> None:
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor):
            raise DtypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
        if tensor.ndim != 4:
            raise ShapeError(
                f"{name} must be (batch, heads, tokens, width of a head), got {tuple(tensor.shape)}; "
                "split heads with rearrange(x, 'b t (h d) -> b h t d', h=heads)"
            )
        if not tensor.is_floating_point():
            raise DtypeError(f"{name} must be floating point, got {tensor.dtype}; convert it with .float()")
    q, k, v = named.values()
    if problem := _find_misfit(q, k, v):
        raise ShapeError(f"{problem} (got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)})")
    if not q.device == k.device == v.device:
        places = ", ".join(f"{name} on {t.device}" for name, t in named.items())
        raise DeviceError(f"q, k and v must be on one device, got {places}; move them with .to(q.device)")


def _find_misfit(q: Tensor, k: Tensor, v: Tensor) -> str:
    """What does not fit in the shapes of q, k and v; empty if all does."""
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        return f"q, k and v must have the same batch size, got {q.shape[0]}, {k.shape[0]} and {v.shape[0]}"
    if q.shape[3] != k.shape[3]:
        return (
            f"queries of width {q.shape[3]} cannot be compared with keys of width {k.shape[3]}; "
            "project both to the same width"
        )
    if q.shape[3] == 0:
        return "queries and keys have width 0; it must be at least 1"
    if k.shape[1:3] != v.shape[1:3]:
        return (
            f"every key needs its value: k has {k.shape[1]} heads × {k.shape[2]} tokens, v {v.shape[1]} × {v.shape[2]}"
        )
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        return f"{q.shape[1]} query heads cannot share {k.shape[1]} key heads evenly; make heads a multiple of kv_heads"
    return ""


def _common_dtype(named: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = named.values()
    device = q.device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        if q.dtype != torch.float64:  # autocast leaves float64 alone, and so do we
            q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    if not q.dtype == k.dtype == v.dtype:
        kinds = ", ".join(f"{name} {t.dtype}" for name, t in named.items())
        raise DtypeError(
            f"q, k and v must have one dtype, got {kinds}; convert them with .to(q.dtype) or use torch.autocast"
        )
    if q.itemsize == 1:
        raise DtypeError(f"q, k and v must have at least 16 bits, got {q.dtype}; convert them with .bfloat16()")
    return q, k, v


def _check_scale(scale: float | Tensor, heads: int) -> float | Tensor:
    if not isinstance(scale, (Tensor, int, float)):
        raise DtypeError(f"scale must be a number or a tensor with one for each head, got {scale!r}")
    if not isinstance(scale, Tensor):
        return float(scale)
    if scale.numel() not in (1, heads) or scale.ndim > 1:
        raise ShapeError(f"scale must be one number, or one for each of {heads} heads, got shape {tuple(scale.shape)}")
    return scale.reshape(-1, 1, 1)


def _check_devices(call: Call) -> None:
    named = [("mask", tensor) for tensor in (() if call.mask is None else call.mask.tensors())]
    bias = None if call.bias is None else call.bias.parameter
    for name, tensor in (*named, ("bias", bias), ("scale", call.scale), ("sinks", call.sinks)):
        if isinstance(tensor, Tensor) and tensor.device != call.q.device:
            raise DeviceError(
                f"the {name} is on {tensor.device}, q on {call.q.device}; move it with {name}.to('{call.q.device}')"
            )


def slice_queries(call: Call, start: int, stop: int) -> Call:
    """The same call for the queries from `start` to `stop` alone; each sees what it saw.

    >>> import torch
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
        case Prefix() | Padding(hide_queries=False):
            return mask
        case Padding():
            real = Dense(mask.real_queries(queries, keys)[:, :, rows])
            return mask.hiding_queries(False) & real
        case Documents():
            return Documents(mask.ids, mask.of_queries(queries)[:, rows])
        case Dense():
            return Dense(mask.seen[:, :, rows]) if mask.seen.shape[2] > 1 else mask
        case Both() | Either():
            parts = [_slice_mask(part, rows, queries, keys) for part in mask.masks]
            return functools.reduce(mask.combine, parts)
    return Dense(mask.tile(rows, slice(0, keys), queries, keys))


def _slice_bias(bias: Bias, rows: slice, queries: int, keys: int) -> Bias:
    if not isinstance(bias, (biases.Alibi, biases.Relative)):
        return biases.Dense(bias.tile(rows, slice(0, keys), queries, keys))
    moved = bias.replace(bias.parameter)
    moved.offset = (keys - queries if bias.offset is None else bias.offset) + rows.start
    return moved


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

    mask = call.mask
    return call._replace(
        q=call.q.index_select(1, rows),
        k=call.k.index_select(1, keys),
        v=call.v.index_select(1, keys),
        mask=mask if mask is None or mask.heads is None else mask.map(lambda t: select(t, 1) if t.ndim == 4 else t),
        bias=None if call.bias is None else call.bias.of_heads(rows),
        scale=select(call.scale, 0) if isinstance(call.scale, Tensor) else call.scale,
        sinks=None if call.sinks is None else call.sinks.index_select(0, rows),
    )
