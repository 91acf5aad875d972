"""watch() on our models, in every way in which they can run."""

import copy
import copyreg
import math
import os
import pickle
import sys
import threading

import pytest
import torch
from torch import nn

from clearhead import KeyValueCache, Mask, MultiHeadAttention, Record, attention_weights, watch
from clearhead.attention.call import check_call
from clearhead.errors import LensError, RecordError, ShapeError
from clearhead.lens.attention_names import find_attentions
from clearhead.lens.capture import watch_settings
from tests.lens.seen_calls import SHAPES, built, collect_seen, job_of, tokens
from tests.lens.tolerances import TENSORS, assert_exact


def run(model, kind):
    """One pass over a padded batch."""
    lengths = torch.tensor([7, 11, 0])
    if kind == "EncoderDecoder":
        return model(tokens(3, 11), tokens(3, 13), Mask.padding(lengths), Mask.padding(lengths + 2))
    return model(tokens(3, 11), mask=Mask.padding(lengths))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["Encoder", "Decoder", "EncoderDecoder"])
def test_every_measure_is_that_of_the_definition(kind, shape):
    model = built(kind, shape)
    with collect_seen(model) as truth, watch(model, top=3, pixels=5) as record, torch.no_grad():
        run(model, kind)
    assert record.names == list(find_attentions(model))
    for name in record.names:
        (seen,) = truth[name]
        assert_exact(record[name], job_of(seen, record[name], pixels=5))
        assert record[name].cross == name.endswith("cross")


@pytest.mark.parametrize("kind", ["Encoder", "Decoder", "EncoderDecoder"])
def test_watching_changes_no_bit_of_the_output(kind):
    model = built(kind, "modern")
    with torch.no_grad():
        before = run(model, kind)
        with watch(model, keep="qk", norms=True):
            during = run(model, kind)
        after = run(model, kind)
    assert torch.equal(before, during)
    assert torch.equal(before, after)


def fused_operators(model):
    with torch.profiler.profile() as profile, torch.no_grad():
        run(model, "EncoderDecoder")
    names = [event.name for event in profile.events()]
    return sorted(name for name in names if "attention" in name)


def test_the_fused_kernels_stay_in_use():
    model = built("EncoderDecoder")
    alone = fused_operators(model)
    with watch(model):
        watched = fused_operators(model)
    assert any("flash" in name for name in alone)
    assert watched == alone


def test_what_observed_before_is_back_in_its_place_after_an_error_too():
    model = built("Decoder")
    first, second = find_attentions(model).values()
    first.observer = heard = [].append
    with pytest.raises(ShapeError), watch(model):
        model(tokens(1, 5), vectors=torch.zeros(1, 5, 24))
    assert first.observer is heard
    assert second.observer is None
    assert not model.vocabulary._forward_pre_hooks
    assert not model.decoder._forward_pre_hooks


def test_nested_watches_record_all():
    model = built("Decoder")
    with watch(model) as outer:
        with watch(model, layers="decoder.1.self") as inner, watch(model, top=2) as innermost:
            model(tokens(1, 5))
        model(tokens(1, 7))
    assert [len(outer.calls), len(inner.calls), len(innermost.calls)] == [2, 1, 1]
    assert inner.names == ["decoder.1.self"]
    assert torch.equal(outer.calls[0]["decoder.1.self"].entropy, inner["decoder.1.self"].entropy)
    assert innermost["decoder.0.self"].top_keys.shape[3] == 2
    assert all(attention.observer is None for attention in find_attentions(model).values())


def test_watches_that_close_in_another_order_leave_nothing_behind():
    model = built("Decoder")
    first, second = watch(model), watch(model)
    one, two = first.__enter__(), second.__enter__()
    model(tokens(1, 5))
    first.__exit__(None, None, None)
    model(tokens(1, 7))
    second.__exit__(None, None, None)
    assert [len(one.calls), len(two.calls)] == [1, 2]
    assert all(attention.observer is None for attention in find_attentions(model).values())
    assert not model.vocabulary._forward_pre_hooks


