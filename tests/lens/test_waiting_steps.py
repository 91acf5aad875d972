"""Decoding steps that wait and are measured together, with the results that each has by itself."""

import copy
import weakref
from collections import Counter

import pytest
import torch
import transformers

from clearhead.errors import LensError
from clearhead.lens.capture import measure_queue
from clearhead.lens.capture.watch_context import watch
from clearhead.lens.huggingface import forward_tracking
from tests.lens.huggingface_zoo import inputs, made
from tests.lens.test_growing_call import assert_alike

NEW = 9
OPTIONS = {
    "defaults": {},
    "kept": {"keep": "qk", "pixels": 7},
    "spans": {"spans": {"last": slice(-3, None), "first": slice(0, 2)}, "itself": True},
    "norms": {"norms": True, "top": 2},
    "some rows": {"rows": 1 / 3},
    "some queries": {"queries": slice(-2, None)},
}


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def jobs(monkeypatch):
    """How many queries were measured together, job by job."""
    counts, run_job = [], measure_queue.run_job
    monkeypatch.setattr(measure_queue, "run_job", lambda job: (counts.append(len(job.rows)), run_job(job))[1])
    return counts


def generate(model, given, monkeypatch, *, together, new=NEW, options=None, **how):
    with monkeypatch.context() as patched, watch(model, **(options or {})) as record:
        if not together:
            patched.setattr(forward_tracking.cache_positions, "is_appended", lambda *_: False)
        model.generate(**given, max_new_tokens=new, **{"do_sample": False, "min_new_tokens": new, **how})
    return record


CASES = [("llama", None, "defaults"), *(("llama", "left", name) for name in OPTIONS), ("bart", None, "kept")]


@pytest.mark.parametrize(("family", "side", "options"), CASES)
def test_steps_measured_together_are_what_each_is_by_itself(family, side, options, monkeypatch):
    model, given = made(family), inputs(family, side)
    one_by_one = generate(model, given, monkeypatch, together=False, options=OPTIONS[options])
    record = generate(model, given, monkeypatch, together=True, options=OPTIONS[options])
    assert len(record.calls) == len(one_by_one.calls) == 1
    for name in one_by_one.names:
        found, wanted = record[name], one_by_one[name]
        assert_alike(found, wanted, name)
        torch.testing.assert_close(found.visible, wanted.visible)
        torch.testing.assert_close(found.probes, wanted.probes, atol=2e-5, rtol=2e-5)
        torch.testing.assert_close(found.norms, wanted.norms, atol=2e-5, rtol=2e-5)
        if options == "kept":
            torch.testing.assert_close(found.weights(0, 1), wanted.weights(0, 1), atol=1e-6, rtol=1e-6)


def test_the_steps_of_a_generation_are_one_measurement_for_each_layer(jobs, monkeypatch):
    model = made("llama")
    generate(model, inputs("llama"), monkeypatch, together=True)
    prompt = inputs("llama")["input_ids"].shape[1]
    # Two layers, whose prompts are measured together; the last token is not read again.
    assert Counter(jobs) == {prompt: 1, NEW - 1: 2}
    jobs.clear()
    monkeypatch.setattr(measure_queue, "MAX_STEPS", 3)
    generate(model, inputs("llama"), monkeypatch, together=True)
    assert Counter(jobs) == {prompt: 1, 3: 4, 2: 2}


def test_steps_are_measured_before_samples_stop_or_beams_change_places(jobs, monkeypatch):
    """One sample of two ends early: what follows in its row is padding, and sees nothing."""
    model, given = made("llama"), inputs("llama")
    for how in ({"min_new_tokens": 0, "eos_token_id": list(range(0, 99, 2))}, {"num_beams": 3}):
        wanted = generate(model, given, monkeypatch, together=False, new=12, pad_token_id=0, **how)
        found = generate(model, given, monkeypatch, together=True, new=12, pad_token_id=0, **how)
        for name in wanted.names:
            assert_alike(found[name], wanted[name], name)
            assert torch.equal(found[name].visible, wanted[name].visible)


def write_with_another_cache(change):
    """Reads five tokens one by one; before the fourth, `change` changes the keys of each layer of the cache."""
    model, ids = made("llama"), inputs("llama")["input_ids"]
    cache = model(ids, use_cache=True).past_key_values
    for step in range(5):
        if step == 3:
            for layer in cache.layers:
                change(layer)
        model(ids[:, step : step + 1], past_key_values=cache, use_cache=True)


def replace_keys(layer):
    layer.keys = layer.keys.clone()
    layer.keys[:, :, 2] = 0


def test_steps_are_measured_with_the_keys_that_they_saw(monkeypatch):
    with monkeypatch.context() as patched, watch(made("llama")) as wanted:
        patched.setattr(forward_tracking.cache_positions, "is_appended", lambda *_: False)
        write_with_another_cache(replace_keys)
    with watch(made("llama")) as found:
        write_with_another_cache(replace_keys)
    for name in wanted.names:
        assert_alike(found[name], wanted[name], name)


def test_keys_that_are_written_to_before_their_steps_were_measured_are_refused():
    words = r"cached keys of 'decoder\.[01]\.self' were written to in place.*layer\.keys = changed"
    with pytest.raises(LensError, match=words), watch(made("llama")):
        write_with_another_cache(lambda layer: layer.keys.mul_(2))


def test_sinks_that_change_between_steps_count_from_the_next_one_on():
    model, ids, records = copy.deepcopy(made("gpt-oss")), inputs("gpt-oss")["input_ids"], []
    for change in (1, 2):
        cache = transformers.DynamicCache(config=model.config)
        with watch(model, layers=1) as record:
            for n, step in enumerate(ids.split([7, 1, 1, 1, 1], 1)):
                if n == 3:
                    model.model.layers[1].self_attn.sinks.mul_(change)
                model(step, past_key_values=cache)
        records.append(record["decoder.1.self"].logsumexp)
    changed = (records[0] != records[1]).any(0).any(0)
    assert changed.tolist() == [False] * 9 + [True] * 2


def test_a_record_that_is_read_between_two_steps_has_all_steps_so_far():
    model, given = made("llama"), inputs("llama")
    ids = given["input_ids"]
    with watch(model) as record:
        cache = model(ids, use_cache=True).past_key_values
        for step in range(4):
            model(ids[:, step : step + 1], past_key_values=cache, use_cache=True)
            if step != 1:
                assert len(record.calls[0]["decoder.0.self"].queries) == ids.shape[1] + step + 1
    with watch(model) as whole:
        model(torch.cat([ids, ids[:, :4]], 1), use_cache=False)
    assert_alike(record["decoder.0.self"], whole["decoder.0.self"], "read between steps")


def test_waiting_holds_no_keys_but_those_of_the_last_step():
    model, given = made("llama"), inputs("llama")
    with watch(model):
        cache, held = model(**given, use_cache=True).past_key_values, []
        for step in range(5):
            model(given["input_ids"][:, step : step + 1], past_key_values=cache, use_cache=True)
            held.append(weakref.ref(cache.layers[1].keys))
        assert [one() is not None for one in held] == [False] * 4 + [True]
