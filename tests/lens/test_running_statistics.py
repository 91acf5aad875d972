"""keep="statistics": the same numbers as from all calls, in constant memory over any number of them."""

import copy
import dataclasses
import gc
import weakref

import pytest
import torch

from clearhead import Decoder, ModelConfig, Record, watch
from clearhead.errors import LensError, RecordError
from clearhead.lens.record.attention_views import Sight
from clearhead.lens.record.record_tables import MEASURES, RunningStatistics, Statistics
from tests.lens.huggingface_zoo import made, tokens


def assert_close(one: Statistics, other: Statistics) -> None:
    assert one.heads == other.heads
    assert torch.equal(one.queries, other.queries)
    assert torch.equal(one.max_score, other.max_score)
    for name in MEASURES:
        torch.testing.assert_close(getattr(one, name).mean, getattr(other, name).mean)
        torch.testing.assert_close(getattr(one, name).std, getattr(other, name).std)


def run_several(model: torch.nn.Module, passes: int = 4) -> None:
    for length in range(3, 3 + passes):
        model(tokens(length) % 11)


@torch.no_grad()
@pytest.mark.parametrize("family", ["own", "llama", "bert"])
def test_statistics_are_those_of_all_calls_and_no_call_is_kept(family, tmp_path):
    model = Decoder(ModelConfig.named("tiny", vocabulary=11)).eval() if family == "own" else made(family)
    with watch(model) as whole:
        run_several(model)
    with watch(model, keep="statistics") as record:
        run_several(model)
        assert len(record.calls) <= 2
    assert not record.calls
    assert record.names == whole.names
    assert not record.missing
    record.save(tmp_path / "statistics.record")
    halves = []
    for lengths in ((3, 4), (5, 6)):
        with watch(model, keep="statistics") as half:
            for length in lengths:
                model(tokens(length) % 11)
        halves.append(half)
    for one in (record, Record.load(tmp_path / "statistics.record"), Record.merge(halves)):
        for name, wanted in whole.statistics().items():
            assert_close(one.statistics()[name], wanted)
    with pytest.raises(RecordError, match=r"only record\.statistics"):
        record[record.names[0]]


@torch.no_grad()
def test_the_largest_score_is_that_of_all_calls_and_unknown_where_one_does_not_have_it():
    model = made("llama")
    with watch(model) as record:
        run_several(model)
    for name, found in record.statistics().items():
        scores = torch.cat([call[name].max_score for call in record.calls])
        assert torch.equal(found.max_score, scores.amax(0).double())
    name = record.names[0]
    running = RunningStatistics()
    running.add(record.calls[1][name])
    running.add(dataclasses.replace(record.calls[0][name], max_score=None))
    assert running.result().max_score.isnan().all()


def test_a_training_loop_leaves_no_tensors_behind():
    model, alive = made("llama"), []
    with watch(model, keep="statistics") as record:
        for _ in range(6):
            model(tokens(5)).logits.sum().backward()
            alive += [weakref.ref(call) for call in record.calls]
            model.zero_grad()
        gc.collect()
        assert sum(call() is not None for call in {id(one()): one for one in alive}.values()) <= 2


def test_layers_that_gradient_checkpointing_runs_again_are_counted_once():
    model = copy.deepcopy(made("llama")).train()
    model.config.use_cache = False
    model.gradient_checkpointing_enable()
    with watch(model, keep="statistics") as record:
        model(tokens(5), labels=tokens(5)).loss.backward()
    assert model.lm_head.weight.grad is not None
    for found in record.statistics().values():
        assert set(found.queries.tolist()) == {tokens(5).numel()}


@torch.no_grad()
def test_generations_are_reduced_when_their_caches_are_gone():
    model = made("llama")
    with watch(model, keep="statistics") as record:
        for _ in range(3):
            model.generate(tokens(5), max_new_tokens=4, min_new_tokens=4, do_sample=False)
            gc.collect()
        assert len(record.calls) <= 2
    assert record.statistics()["decoder.0.self"].queries.tolist() == [3 * 3 * 8] * 6


@torch.no_grad()
def test_calls_that_were_cleared_by_hand_are_no_error():
    model = made("llama")
    with watch(model) as record:
        model(tokens(5))
        assert isinstance(record.calls[0]["decoder.0.self"], Sight)
        record.calls.clear()
    assert not record.names
    assert RunningStatistics().result().heads == ()


@torch.no_grad()
def test_a_cache_that_goes_on_after_its_call_was_cleared_begins_another_call():
    model, text = made("llama"), tokens(7)
    with watch(model) as whole:
        model(text)
    with watch(model) as record:
        cache = model(text[:, :4], use_cache=True).past_key_values
        record.calls.clear()
        for token in text[:, 4:].split(1, 1):
            model(token, past_key_values=cache)
    (call,) = record.calls
    assert call["decoder.0.self"].queries.tolist() == [4, 5, 6]
    torch.testing.assert_close(call["decoder.1.self"].entropy, whole["decoder.1.self"].entropy[:, :, 4:])
    assert torch.equal(call.ids["tokens"], text)


@pytest.mark.parametrize(
    "options",
    [{"spans": {"passage": slice(0, 3)}}, {"itself": True}, {"norms": True}, {"probes": {"before": lambda i: i - 1}}],
    ids=lambda options: next(iter(options)),
)
def test_what_statistics_would_drop_is_refused(options):
    with (
        pytest.raises(LensError, match=f"would drop what {next(iter(options))}= records"),
        watch(made("llama"), keep="statistics", **options),
    ):
        pass
