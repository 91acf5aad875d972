"""The logsumexp of PyTorch's fused attention: its kernels work it out, and `scaled_dot_product_attention` drops it."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode


class Heard(NamedTuple):
    """One call, whose attention was over all keys, or over those up to the query."""

    q: Tensor
    keys: int
    causal: bool
    scale: float
    logsumexp: Tensor | None


class Ear:
    """Hears `scaled_dot_product_attention`, which leaves its logsumexp behind where a fused kernel has one.

    Calls go to the operator that PyTorch would choose, with the same numbers: the output is the same to the last bit.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Heard] = []

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        found = None if attn_mask is not None else _fused(query, key, value, dropout_p, is_causal, scale, enable_gqa)
        own = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        self.calls.append(Heard(query, key.shape[-2], is_causal, own, None if found is None else found[1]))
        if found is not None:
            return found[0]
        given = (query, key, value, attn_mask, dropout_p, is_causal)
        return F.scaled_dot_product_attention(*given, scale=scale, enable_gqa=enable_gqa)

    def logsumexp(
        self, q: Tensor, *, keys: int, scale: float | Tensor, causal: bool | None = None
    ) -> Float[Tensor, "batch heads queries"] | None:
        """That of these queries, if one call was about them, these keys, and nothing else."""
        if len(self.calls) != 1 or self.calls[0].logsumexp is None or isinstance(scale, Tensor):
            return None
        heard = self.calls[0]
        same = heard.q.data_ptr() == q.data_ptr() and (heard.q.shape, heard.q.stride()) == (q.shape, q.stride())
        reached = heard.keys == keys or (heard.causal and q.shape[2] <= keys)
        same = same and reached and math.isclose(heard.scale, scale) and causal in (None, heard.causal)
        return heard.logsumexp if same else None


class Overhearing(Ear, TorchFunctionMode):
    """An ear for all that runs within it, whoever calls. All other functions of PyTorch take longer there.

    >>> q = torch.randn(1, 2, 5, 8)
    >>> with Overhearing() as overheard:
    ...     _ = F.scaled_dot_product_attention(q, q, q)
    >>> overheard.logsumexp(q, keys=5, scale=8**-0.5).shape
    torch.Size([1, 2, 5])
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        return self.attend(*args, **(kwargs or {}))


def overhearing(q: Tensor) -> AbstractContextManager[Overhearing | None]:
    """An Overhearing where a logsumexp saves time, which is on GPUs; torch.compile cannot look into it."""
    return Overhearing() if q.is_cuda and not torch.compiler.is_compiling() else nullcontext()


def hearing(q: Tensor) -> AbstractContextManager[Ear | None]:
    """The same for our own calls, which go through `fused`: nothing else takes longer."""
    return _hearing() if q.is_cuda and not torch.compiler.is_compiling() else nullcontext()


class _Here(threading.local):
    ear: Ear | None = None


_here = _Here()


@contextmanager
def _hearing() -> Iterator[Ear]:
    before, _here.ear = _here.ear, Ear()
    try:
        yield _here.ear
    finally:
        _here.ear = before


def fused(*given: Any, **options: Any) -> Tensor:
    """`scaled_dot_product_attention`, heard by the ear of this thread if there is one."""
    ear = None if torch.compiler.is_compiling() else _here.ear
    attend = F.scaled_dot_product_attention if ear is None else ear.attend
    out: Tensor = attend(*given, **options)
    return out


def _fused(
    q: Tensor, k: Tensor, v: Tensor, dropout: float, causal: bool, scale: float | None, shared: bool
) -> tuple[Tensor, Tensor | None] | None:
    """The output and the logsumexp, by the kernel that PyTorch would take; None if that has no logsumexp to give."""
    if q.ndim != 4 or q.shape[3] % 8 or v.shape[3] != q.shape[3] or q.is_nested or 0 in (*q.shape, *k.shape):
        return None
    choice = torch._fused_sdp_choice(q, k, v, None, dropout, causal, scale=scale, enable_gqa=shared)
    operators = torch.ops.aten
    if choice == SDPBackend.CUDNN_ATTENTION.value:
        found = operators._scaled_dot_product_cudnn_attention(q, k, v, None, True, dropout, causal, False, scale=scale)
    elif choice != SDPBackend.FLASH_ATTENTION.value:
        return None
    elif q.is_cuda:
        own = 1 / math.sqrt(q.shape[3]) if scale is None else scale
        found = operators._scaled_dot_product_flash_attention(q, k, v, dropout, causal, False, scale=own)
    elif q.device.type == "cpu":
        found = operators._scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, causal, scale=scale)
    else:
        return None
    whole = found[1].numel() == q.shape[:3].numel()
    return found[0], found[1].detach().reshape(q.shape[:3]) if whole else None
