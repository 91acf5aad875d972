"""The arguments of a transformers attention function, read as that function reads them.

The functions differ. "sdpa" takes a mask of None as causal if the module is, aligned at the upper left; "eager"
takes it as no mask at all; "flash" gets a padding mask, and windows and packed sequences beside it. What is measured is
what the function in force computes. "flex", with its block masks, is refused, and so is a function from elsewhere:
nobody knows what it makes of its arguments.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead.attention import Mask, Seen
from clearhead.attention.biases import Dense
from clearhead.attention.sdpa_logsumexp import LogsumexpMode
from clearhead.lens.huggingface.mask_recovery import recover_mask

UNKNOWN = "unknown"  # the kind of a function that is not transformers' own: it cannot be recorded
HIDING_VALUE = -1e4  # what a mask adds to hide: exp(−10,000) is 0 in every precision


class AttentionArguments(NamedTuple):
    """The arguments of one attention function call, the kind of function, and whether it is causal."""

    kind: str  # "sdpa", "eager", "flash", "flex" or UNKNOWN
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    scale: float | Tensor | None
    causal: bool
    softcap: float | None
    window: int | None
    bias: Tensor | None
    sinks: Tensor | None
    positions: Tensor | None  # that begin anew with every packed text
    starts: Tensor | None  # of packed texts among the queries, and the end: FlashAttention's cu_seqlens
    key_starts: Tensor | None
    sdpa_observer: LogsumexpMode | None = None
    refusal: str = ""  # why it cannot be recorded


MaskAndBias = tuple[Mask | None, Tensor | None]
# By the memory address of the given mask, which is kept so that no other mask gets this address.
Masks = dict[tuple[Any, ...], tuple[Any, MaskAndBias]]


def read_arguments(
    kind: str,
    function: Callable[..., Any],
    module: nn.Module,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Any,
    args: tuple[Any, ...],
    options: Any,
) -> AttentionArguments:
    """Collects the arguments of a call of an attention function of this kind; torch.compile can trace it."""
    if args:
        options = {**_name_arguments(function, args), **options}
    takes: Callable[[str], bool] = functools.partial(_accepts, function) if kind == "eager" else lambda name: True
    causal = options.get("is_causal")
    sinks = options.get("s_aux")
    if kind == "eager":
        sinks = getattr(module, "sinks", None) if "sinks" in function.__code__.co_names else None
    return AttentionArguments(
        kind,
        q,
        k,
        v,
        mask if isinstance(mask, Tensor) else None,
        options.get("scaling"),
        bool(getattr(module, "is_causal", True) if causal is None else causal),
        options.get("softcap") if takes("softcap") else None,
        options.get("sliding_window"),
        options.get("position_bias") if takes("position_bias") else None,
        sinks if kind != "sdpa" else None,
        options.get("position_ids"),
        options.get("cu_seq_lens_q"),
        options.get("cu_seq_lens_k"),
        refusal=_find_refusal(kind, function, q, k, options),
    )


def classify_function(function: Callable[..., Any], eager: bool = False) -> str:
    """The kind of an attention function: by its name if it is in a file of transformers, else UNKNOWN."""
    function = _unwrap_partial(function)
    code = getattr(function, "__code__", None)
    if code is None or not code.co_filename.startswith(TRANSFORMERS):
        return UNKNOWN
    if eager:
        return "eager"
    return next((kind for kind in ("flash", "flex") if kind in function.__name__), "sdpa")


def _unwrap_partial(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


_spec = importlib.util.find_spec("transformers")
_folders = [] if _spec is None else list(_spec.submodule_search_locations or ())
TRANSFORMERS = os.path.join(os.fspath(_folders[0]) if _folders else "no transformers", "")  # its folder, not imported


def to_seen(got: AttentionArguments, keys: int, masks: Masks) -> Seen:
    """The arguments as `Seen`, over the first `keys` keys, since a static cache also returns empty slots."""
    queries = got.q.shape[2]
    if got.kind == "sdpa" and got.mask is None and got.causal and queries > 1:
        keys = min(keys, queries)
    if got.kind == "flash" and got.mask is not None:
        keys = min(keys, got.mask.shape[-1])
    mask, bias = _read_mask_once(got, keys, masks)
    if got.bias is not None:
        bias = got.bias[..., :keys] if bias is None else got.bias[..., :keys] + bias
    scale = got.q.shape[-1] ** -0.5 if got.scale is None else got.scale
    k, v = got.k[:, :, :keys], got.v[:, :, :keys]
    logsumexp, plain = None, got.mask is None and bias is None and got.softcap is None and got.sinks is None
    if got.sdpa_observer is not None and plain:
        logsumexp = got.sdpa_observer.logsumexp(got.q, keys=keys, scale=scale, causal=mask is not None)
    return Seen(
        got.q,
        k,
        v if v.shape[1:3] == k.shape[1:3] else k,  # with heads of its own it would not fit, and is not needed
        mask,
        scale.reshape(-1) if isinstance(scale, Tensor) else scale,
        None if bias is None else Dense(bias),
        got.softcap,
        None if got.sinks is None else got.sinks.reshape(-1),
        logsumexp,
    )


def _read_mask_once(got: AttentionArguments, keys: int, masks: Masks) -> MaskAndBias:
    """The mask, read at the first layer and cached for the others."""
    if got.mask is None or got.kind == "flash":
        return (_read_flash_mask(got, keys) if got.kind == "flash" else _default_mask(got, masks)), None
    mask, changes = got.mask, None if got.mask.is_inference() else got.mask._version
    # Not the object: a compiled graph passes a new one at every layer.
    key = (mask.data_ptr(), mask.shape, mask.stride(), mask.dtype, changes, keys, got.kind)
    if key not in masks:
        masks[key] = (mask, _read_mask(got, mask, keys))
    return masks[key][1]


def _default_mask(got: AttentionArguments, masks: Masks) -> Mask | None:
    """The mask that None stands for: with "sdpa" and a causal module, causal from the upper left.

    One for all layers: what is derived from a mask, such as a plan of tiles, is cached with it.
    """
    if got.kind != "sdpa" or not got.causal or got.q.shape[2] == 1:
        return None
    return masks.setdefault(("causal",), (None, (Mask.causal(offset=0), None)))[1][0]


def _read_mask(got: AttentionArguments, mask: Tensor, keys: int) -> MaskAndBias:
    mask = mask[..., :keys] if mask.shape[-1] > 1 else mask
    alike = mask.ndim > 1 and mask.shape[-2] == 1 < got.q.shape[2]  # one row for all queries
    rule = functools.partial(recover_mask, causal=got.causal and not alike, window=None if alike else got.window)
    if mask.dtype == torch.bool:
        if got.kind == "sdpa":
            return rule(mask), None
        return None, mask.to(got.q.dtype)  # the others add it to the scores: 1 for what may be seen
    hidden = mask <= HIDING_VALUE
    rest = mask.masked_fill(hidden, 0.0)
    return rule(~hidden), rest if rest.any() else None


def _read_flash_mask(got: AttentionArguments, keys: int) -> Mask | None:
    """The mask of "flash": padding as (batch, keys), with causality, windows and packing from other arguments."""
    queries, parts = got.q.shape[2], []
    window = got.window if got.window is not None and got.k.shape[2] > got.window else None
    if got.causal or window is not None:
        left = None if window is None else window - 1
        parts.append(Mask.window(left, 0 if got.causal else left))
    if got.mask is not None:
        real = got.mask.to(torch.bool, copy=True)  # a step may wait to be measured, and its mask be written to
        parts.append(Mask.visible(real[:, None, None, :keys]))
        if queries > 1:
            parts.append(Mask.visible(real[:, None, -queries:, None]))
    elif (texts := _read_documents(got, keys)) is not None:
        parts.append(Mask.documents(*texts))
    return functools.reduce(Mask.__and__, parts) if parts else None


def _read_documents(got: AttentionArguments, keys: int) -> tuple[Tensor, Tensor] | None:
    """Document ids of keys and queries in packed sequences; None if there is only one document."""
    queries = got.q.shape[2]
    if got.starts is not None and got.key_starts is not None:
        of_keys, of_queries = (_to_document_ids(s, n) for s, n in ((got.key_starts, keys), (got.starts, queries)))
        return of_keys, of_queries
    positions = got.positions
    if positions is None or len(got.q) != 1 or positions.ndim != 2 or positions.shape[-1] == 1 or queries != keys:
        return None
    ids = (positions.diff(dim=-1, prepend=positions[:, :1] - 1) != 1).cumsum(-1)
    return (ids, ids) if ids.any() else None


def _to_document_ids(starts: Tensor, size: int) -> Tensor:
    """0 for the positions of the first text, 1 for the second, …

    >>> _to_document_ids(torch.tensor([0, 2, 5]), 5)
    tensor([0, 0, 1, 1, 1])
    """
    return torch.bucketize(torch.arange(size, device=starts.device), starts[1:].contiguous(), right=True)


def _find_refusal(kind: str, function: Any, q: Tensor, k: Tensor, options: Any) -> str:
    """Why this attention cannot be recorded; empty if it can."""
    if kind == UNKNOWN:
        function = _unwrap_partial(function)
        name = getattr(function, "__name__", type(function).__name__)
        return (
            f"the attention function {name!r} is not one of transformers, so what it computes is "
            "unknown; watch the model with model.set_attn_implementation('sdpa'), or pass its scores to "
            "clearhead.measure(q, k, mask, bias=…)"
        )
    if kind == "flex":
        return (
            "FlexAttention gets its mask as a function; the weights are the same with the attention 'sdpa': call "
            "model.set_attn_implementation('sdpa') while the model is watched"
        )
    if options.get("cache") is not None:
        return (
            "continuous batching keeps keys in pages that only its own function can read; use generate() without it "
            "while the model is watched"
        )
    if any(options.get(name) is not None for name in ("indices", "block_indices")):
        return (
            "this kernel selects the visible keys by itself; watch the model with model.set_attn_implementation('sdpa')"
        )
    if q.ndim != 4 or k.ndim != 4:
        return (
            f"an attention got q {tuple(q.shape)} and k {tuple(k.shape)}, not (batch, heads, tokens, width of a head): "
            "this model cannot be watched"
        )
    return ""


@functools.cache
def list_parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _accepts(function: Callable[..., Any], name: str) -> bool:
    code = function.__code__
    return name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _name_arguments(function: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, Any]:
    """Positional arguments by name, from the sixth on."""
    return dict(zip(list_parameters(function)[5:], args, strict=False))
