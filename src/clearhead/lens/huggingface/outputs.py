"""The heads of an attention: how many there are, and the weight that merges them, where a family is known."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from clearhead.lens.huggingface.finding import refuse_if_blind
from clearhead.lens.huggingface.naming import attentions

COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "num_q_heads", "heads")


def head_counts(model: nn.Module) -> dict[str, int]:
    """How many heads each attention of a model has; LensError for a model that cannot be watched."""
    refuse_if_blind(model)
    return {name: head_count(module) for name, module in attentions(model).items()}


def head_count(module: nn.Module) -> int:
    """As the module says, or its config."""
    places: tuple[Any, ...] = (module, getattr(module, "config", None))
    counts = (getattr(place, name, None) for place in places for name in COUNTS)
    return next((count for count in counts if isinstance(count, int)), 0)


def output_weights(model: nn.Module) -> dict[nn.Module, Tensor]:
    raise NotImplementedError
