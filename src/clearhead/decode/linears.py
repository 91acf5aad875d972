"""The same linear maps, quicker on a CPU: weights laid out once as its matrix kernels want them.

PyTorch hands float32 products to a library that lays the weights out anew at every call. With the few rows of a
decoding step that costs more than the product itself: with 5 rows it is 2 to 4 times as fast without it, with
160 rows 1.1 to 1.6 times (measured; docs/log.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from clearhead.model.transformer import Vocabulary

LARGEST = 2**28  # numbers of a model that may be held twice: 1 GiB


class _Layout(NamedTuple):
    of: tuple[Any, ...]  # which weights it was made of
    weight: Tensor


_LAYOUTS: WeakKeyDictionary[nn.Module, _Layout] = WeakKeyDictionary()


def maps_of(model: nn.Module) -> list[nn.Module]:
    """The parts of a model that can be laid out: none on a GPU, in another precision, or in one too large for it."""
    weights = list(model.parameters())
    plain = all(weight.device.type == "cpu" and weight.dtype == torch.float32 for weight in weights)
    if not plain or not _available() or sum(weight.numel() for weight in weights) > LARGEST:
        return []
    return [part for part in model.modules() if type(part) in (nn.Linear, Vocabulary)]


@contextmanager
def laid_out(parts: list[nn.Module]) -> Iterator[None]:
    """Within it, these parts compute with their weights as laid out; without gradients."""
    if torch.is_autocast_enabled("cpu"):
        parts = []
    for part in parts:
        # Around nn.Module's own way of setting attributes: this happens at every step.
        part.__dict__["scores" if isinstance(part, Vocabulary) else "forward"] = _quick(part)
    try:
        yield
    finally:
        for part in parts:
            part.__dict__.pop("scores" if isinstance(part, Vocabulary) else "forward", None)


def _quick(part: nn.Module) -> Callable[[Tensor], Tensor]:
    assert isinstance(part, (nn.Linear, Vocabulary))
    weight, bias = part.output_weight if isinstance(part, Vocabulary) else part.weight, part.bias
    of = (weight.data_ptr(), weight._version, weight.shape)  # a training step or a loaded file changes these
    layout = _LAYOUTS.get(part)
    if layout is None or layout.of != of:
        layout = _LAYOUTS[part] = _Layout(of, torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None))
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, layout.weight, bias, "none", [], "")


def _available() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
