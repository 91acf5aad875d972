"""norms=True where the output projection is no plain linear layer: adapted, parametrized, quantised, or not linear."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from clearhead import MultiHeadAttention, watch
from clearhead.errors import LensError
from clearhead.model.lora import LowRankLinear

HEADS, D, WIDTH = 3, 7, 21


class Wrapper(nn.Module):
    """A layer around another, whose weight it shows as its own."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base_layer = base

    @property
    def weight(self) -> Tensor:
        return self.base_layer.weight


class Adapter(Wrapper):
    """A low-rank matrix beside a linear layer, as peft adds it."""

    def __init__(self, base: nn.Module, dropout: float = 0.0) -> None:
        super().__init__(base)
        width, inputs = base.weight.shape if isinstance(base, nn.Linear) else base.weight.T.shape
        self.down, self.up = nn.Linear(inputs, 2, bias=False), nn.Linear(2, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + 3 * self.up(self.down(self.dropout(x)))


class Quantised(nn.Module):
    """8-bit weights with a scale a row, and a bias that is much larger than what they give."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        scale = base.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (base.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", torch.full((WIDTH,), 1000.0))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype) * self.scale, self.bias)


class Rectified(Wrapper):
    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x).relu()


class Dropping(Wrapper):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.base_layer(x), 0.5, self.training)


def own_adapter(base: nn.Linear) -> nn.Module:
    layer = LowRankLinear(base, rank=2, scale=3.0)
    nn.init.normal_(layer.lora_up)
    return layer


def old_weight_norm(base: nn.Linear) -> nn.Module:
    """Its pre-hook makes the weight of every call; the one that is there is of before the last step of training."""
    with pytest.warns(FutureWarning, match="weight_norm"):
        layer = nn.utils.weight_norm(base)
    with torch.no_grad():
        layer.weight_g.mul_(3)
    return layer


def pushed(base: nn.Linear) -> nn.Module:
    """A layer whose forward somebody has replaced."""
    base.forward = lambda x: 3 * F.linear(x, base.weight.flip(0), base.bias)
    return base


WRAPPED = {
    "adapter": Adapter,
    "dropout": lambda base: Adapter(base, 0.5).train(),
    "own adapter": own_adapter,
    "quantised": Quantised,
    "weight norm": parametrizations.weight_norm,
    "spectral norm": lambda base: parametrizations.spectral_norm(base).train(),
    "old weight norm": old_weight_norm,
    "replaced forward": pushed,
}


def attention(wrap: Any) -> MultiHeadAttention:
    torch.manual_seed(0)
    model = MultiHeadAttention(WIDTH, HEADS)
    nn.init.normal_(model.to_out.bias)
    training = wrap(copy.deepcopy(model.to_out)).training
    model.to_out = wrap(model.to_out)
    return model.train(training)


def explicit(model: nn.Module, v: Tensor) -> Tensor:
    """What each head adds for each key, by a call of the projection for each of them, without dropout."""
    copied = copy.deepcopy(model)
    for part in copied.modules():
        if isinstance(part, nn.Dropout):
            part.eval()
    batch, heads, keys, d = v.shape
    x = torch.zeros(heads + 1, batch, keys, heads, d)
    for head in range(heads):
        x[head, :, :, head] = v[:, head]
    whole = copied(x.flatten(3))
    return (whole[:-1] - whole[-1]).norm(dim=-1).transpose(0, 1)


@torch.no_grad()
@pytest.mark.parametrize("keys", [3, 11])  # fewer and more than a head has features
@pytest.mark.parametrize("name", WRAPPED)
def test_norms_are_those_of_what_the_module_gives_and_nothing_of_it_changes(name, keys):
    model, x, seen = attention(WRAPPED[name]), torch.randn(1, keys, WIDTH), []
    model.observer = seen.append
    model(x)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    wanted = copy.deepcopy(model)(x)
    torch.set_rng_state(state)
    with watch(model, norms=True) as record:
        found = model(x)
    assert torch.equal(found, wanted)
    if name != "spectral norm":  # whose call makes a step
        assert all(torch.equal(one, before[key]) for key, one in model.state_dict().items())
    model.load_state_dict(before)
    off = (record["attention"].norms - explicit(model.to_out, seen[0].v)).abs().max()
    assert off < (1e-3 if name == "quantised" else 1e-5)


@torch.no_grad()
def test_an_adapter_around_queries_and_keys_counts_also_where_some_of_its_rows_are_used():
    torch.manual_seed(0)
    model, x = MultiHeadAttention(WIDTH, HEADS), torch.randn(2, 5, WIDTH)
    model.to_qkv = Adapter(model.to_qkv)
    torch.testing.assert_close(model(x, context=x), model(x))


@pytest.mark.parametrize(("wrap", "keys"), [(Rectified, 3), (Rectified, 11), (Dropping, 3), (Dropping, 11)])
def test_a_projection_that_is_not_linear_is_refused_by_name(wrap, keys):
    model = attention(wrap).train()
    refusal = rf"linear.*'attention'.*{wrap.__name__}.*model.eval\(\)"
    with pytest.raises(LensError, match=refusal), watch(model, norms=True):
        model(torch.randn(1, keys, WIDTH))


def test_a_hook_that_gives_the_projection_more_arguments_is_refused():
    model = attention(Adapter)
    model.to_out.register_forward_pre_hook(lambda module, args, kwargs: None, with_kwargs=True)
    with (
        pytest.raises(LensError, match=r"'attention' itself, a Adapter, .* further arguments"),
        watch(model, norms=True),
    ):
        model(torch.randn(1, 3, WIDTH))


def test_a_value_that_is_not_a_number_is_in_the_record():
    model = attention(Adapter)
    x = torch.randn(1, 11, WIDTH)
    x[0, 5] = torch.nan
    with torch.no_grad(), watch(model, norms=True) as record:
        model(x)
    norms = record["attention"].norms
    assert norms[..., 5].isnan().all()
    assert norms[..., :5].isfinite().all()