def test_an_observer_that_steps_in_between_two_watches_is_no_endless_loop():
    model = built("Decoder", layers=1)
    attention = model.decoder.layers[0].self_attention
    with watch(model) as outer:
        eye, heard = attention.observer, []
        attention.observer = lambda seen: (heard.append(seen), eye(seen))
        with watch(model) as inner:
            model(tokens(1, 5))
        attention.observer = eye
    assert [len(heard), len(outer.calls), len(inner.calls)] == [1, 1, 1]
    assert attention.observer is None


def test_a_model_that_ran_twice_has_two_calls():
    model = built("EncoderDecoder")
    with watch(model) as record:
        model(tokens(2, 5), tokens(2, 3))
        context = model.encode(tokens(2, 7))
        model.decode(tokens(2, 11), context)
        model.decode(tokens(2, 13), context)
    assert [len(call) for call in record.calls] == [6, 6, 4]
    with pytest.raises(RecordError, match=r"ran in 2 of 3 calls.*record.calls\[0\]"):
        record["encoder.0.self"]
    assert record.calls[1]["decoder.0.cross"].entropy.shape == (2, 6, 11)


def test_a_watched_model_that_did_not_run_is_an_error():
    model = built("Decoder")
    with pytest.raises(LensError, match="watched attentions ran"), watch(model):
        pass
    with pytest.raises(ZeroDivisionError), watch(model):
        1 / 0  # noqa: B018


@pytest.mark.unchecked
@pytest.mark.parametrize("model", [nn.Linear(3, 5), nn.MultiheadAttention(8, 2), "not a model"])
def test_a_model_that_cannot_be_watched_is_refused_with_the_ways_that_can(model):
    with pytest.raises(LensError, match=r"cannot be watched.*measure\(q, k, mask\)"), watch(model):
        raise AssertionError("it was let in")


def test_layers_are_chosen_by_name_pattern_and_number():
    model = built("EncoderDecoder")

    def names(layers):
        with watch(model, layers=layers) as record:
            model(tokens(1, 3), tokens(1, 3))
        return record.names

    assert names("decoder.*.cross") == ["decoder.0.cross", "decoder.1.cross"]
    assert names(["decoder.1.cross", "encoder.0.self"]) == ["encoder.0.self", "decoder.1.cross"]
    assert names(1) == ["encoder.1.self", "decoder.1.self", "decoder.1.cross"]
    with pytest.raises(LensError, match=r"did you mean 'decoder\.1\.cross'"):
        names("decoder.1.crss")
    with pytest.raises(LensError, match="7"):
        names(7)


def test_heads_are_known_by_their_numbers():
    model = built("Decoder", "relative")
    with collect_seen(model) as truth, watch(model, heads=[5, 1, 2], top=11, keep="qk") as record:
        model(tokens(2, 11))
    (seen,), sight = truth["decoder.1.self"], record["decoder.1.self"]
    weights = seen.weights().double()
    assert sight.heads == (5, 1, 2)
    torch.testing.assert_close(sight.map.double(), weights[:, [5, 1, 2]], atol=1e-6, rtol=1e-5)
    found = sight.weights(batch=1, head=2, queries=slice(3, 7), keys=slice(2, 5))
    torch.testing.assert_close(found.double(), weights[1, 2, 3:7, 2:5], atol=1e-6, rtol=1e-5)
    with pytest.raises(LensError, match="heads 0 to 5, not 6"), watch(model, heads=[0, 6]):
        pass
    with pytest.raises(RecordError, match=r"heads \[5, 1, 2\], not 3"):
        sight.weights(batch=0, head=3)


@pytest.mark.unchecked
@pytest.mark.parametrize("rows", [0, -1, 2, 0.3, 2 / 3, "half", math.nan, math.inf])
def test_rows_that_are_not_one_in_so_many_are_refused(rows):
    with pytest.raises(LensError, match=r"rows must be 1/n"), watch(built("Decoder"), rows=rows):
        pass


