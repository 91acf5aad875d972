"""What keys contribute: attention weighted by the norms of projected values, and the coverage of a source.

A head adds Σ_j w_ij · f(x_j) to a token, with f(x_j) = v_j W_O^h. So ‖w_ij f(x_j)‖ = w_ij ‖f(x_j)‖: of each head and
key one more number is kept (Kobayashi et al. 2020, "Attention is Not Only a Weight"). A key that gets half of the
weights and has a value near zero, as many sinks do, adds next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.errors import LensError, RecordError, ShapeError

if TYPE_CHECKING:
    from clearhead.lens.record.attention_views import Sight

CHUNK = 2**22  # numbers of a product held at once

ValueNorms = Callable[[Float[Tensor, "batch kv_heads keys d"]], Float[Tensor, "batch heads keys"]]


def make_value_norms(projection: nn.Module, heads: int, name: str) -> ValueNorms:
    """A function of values: ‖v_j W_O^h‖ of every head and key. LensError unless the projection is a plain linear layer.

    With others' adapters, hooks, parametrizations or quantised weights it may compute something else than its weight.
    """
    weight = read_weight(projection)
    if weight is None:
        raise LensError(
            f"norms=True reads the weight of plain linear layers, but the output projection of {name!r} is a "
            f"{type(projection).__name__} that may compute something else than its weight says; merge adapters into "
            "the model before (peft: merge_and_unload()), remove parametrizations and hooks, or omit norms"
        )
    return lambda v: value_norms(v, weight, heads)


def read_weight(projection: nn.Module) -> Float[Tensor, "width features"] | None:
    """The matrix of a plain linear layer, or of one with our own adapter; None where only a call tells it."""
    kind: Any = type(projection)
    hooks: tuple[Any, ...] = (*projection._forward_hooks.values(), *projection._forward_pre_hooks.values())
    if "forward" in vars(projection) or kind.__call__ is not nn.Module.__call__ or not all(map(_is_ours, hooks)):
        return None
    if hasattr(kind, "effective_weight"):
        adapted: Tensor = kind.effective_weight(projection)
        return adapted
    weight = projection._parameters.get("weight")
    if type(weight) is not nn.Parameter or weight.ndim != 2 or not weight.is_floating_point():
        return None
    if kind.forward is nn.Linear.forward:
        return weight.detach()
    return weight.detach().T if (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D") else None


def _is_ours(hook: Any) -> bool:
    """Whether a hook is clearhead's own: those change neither inputs nor outputs."""
    return getattr(hook, "__module__", "").startswith("clearhead.")


def value_norms(
    v: Float[Tensor, "batch kv_heads keys d"], weight: Float[Tensor, "width features"], heads: int
) -> Float[Tensor, "batch heads keys"]:
    """‖v_j W_O^h‖ of every head and key; `weight` is that of the linear map that merges the heads.

    Grouped heads share a value, but each has a map of its own. What comes out is float32 or better.

    >>> v = torch.tensor([[[[3.0], [1.0]]]])
    >>> value_norms(v, torch.tensor([[1.0, 0.0], [0.0, 2.0]]), heads=2)
    tensor([[[3., 1.],
             [6., 2.]]])
    """
    batch, kv_heads, keys, d = v.shape
    if heads < 1 or heads % kv_heads or weight.shape[1] != heads * d:
        raise ShapeError(
            f"{heads} heads with values of {d} features are merged by a weight of (width, {heads * d}), "
            f"got {tuple(weight.shape)} and values {tuple(v.shape)}; pass to_out.weight as nn.Linear keeps it"
        )
    dtype = torch.promote_types(torch.promote_types(v.dtype, weight.dtype), torch.float32)
    with torch.no_grad(), torch.autocast(v.device.type, enabled=False):
        maps = _reduce_maps(weight.detach().to(dtype).unflatten(1, (heads, d)).transpose(0, 1), keys * batch)
        maps = maps.unflatten(0, (kv_heads, heads // kv_heads))
        norms = [
            torch.linalg.vector_norm(torch.einsum("bgnd,ghwd->bghnw", part.detach().to(dtype), maps), dim=-1)
            for part in v.split(max(1, CHUNK // max(1, batch * heads * maps.shape[2])), dim=2)
        ]
    return (norms[0] if len(norms) == 1 else torch.cat(norms, -1)).flatten(1, 2)


def norm_weights(
    sight: Sight, batch: int, head: int, queries: int | slice | None = None, keys: int | slice | None = None
) -> Float[Tensor, "queries keys"]:
    """‖w_ij f(x_j)‖ in an exact window: how much each key adds; for a sight with keep="qk" and norms=True."""
    if sight.norms is None:
        raise RecordError(f"the norms of values of {sight.name!r} were not kept; watch(…, norms=True) keeps them")
    weights = sight.weights(batch, head, queries, keys)
    columns = range(sight.norms.shape[2])[slice(None) if keys is None else keys]
    numbers = torch.tensor([columns] if isinstance(columns, int) else columns, dtype=torch.long)
    return weights * sight.norms[batch, sight.place_of(head), numbers]


def coverage(sight: Sight) -> Float[Tensor, "batch heads"]:
    """How much of the source each head of a cross-attention covers: mean over visible keys of min(Σ_i w(i, j), 1).

    It is the coverage of Tu et al. 2016, cut off as in Wu et al. 2016. It is 1 if each source token gets a weight of at
    least 1 from all target tokens together, so never for fewer target than source tokens. `sight.received` has the
    coverage of each token.
    """
    seen = (sight.received > 0).any(1, keepdim=True)
    return sight.received.clamp(max=1.0).sum(2) / seen.sum(2).clamp(min=1)


def _reduce_maps(weight: Tensor, values: int) -> Tensor:
    """The weight (heads, width, d); if there are many values, the small R of W = QR, since ‖R v‖ = ‖W v‖."""
    _, width, d = weight.shape
    if width <= d or values < 4 * d:
        return weight
    small: Tensor = torch.linalg.qr(weight, mode="r").R
    return small
