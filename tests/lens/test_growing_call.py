"""Generation step by step: one call that grows, whatever the cache and the beams do."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from clearhead import KeyValueCache, Mask, MultiHeadAttention, watch
from clearhead.decode import Writer, beam, greedy
from clearhead.lens.capture.growing_tensors import BatchHistory, GrowingSum
from clearhead.lens.measures.definition import sum_blocks
from tests.lens.seen_calls import SHAPES, built, tokens
from tests.lens.tolerances import TENSORS

CHUNKS = [5, 1, 1, 3, 1, 7, 1]
START, END = 1, 2


def assert_alike(found, wanted, what):
    """The same measures, but for what rounding makes of them; of equal scores either key may come first."""
    assert found.span_names == wanted.span_names
    for name in TENSORS:
        one, other = getattr(found, name), getattr(wanted, name)
        if one is None or other is None:
            assert one is other, f"{what}.{name}"
        elif one.is_floating_point():
            torch.testing.assert_close(
                one, other, atol=2e-5, rtol=2e-5, msg=lambda text, name=name: f"{what}.{name} {text}"
            )
        elif name == "peak_key":
            assert (one != other).float().sum() <= 0.01 * one.numel(), f"{what}.{name}"
    assert torch.equal(found.seen_by, wanted.seen_by), f"{what}.seen_by"
    assert torch.equal(found.queries, wanted.queries)


def grown(model, text, chunks, **asked):
    cache = KeyValueCache()
    with watch(model, **asked) as record, torch.no_grad():
        for part in text.split(chunks, 1):
            model(part, cache=cache)
    return record


@pytest.mark.parametrize("shape", SHAPES)
def test_a_text_read_in_pieces_is_seen_as_one_read_at_once(shape):
    model, text = built("Decoder", shape), tokens(3, sum(CHUNKS))
    with watch(model, top=3, keep="qk") as once, torch.no_grad():
        model(text)
    record = grown(model, text, CHUNKS, top=3, keep="qk")
    assert len(record.calls) == 1
    assert torch.equal(record.calls[0].ids["tokens"], text)
    for name in record.names:
        found, wanted = record[name], once[name]
        assert_alike(found, wanted, name)
        assert found.blocks == (1, 1)
        for sample, head in ((0, 5), (2, 1)):
            window = found.weights(sample, head, slice(3, 17), slice(2, 13))
            torch.testing.assert_close(window, wanted.weights(sample, head, slice(3, 17), slice(2, 13)))
        assert repr(found.attention().mask) == repr(wanted.attention().mask).replace("()", "(offset=0)").replace(
            "(4)", "(4, offset=0)"
        )


def test_what_a_translator_writes_step_by_step_is_seen_as_one_pass():
    model, source, target = built("EncoderDecoder", "classic"), tokens(2, 7), tokens(2, 11, seed=7)
    lengths = torch.tensor([7, 5])
    with watch(model, keep="qk") as once, torch.no_grad():
        model(source, target, Mask.padding(lengths))
    with watch(model, keep="qk") as record, torch.no_grad():
        context, cache = model.encode(source, Mask.padding(lengths)), KeyValueCache()
        for part in target.split([3, 1, 1, 2, 4], 1):
            model.decode(part, context, context_mask=Mask.padding(lengths), cache=cache)
    assert [len(call) for call in record.calls] == [6]
    assert torch.equal(record.calls[0].ids["source"], source)
    assert torch.equal(record.calls[0].ids["target"], target)
    for name in record.names:
        assert_alike(record[name], once[name], name)
        torch.testing.assert_close(record[name].weights(1, 3), once[name].weights(1, 3))
    assert record["decoder.1.cross"].kept.k.shape[2] == 7


@settings(max_examples=15)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 7), st.integers(1, 3))
def test_the_map_of_a_growing_call_is_the_weights_in_its_blocks(chunks, pixels, every):
    model, text = built("Decoder", "alibi", layers=1), tokens(1, sum(chunks))
    sight = grown(model, text, chunks, pixels=pixels, keep="qk", rows=1 / every)["decoder.0.self"]
    weights = torch.stack([sight.weights(0, head) for head in range(6)])[None][:, :, sight.queries]
    height, width = sight.blocks
    wanted = sum_blocks(sum_blocks(weights, height, 2), width, 3)
    assert sight.queries.tolist() == (list(range(every - 1, sum(chunks), every)) or [sum(chunks) - 1])
    assert max(sight.map.shape[2:]) <= pixels
    torch.testing.assert_close(sight.map, wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(sight.received, weights.sum(2), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("length", "queries"), [(13, [12]), (15, [14]), (16, [15]), (31, [15])])
def test_of_fewer_queries_than_one_in_so_many_the_last_is_measured(length, queries):
    model, text = built("Decoder"), tokens(3, length)
    with watch(model, rows=1 / 16) as once, torch.no_grad():
        model(text)
    for chunks in ([length], [7, 1, 3, length - 11]):
        record = grown(model, text, chunks, rows=1 / 16)
        for name in record.names:
            assert record[name].queries.tolist() == queries
            assert_alike(record[name], once[name], name)
            assert torch.equal(record[name].visible, once[name].visible)


def test_samples_move_with_the_query_that_is_measured_in_place_of_others():
    model, text, cache = built("Decoder"), tokens(3, 7), KeyValueCache()
    with watch(model, rows=1 / 16) as record, torch.no_grad():
        model(text[:, :5], cache=cache)
        cache.branch(rows := torch.tensor([2, 0]), beams=1, contexts=rows)  # the second is done
        model(text[[2, 0], 5:6], cache=cache)
        cache.reorder([1, 1, 0])
        model(text[[0, 0, 2], 6:], cache=cache)
    sight, ids = record["decoder.1.self"], record.calls[0].ids["tokens"]
    assert (sight.inputs, sight.queries.tolist()) == ((0, 0, 1, 2), [6])
    with watch(model, rows=1 / 16) as once, torch.no_grad():
        model(text)
    for sample, number in ((0, 0), (1, 0), (3, 2)):
        assert torch.equal(ids[sample], text[number])
        for measure in ("entropy", "received", "map"):
            found, wanted = (getattr(one, measure) for one in (sight, once["decoder.1.self"]))
            torch.testing.assert_close(found[sample], wanted[number], atol=1e-5, rtol=1e-5)
    assert not sight.received[2].any()


def test_a_second_text_with_a_cache_of_its_own_is_a_second_call():
    model = built("Decoder")
    caches = KeyValueCache(), KeyValueCache()
    with watch(model) as record, torch.no_grad():
        for part in (5, 1, 1):  # by turns, as two streams do
            for cache in caches:
                model(tokens(1, part), cache=cache)
        model(tokens(1, 3))
    assert [call["decoder.1.self"].keys for call in record.calls] == [7, 7, 3]


@pytest.mark.parametrize("kept", [0, 4])
def test_a_cropped_cache_begins_a_new_call_at_its_own_position(kept):
    model, cache, text = built("Decoder", "modern"), KeyValueCache(), tokens(1, 11)
    with watch(model, keep="qk") as record, torch.no_grad():
        model(text[:, :7], cache=cache)
        cache.crop(kept)
        model(text[:, kept:], cache=cache)
        model(tokens(1, 1), cache=cache)
    first, second = (call["decoder.1.self"] for call in record.calls)
    assert first.queries.tolist() == list(range(7))
    assert second.queries.tolist() == list(range(kept, 12))
    assert second.keys == 12
    torch.testing.assert_close(second.weights(0, 2, 5, slice(0, 6)), first.weights(0, 2, 5, slice(0, 6)))
    assert record.calls[1].ids["tokens"][0, kept:11].tolist() == text[0, kept:].tolist()
    assert record.calls[1].ids["tokens"][0, :kept].tolist() == text[0, :kept].tolist()


def test_a_watch_that_comes_late_knows_the_positions():
    model, cache = built("Decoder"), KeyValueCache()
    with torch.no_grad():
        model(tokens(1, 5), cache=cache)
        with watch(model) as record:
            model(tokens(1, 1), cache=cache)
            model(tokens(1, 1), cache=cache)
    sight = record["decoder.0.self"]
    assert sight.queries.tolist() == [5, 6]
    assert sight.keys == 7
    assert record.calls[0].ids["tokens"][0, :5].tolist() == [-1] * 5


def test_a_watch_that_comes_late_knows_the_positions_over_a_context_too():
    model, source, target, cache = built("EncoderDecoder"), tokens(1, 7), tokens(1, 5), KeyValueCache()
    with torch.no_grad(), watch(model, layers="decoder.1.cross") as once:
        model(source, target)
    with torch.no_grad():
        context = model.encode(source)
        model.decode(target[:, :3], context, cache=cache)
        with watch(model, layers="decoder.1.cross") as record:
            model.decode(target[:, 3:], context, cache=cache)
    sight, wanted = record["decoder.1.cross"], once["decoder.1.cross"]
    assert sight.queries.tolist() == [3, 4]
    torch.testing.assert_close(sight.distance, wanted.distance[:, :, 3:], atol=1e-5, rtol=1e-5)


def test_pieces_that_see_all_there_is_do_not_see_what_comes_later():
    attention, x, cache = MultiHeadAttention(12, 3), torch.randn(1, 5, 12), KeyValueCache()
    with watch(attention, keep="qk") as record, torch.no_grad():
        for part in x.split([3, 2], 1):
            attention(part, cache=cache)
    sight = record["attention"]
    assert not sight.weights(0, 1, slice(0, 3), slice(3, 5)).any()
    torch.testing.assert_close(sight.weights(0, 1), sight.map[0, 1])
    call = sight.attention()
    assert call.mask.dense(5, 5)[0, 0].int().tolist() == [[1, 1, 1, 0, 0]] * 3 + [[1] * 5] * 2


def test_samples_that_are_reordered_keep_their_past():
    model, text = built("Decoder", "relative"), tokens(3, 9)
    cache = KeyValueCache()
    with watch(model, keep="qk") as record, torch.no_grad():
        model(text[:, :5], cache=cache)
        cache.reorder([2, 2, 0, 1])
        model(tokens(4, 1), cache=cache)
        cache.reorder(torch.tensor([3, 1]))
        model(tokens(2, 1), cache=cache)
    sight, ids = record["decoder.1.self"], record.calls[0].ids["tokens"]
    assert ids[:, :5].tolist() == text[[1, 2], :5].tolist()
    with watch(model, keep="qk") as once, torch.no_grad():
        model(ids)
    assert_alike(sight, once["decoder.1.self"], "reordered")
    torch.testing.assert_close(sight.weights(1, 4), once["decoder.1.self"].weights(1, 4))


def assert_written(model, record, source, lengths):
    """Each sample of a generation is what a single pass over its own tokens shows; what is done sees nothing more."""
    (call,) = record.calls
    ids, sight = call.ids["target"], call["decoder.1.self"]
    for sample, number in enumerate(sight.inputs):
        text = ids[sample][ids[sample] >= 0][None]
        own = source[number : number + 1, : lengths[number]]
        with watch(model, keep="qk") as once, torch.no_grad():
            model(own, text)
        for name in ("decoder.0.self", "decoder.1.self", "decoder.1.cross"):
            found, wanted, end = call[name], once[name], text.shape[1]
            keys = end if name.endswith("self") else lengths[number]
            for measure in ("entropy", "peak", "distance", "first", "logsumexp"):
                torch.testing.assert_close(
                    getattr(found, measure)[sample, :, :end], getattr(wanted, measure)[0], atol=2e-5, rtol=2e-5
                )
            assert (found.logsumexp[sample, :, end:] == -torch.inf).all()
            assert not found.entropy[sample, :, end:].any()
            assert (found.peak_key[sample, :, end:] == -1).all()
            torch.testing.assert_close(found.received[sample, :, :keys], wanted.received[0], atol=2e-5, rtol=2e-5)
            torch.testing.assert_close(found.map[sample, :, :end, :keys], wanted.map[0], atol=2e-5, rtol=2e-5)
            assert not found.map[sample, :, end:].any()
            window = found.weights(sample, 4)
            torch.testing.assert_close(window[:end, :keys], wanted.weights(0, 4), atol=2e-5, rtol=2e-5)
            assert not window[end:].any()
    return sight.inputs


@pytest.mark.parametrize("shape", ["classic", "modern", "relative"])
def test_beams_are_followed(shape):
    model, source, lengths = built("EncoderDecoder", shape), tokens(3, 7), [7, 5, 3]
    writer = Writer.translating(model, source, lengths)
    with watch(model, keep="qk") as record:
        beam(writer, start=START, end=END, beams=4, max_length=[9, 4, 6])
    inputs = assert_written(model, record, source, lengths)
    assert inputs == (0,) * 4 + (1,) * 4 + (2,) * 4
    assert [len(call) for call in record.calls] == [6]
    assert record["encoder.0.self"].inputs == (0, 1, 2)


def test_rows_that_are_done_stay_in_the_record():
    model, source, lengths = built("EncoderDecoder"), tokens(3, 7), [7, 5, 3]
    writer = Writer.translating(model, source, lengths)
    with watch(model, keep="qk") as record:
        written = greedy(writer, start=START, end=END, max_length=[2, 8, 5])
    assert assert_written(model, record, source, lengths) == (0, 1, 2)
    for one, ids in zip(written, record.calls[0].ids["target"], strict=True):
        fed = ids[ids >= 0].tolist()
        assert fed == [START, *one.tokens][: len(fed)]
        assert len(fed) >= len(one.tokens)


def test_rows_that_are_done_have_no_weights_where_queries_were_sampled_either():
    model, source, lengths = built("EncoderDecoder"), tokens(2, 7), [7, 5]
    with watch(model, keep="qk", rows=1 / 2) as record:
        greedy(Writer.translating(model, source, lengths), start=START, end=END, max_length=[2, 7])
    end = int((record.calls[0].ids["target"][0] >= 0).sum())
    weights = record["decoder.1.self"].weights(0, 3)
    assert (weights[:end].sum(-1) > 0.99).all()
    assert len(weights) > end
    assert not weights[end:].any()


def test_prompts_of_different_lengths_are_seen_where_they_stand():
    model, prompts = built("Decoder", "modern"), [[5, 6, 7, 8, 9], [11, 12]]
    writer = Writer.continuing(model, prompts)
    with watch(model, keep="qk") as record:
        greedy(writer, end=END, max_length=4, prefix=[[5, 6, 7], [8, 9, 10]])
    sight, ids = record["decoder.1.self"], record.calls[0].ids["tokens"]
    for sample, pads in ((0, 0), (1, 3)):
        with watch(model, keep="qk") as once, torch.no_grad():
            model(ids[sample : sample + 1, pads:])
        wanted = once["decoder.1.self"]
        torch.testing.assert_close(sight.entropy[sample, :, pads:], wanted.entropy[0], atol=2e-5, rtol=2e-5)
        torch.testing.assert_close(sight.received[sample, :, pads:], wanted.received[0], atol=2e-5, rtol=2e-5)
        torch.testing.assert_close(sight.weights(sample, 2)[pads:, pads:], wanted.weights(0, 2), atol=2e-5, rtol=2e-5)
        assert not sight.weights(sample, 2)[:, :pads].any()
        assert (sight.logsumexp[sample, :, :pads] == -torch.inf).all()
    assert len(sight.kept.parts) == 1


def test_a_sliding_cache_that_hands_over_only_the_last_keys_keeps_document_positions():
    """As Hugging Face's do: fed by hand to the collector."""
    from clearhead.attention import Seen
    from clearhead.lens.capture.collector import Collector
    from clearhead.lens.capture.watch_settings import MeasureDetail, WatchSettings
    from clearhead.lens.record.attention_record import Record

    torch.manual_seed(3)
    q, k = torch.randn(2, 6, 29, 5), torch.randn(2, 3, 29, 5)
    record = Record(["decoder.0.self"])
    collector = Collector(WatchSettings(("decoder.0.self",), None, MeasureDetail(pixels=7, keep="qk")), record)

    class Sliding:
        pass

    cache = Sliding()
    with collector:
        for first, end in ((0, 11), *((n, n + 1) for n in range(11, 29))):
            collector.begin(growing=cache)
            start = max(0, end - 7) if first else 0
            mask = Mask.window(6) if first == 0 else None
            seen = Seen(q[:, :, first:end], k[:, :, start:end], k[:, :, start:end], mask, 0.5, None)
            collector.record_attention("decoder.0.self", seen, first_query=first, first_key=start)
            collector.end()
    sight = record["decoder.0.self"]
    whole = Seen(q, k, k, Mask.window(6), 0.5, None).weights()
    height, width = sight.blocks
    assert height > 1
    assert width % 7
    torch.testing.assert_close(sight.map, sum_blocks(sum_blocks(whole, height, 2), width, 3), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(sight.received, whole.sum(2), atol=1e-5, rtol=1e-5)
    assert torch.equal(sight.peak_key.long(), whole.argmax(-1))
    torch.testing.assert_close(sight.weights(1, 4), whole[1, 4], atol=1e-5, rtol=1e-5)
    call = sight.attention()
    torch.testing.assert_close(call.mask.dense(29, 29), Mask.window(6).dense(29, 29))


@given(st.data())
def test_every_sample_of_a_record_has_the_past_of_its_own(data):
    """Against the plain way: each sample carries the list of all rows that it ever was."""
    moves = BatchHistory(batch := data.draw(st.integers(1, 4)))
    alive, done = [(number, [number]) for number in range(batch)], []
    for _ in range(data.draw(st.integers(0, 5))):
        rows = data.draw(st.lists(st.integers(0, len(alive) - 1), min_size=1, max_size=5))
        keep = data.draw(st.booleans())
        finished = data.draw(st.sets(st.integers(0, len(alive) - 1), max_size=2))
        new = [(alive[row][0], [*alive[row][1], place]) for place, row in enumerate(rows)]
        left = {number for number, _ in new}
        done += [one for n, one in enumerate(alive) if n in finished or (keep and one[0] not in left)]
        alive = new
        moves.add(rows, done=keep, finished=finished)
    wanted = [*alive, *done]
    if done:
        wanted.sort(key=lambda one: one[0])
    assert list(moves.inputs) == [number for number, _ in wanted]
    for time in range(moves.time + 1):
        had = [past[time] if time < len(past) else -1 for _, past in wanted]
        assert moves.paths(time).tolist() == had


def test_sums_make_room_on_every_side():
    sums = GrowingSum()
    sums.add(torch.ones(1, 1, 1, 2), (0, 0))
    sums.add(torch.ones(1, 1, 2, 1), (1, 4))
    assert sums.value[0, 0].tolist() == [[1, 1, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 1]]
