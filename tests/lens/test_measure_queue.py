"""Small attentions of one shape that wait and are measured together, with the results that each has by itself."""

import threading
import weakref
from collections import Counter

import pytest
import torch

from clearhead import Mask, watch
from clearhead.attention.call import check_call
from clearhead.lens.capture import measure_queue
from clearhead.lens.capture.growing_call import GrowingAttention, GrowingCall
from clearhead.lens.capture.growing_tensors import BatchHistory
from clearhead.lens.capture.measure_queue import MeasureQueue
from clearhead.lens.capture.part_measurement import Part
from clearhead.lens.capture.watch_settings import MeasureDetail
from tests.lens.huggingface_zoo import inputs, made
from tests.lens.seen_calls import built, tokens
from tests.lens.test_growing_call import assert_alike

OPTIONS = {
    "defaults": {},
    "kept": {"keep": "qk", "pixels": 3},
    "spans": {"spans": {"last": slice(-3, None), "none": slice(2, 2)}, "itself": True, "top": 0},
    "some rows": {"rows": 1 / 3, "heads": [1, 0]},
    "no queries": {"queries": [100]},
}


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def jobs(monkeypatch):
    """The number of samples of each job, in order."""
    counts, run_job = [], measure_queue.run_job
    monkeypatch.setattr(measure_queue, "run_job", lambda job: (counts.append(len(job.call.q)), run_job(job))[1])
    return counts


def record_of(run, model, options, monkeypatch, *, joint):
    with monkeypatch.context() as patched, watch(model, **options) as record:
        if not joint:
            patched.setattr(measure_queue, "WAITING_BYTES", -1)
        run()
    return record


@pytest.mark.parametrize("options", OPTIONS)
def test_layers_measured_together_are_what_each_is_by_itself(options, monkeypatch):
    own, pair, bert = built("Decoder"), built("EncoderDecoder", "classic"), made("bert")
    runs = {
        own: lambda: own(tokens(2, 11)),
        pair: lambda: pair(tokens(2, 7), tokens(2, 11, seed=7), Mask.padding([7, 5])),
        bert: lambda: bert(**inputs("bert")),
    }
    for model, run in runs.items():
        alone = record_of(run, model, OPTIONS[options], monkeypatch, joint=False)
        found = record_of(run, model, OPTIONS[options], monkeypatch, joint=True)
        assert found.names == alone.names
        for name in alone.names:
            assert_alike(found[name], alone[name], name)
            assert torch.equal(found[name].visible, alone[name].visible)
            torch.testing.assert_close(found[name].probes, alone[name].probes)
            if options == "kept":
                torch.testing.assert_close(found[name].weights(1, 1), alone[name].weights(1, 1))


def test_a_pass_over_a_short_text_is_one_job_for_all_its_layers(jobs, monkeypatch):
    model, layers = built("Decoder", layers=5), 5
    sizes, count_bytes = [], measure_queue.count_bytes
    monkeypatch.setattr(measure_queue, "count_bytes", lambda call: sizes.append(count_bytes(call)) or sizes[-1])
    with watch(model):
        model(tokens(3, 11))
        model(tokens(3, 11))
    assert jobs == [3 * layers] * 2
    jobs.clear()
    monkeypatch.setattr(measure_queue, "WAITING_BYTES", 2 * sizes[0])  # of two layers
    with watch(model):
        model(tokens(3, 11))
    assert jobs == [6, 6, 3]
    jobs.clear()
    with monkeypatch.context() as patched, watch(model):
        patched.setattr(measure_queue, "WAITING_BYTES", 4 * sizes[0])
        patched.setattr(measure_queue, "JOB_BYTES", 3 * sizes[0])
        model(tokens(3, 11))
    assert jobs == [9, 3, 3]
    jobs.clear()
    monkeypatch.setattr(measure_queue, "WAITING_BYTES", 2 * sizes[0] - 1)
    with watch(model):
        model(tokens(3, 11))
    assert Counter(jobs) == {3: layers}


def test_attentions_that_differ_are_measured_apart(jobs):
    queue, detail = MeasureQueue(), MeasureDetail()
    causal, calls = Mask.causal(), []
    for keys, mask, scale in ((5, causal, 1.0), (5, causal, 2.0), (5, None, 1.0), (7, None, 1.0), (7, None, 1.0)):
        call = GrowingCall()
        attention = GrowingAttention("decoder.0.self", (0, 1), False, detail, BatchHistory(1), queue=queue)
        call.attentions["decoder.0.self"] = call.forward.sights["decoder.0.self"] = attention
        q, k = torch.randn(1, 2, 5, 3), torch.randn(1, 2, keys, 3)
        attention.add(Part(check_call(q, k, None, mask, scale=scale), keys - 5))
        calls.append(call.forward)
    queue.flush_layers()
    assert Counter(jobs) == {1: 3, 2: 1}
    assert all(call["decoder.0.self"].entropy.shape == (1, 2, 5) for call in calls)


