"""norms=True where the output projection is no plain linear layer: our own adapter is read, the others are refused."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from clearhead import MultiHeadAttention, watch
from clearhead.errors import LensError
from clearhead.model.lora import LowRankLinear

HEADS, WIDTH = 3, 21


class Adapter(nn.Module):
    """A low-rank matrix beside a linear layer, whose weight it shows as its own, as peft adds it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        width, inputs = base.weight.shape
        self.base_layer = base
        self.down, self.up = nn.Linear(inputs, 2, bias=False), nn.Linear(2, width, bias=False)

    @property
    def weight(self) -> Tensor:
        return self.base_layer.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + 3 * self.up(self.down(x))


class Quantised(nn.Module):
    """8-bit weights with a scale a row."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        scale = base.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (base.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype) * self.scale)


def old_weight_norm(base: nn.Linear) -> nn.Module:
    """Its pre-hook makes the weight of every call; the one that is there is of before the last step of training."""
    with pytest.warns(FutureWarning, match="weight_norm"):
        return nn.utils.weight_norm(base)


def pushed(base: nn.Linear) -> nn.Module:
    """A layer whose forward somebody has replaced."""
    base.forward = lambda x: 3 * F.linear(x, base.weight.flip(0), base.bias)
    return base


class Tripled(nn.Linear):
    """A layer whose calls give more than its forward."""

    def __call__(self, x: Tensor) -> Tensor:
        return 3 * super().__call__(x)


def called(base: nn.Linear) -> nn.Module:
    return Tripled(base.in_features, base.out_features)


def hooked(base: nn.Linear) -> nn.Module:
    """A layer to whose output a hook adds something."""
    base.register_forward_hook(lambda _, args, output: output + args[0].flip(-1))
    return base


def scaled(base: nn.Linear) -> nn.Module:
    """A layer whose input a hook changes."""
    base.register_forward_pre_hook(lambda _, args: (3 * args[0],))
    return base


REFUSED = {
    "forward hook": hooked,
    "forward pre-hook": scaled,
    "adapter": Adapter,
    "quantised": Quantised,
    "weight norm": parametrizations.weight_norm,
    "old weight norm": old_weight_norm,
    "replaced forward": pushed,
    "replaced call": called,
}


def attention(wrap: Callable[[nn.Linear], nn.Module]) -> MultiHeadAttention:
    torch.manual_seed(0)
    model = MultiHeadAttention(WIDTH, HEADS)
    model.to_out = wrap(model.to_out)
    return model


@torch.no_grad()
def test_our_own_adapter_counts() -> None:
    model, values = attention(lambda base: LowRankLinear(base, rank=2, scale=3.0)), []
    nn.init.normal_(model.to_out.lora_up)
    model.observer = lambda seen: values.append(seen.v)
    with watch(model, norms=True) as record:
        model(torch.randn(1, 5, WIDTH))
    width = WIDTH // HEADS
    weight = model.to_out.weight + 3.0 * model.to_out.lora_up @ model.to_out.lora_down
    for head in range(HEADS):
        added = values[0][0, head] @ weight[:, head * width : (head + 1) * width].T
        torch.testing.assert_close(record["attention"].norms[0, head], added.norm(dim=-1))


@pytest.mark.parametrize("wrap", REFUSED.values(), ids=list(REFUSED))
def test_a_projection_that_its_weight_does_not_describe_is_refused_by_name(wrap) -> None:
    model = attention(wrap)
    with (
        pytest.raises(LensError, match=r"output projection of 'attention' is a \w+ that may"),
        watch(model, norms=True),
    ):
        model(torch.randn(1, 3, WIDTH))


@torch.no_grad()
def test_an_adapter_around_queries_and_keys_counts_also_where_some_of_its_rows_are_used() -> None:
    torch.manual_seed(0)
    model, x = MultiHeadAttention(WIDTH, HEADS), torch.randn(2, 5, WIDTH)
    model.to_qkv = Adapter(model.to_qkv)
    torch.testing.assert_close(model(x, context=x), model(x))