@pytest.mark.unchecked
@pytest.mark.parametrize("asked", [{"keep": "all"}, {"pixels": -1}, {"top": 2.5}, {"layers": []}, {"heads": []}])
def test_options_that_make_no_sense_are_refused_at_once(asked):
    (name,) = asked
    with pytest.raises(LensError, match=name), watch(built("Decoder"), **asked):
        pass


def test_one_query_in_three_is_measured_and_windows_stay_exact():
    model = built("Decoder", "alibi")
    with collect_seen(model) as truth, watch(model, rows=1 / 3, keep="qk", top=2) as record:
        model(tokens(2, 17))
    (seen,), sight = truth["decoder.1.self"], record["decoder.1.self"]
    assert sight.queries.tolist() == [2, 5, 8, 11, 14]
    assert_exact(sight, job_of(seen, sight, every=3))
    window = sight.weights(batch=1, head=4, queries=slice(3, 7))
    torch.testing.assert_close(window, seen.weights()[1, 4, 3:7], atol=1e-6, rtol=1e-5)
    with pytest.raises(RecordError, match=r"position 3.*nearest is 2"):
        sight.top(0, 0, 3)


def test_of_a_text_shorter_than_the_sampling_the_last_query_is_measured():
    model = built("Decoder")
    with watch(model, rows=1 / 16) as record:
        model(tokens(1, 5))
    assert record["decoder.0.self"].queries.tolist() == [4]


@pytest.mark.parametrize(("batch", "source", "target"), [(0, 5, 3), (2, 5, 0), (2, 0, 3)])
def test_nothing_is_seen_of_nothing(batch, source, target, tmp_path):
    model = built("EncoderDecoder", layers=1)
    with watch(model, keep="qk", norms=True) as record, torch.no_grad():
        model(tokens(batch, source), tokens(batch, target))
    sight = record["decoder.0.cross"]
    assert sight.map.shape == (batch, 6, target, source)
    assert sight.entropy.shape == (batch, 6, target)
    assert sight.norms.shape == sight.received.shape == (batch, 6, source)
    if batch:
        assert sight.weights(1, 5).shape == (target, source)
    record.save(tmp_path / "run.record")
    assert Record.load(tmp_path / "run.record")["decoder.0.cross"].keys == source


def test_what_is_not_wanted_is_not_measured():
    model = built("Decoder", layers=1)
    cache = KeyValueCache()
    with watch(model, pixels=0, top=0, rows=1 / 4) as record, torch.no_grad():
        for part in tokens(2, 9).split([3, 5, 1], 1):
            model(part, cache=cache)
    sight = record["decoder.0.self"]
    assert sight.map.shape == (2, 6, 0, 0)
    assert sight.top_keys.shape == (2, 6, 2, 0)
    assert sight.queries.tolist() == [3, 7]
    torch.testing.assert_close(sight.received.sum(-1), torch.full((2, 6), 2.0))


def test_a_bare_attention_is_watched_by_its_path():
    attention = MultiHeadAttention(width=12, heads=3)
    with watch(attention, top=1) as record:
        attention(torch.randn(1, 5, 12), context=torch.randn(1, 7, 12))
    assert record.names == ["attention"]
    assert record["attention"].cross
    assert record["attention"].map.shape == (1, 3, 5, 7)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_mode_of_autograd_makes_no_difference_to_what_is_seen(mode):
    model = built("Decoder", "relative")
    with watch(model, keep="qk", norms=True) as record, mode():
        model(tokens(2, 7))
    sight = record["decoder.1.self"]
    measures = [one for name in TENSORS if (one := getattr(sight, name)) is not None]
    tensors = [*measures, sight.norms, sight.kept.q]
    assert not any(tensor.requires_grad or tensor.is_inference() for tensor in tensors)
    with torch.no_grad():
        assert torch.equal(sight.weights(0, 3), sight.weights(0, 3))
    assert sight.norms.requires_grad is False


