"""LoRA adapters (Hu et al. 2021): a low-rank matrix is trained beside each frozen weight matrix, and added to it."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.attention import MultiHeadAttention
from clearhead.model.layers import FeedForward

# Modules whose linear layers can be adapted.
PARTS: dict[str, type[nn.Module]] = {"attention": MultiHeadAttention, "feedforward": FeedForward}
DOWN, UP = "lora_down", "lora_up"  # names of the two low-rank matrices


class LowRankLinear(nn.Linear):
    """A linear layer that computes x·(W + scale·up·down)ᵀ + b, with W and b frozen.

    `up` is zero at first, so that the layer equals the one that it replaces bit for bit. Weight and bias keep their
    names; the matrices are `lora_down` (rank, inputs) and `lora_up` (outputs, rank).

    >>> import torch
    >>> plain, x = nn.Linear(5, 7), torch.randn(3, 5)
    >>> adapted = LowRankLinear(plain, rank=2, scale=2.0)
    >>> torch.equal(adapted(x), plain(x)), adapted.lora_up.shape
    (True, torch.Size([7, 2]))
    """

    def __init__(self, base: nn.Linear, *, rank: int, scale: float, dropout: float = 0.0) -> None:
        nn.Module.__init__(self)  # not nn.Linear's, which would make a weight of its own
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        self.scale = scale
        like = base.weight
        self.lora_down = nn.Parameter(like.new_empty(rank, self.in_features))
        self.lora_up = nn.Parameter(like.new_zeros(self.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_down, a=math.sqrt(5))
        self.dropout = nn.Dropout(dropout)
        for frozen in (self.weight, self.bias):
            if frozen is not None:
                frozen.requires_grad_(False)
        self.train(base.training)

    def forward(self, input: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        low = F.linear(F.linear(self.dropout(input), self.lora_down), self.lora_up)
        return F.linear(input, self.weight, self.bias) + self.scale * low

    def effective_weight(self) -> Float[Tensor, "outputs inputs"]:
        """The matrix of the whole layer, adapter included."""
        return add_low_rank(self.weight, self.lora_down, self.lora_up, self.scale)


def add_low_rank(
    weight: Float[Tensor, "outputs inputs"],
    down: Float[Tensor, "rank inputs"],
    up: Float[Tensor, "outputs rank"],
    scale: float,
) -> Float[Tensor, "outputs inputs"]:
    """weight + scale·up·down: computed in float64 and rounded once.

    >>> import torch
    >>> add_low_rank(torch.eye(2), torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [0.0]]), 0.5)
    tensor([[2.5000, 3.0000],
            [0.0000, 1.0000]])
    """
    return (weight.double() + scale * (up.double() @ down.double())).to(weight.dtype)


def add_adapters(
    model: nn.Module,
    *,
    rank: int,
    alpha: float,
    dropout: float = 0.0,
    on: Sequence[str] = ("attention",),
    only: Container[str] | None = None,
) -> list[str]:
    """Replaces linear layers of a model by adapted ones, and freezes all its weights but the adapters.

    `on` says of which modules: "attention", "feedforward" or both. What the adapters add is scaled by alpha / rank.
    With `only`, just layers whose weight has one of these names are adapted. Returns the names of the adapted layers.
    """
    kinds = tuple(PARTS[name] for name in on)
    model.requires_grad_(False)
    adapted = []
    for path, module in list(model.named_modules()):
        if not isinstance(module, kinds):
            continue
        for name, layer in list(module.named_children()):
            full = f"{path}.{name}"
            if type(layer) is nn.Linear and (only is None or f"{full}.weight" in only):
                setattr(module, name, LowRankLinear(layer, rank=rank, scale=alpha / rank, dropout=dropout))
                adapted.append(full)
    return adapted


def count_adapter_weights(model: nn.Module) -> int:
    """How many weights the low-rank matrices of a model have."""
    return sum(weight.numel() for name, weight in model.named_parameters() if name.rpartition(".")[2] in (DOWN, UP))


def merge_tensors(
    base: Mapping[str, Float[Tensor, "..."]], adapter: Mapping[str, Float[Tensor, "..."]], scale: float
) -> dict[str, Float[Tensor, "..."]]:
    """The tensors of a model by name: the base's with low-rank matrices added, or replaced where the adapter has them.

    >>> import torch
    >>> down, up = torch.ones(1, 2), torch.ones(3, 1)
    >>> merge_tensors({"x.weight": torch.zeros(3, 2)}, {"x.lora_down": down, "x.lora_up": up}, 2.0)["x.weight"][0]
    tensor([2., 2.])
    """
    merged = dict(base)
    for name, tensor in adapter.items():
        layer, _, last = name.rpartition(".")
        if last == DOWN:
            up, weight = adapter[f"{layer}.{UP}"], f"{layer}.weight"
            merged[weight] = add_low_rank(base[weight], tensor, up, scale)
        elif last != UP:
            merged[name] = tensor
    return merged