def test_what_a_model_writes_into_q_and_k_afterwards_does_not_matter():
    q, k = torch.randn(1, 2, 5, 3), torch.randn(1, 2, 5, 3)
    found = []
    for change in (False, True):
        queue, call, detail = MeasureQueue(), GrowingCall(), MeasureDetail(keep="qk")
        attention = GrowingAttention("decoder.0.self", (0, 1), False, detail, BatchHistory(1), queue=queue)
        call.attentions["decoder.0.self"] = call.forward.sights["decoder.0.self"] = attention
        own = q.clone(), k.clone()
        attention.add(Part(check_call(*own, None, Mask.causal()), 0))
        assert queue.layers
        if change:
            own[0].zero_(), own[1].zero_()
        found.append(call.forward["decoder.0.self"])
        assert not queue.layers
    assert_alike(found[1], found[0], "after a change")
    assert torch.equal(found[1].kept.k, found[0].kept.k)


def test_a_record_that_is_read_during_a_pass_has_the_layers_so_far():
    model, seen = built("Decoder", layers=3), []
    with watch(model) as record:
        hook = model.decoder.layers[1].register_forward_hook(lambda *_: seen.append(record.calls[0]["decoder.1.self"]))
        model(tokens(2, 7))
        hook.remove()
    assert isinstance(seen[0].entropy, torch.Tensor)
    assert torch.equal(seen[0].entropy, record["decoder.1.self"].entropy)


def test_waiting_layers_hold_copies_of_q_and_k_alone(monkeypatch):
    model, held, add = built("Decoder", layers=3), [], MeasureQueue.add

    def note(self, attention, part):
        held.extend(map(weakref.ref, (part.call.q, part.call.k, part.call.v)))
        add(self, attention, part)

    monkeypatch.setattr(MeasureQueue, "add", note)
    with watch(model):
        model(tokens(2, 7))
        assert len(held) == 9
        assert not [one for one in held if one() is not None]


def test_no_more_bytes_wait_than_allowed(monkeypatch):
    queue, call = MeasureQueue(), check_call(torch.zeros(1, 2, 5, 3), torch.zeros(1, 2, 5, 3), None, None)
    monkeypatch.setattr(measure_queue, "WAITING_BYTES", 5 * measure_queue.count_bytes(call) // 2)  # of two and a half
    waiting = []
    for _ in range(5):
        attention = GrowingAttention("decoder.0.self", (0, 1), False, MeasureDetail(), BatchHistory(1), queue=queue)
        attention.add(Part(call, 0))
        waiting.append(len(queue.layers))
    assert waiting == [1, 2, 1, 2, 1]


def test_probes_are_called_during_the_pass_that_they_belong_to():
    model, chosen = built("Decoder"), {}
    with watch(model, probes={"chosen": lambda positions: torch.full_like(positions, chosen["key"])}) as record:
        for key in (0, 3):
            chosen["key"] = key
            model(tokens(1, 7))
    for key, call in zip((0, 3), record.calls, strict=True):
        sight = call["decoder.1.self"]
        torch.testing.assert_close(sight.probes["chosen"], sight.map[..., key])


def test_what_fails_when_the_watch_ends_leaves_a_record_that_can_be_read(monkeypatch):
    model = built("Decoder")

    def fail(job):
        raise MemoryError("no memory left")

    watching = watch(model)
    record = watching.__enter__()
    model(tokens(2, 7))
    assert record["decoder.0.self"].entropy.shape == (2, 6, 7)
    model(tokens(2, 7))
    monkeypatch.setattr(measure_queue, "run_job", fail)
    with pytest.raises(MemoryError, match="no memory left"):
        watching.__exit__(None, None, None)
    assert len(record.calls) == 1
    assert "1 call" in repr(record)


def test_a_thread_that_reads_waits_until_another_has_measured(monkeypatch):
    model, run_job, begun, read = built("Decoder"), measure_queue.run_job, threading.Event(), threading.Event()

    def measure_slowly(job):
        begun.set()
        read.wait(0.1)
        return run_job(job)

    with watch(model) as record:
        model(tokens(2, 7))
        call, found = record.calls[0], []
        part = call.sights["decoder.0.self"]
        monkeypatch.setattr(measure_queue, "run_job", measure_slowly)
        other = threading.Thread(target=part.queue.flush_layers)
        other.start()
        begun.wait()
        found.append(call["decoder.0.self"].entropy)
        read.set()
        other.join()
    assert torch.equal(found[0], record["decoder.0.self"].entropy)
