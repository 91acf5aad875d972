"""Linear layers with weights packed once in the layout of the CPU's matrix kernels (oneDNN).

PyTorch hands float32 products to a library that packs the weights anew at every call. With the few rows of a
decoding step, packing costs more than the product itself. Without it, 5 rows are 2 to 4 times as fast, and 160 rows
1.1 to 1.6 times (measured on an AMD EPYC, 12,000 words, width 512).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from clearhead.model.inference_view import inference_view
from clearhead.model.layers import FeedForward
from clearhead.model.transformer import Vocabulary

LARGEST_PACKED_WEIGHTS = 2**28  # weights of a model that may be held twice: 1 GiB

Model = TypeVar("Model", bound=nn.Module)


_packed = WeakTensorKeyDictionary()  # by the weight: what identifies its values, and the packed weight
_lock = threading.Lock()


def decoding_view(model: Model) -> Model:
    """An `inference_view` whose linear layers use packed weights, where that is faster; to be run without gradients.

    Weights are packed on a CPU, in float32, and if the model is small enough to be held twice; under autocast the
    layers compute as usual. Packed weights are kept for the next view, unless the model may be trained in between.
    """
    view = inference_view(model)
    if not can_pack(model):
        return view
    for part in view.modules():
        if isinstance(part, Vocabulary):
            vars(part)["scores"] = _make_linear(part.output_weight, part.bias)
        elif type(part) is nn.Linear:
            vars(part)["forward"] = _make_linear(part.weight, part.bias)
        elif type(part) is FeedForward and part.activation is F.gelu and not part.gated:
            vars(part)["forward"] = _make_feedforward(part)
    return view


def can_pack(model: nn.Module) -> bool:
    """Whether this PyTorch can pack weights, and these are plain float32 tensors on a CPU, and not too many."""
    weights = list(model.parameters())
    plain = all(type(weight.data) is Tensor and weight.is_cpu and weight.dtype == torch.float32 for weight in weights)
    supported = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    return plain and supported and sum(weight.numel() for weight in weights) <= LARGEST_PACKED_WEIGHTS


def _make_linear(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    packed = _get_packed(weight)

    def linear(x: Tensor) -> Tensor:
        if torch.is_autocast_enabled("cpu"):
            return F.linear(x, weight, bias)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
        return out

    return linear


def _make_feedforward(part: FeedForward) -> Callable[[Tensor], Tensor]:
    """The feed-forward network of a view, whose first product and GELU are one call."""
    weight, bias = part.up.weight, part.up.bias
    packed = _get_packed(weight)

    def feedforward(x: Tensor) -> Tensor:
        if torch.is_autocast_enabled("cpu"):
            return cast(Tensor, part.down(F.gelu(F.linear(x, weight, bias))))
        inner = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "gelu", [], "none")
        return cast(Tensor, part.down(inner))

    return feedforward


def _get_packed(weight: Tensor) -> Tensor:
    if weight.requires_grad:  # it may be trained on, and a fused optimizer leaves no sign that it changed a weight
        return _pack(weight)
    version = 0 if weight.is_inference() else weight._version
    source = (weight.data_ptr(), version, weight.shape)
    with _lock:  # several threads may decode with one model
        packed_source, packed = _packed.get(weight, (None, weight))
        if packed_source != source:
            packed = _pack(weight)
            _packed[weight] = source, packed
    return cast(Tensor, packed)


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
    return packed
