"""Norms of what heads add for each key, through the weight of the output projection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from clearhead.errors import LensError
from clearhead.lens.analysis.norms import value_norms

ValueNorms = Callable[[Float[Tensor, "batch kv_heads keys d"]], Float[Tensor, "batch heads keys"]]


def make_value_norms(projection: nn.Module, heads: int, name: str) -> ValueNorms:
    """A function of values: ‖v_j W_O^h‖ of every head and key. LensError unless the projection is a plain linear layer.

    With others' adapters, parametrizations or quantised weights it may compute something else than its weight.
    """
    weight = read_weight(projection)
    if weight is None:
        raise LensError(
            f"norms=True reads the weight of plain linear layers, but the output projection of {name!r} is a "
            f"{type(projection).__name__} that may compute something else than its weight says; merge adapters into "
            "the model before (peft: merge_and_unload()), remove parametrizations, or omit norms"
        )
    return lambda v: value_norms(v, weight, heads)


def read_weight(projection: nn.Module) -> Float[Tensor, "width features"] | None:
    """The matrix of a plain linear layer, or of one with our own adapter; None where only a call tells it."""
    kind: Any = type(projection)
    if "forward" in vars(projection):
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
