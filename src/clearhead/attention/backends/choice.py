"""attend() and attention_weights(): inputs are checked, a backend is chosen, and it runs."""

from __future__ import annotations

import math
from types import ModuleType

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention import reference
from clearhead.attention.backends import flex, sdpa, tiled
from clearhead.attention.call import AnyBias, Call, Scale, check_call
from clearhead.attention.masks import Mask
from clearhead.errors import BackendError
from clearhead.formatting import suggest_name

FAST: dict[str, ModuleType] = {"sdpa": sdpa, "flex": flex, "tiled": tiled}
BACKENDS = ("auto", "reference", *FAST)


def attend(
    q: Float[Tensor, "batch heads queries d"],
    k: Float[Tensor, "batch kv_heads keys d"],
    v: Float[Tensor, "batch kv_heads keys d_v"],
    mask: Mask | None = None,
    *,
    scale: Scale | None = None,
    bias: AnyBias | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
    dropout: float = 0.0,
    backend: str = "auto",
) -> Float[Tensor, "batch heads queries d_v"]:
    """The weighted mean of the values for each query: `attention_weights(q, k, …) @ v`, without building the weights.

    A query that sees nothing gets zeros, and gives zero gradients. `dropout` is applied whenever it is not 0.
    A named backend does the work or refuses; `"auto"` picks one that can, and `explain` says which.

    >>> x = torch.eye(3)[None, None]
    >>> attend(x, x, x, Mask.causal(), scale=9.0)[0, 0].round(decimals=2)
    tensor([[1., 0., 0.],
            [0., 1., 0.],
            [0., 0., 1.]])
    """
    call = check_call(q, k, v, mask, scale=scale, bias=bias, softcap=softcap, sinks=sinks, dropout=dropout)
    name = choose_backend(call, backend)
    out: Tensor = reference.attend(call) if name == "reference" else FAST[name].run(call)
    return out


def attention_weights(
    q: Float[Tensor, "batch heads queries d"],
    k: Float[Tensor, "batch kv_heads keys d"],
    mask: Mask | None = None,
    *,
    scale: Scale | None = None,
    bias: AnyBias | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
) -> Float[Tensor, "batch heads queries keys"]:
    """The weight of every key for every query: `softmax(cap(q·kᵀ·scale) + bias)` over the visible keys.

    This is the definition that all faster paths are judged by, and it builds all weights. A row sums to
    one; to less with `sinks`, and to zero if the query sees nothing.

    >>> q = k = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]])
    >>> attention_weights(q, k, Mask.causal(), scale=1.0)[0, 0]
    tensor([[1.0000, 0.0000],
            [0.2689, 0.7311]])
    """
    return reference.weights(check_call(q, k, None, mask, scale=scale, bias=bias, softcap=softcap, sinks=sinks))


def choose_backend(call: Call, backend: str) -> str:
    """The backend that was named, if it can do this; for "auto" the fastest that builds nothing large."""
    if backend == "reference":
        return backend
    if backend in FAST:
        if reason := FAST[backend].explain_refusal(call):
            raise BackendError(
                f"backend {backend!r} cannot do this: {reason}; 'auto' would take {choose_backend(call, 'auto')!r}"
            )
        return backend
    if backend != "auto":
        raise BackendError(f"unknown attention backend {backend!r}; {suggest_name(backend, BACKENDS)}")
    dense = math.inf if sdpa.explain_refusal(call) else sdpa.count_dense_numbers(call)
    quick, limit = "tiled", float(sdpa.AFFORDABLE)
    if call.q.is_cuda and flex.explain_refusal(call) is None:
        quick, limit = "flex", sdpa.CHEAP_ON_GPU
    elif call.q.device.type == "cpu":
        limit = sdpa.CHEAP_ON_CPU
    if torch.compiler.is_compiling():
        # The others are recompiled for every length, and the generator of tiled's dropout cannot be compiled.
        limit = math.inf if call.dropout else sdpa.AFFORDABLE
    return "sdpa" if dense <= limit else quick
