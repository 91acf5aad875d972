"""The same linear maps, quicker on a CPU: weights laid out once as its matrix kernels want them.

PyTorch hands float32 products to a library that lays the weights out anew at every call. With the few rows of a
decoding step that costs more than the product itself: with 5 rows it is 2 to 4 times as fast without it, with
160 rows 1.1 to 1.6 times (measured on an AMD EPYC, 12,000 words, width 512).
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


class Quick(NamedTuple):
    """A part of a model, the method of it that has a quicker way, and that way."""

    part: nn.Module
    method: str
    way: Callable[[Tensor], Tensor]


_LAYOUTS: WeakKeyDictionary[nn.Module, _Layout] = WeakKeyDictionary()


def quick_ways(model: nn.Module) -> list[Quick]:
    """For all linear maps of a model; none on a GPU, in another precision, or in one too large for it."""
    weights = list(model.parameters())
    plain = all(type(one.data) is Tensor and one.is_cpu and one.dtype == torch.float32 for one in weights)
    if not plain or not _available() or sum(weight.numel() for weight in weights) > LARGEST:
        return []
    found = []
    for part in model.modules():
        if isinstance(part, Vocabulary):
            found.append(Quick(part, "scores", _way(part, part.output_weight, part.bias)))
        elif type(part) is nn.Linear:
            found.append(Quick(part, "forward", _way(part, part.weight, part.bias)))
    return found


@contextmanager
def taking(ways: list[Quick]) -> Iterator[None]:
    """Within it, these parts go the quick way; without gradients. Autocast wants another one."""
    if torch.is_autocast_enabled("cpu"):
        ways = []
    for part, method, way in ways:
        part.__dict__[method] = way  # around nn.Module's own setting of attributes: this happens at every step
    try:
        yield
    finally:
        for part, method, _ in ways:
            part.__dict__.pop(method, None)


def _way(part: nn.Module, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    if weight.requires_grad:  # it may be trained on, and a fused optimizer leaves no sign that it changed a weight
        layout = _laid_out(weight)
    else:
        version = 0 if weight.is_inference() else weight._version
        of = (weight.data_ptr(), version, weight.shape)
        kept = _LAYOUTS.get(part)
        if kept is None or kept.of != of:
            kept = _LAYOUTS[part] = _Layout(of, _laid_out(weight))
        layout = kept.weight
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, layout, bias, "none", [], "")


def _laid_out(weight: Tensor) -> Tensor:
    laid: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
    return laid


def _available() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
