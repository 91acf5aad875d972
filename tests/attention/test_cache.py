"""KeyValueCache under rough handling: copies, failed steps, fresh starts, other modes."""

import copy

import pytest
import torch

from clearhead import Decoder, EncoderDecoder, KeyValueCache, Mask, ModelConfig, MultiHeadAttention
from clearhead.errors import ShapeError

SMALL = {"width": 24, "heads": 6, "layers": 2, "feedforward": 37, "dropout": 0.0, "positions": "rotary"}


@pytest.fixture
def model() -> Decoder:
    torch.manual_seed(0)
    return Decoder(ModelConfig.named("tiny", vocabulary=53, **SMALL)).double().eval()


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, 53, shape, generator=torch.Generator().manual_seed(7))


def test_a_deep_copy_is_independent(model):
    text, cache = tokens(2, 7), KeyValueCache()
    with torch.no_grad():
        model(text[:, :5], cache=cache)
        branch = copy.deepcopy(cache)
        other = model((text[:, 5:6] + 1) % 53, cache=branch)
        got = model(text[:, 5:], cache=cache)
    assert (branch.length, cache.length) == (6, 7)
    torch.testing.assert_close(got, model(text)[:, 5:], rtol=0, atol=1e-12)
    changed = torch.cat([text[:, :5], (text[:, 5:6] + 1) % 53], dim=1)
    torch.testing.assert_close(other, model(changed)[:, 5:], rtol=0, atol=1e-12)


def test_a_step_that_failed_can_be_tried_again(model):
    text, cache = tokens(2, 6), KeyValueCache()
    with torch.no_grad():
        model(text[:, :5], cache=cache)
        with pytest.raises(ShapeError, match="made for 3 samples"):
            model(text[:, 5:], cache=cache, mask=Mask.padding([1, 2, 3]))
        got = model(text[:, 5:], cache=cache)
    torch.testing.assert_close(got, model(text)[:, 5:], rtol=0, atol=1e-12)


def test_cropping_to_nothing_is_a_fresh_start_with_another_context():
    torch.manual_seed(0)
    model = EncoderDecoder(ModelConfig.named("tiny", vocabulary=53, **SMALL)).double().eval()
    first, second = model.encode(tokens(2, 7)), model.encode(tokens(2, 11))
    cache, target = KeyValueCache(), tokens(2, 3)
    with torch.no_grad():
        model.decode(target, first, cache=cache)
        cache.crop(0)
        assert cache.length == 0
        got = model.decode(target, second, cache=cache)
    torch.testing.assert_close(got, model.decode(target, second), rtol=0, atol=1e-12)


def test_a_cache_filled_under_inference_mode_serves_under_no_grad(model):
    text, cache = tokens(2, 6), KeyValueCache()
    with torch.inference_mode():
        model(text[:, :5], cache=cache)
    with torch.no_grad():
        got = model(text[:, 5:], cache=cache)
    torch.testing.assert_close(got, model(text)[:, 5:], rtol=0, atol=1e-12)


def test_an_attention_first_used_late_counts_its_own_positions():
    """Within a step, layers that have not run yet hold fewer tokens than the first."""
    from clearhead import Rotary

    first, late = (MultiHeadAttention(8, 2, positions=Rotary(4)).double() for _ in range(2))
    x, cache = torch.randn(1, 5, 8).double(), KeyValueCache()
    with torch.no_grad():
        first(x, mask=Mask.causal(), cache=cache)
        got = late(x, mask=Mask.causal(), cache=cache)
    torch.testing.assert_close(got, late(x, mask=Mask.causal()), rtol=0, atol=1e-12)
    assert cache.length_of(late) == 5


@pytest.mark.unchecked
def test_rows_to_keep_may_be_a_list(model):
    text, cache = tokens(2, 5), KeyValueCache()
    with torch.no_grad():
        model(text[:, :4], cache=cache)
        cache.reorder([1, 0])
        got = model(text[[1, 0], 4:], cache=cache)
    torch.testing.assert_close(got, model(text)[[1, 0], 4:], rtol=0, atol=1e-12)


def test_beams_that_share_a_context_compute_what_copies_of_it_would():
    torch.manual_seed(0)
    model = EncoderDecoder(ModelConfig.named("tiny", vocabulary=53, **SMALL)).double().eval()
    source, target, lengths = tokens(3, 7), tokens(12, 5), torch.tensor([7, 2, 5])
    rows, mask = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]), Mask.padding(lengths)
    target[:, 0] = 1
    with torch.no_grad():
        context = model.encode(source, mask)
        wanted = model.decode(target, context[rows], context_mask=Mask.padding(lengths[rows]))
        cache = KeyValueCache()
        model.decode(target[::4, :1], context, context_mask=mask, cache=cache)
        cache.branch(rows, beams=4)
        assert {len(k) for k, _ in cache._fixed.values()} == {3}
        x = model.vocabulary(target[:, 1:3])  # several tokens of each beam at once
        got = model.decoder(x, context=context, context_mask=mask, cache=cache)
        torch.testing.assert_close(got, wanted[:, 1:3], rtol=0, atol=1e-12)
        staying = torch.tensor([2, 0])  # the beams of the second sample are done
        order = torch.tensor([[9, 8, 11, 10], [3, 2, 1, 0]])
        cache.branch(order.flatten(), 4, contexts=staying)
        last = model.vocabulary(target[order.flatten(), 3:])
        branch = copy.deepcopy(cache)
        for one in (cache, branch):
            got = model.decoder(last, context=context, context_mask=Mask.padding(lengths[staying]), cache=one)
            torch.testing.assert_close(got, wanted[order.flatten(), 3:], rtol=0, atol=1e-12)


def test_samples_may_be_reordered_at_every_step_while_the_cache_grows(model):
    """The memory that samples leave is used again when they move back."""
    text, cache, rows = tokens(5, 150), KeyValueCache(), torch.arange(5)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        wanted = model(text)
        for place in range(0, 150, 3):
            mode = torch.inference_mode(place % 2 == 0)
            with mode:
                got = model(text[rows, place : place + 3], cache=cache)
                torch.testing.assert_close(got, wanted[rows, place : place + 3], rtol=0, atol=1e-12)
                order = torch.randint(0, len(rows), (5,), generator=generator)
                order = order[: 5 - (place % 4 == 0)]
                cache.reorder(order)
            rows = rows[order]
            if len(rows) < 5:
                rows = torch.cat([rows, rows[:1]])
                cache.reorder([0, 1, 2, 3, 0])


def test_gradients_flow_through_reordered_samples(model):
    text, cache = tokens(2, 6), KeyValueCache()
    model(text[:, :3], cache=cache)
    cache.reorder([1, 0])
    got = model(text[[1, 0], 3:], cache=cache)
    torch.testing.assert_close(got, model(text)[[1, 0], 3:], rtol=0, atol=1e-12)
    weight = model.decoder.layers[0].self_attention.to_qkv.weight
    (found,) = torch.autograd.grad(got.square().sum(), weight)
    (wanted,) = torch.autograd.grad(model(text)[:, 3:].square().sum(), weight)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)
