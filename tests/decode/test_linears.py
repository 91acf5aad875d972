"""Weights laid out for the CPU: the same results, noticed changes, nothing left behind."""

import copy
import pickle

import pytest
import torch
from torch import nn

from clearhead import EncoderDecoder, ModelConfig
from clearhead.decode import Writer, beam
from clearhead.decode.linears import quick_ways, taking
from tests.decode.models import END, START, sources

OPTIONS = {"start": START, "end": END, "max_length": 6}
AVAILABLE = bool(quick_ways(nn.Linear(3, 2)))
needs_onednn = pytest.mark.skipif(not AVAILABLE, reason="this PyTorch has no oneDNN")


def small(**changes) -> EncoderDecoder:
    torch.manual_seed(0)
    return EncoderDecoder(
        ModelConfig.named("tiny", vocabulary=101, width=24, heads=3, feedforward=37, **changes)
    ).eval()


@needs_onednn
@pytest.mark.parametrize("changes", [{}, {"tie_embeddings": False}, {"logits_bias": True, "logits_transform": True}])
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (0, 3)])
def test_the_same_comes_out(changes, shape):
    model, hidden = small(**changes), torch.randn(*shape, 24)
    layer = model.decoder.layers[0].feedforward
    with torch.inference_mode():
        usual = layer(hidden), model.logits(hidden)
        with taking(quick_ways(model)):
            found = layer(hidden), model.logits(hidden)
            last = model.logits(torch.randn(4, 7, 24)[:, -1])
    for one, other in zip(found, usual, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    assert last.shape == (4, 101)


@needs_onednn
def test_it_is_what_a_writer_uses(monkeypatch):
    called = []
    used = torch.ops.mkldnn._linear_pointwise
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", lambda *given: (called.append(1), used(*given))[1])
    Writer.translating(small(), torch.tensor([[5, 6]]), [2]).begin(START)
    assert len(called) == 2 * 4 + 2 * 7 + 1


def test_changed_weights_are_noticed():
    source, lengths = sources(3)
    model = small()
    before = beam(Writer.translating(model, source, lengths), **OPTIONS)
    for change in (lambda weight: weight.add_(0.5), lambda weight: weight.set_(weight * -1.5)):
        with torch.no_grad():
            for weight in model.parameters():
                change(weight)
        after = beam(Writer.translating(model, source, lengths), **OPTIONS)
        exact = beam(Writer.translating(copy.deepcopy(model).double(), source, lengths), **OPTIONS)
        assert after != before
        for one, other in zip(after, exact, strict=True):
            assert one[0].score == pytest.approx(other[0].score, abs=1e-4)
        before = after


def test_nothing_is_left_behind():
    model, (source, lengths) = small(), sources(2)
    before = {name: set(vars(part)) for name, part in model.named_modules()}
    beam(Writer.translating(model, source, lengths), **OPTIONS)
    assert {name: set(vars(part)) for name, part in model.named_modules()} == before
    copy.deepcopy(model)
    pickle.dumps(model)


def test_what_it_is_not_for_is_left_alone():
    assert quick_ways(small().double()) == []
    assert quick_ways(small().to(torch.bfloat16)) == []
    assert quick_ways(small().to("meta")) == []


@needs_onednn
def test_under_autocast_it_steps_aside():
    linear = nn.Linear(8, 4)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), taking(quick_ways(linear)):
        assert linear(torch.randn(2, 8)).dtype == torch.bfloat16


@pytest.mark.skipif(not AVAILABLE, reason="this CPU or PyTorch has no such layout")
def test_weights_changed_by_a_fused_optimizer_are_noticed():
    torch.manual_seed(1)
    linear, x = nn.Linear(13, 7), torch.randn(3, 13)
    optimizer = torch.optim.AdamW(linear.parameters(), lr=0.5, fused=True)
    for _ in range(3):
        with torch.inference_mode(), taking(quick_ways(linear)):
            quick = linear(x)
        torch.testing.assert_close(quick, nn.functional.linear(x, linear.weight, linear.bias).detach())
        linear(x).square().sum().backward()
        optimizer.step()
