"""attend(), attention_weights() and explain(): inputs are checked, a backend is chosen, and it runs."""

from __future__ import annotations

import math
from types import ModuleType

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend

from clearhead.attention import reference
from clearhead.attention.backends import flex, sdpa, tiled
from clearhead.attention.call import AnyBias, Call, Scale, check_call
from clearhead.attention.masks import Mask
from clearhead.errors import BackendError
from clearhead.formatting import suggest_name

FAST: dict[str, ModuleType] = {"sdpa": sdpa, "flex": flex, "tiled": tiled}
BACKENDS = ("auto", "reference", *FAST)
KERNELS = {
    SDPBackend.MATH: "math",
    SDPBackend.FLASH_ATTENTION: "flash",
    SDPBackend.EFFICIENT_ATTENTION: "memory-efficient",
    SDPBackend.CUDNN_ATTENTION: "cuDNN",
}


class Explanation(str):
    """The explanation as text; `backend` and `kernel` are attributes."""

    backend: str
    kernel: str


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


def explain(
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
) -> Explanation:
    """Which kernel `attend` would run for the same arguments, and why not a faster one.

    >>> x = torch.ones(1, 1, 3, 8)
    >>> print(explain(x, x, x, Mask.causal()))
    sdpa: the flash kernel on cpu.
    - The causal mask is the kernel's own.
    >>> print(explain(x, x, x, softcap=30.0))
    tiled: blocks of queries in plain PyTorch on cpu, in O(n) memory.
    - Not sdpa: no kernel behind scaled_dot_product_attention caps scores.
    - Not flex: 'auto' compiles nothing on a CPU; backend='flex' does.
    """
    call = check_call(q, k, v, mask, scale=scale, bias=bias, softcap=softcap, sinks=sinks, dropout=dropout)
    name = choose_backend(call, backend)
    device, why = q.device.type, [] if backend == "auto" else ["You named it."]
    if name == "sdpa":
        kernel = sdpa_kernel(call)
        built = " (unfused: it builds the weights)" if kernel == "math" else ""
        what = f"the {kernel} kernel{built} on {device}"
        why += _explain_arguments(call, kernel)
    elif name == "reference":
        kernel, what = "definition", f"the definition on {device}; it builds the weights"
    else:
        kernel = "blocks of queries" if name == "tiled" else "compiled FlexAttention"
        how = " in plain PyTorch" if name == "tiled" else ""
        what = f"{kernel}{how} on {device}, in O(n) memory"
        why += [] if why else _explain_slower(call, name)
    explanation = Explanation("\n- ".join([f"{name}: {what}.", *why]))
    explanation.backend, explanation.kernel = name, kernel
    return explanation


def sdpa_kernel(call: Call) -> str:
    """The kernel that PyTorch chooses for these arguments."""
    a = sdpa.build_arguments(call)
    picked = torch._fused_sdp_choice(
        a.q, a.k, a.v, a.attn_mask, a.dropout, a.causal, scale=a.scale, enable_gqa=a.shared_heads
    )
    return KERNELS[SDPBackend(picked)]


def _explain_arguments(call: Call, kernel: str) -> list[str]:
    _, _, queries, keys = call.sizes
    structure = sdpa.split_mask(call.mask, queries, keys)
    if kernel == "math":
        learns = call.bias is not None and call.bias.parameter.requires_grad
        unfused = "dropout" if call.dropout else "a bias that learns" if learns else "these tensors"
        return [f"PyTorch has no fused kernel for {unfused} on {call.q.device.type}, or it is switched off."]
    if structure.rest or call.bias is not None:
        dense = sdpa.count_dense_numbers(call)
        what = " and ".join(["The bias"] * (call.bias is not None) + [*map(repr, structure.rest)])
        return [f"{what}: handed over as a dense tensor of {dense:,} numbers."]
    a, why = sdpa.build_arguments(call), []
    if structure.causal:
        why.append("The causal mask is the kernel's own.")
    if a.attn_mask is not None:
        why.append("Hidden keys are handed over as one row per sample.")
    elif structure.simple and a.q.shape[3] > call.q.shape[3]:
        why.append("Hidden keys are a further feature of q and k: no mask is built.")
    if a.rows is not None:
        why.append("Rows that may see nothing are zeroed afterwards.")
    if call.sinks is not None:
        why.append("The sinks are one more key, whose value is zero.")
    return why


def _explain_slower(call: Call, name: str) -> list[str]:
    reason = sdpa.explain_refusal(call)
    if reason is None:
        reason = f"it would build {sdpa.count_dense_numbers(call):,} numbers that grow with queries × keys"
    why = [f"Not sdpa: {reason}."]
    if name == "tiled":
        no_flex = flex.explain_refusal(call) or "'auto' compiles nothing on a CPU; backend='flex' does"
        why.append(f"Not flex: {no_flex}.")
    return why