def test_weights_are_those_before_dropout():
    model = built("Decoder", dropout=0.5).train()
    with collect_seen(model) as truth, watch(model) as record:
        model(tokens(2, 7))
    for name in record.names:
        assert_exact(record[name], job_of(truth[name][0], record[name]))
    torch.testing.assert_close(record["decoder.0.self"].received.sum(-1), torch.full((2, 6), 7.0))


def test_training_under_watch_draws_the_same_dropout_and_the_same_gradients():
    model = built("EncoderDecoder", dropout=0.3).train()

    def gradients():
        model.zero_grad()
        torch.manual_seed(3)
        run(model, "EncoderDecoder").square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    alone = gradients()
    with watch(model, keep="qk"):
        watched = gradients()
    assert all(torch.equal(one, other) for one, other in zip(alone, watched, strict=True))


def test_under_autocast_what_is_measured_is_what_was_attended():
    model = built("Decoder", "modern")
    with collect_seen(model) as truth, watch(model, keep="qk") as record, torch.autocast("cpu", torch.bfloat16):
        model(tokens(2, 7))
    (seen,), sight = truth["decoder.1.self"], record["decoder.1.self"]
    assert sight.kept.q.dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        call = check_call(seen.q, seen.k, seen.v, seen.mask, scale=seen.scale)
    truth = attention_weights(call.q.double(), call.k.double(), call.mask, scale=call.scale)
    torch.testing.assert_close(sight.map.double(), truth, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("reentrant", [True, False])
def test_layers_that_are_recomputed_in_the_backward_pass_are_recorded_once(reentrant):
    attention = MultiHeadAttention(width=12, heads=3)
    x = torch.randn(2, 5, 12, requires_grad=True)
    with watch(attention) as record:
        out = torch.utils.checkpoint.checkpoint(attention, x, use_reentrant=reentrant)
        out.sum().backward()
    assert len(record.calls) == 1
    assert x.grad is not None


def test_a_model_that_recomputes_its_layers_is_recorded_once():
    model = built("EncoderDecoder").train()
    model.checkpointing = True
    with watch(model) as record:
        run(model, "EncoderDecoder").sum().backward()
    assert [len(call) for call in record.calls] == [6]


def test_several_threads_at_once_have_a_call_each():
    model = built("EncoderDecoder")
    gate = threading.Barrier(5)

    def work(length):
        gate.wait()
        for _ in range(3):
            with torch.no_grad():
                model(tokens(1, length), tokens(1, length + 2))

    lengths = [5, 7, 11, 13, 17]
    threads = [threading.Thread(target=work, args=(length,)) for length in lengths]
    with watch(model) as record:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = sorted(call["encoder.0.self"].keys for call in record.calls)
    assert found == sorted(lengths * 3)
    for call in record.calls:
        sizes = {call[name].keys for name in call if name.startswith("encoder") or name.endswith("cross")}
        assert len(call) == 6
        assert len(sizes) == 1


def test_a_thread_with_a_watch_of_its_own_is_recorded_by_that_watch_alone():
    model = built("Decoder")
    gate, records = threading.Barrier(2), {}

    def work(length):
        with watch(model) as records[length]:
            gate.wait()
            model(tokens(1, length))
            gate.wait()

    threads = [threading.Thread(target=work, args=(length,)) for length in (5, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {length: [call["decoder.0.self"].keys for call in record.calls] for length, record in records.items()} == {
        5: [5],
        7: [7],
    }


@pytest.mark.parametrize("own_thread", [True, False])
def test_a_watch_records_other_threads_unless_own_thread_is_set(own_thread):
    model = built("Decoder")
    with watch(model, own_thread=own_thread) as record:
        other = threading.Thread(target=model, args=(tokens(1, 5),))
        other.start()
        other.join()
        model(tokens(1, 7))
    assert [call["decoder.0.self"].keys for call in record.calls] == ([7] if own_thread else [5, 7])


def test_a_copy_of_a_watched_model_is_not_watched():
    model = built("Decoder")
    with watch(model) as record:
        twin = copy.deepcopy(model)
        twin(tokens(1, 5))
        model(tokens(1, 7))
    assert [call["decoder.0.self"].keys for call in record.calls] == [7]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_watched_model_has_nothing_of_the_watch(copied):
    model, table = built("EncoderDecoder"), dict(copyreg.dispatch_table)
    next(iter(find_attentions(model).values())).observer = print  # somebody else's
    with watch(model), watch(model):
        model(tokens(1, 5), tokens(1, 3))
        twin = copied(model)
    assert copyreg.dispatch_table == table
    assert [one.observer for one in find_attentions(twin).values()][:2] == [print, None]
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in twin.modules())


def test_how_somebody_else_copies_a_class_stays_in_force():
    model, copied = built("Decoder"), []

    def reduce(module):
        copied.append(module)
        return module.__reduce_ex__(2)

    copyreg.pickle(type(model), reduce)
    try:
        with watch(model):
            model(tokens(1, 5))
            twin = copy.deepcopy(model)
        assert copyreg.dispatch_table[type(model)] is reduce
    finally:
        del copyreg.dispatch_table[type(model)]
    assert copied == [model]
    assert not twin._forward_hooks


def test_a_probe_gets_the_weight_of_one_key_for_every_query():
    model = built("Decoder")
    probes = {"before": lambda queries: queries - 1, "seventh": lambda queries: torch.full_like(queries, 7)}
    with collect_seen(model) as truth, watch(model, probes=probes) as record:
        model(tokens(2, 11))
    weights = truth["decoder.1.self"][0].weights()
    found = record["decoder.1.self"].probes
    torch.testing.assert_close(found["before"][..., 1:], weights.diagonal(-1, 2, 3), atol=1e-6, rtol=1e-5)
    assert not found["before"][..., 0].any()
    torch.testing.assert_close(found["seventh"], weights[..., 7], atol=1e-6, rtol=1e-5)


def test_norms_are_those_of_the_values_after_the_map_that_merges_heads():
    model = built("Decoder", "modern")
    attention = model.decoder.layers[1].self_attention
    with collect_seen(model) as truth, watch(model, norms=True, heads=[4, 1]) as record:
        model(tokens(2, 11))
    v = truth["decoder.1.self"][0].v
    for place, head in enumerate((4, 1)):
        merged = torch.zeros(2, 11, 6, 4)
        merged[:, :, head] = v[:, head // 3]
        wanted = (merged.flatten(2) @ attention.to_out.weight.T).norm(dim=-1)
        torch.testing.assert_close(record["decoder.1.self"].norms[:, place], wanted, atol=1e-5, rtol=1e-5)


def test_the_memory_of_kept_inputs_is_known_beforehand():
    from clearhead.lens import expected_bytes

    model = built("Decoder", "modern")
    with watch(model, keep="qk") as record:
        model(tokens(2, 11))
    sights = [record[name] for name in record.names]
    really = sum(tensor.nbytes for sight in sights for tensor in held(sight))
    assert record.expected_bytes == really
    assert expected_bytes(model, 11, batch=2, keep="qk") == really


def test_a_warning_comes_before_memory_is_short(monkeypatch):
    model = built("Decoder", "modern")
    monkeypatch.setattr(watch_settings, "get_free_bytes", lambda: 50_000)
    told = "q and k of 2 .* will take about .* kB of memory, and 50.0 kB are free"
    with watch(model, keep="qk"):
        with pytest.warns(UserWarning, match=told):
            model(tokens(2, 11))
        model(tokens(2, 11))  # once is enough: a second warning would be an error here
    with watch(model):
        model(tokens(2, 11))
    monkeypatch.setattr(watch_settings, "get_free_bytes", lambda: None)
    with watch(model, keep="qk"):
        model(tokens(2, 11))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_memory_that_is_free_is_less_than_there_is():
    free, there = watch_settings.get_free_bytes(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert free is not None
    assert 0 < free < there


def held(sight):
    measures = [one for name in TENSORS if (one := getattr(sight, name)) is not None]
    return [*measures, sight.visible, sight.seen_by, sight.kept.q, sight.kept.k]
