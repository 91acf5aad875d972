"""The logsumexp of PyTorch's fused attention kernels, which `scaled_dot_product_attention` computes and discards."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode

from clearhead.attention.call import Scale

Query = Float[Tensor, "*batch queries d"]  # PyTorch's function takes any number of leading axes


class SdpaCall(NamedTuple):
    """One call of `scaled_dot_product_attention` over all keys or, if causal, over those up to the query."""

    q: Query
    keys: int
    causal: bool
    scale: float
    logsumexp: Float[Tensor, "batch heads queries"] | None


class LogsumexpObserver:
    """Replaces `scaled_dot_product_attention` and keeps the logsumexp of every call, where a fused kernel has one.

    Calls go to the operator that PyTorch would choose, with the same arguments: outputs are bitwise the same.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[SdpaCall] = []

    def attend(
        self,
        query: Query,
        key: Float[Tensor, "*_ keys d"],
        value: Float[Tensor, "*_ keys d_v"],
        attn_mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Float[Tensor, "*batch queries d_v"]:
        fused = None
        if attn_mask is None:
            fused = _call_fused(query, key, value, dropout_p, is_causal, scale, enable_gqa)
        used_scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        self.calls.append(SdpaCall(query, key.shape[-2], is_causal, used_scale, None if fused is None else fused[1]))
        if fused is not None:
            return fused[0]
        arguments = (query, key, value, attn_mask, dropout_p, is_causal)
        return F.scaled_dot_product_attention(*arguments, scale=scale, enable_gqa=enable_gqa)

    def logsumexp(
        self, q: Float[Tensor, "batch heads queries d"], *, keys: int, scale: Scale, causal: bool | None = None
    ) -> Float[Tensor, "batch heads queries"] | None:
        """The logsumexp of these queries, if exactly one call was observed, with these queries and keys."""
        if len(self.calls) != 1 or self.calls[0].logsumexp is None or isinstance(scale, Tensor):
            return None
        call = self.calls[0]
        same = call.q.data_ptr() == q.data_ptr() and (call.q.shape, call.q.stride()) == (q.shape, q.stride())
        reached = call.keys == keys or (call.causal and q.shape[2] <= keys)
        same = same and reached and math.isclose(call.scale, scale) and causal in (None, call.causal)
        return call.logsumexp if same else None


class LogsumexpMode(LogsumexpObserver, TorchFunctionMode):
    """A context manager that observes every call within it. All other PyTorch functions are slower within it.

    >>> q = torch.randn(1, 2, 5, 8)
    >>> with LogsumexpMode() as observer:
    ...     _ = F.scaled_dot_product_attention(q, q, q)
    >>> observer.logsumexp(q, keys=5, scale=8**-0.5).shape
    torch.Size([1, 2, 5])
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        return self.attend(*args, **(kwargs or {}))


def observe_sdpa(q: Query) -> AbstractContextManager[LogsumexpMode | None]:
    """A LogsumexpMode on GPUs, where a logsumexp saves time; nothing under torch.compile, which cannot trace it."""
    return LogsumexpMode() if q.is_cuda and not torch.compiler.is_compiling() else nullcontext()


def observe_own_sdpa(q: Query) -> AbstractContextManager[LogsumexpObserver | None]:
    """The same for calls through `call_sdpa` alone, at no cost to other functions."""
    return _observe_thread() if q.is_cuda and not torch.compiler.is_compiling() else nullcontext()


_thread = threading.local()  # its `observer` keeps the calls of this thread


@contextmanager
def _observe_thread() -> Iterator[LogsumexpObserver]:
    before, observer = getattr(_thread, "observer", None), LogsumexpObserver()
    _thread.observer = observer
    try:
        yield observer
    finally:
        _thread.observer = before


def call_sdpa(*arguments: Any, **options: Any) -> Float[Tensor, "*batch queries d_v"]:
    """`scaled_dot_product_attention`, through the observer of this thread if there is one."""
    observer = None if torch.compiler.is_compiling() else getattr(_thread, "observer", None)
    attend = F.scaled_dot_product_attention if observer is None else observer.attend
    out: Tensor = attend(*arguments, **options)
    return out


def _call_fused(
    q: Tensor, k: Tensor, v: Tensor, dropout: float, causal: bool, scale: float | None, shared: bool
) -> tuple[Tensor, Tensor | None] | None:
    """Output and logsumexp of the kernel that PyTorch would choose; None if that kernel has no logsumexp."""
    if q.ndim != 4 or q.shape[3] % 8 or v.shape[3] != q.shape[3] or q.is_nested or 0 in (*q.shape, *k.shape):
        return None
    choice = torch._fused_sdp_choice(q, k, v, None, dropout, causal, scale=scale, enable_gqa=shared)
    operators = torch.ops.aten
    if choice == SDPBackend.CUDNN_ATTENTION.value:
        result = operators._scaled_dot_product_cudnn_attention(q, k, v, None, True, dropout, causal, False, scale=scale)
    elif choice != SDPBackend.FLASH_ATTENTION.value or q.device.type not in ("cuda", "cpu"):
        return None
    elif q.is_cuda:
        scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
        result = operators._scaled_dot_product_flash_attention(q, k, v, dropout, causal, False, scale=scale)
    else:
        result = operators._scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, causal, scale=scale)
    complete = result[1].numel() == q.shape[:3].numel()
    return result[0], result[1].detach().reshape(q.shape[:3]) if complete else None
