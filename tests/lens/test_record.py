"""Record: windows, top keys, labels, statistics, merging."""

import math

import pytest
import torch

from clearhead import (
    Bias,
    Decoder,
    Encoder,
    EncoderDecoder,
    Mask,
    ModelConfig,
    MultiHeadAttention,
    Record,
    attention_weights,
    watch,
)
from clearhead.attention import Seen
from clearhead.attention.biases import Dense
from clearhead.attention.call import check_call
from clearhead.errors import RecordError
from clearhead.lens.capture.collector import Collector
from clearhead.lens.capture.watch_settings import MeasureDetail, WatchSettings
from clearhead.lens.measures.measure_dispatch import plan_job
from clearhead.lens.record.attention_views import Forward
from tests.lens.seen_calls import built, tokens
from tests.lens.tolerances import in_float64


def recorded(seen, heads=None, **detail):
    """One attention, told to a collector by hand."""
    record = Record(["encoder.0.self"])
    with Collector(WatchSettings(("encoder.0.self",), heads, MeasureDetail(keep="qk", **detail)), record) as collector:
        collector.record_attention("encoder.0.self", seen)
    return record["encoder.0.self"]


MASKS = {
    "none": None,
    "causal": Mask.causal(),
    "window": Mask.window(5, 3),
    "padding": Mask.padding([11, 0], queries=True),
    "left padding": Mask.padding([11, 13], side="left") & Mask.causal(),
    "prefix": Mask.causal() | Mask.prefix([5, 2]),
    "documents": Mask.documents(torch.arange(19) // 5) & Mask.causal(),
    "dense, by head": Mask.visible(torch.arange(2 * 6 * 13 * 19).view(2, 6, 13, 19) % 7 > 2),
}
BIASES = {
    "none": None,
    "alibi": Bias.alibi(6),
    "relative": Bias.relative(torch.linspace(-3, 3, 66).view(11, 6), 5),
    "dense": Dense(torch.linspace(-2, 2, 2 * 13 * 19).view(2, 1, 13, 19)),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("every", [1, 3])
def test_a_window_is_exact_whatever_the_attention_is_made_of(mask, bias, every):
    torch.manual_seed(2)
    q, k = torch.randn(2, 6, 13, 5), torch.randn(2, 3, 19, 5)
    options = {
        "scale": torch.linspace(0.5, 2, 6),
        "bias": BIASES[bias],
        "softcap": 3.0,
        "sinks": torch.linspace(-1, 1, 6),
    }
    seen = Seen(q, k, k, MASKS[mask], **options)
    exact = in_float64(plan_job(check_call(q, k, None, MASKS[mask], **options))).call
    truth = attention_weights(
        exact.q, exact.k, exact.mask, scale=exact.scale.flatten(), bias=exact.bias, softcap=3.0, sinks=exact.sinks
    )
    heads = (4, 0, 5)
    sight = recorded(seen, heads, every=every)
    eps = torch.finfo(torch.float32).eps
    for sample, head in ((0, 5), (1, 4), (1, 0)):
        found = sight.weights(batch=sample, head=head, queries=slice(8, 14), keys=slice(3, 17))
        error = (found.double() - truth[sample, head, 2:8, 3:17]).abs().max()
        assert error <= 8 * eps * (1 + 6), f"off by {error:.1e}"  # the softcap and the bias keep scores below 6
    whole = attention_weights(**_arguments(sight.attention()))
    torch.testing.assert_close(whole.double(), truth[:, list(heads)], atol=1e-5, rtol=1e-5)


def _arguments(call):
    scale = call.scale.flatten() if isinstance(call.scale, torch.Tensor) else call.scale
    names = {"q": call.q, "k": call.k, "mask": call.mask, "bias": call.bias, "scale": scale}
    return {**names, "softcap": call.softcap, "sinks": call.sinks}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_what_is_kept_has_the_precision_that_it_had(dtype):
    q, k = torch.randn(1, 2, 7, 5).to(dtype), torch.randn(1, 2, 7, 5).to(dtype)
    sight = recorded(Seen(q, k, k, Mask.causal(), 0.5, None))
    truth = attention_weights(q.double(), k.double(), Mask.causal(), scale=0.5)[0, 1]
    assert sight.kept.q.dtype == dtype
    found = sight.weights(0, 1)
    assert found.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(found.double(), truth, atol=1e-14 if dtype == torch.float64 else 1e-6, rtol=0)


def test_what_is_kept_is_not_what_is_overwritten_later():
    attention, lengths = MultiHeadAttention(12, 3), torch.tensor([5])
    x = torch.randn(1, 7, 12)
    with watch(attention, keep="qk") as record, torch.no_grad():
        attention(x, mask=Mask.padding(lengths))
        attention.to_qkv.weight.zero_()
        lengths.zero_()
    sight = record["attention"]
    torch.testing.assert_close(sight.weights(0, 1), sight.map[0, 1])
    assert sight.weights(0, 1).sum() > 6


def test_windows_are_selected_like_python_slices():
    q = torch.randn(1, 1, 7, 3)
    sight = recorded(Seen(q, q, q, Mask.causal(), 1.0, None))
    whole = sight.weights(0, 0)
    assert torch.equal(sight.weights(0, 0, slice(-3, None), slice(None, None, 2)), whole[-3:, ::2])
    assert torch.equal(sight.weights(0, 0, 5, 2), whole[5:6, 2:3])
    assert torch.equal(sight.weights(0, 0, slice(6, 2, -2)), whole[[6, 4]])
    assert sight.weights(0, 0, slice(5, 5)).shape == (0, 7)
    with pytest.raises(RecordError, match=r"queries at positions 0 to 6, not at 7"):
        sight.weights(0, 0, 7)
    with pytest.raises(RecordError, match=r"1 samples?, numbered from 0; there is no 1"):
        sight.weights(1, 0)


def test_weights_that_were_not_kept_are_refused_with_the_remedy():
    model = built("Encoder")
    with watch(model) as record:
        model(tokens(1, 5))
    with pytest.raises(RecordError, match="keep='qk'"):
        record["encoder.0.self"].weights(0, 0)
    with pytest.raises(RecordError, match=r"did you mean 'encoder\.1\.self'"):
        record["encoder.1.sefl"]
    assert "encoder.0.self" in record
    assert list(record) == ["encoder.0.self", "encoder.1.self"]


class Pieces:
    def pieces(self, numbers):
        return [f"▁{number}" for number in numbers]


class Tokens:
    """As Hugging Face's: callable too, and with names for some tokens only."""

    def __call__(self, text):
        raise AssertionError("it was taken for a function")

    def convert_ids_to_tokens(self, number):
        return None if number == 7 else f"##{number}"


def test_tokens_are_named_by_tokenizers_and_functions():
    model = built("EncoderDecoder")
    source, target = torch.tensor([[5, 7, 11], [13, 17, 19]]), torch.tensor([[3, 5], [7, 11]])
    with watch(model, top=2) as record:
        model(source, target)
    assert record["decoder.1.cross"].top(1, 2, 1)[0].text is None
    assert record.label(source=Pieces(), target=Tokens()) is record
    for name, sample, wanted in (
        ("encoder.0.self", 0, {"▁5", "▁7", "▁11"}),
        ("decoder.0.cross", 1, {"▁13", "▁17", "▁19"}),
        ("decoder.0.self", 1, {"<7>", "##11"}),
    ):
        looked = record[name].top(sample, 3, 1)
        assert {one.text for one in looked} <= wanted
        assert [one.key for one in looked] == record[name].top_keys[sample, 3, 1].tolist()
        assert [one.weight for one in looked] == sorted((one.weight for one in looked), reverse=True)
    record.label(lambda number: chr(97 + number))
    assert record.calls[0].labels["target"] == {3: "d", 5: "f", 7: "h", 11: "l"}
    with pytest.raises(RecordError, match="the record has no tokens of 'tokens'; it has source, target"):
        record.label(tokens=Pieces())
    with pytest.raises(RecordError, match="a int cannot name tokens"):
        record.label(5)


def test_nothing_cannot_be_merged():
    with pytest.raises(RecordError, match="no records"):
        Record.merge([])


def test_statistics_over_a_corpus_are_those_of_all_its_queries():
    model = built("Encoder", "alibi")
    records = []
    for number, lengths in enumerate([[5, 3], [7], [2, 11, 7]]):
        with watch(model, heads=[1, 4] if number else [4]) as record:
            model(tokens(len(lengths), max(lengths), seed=number), mask=Mask.padding(lengths))
        records.append(record)
    merged = Record.merge(records)
    assert len(merged.calls) == 3
    found = merged.statistics()["encoder.1.self"]
    assert found.heads == (1, 4)
    assert found.queries.tolist() == [7 + 20, 8 + 7 + 20]
    sights = [record["encoder.1.self"] for record in records]
    for name in ("entropy", "peak", "distance", "first"):
        numbers = [
            getattr(one, name)[:, one.place_of(4)][one.logsumexp[:, one.place_of(4)] > -math.inf] for one in sights
        ]
        every = torch.cat(numbers).double()
        mean, std = getattr(found, name)
        torch.testing.assert_close(mean[1], every.mean())
        torch.testing.assert_close(std[1], every.std(correction=0))


def test_a_head_that_saw_nothing_has_no_statistics():
    model = built("Encoder")
    with watch(model) as record:
        model(tokens(1, 5), mask=Mask.padding([0]))
    found = record.statistics()["encoder.0.self"]
    assert not found.queries.any()
    assert found.entropy.mean.isnan().all()


def test_a_record_shows_itself():
    model = built("Encoder")
    with watch(model, keep="qk") as record:
        model(tokens(1, 5))
    assert repr(record).splitlines() == [
        "Record of 1 call, 2 attentions",
        "  Sight('encoder.0.self': 1 sample × 6 heads × 5 queries × 5 keys, q and k kept)",
        "  Sight('encoder.1.self': 1 sample × 6 heads × 5 queries × 5 keys, q and k kept)",
    ]
    assert repr(record.calls[0]) == "Forward(encoder.0.self, encoder.1.self)"


def test_a_record_can_be_read_while_it_grows():
    from clearhead import KeyValueCache

    model, cache = built("Decoder"), KeyValueCache()
    with watch(model, keep="qk") as record, torch.inference_mode():
        for step in range(1, 4):
            model(tokens(1, 1), cache=cache)
            assert record["decoder.0.self"].keys == step
            assert record["decoder.0.self"].weights(0, 0).shape == (step, step)


def test_statistics_of_what_is_not_a_number_are_not_numbers():
    model = Encoder(ModelConfig.named("tiny", vocabulary=11)).eval()
    torch.nn.init.constant_(model.vocabulary.words.weight.data[3], math.nan)
    with watch(model) as record:
        model(torch.tensor([[1, 2], [3, 2]]))
    found = record.statistics()["encoder.0.self"]
    assert found.queries.tolist() == [4] * 4
    assert found.entropy.mean.isnan().all()


def test_a_layer_that_is_used_again_is_named_beside_itself():
    names = ["encoder.0.self", "encoder.1.self", "encoder.0.self:2", "encoder.1.self:2", "strange"]
    record = Record(names[:2], [Forward(dict.fromkeys(names))])
    assert record.names == ["encoder.0.self", "encoder.0.self:2", "encoder.1.self", "encoder.1.self:2", "strange"]


def test_a_name_that_ran_in_one_call_of_several_needs_no_number():
    model = EncoderDecoder(ModelConfig.named("tiny", vocabulary=11)).eval()
    with torch.no_grad(), watch(model) as record:
        model(torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]]))
        model.encode(torch.tensor([[1, 2, 3, 4]]))
    assert record["decoder.0.cross"] is record.calls[0]["decoder.0.cross"]
    with pytest.raises(RecordError, match=r"'encoder.0.self' ran in 2 of 2 calls.*record.calls\[0\]"):
        record["encoder.0.self"]


def test_windows_take_lists_negative_positions_and_all_heads():
    model = Decoder(ModelConfig.named("tiny", vocabulary=11)).eval()
    with torch.no_grad(), watch(model, heads=[0, 2, 3], keep="qk") as record:
        model(torch.tensor([[1, 2, 3, 4, 5, 6, 7]]))
    sight = record["decoder.1.self"]
    whole = sight.map[0]
    assert torch.allclose(sight.weights(0), whole, atol=1e-6)
    assert torch.allclose(sight.weights(0, None, queries=-1), whole[:, -1:], atol=1e-6)
    assert torch.allclose(sight.weights(0, [3, 0], [5, 2, 5], -2), whole[[2, 0]][:, [5, 2, 5], 5:6], atol=1e-6)
    assert torch.allclose(sight.weights(0, 2, [-1, 0], [1, 0]), whole[1][[-1, 0]][:, [1, 0]], atol=1e-6)
    with pytest.raises(RecordError, match="queries at positions 0 to 6, not at -8"):
        sight.weights(0, 2, -8)
