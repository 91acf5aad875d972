"""Weights packed for the CPU: the same results, changed weights are noticed, the model stays as it is."""

import copy
import pickle

import pytest
import torch
from torch import nn

from clearhead import Encoder, EncoderDecoder, ModelConfig
from clearhead.decode import Writer, beam, prepacked_linear
from clearhead.decode.prepacked_linear import can_pack, decoding_view
from clearhead.model.layers import FeedForward
from tests.decode.models import END, START, sources

OPTIONS = {"start": START, "end": END, "max_length": 6}
AVAILABLE = can_pack(nn.Linear(3, 2))
needs_onednn = pytest.mark.skipif(not AVAILABLE, reason="this PyTorch has no oneDNN")


def small(**changes) -> EncoderDecoder:
    torch.manual_seed(0)
    return EncoderDecoder(
        ModelConfig.named("tiny", vocabulary=101, width=24, heads=3, feedforward=37, **changes)
    ).eval()


@needs_onednn
@pytest.mark.parametrize(
    "changes",
    [{}, {"activation": "gelu"}, {"tie_embeddings": False}, {"logits_bias": True, "logits_transform": True}],
)
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (0, 3)])
def test_the_same_comes_out(changes, shape):
    model, hidden = small(**changes), torch.randn(*shape, 24)
    view = decoding_view(model)
    with torch.inference_mode():
        usual = model.decoder.layers[0].feedforward(hidden), model.logits(hidden)
        found = view.decoder.layers[0].feedforward(hidden), view.logits(hidden)
        last = view.logits(torch.randn(4, 7, 24)[:, -1])
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


def test_the_model_is_the_same_before_while_and_after_it_writes():
    model, (source, lengths) = small().train(), sources(2)

    def state() -> dict[str, dict[str, object]]:
        return {name: dict(vars(part)) for name, part in model.named_modules()}

    before, writer = state(), Writer.translating(model, source, lengths)
    during = []
    model.decoder.layers[0].register_forward_pre_hook(lambda *_: during.append(state()))
    beam(writer, **OPTIONS)
    assert during
    assert all(one == before for one in [*during, state()])
    copy.deepcopy(small())
    pickle.dumps(small())


def test_other_devices_and_precisions_are_not_packed():
    assert not can_pack(small().double())
    assert not can_pack(small().to(torch.bfloat16))
    assert not can_pack(small().to("meta"))


@needs_onednn
def test_packed_weights_are_kept_for_the_next_view_and_go_with_the_model(monkeypatch):
    packed, pack = [], torch.ops.mkldnn._reorder_linear_weight
    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", lambda *given: (packed.append(1), pack(*given))[1])
    model, kept = small().requires_grad_(False), len(prepacked_linear._packed)
    view = decoding_view(model)
    first = len(packed)
    assert first == 2 * 4 + 2 * 7 + 1
    decoding_view(model)
    assert len(packed) == first
    assert len(prepacked_linear._packed) == kept + first
    del model, view
    assert len(prepacked_linear._packed) == kept


@needs_onednn
def test_under_autocast_it_steps_aside():
    view = decoding_view(nn.Linear(8, 4))
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert view(torch.randn(2, 8)).dtype == torch.bfloat16


@needs_onednn
def test_weights_changed_by_a_fused_optimizer_are_noticed():
    torch.manual_seed(1)
    linear, x = nn.Linear(13, 7), torch.randn(3, 13)
    optimizer = torch.optim.AdamW(linear.parameters(), lr=0.5, fused=True)
    for _ in range(3):
        with torch.inference_mode():
            quick = decoding_view(linear)(x)
        torch.testing.assert_close(quick, nn.functional.linear(x, linear.weight, linear.bias).detach())
        linear(x).square().sum().backward()
        optimizer.step()


@needs_onednn
def test_gelu_is_part_of_the_packed_product():
    torch.manual_seed(1)
    model = Encoder(ModelConfig.named("tiny", vocabulary=11, activation="gelu")).eval().requires_grad_(False)
    tokens = torch.randint(11, (3, 5))
    view = decoding_view(model)
    assert any("forward" in vars(part) for part in view.modules() if isinstance(part, FeedForward))
    torch.testing.assert_close(view(tokens), model(tokens), rtol=0, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(view(tokens), model(tokens))
