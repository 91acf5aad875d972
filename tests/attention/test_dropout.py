"""Dropout: right on average, the same in both passes, repeatable with a seed."""

import pytest
import torch
from torch import Tensor

from clearhead import Mask, attend
from clearhead.attention.backends import tiled
from clearhead.attention.dropout import Dropout, draw_keep_mask
from tests.attention.cases import random


@pytest.mark.parametrize("backend", ["reference", "sdpa", "tiled"])
def test_dropout_is_right_on_average(backend, device):
    """4,001 equal samples: their mean is within five of its standard errors of what comes out without dropout."""
    torch.manual_seed(0)
    q, k, v = (random(n, 1, 2, 5, 7).float().to(device) for n in range(3))
    many = [tensor.expand(4001, -1, -1, -1) for tensor in (q, k, v)]
    found, mask = attend(*many, Mask.causal(), dropout=0.3, backend=backend), Mask.causal()
    error = (found.mean(0, keepdim=True) - attend(q, k, v, mask)).abs()
    spread = found.std(0, keepdim=True)
    assert spread.mean() > 0.1, "something was dropped"
    assert (error <= 5 * spread / 4001**0.5).all()


def test_what_is_kept_grows_by_what_is_dropped(device):
    torch.manual_seed(0)
    x = torch.zeros(1, 1, 1, 1000, device=device).mT  # 1,000 keys that weigh the same, one query
    out = attend(x[:, :, :1], x, torch.eye(1000, device=device)[None, None], dropout=0.25, backend="tiled")
    kept = out.flatten() > 0
    torch.testing.assert_close(out.flatten()[kept], torch.full_like(out.flatten()[kept], 0.001 / 0.75))
    assert 700 < kept.sum() < 800


@pytest.mark.parametrize("backend", ["sdpa", "tiled", "auto"])
def test_a_seed_repeats_what_is_dropped(backend, device):
    q, k, v = (random(n, 2, 3, 37, 13).float().to(device) for n in range(3))

    def seeded(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return attend(q, k, v, dropout=0.5, backend=backend)

    assert torch.equal(seeded(1), seeded(1))
    assert not torch.equal(seeded(1), seeded(2))


def test_the_backward_pass_drops_what_the_forward_pass_dropped(device, monkeypatch):
    """Derivatives check out numerically when each evaluation has the same seed: so both passes have one mask."""
    monkeypatch.setattr(tiled, "TILE_SCORES", 1)  # blocks of 16 queries: two of them

    def run(*tensors: Tensor) -> Tensor:
        torch.manual_seed(3)
        q, k, v, sinks = tensors
        return attend(q, k, v, Mask.causal(), sinks=sinks, softcap=2.0, dropout=0.4, backend="tiled")

    shapes = [(1, 2, 17, 2), (1, 1, 17, 2), (1, 1, 17, 3), (2,)]
    inputs = [random(n, *shape).to(device).requires_grad_() for n, shape in enumerate(shapes)]
    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("backend", ["reference", "sdpa", "tiled"])
def test_a_query_that_sees_nothing_yields_zeros_under_dropout_too(backend, dtype, device):
    mask = (Mask.causal() & Mask.padding([5, 0], side="left")).to(device)
    q, k, v = (random(n, 2, 3, 11, 13).to(device, dtype).requires_grad_() for n in range(3))
    out = attend(q, k, v, mask, dropout=0.3, backend=backend)
    assert not out[0, :, :6].any()
    assert not out[1].any()
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(out.sum(), (q, k, v)))


@pytest.mark.parametrize("dropped", [0.1, 0.5, 0.9])
def test_the_layer_keeps_its_share_and_the_average(dropped, device):
    torch.manual_seed(0)
    ones, layer = torch.ones(997, 1009, device=device), Dropout(dropped)
    out = layer(ones)
    spread = (dropped * (1 - dropped) / ones.numel()) ** 0.5
    assert ((out > 0).float().mean() - (1 - dropped)).abs() < 5 * spread + 2**-17
    assert (out.mean() - 1).abs() < 5 * spread / (1 - dropped) + 1e-4
    assert torch.equal(layer.eval()(ones), ones)


def test_neighbours_are_dropped_independently():
    """Four share a random number: still, each pair of places agrees as often as chance has it."""
    torch.manual_seed(0)
    kept = draw_keep_mask(torch.empty(400_000), 0.5)[0].view(-1, 8).float() - 0.5
    correlation = (kept.T @ kept) / len(kept) * 4
    assert (correlation - torch.eye(8)).abs().max() < 5 / len(kept) ** 0.5


def test_what_the_layer_drops_has_no_gradient_and_what_it_keeps_has_the_factor():
    torch.manual_seed(0)
    x = torch.ones(101, requires_grad=True)
    out = Dropout(0.25)(x)
    out.sum().backward()
    torch.testing.assert_close(x.grad, out.detach(), rtol=0, atol=0)
    assert set(x.grad.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}


def test_almost_everything_may_be_dropped_but_never_all():
    assert draw_keep_mask(torch.empty(3), 0.9999999)[1] == 2**16
