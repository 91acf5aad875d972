"""Watching compiled models: what the operator in the graph delivers."""

import pytest
import torch

from clearhead import Bias, KeyValueCache, Mask, MultiHeadAttention, watch
from clearhead.attention import Seen
from clearhead.attention.biases import t5_buckets
from clearhead.errors import LensError
from clearhead.lens.capture.compiled_graphs import decode_seen, encode_seen
from tests.lens.seen_calls import built, tokens

TEXT = torch.randint(0, 5, (2, 7))
MASKS = {
    "none": None,
    "causal": Mask.causal(),
    "window": Mask.window(3, 2, offset=1),
    "left padding": Mask.padding([2, 5], side="left", queries=True),
    "prefix or causal": Mask.causal() | Mask.prefix([2, 3]),
    "documents": Mask.documents(TEXT) & Mask.documents(TEXT, TEXT[:, :5]),
    "dense": Mask.visible(torch.rand(2, 1, 5, 7) > 0.5),
}
BIASES = {
    "none": None,
    "alibi": Bias.alibi(3, offset=2),
    "t5": Bias.relative(torch.randn(8, 3), t5_buckets(8, 20, both_ways=False)),
    "clipped": Bias.relative(torch.randn(7, 3), 3),
    "dense": Bias.alibi(3).dense(5, 7),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("bias", BIASES)
def test_an_encoded_call_is_decoded_as_it_was(mask, bias):
    from clearhead.attention.biases import Dense

    torch.manual_seed(1)
    numbers = BIASES[bias]
    if isinstance(numbers, torch.Tensor):
        numbers = Dense(numbers)
    q, k = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4)
    seen = Seen(
        q, k, k, MASKS[mask], torch.tensor([0.5, 1.0, 2.0]), numbers, 11.0, torch.tensor([1.0, 0.0, -1.0]), cross=True
    )
    again = decode_seen(encode_seen(seen))
    assert torch.equal(again.weights(), seen.weights())
    assert (repr(again.mask), again.softcap, again.cross) == (repr(seen.mask), 11.0, True)


def test_a_bias_without_a_state_is_refused():
    x = torch.zeros(1, 1, 3, 2)
    own = Bias.relative(torch.zeros(5, 1), lambda distance: distance.clamp(0, 4))
    with pytest.raises(LensError, match="only with built-in masks, biases"):
        encode_seen(Seen(x, x, x, None, 1.0, own))


@pytest.mark.unchecked
@pytest.mark.parametrize("shape", ["relative", "learned temperature"])
def test_a_compiled_model_is_recorded_as_the_plain_one(shape):
    torch._dynamo.reset()
    model = built("EncoderDecoder", shape, layers=1)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    lengths = torch.tensor([7, 5])
    for target in (11, 13) if shape == "relative" else (11,):
        arguments = tokens(2, 7), tokens(2, target), Mask.padding(lengths), Mask.padding(lengths + 3)
        with watch(model, keep="qk") as plain, torch.no_grad():
            wanted = model(*arguments)
        with watch(compiled, keep="qk") as record, torch.no_grad():
            got = compiled(*arguments)
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
        assert record.names == plain.names
        for name in record.names:
            torch.testing.assert_close(record[name].map, plain[name].map, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(record[name].distance, plain[name].distance, atol=1e-5, rtol=1e-5)
        assert torch.equal(record.calls[0].ids["source"], arguments[0])
        assert torch.equal(record.calls[0].ids["target"], arguments[1])


@pytest.mark.unchecked
def test_a_compiled_model_is_compiled_once_for_all_its_watches():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("eager")
    model, text = built("Decoder", layers=1), tokens(2, 7)
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    with torch.no_grad():
        compiled(text)
        assert counter.frame_count == 1
        for _ in range(3):
            with watch(model) as record, watch(model) as inner:
                compiled(text)
            assert [len(record.calls), len(inner.calls)] == [1, 1]
            compiled(text)
    assert counter.frame_count == 2


@pytest.mark.unchecked
def test_training_a_compiled_model_is_recorded_once_and_changes_nothing():
    torch._dynamo.reset()
    model, text = built("Decoder", "modern", layers=1, dropout=0.0).train(), tokens(2, 7)
    model.checkpointing = True
    compiled = torch.compile(model, backend="aot_eager")

    def gradients():
        model.zero_grad()
        compiled(text).square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    alone = gradients()
    with watch(model) as record:
        watched = gradients()
    assert len(record.calls) == 1
    assert all(torch.equal(one, other) for one, other in zip(alone, watched, strict=True))


@pytest.mark.unchecked
def test_inductor_keeps_what_is_recorded_and_the_bits_of_the_output():
    torch._dynamo.reset()
    attention, x = MultiHeadAttention(width=12, heads=3), torch.randn(2, 7, 12)
    compiled = torch.compile(attention, fullgraph=True)
    with torch.no_grad():
        alone = compiled(x, mask=Mask.causal())
        with watch(attention) as record:
            watched = compiled(x, mask=Mask.causal())
        with watch(attention) as plain:
            attention(x, mask=Mask.causal())
    assert torch.equal(alone, watched)
    torch.testing.assert_close(record["attention"].map, plain["attention"].map, atol=1e-5, rtol=1e-5)


@pytest.mark.unchecked
def test_a_compiled_model_with_a_cache_is_recorded_outside_of_the_graph_or_refused():
    torch._dynamo.reset()
    attention, x = MultiHeadAttention(width=12, heads=3), torch.randn(2, 7, 12)
    compiled, cache = torch.compile(attention, backend="eager"), KeyValueCache()
    with watch(attention) as record, torch.no_grad():
        for part in x.split([6, 1], 1):
            compiled(part, cache=cache)
    assert [call["attention"].queries.tolist() for call in record.calls] == [list(range(7))]
    torch._dynamo.reset()
    whole = torch.compile(attention, backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="without fullgraph=True"), watch(attention):
        whole(x, cache=KeyValueCache())
