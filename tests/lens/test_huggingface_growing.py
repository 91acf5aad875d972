"""Generation of Hugging Face models, step by step: one record that grows, whatever cache keeps the keys."""

import copy
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.generation.utils import GenerationMixin

from clearhead.errors import LensError
from clearhead.lens.capture.watch_context import watch
from clearhead.lens.huggingface import forward_tracking
from tests.lens.huggingface_zoo import (
    DECODERS,
    FAMILIES,
    GROUPED,
    PAIRS,
    VIT,
    assert_sees,
    eager_weights,
    inputs,
    made,
    padding,
    stack,
    tokens,
)
from tests.model.checkpoints import BERT, shaken

NEW = 6  # tokens that are generated; with the 11 that go in, more than thrice the window of those that slide


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def generated(model: Any, given: dict[str, Tensor], **options: Any) -> tuple[Any, Tensor]:
    """What is seen while the model goes on for NEW tokens, and all tokens."""
    with watch(model) as record:
        out = model.generate(**given, max_new_tokens=NEW, min_new_tokens=NEW, **{"do_sample": False, **options})
    return record, out


def assert_grown(record: Any, family: str, real: Tensor) -> None:
    """What was seen while it grew is what one pass over the same tokens sees; (samples, tokens) are `real` or not."""
    assert len(record.calls) == 1
    grown = record.calls[0].ids["tokens"]
    real = torch.nn.functional.pad(real, (0, grown.shape[1] - real.shape[1]), value=1)
    places = (real.cumsum(1) - 1).clamp(min=0)
    given = {"input_ids": grown, "attention_mask": real}
    if family != "gpt-neox":  # which numbers its tokens itself, padding too
        given["position_ids"] = places
    for name, weights in eager_weights(made(family), given, FAMILIES[family].names).items():
        assert_sees(record[name], weights, real)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("family", DECODERS)
def test_steps_join_to_what_one_pass_over_all_tokens_sees(family, cache):
    given = {"input_ids": tokens(), "attention_mask": padding("left")}
    record, out = generated(made(family), given, cache_implementation=cache)
    assert torch.equal(record.calls[0].ids["tokens"], out[:, :-1])
    assert_grown(record, family, padding("left"))


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("family", PAIRS)
def test_a_context_is_seen_once_and_its_decoder_grows(family, cache):
    model, given = made(family), inputs(family)
    given.pop("decoder_input_ids")
    record, out = generated(model, given, cache_implementation=cache)
    assert len(record.calls) == 1
    assert record.names == FAMILIES[family].names
    assert set(record.calls[0].ids) == ({"source", "target"} if "input_ids" in given else {"target"})
    given["decoder_input_ids"] = record.calls[0].ids["target"]
    assert torch.equal(given["decoder_input_ids"][:, 1:], out[:, -NEW:-1])
    for name, weights in eager_weights(model, given, FAMILIES[family].names).items():
        assert_sees(record[name], weights)


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_a_context_that_is_seen_in_double_precision_is_added_up_row_by_row(family):
    model = copy.deepcopy(made(family)).double()
    record, _ = generated(model, {"input_ids": tokens()})
    given = {"input_ids": tokens(), "decoder_input_ids": record.calls[0].ids["target"]}
    for name, weights in eager_weights(model, given, FAMILIES[family].names).items():
        assert_sees(record[name], weights)


@pytest.mark.parametrize("family", ["gpt2", "mistral"])
def test_beams_keep_their_own_past(family):
    given = {"input_ids": tokens(), "attention_mask": padding("left")}
    record, _ = generated(made(family), given, num_beams=5)
    assert len(record.calls[0].ids["tokens"]) == 3 * 5
    assert_grown(record, family, padding("left").repeat_interleave(5, 0))
    assert [number // 5 for number in record[record.names[0]].inputs] == [0] * 5 + [1] * 5 + [2] * 5, "the texts"


def test_beams_of_an_encoder_decoder_keep_their_own_past_and_share_the_encoder():
    model, given = made("marian"), {"input_ids": tokens(), "attention_mask": padding("right")}
    record, _ = generated(model, given, num_beams=5)
    call = record.calls[0]
    assert len(record.calls) == 1
    assert torch.equal(call.ids["source"], given["input_ids"])
    spread = {name: value.repeat_interleave(5, 0) for name, value in given.items()}
    wanted = eager_weights(model, {**spread, "decoder_input_ids": call.ids["target"]}, FAMILIES["marian"].names)
    for name, weights in wanted.items():
        if name.startswith("encoder"):
            assert_sees(call[name], weights[::5], given["attention_mask"])
        else:
            assert_sees(call[name], weights)


ENDS = [5, 14, 17, 23]


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("family", ["llama", "bart"])
def test_every_sequence_that_beams_return_is_in_the_record(family, early):
    model, kind, prompt = made(family), *(("target", 1) if family == "bart" else ("tokens", 7))
    options = {"num_beams": 3, "num_return_sequences": 3, "early_stopping": early, "pad_token_id": 0}
    lengths = set()
    for seed in range(4):
        text = torch.randint(3, 29, (2, 7), generator=torch.Generator().manual_seed(seed))
        with watch(model) as record:
            out = model.generate(text, do_sample=False, max_new_tokens=7, eos_token_id=ENDS, **options)
        inputs, ids = record["decoder.0.self"].inputs, record.calls[0].ids[kind]
        held = [(number // 3, row[row >= 0].tolist()) for number, row in zip(inputs, ids, strict=True)]
        for n, row in enumerate(out.tolist()):
            ends = (place for place in range(prompt, len(row)) if row[place] in ENDS)
            fed = row[: next(ends, len(row) - 1)]  # what is written last is no query any more
            lengths.add(len(fed))
            assert (n // 3, fed) in held, f"{fed} not in {held}"
    assert len(lengths) > 2, "some are completed while others go on"


def test_a_beam_that_was_completed_is_seen_as_far_as_it_went():
    model, text = made("bart"), torch.randint(3, 29, (2, 7), generator=torch.Generator().manual_seed(1))
    with watch(model, keep="qk") as record:
        model.generate(text, do_sample=False, max_new_tokens=7, num_beams=3, eos_token_id=ENDS)
    call = record.calls[0]
    ids, inputs = call.ids["target"], call["decoder.0.self"].inputs
    assert len(ids) > 6, "the beams that are there at the end, and some more"
    for sample, number in enumerate(inputs):
        own = ids[sample][ids[sample] >= 0][None]
        given = {"input_ids": text[number // 3][None], "decoder_input_ids": own}
        for name, weights in eager_weights(model, given, FAMILIES["bart"].names).items():
            if name.startswith("decoder"):
                queries, keys = weights.shape[2:]
                found = call[name].map[sample, :, :queries, :keys]
                assert (found - weights[0]).abs().max() < 1e-5
                assert (call[name].received[sample, :, :keys] - weights[0].sum(1)).abs().max() < 1e-5
                assert (call[name].entropy[sample] > 0).sum(-1).max() <= queries
                assert (call[name].weights(sample, 1)[:queries, :keys] - weights[0, 1]).abs().max() < 1e-5


def test_a_search_that_does_not_tell_which_beams_are_done_is_recorded_all_the_same(monkeypatch):
    text, told = tokens(), generated(made("gpt2"), {"input_ids": tokens()}, num_beams=2)[1]
    monkeypatch.setattr(forward_tracking, "FINISHED_BEAMS_METHOD", "_of_another_release")
    record, out = generated(made("gpt2"), {"input_ids": text}, num_beams=2)
    assert torch.equal(out, told)
    assert len(record.calls[0].ids["tokens"]) == 3 * 2
    assert forward_tracking.find_finished_rows(("of", "another", "release")) == frozenset()


def llava() -> Any:
    vision = {**VIT, "model_type": "clip_vision_model", "image_size": 10}
    text = {**GROUPED, "model_type": "llama", "vocab_size": 31}
    config = transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_index=2)
    return shaken(transformers.LlavaForConditionalGeneration(config))


def test_a_tower_of_images_stands_still_while_samples_move():
    model, marks, rows = llava(), torch.full((3, 4), 2), torch.tensor([2, 0, 0])
    text = torch.cat([tokens(3), marks, tokens(5), marks, tokens(2)], 1)
    images = torch.randn(6, 3, 10, 10, generator=torch.Generator().manual_seed(0))  # two in each text
    with watch(model) as record:
        cache = model(input_ids=text, pixel_values=images).past_key_values
        cache.reorder_cache(rows)
        model(input_ids=tokens(2)[:, :1], past_key_values=cache)
    grown = torch.cat([text[rows], tokens(2)[:, :1]], 1)
    assert len(record.calls) == 1
    assert record.names == stack("vision.encoder", 2) + stack("language.decoder", 2)
    assert torch.equal(record.calls[0].ids["tokens"], grown)
    assert len(record["vision.encoder.0.self"].entropy) == 6
    given = {"input_ids": grown, "pixel_values": images.unflatten(0, (3, 2))[rows].flatten(0, 1)}
    for name, weights in eager_weights(model, given, stack("language.decoder", 2)).items():
        assert_sees(record[name], weights)


def test_what_is_called_an_encoder_grows_too_if_it_keeps_its_keys():
    config = transformers.BertConfig(**{**BERT, "is_decoder": True})
    model = shaken(transformers.BertLMHeadModel(config))
    given = {"input_ids": tokens(), "attention_mask": torch.ones(3, 11).long()}
    record, _ = generated(model, given, num_beams=2)
    assert record.names == FAMILIES["bert"].names
    grown = {"input_ids": record.calls[0].ids["tokens"]}
    for name, weights in eager_weights(model, grown, record.names).items():
        assert_sees(record[name], weights)


def test_sampled_tokens_are_followed_too():
    torch.manual_seed(0)
    given = {"input_ids": tokens(), "attention_mask": torch.ones(3, 11).long()}
    record, out = generated(made("llama"), given, do_sample=True, num_return_sequences=2)
    assert torch.equal(record.calls[0].ids["tokens"], out[:, :-1])
    assert_grown(record, "llama", torch.ones(6, 11).long())


def test_a_loop_of_ones_own_grows_as_generate_does():
    model, text = made("mistral"), tokens(17)
    with watch(model) as record:
        out = model(text[:, :7])  # the model makes its cache itself
        for start, stop in ((7, 8), (8, 12), (12, 13), (13, 17)):
            out = model(text[:, start:stop], past_key_values=out.past_key_values)
    assert_grown(record, "mistral", torch.ones(3, 17).long())


def test_a_mask_that_is_written_to_before_its_step_is_measured_counts_as_it_was():
    model, text, maps = made("llama"), tokens(17), []
    steps = torch.rand(17, 1, 1, 1, 17, generator=torch.Generator().manual_seed(0)) > 0.4
    for shared in (steps.new_ones(1, 1, 1, 17), None):
        cache = transformers.DynamicCache()
        with watch(model) as record:
            model(text[:, :5], past_key_values=cache)
            for end in range(6, 18):
                mask = steps[end - 1] if shared is None else shared.copy_(steps[end - 1])
                model(text[:, end - 1 : end], past_key_values=cache, attention_mask=mask[..., :end])
        maps.append(record["decoder.1.self"].map)
    assert torch.equal(*maps)


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_empty_slots_of_a_static_cache_are_no_keys(family):
    model, text = made(family), tokens(17)
    cache = transformers.StaticCache(config=model.config, max_cache_len=29)
    with watch(model) as record:
        for start, stop in ((0, 3), (3, 7), (7, 8), (8, 9), (9, 13), (13, 17)):
            model(text[:, start:stop], past_key_values=cache)
            assert record.calls[0]["decoder.0.self"].keys == stop
    assert_grown(record, family, torch.ones(3, 17).long())


def test_a_cache_that_was_filled_before_is_recorded_from_its_position_on():
    model, text = made("mistral"), tokens(17)
    cache = model(text[:, :7]).past_key_values
    with watch(model) as record:
        model(text[:, 7:13], past_key_values=cache)
        model(text[:, 13:], past_key_values=cache)
    assert len(record.calls) == 1
    assert record["decoder.0.self"].queries.tolist() == list(range(7, 17))
    for name, weights in eager_weights(model, {"input_ids": text}, FAMILIES["mistral"].names).items():
        assert_sees(record[name], weights[:, :, 7:], first=7)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_windows_of_weights_are_those_of_one_pass_under_a_sliding_cache(cache):
    model = made("mistral")
    with watch(model, keep="qk", heads=[1, 4]) as record:
        out = model.generate(
            tokens(), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, cache_implementation=cache
        )
    weights = eager_weights(model, {"input_ids": out[:, :-1]}, FAMILIES["mistral"].names)["decoder.1.self"]
    found = record["decoder.1.self"].weights(2, 4, slice(9, 16), slice(3, 16))
    assert (found - weights[2, 4, 9:16, 3:16]).abs().max() < 1e-5


def test_a_cache_that_is_cropped_begins_another_call():
    model, text = made("llama"), tokens(13)
    with watch(model) as record:
        cache = model(text[:, :7]).past_key_values
        cache.crop(-4)
        model(text[:, 3:], past_key_values=cache)
    assert [call["decoder.1.self"].queries.tolist() for call in record.calls] == [[*range(7)], [*range(3, 13)]]
    for name, weights in eager_weights(model, {"input_ids": text}, FAMILIES["llama"].names).items():
        assert_sees(record.calls[1][name], weights[:, :, 3:], first=3)


def test_a_text_shorter_than_the_distance_of_measured_queries_is_not_empty():
    model, text = made("llama"), tokens(13)
    with watch(model, rows=1 / 16) as record:
        model(text)
    with watch(model, rows=1 / 16) as wanted:
        model(text, use_cache=False)
    assert record["decoder.1.self"].queries.tolist() == [12]
    assert torch.equal(record["decoder.1.self"].entropy, wanted["decoder.1.self"].entropy)


def test_samples_that_are_chosen_or_repeated_keep_their_own_past():
    model, text = made("llama"), tokens(9)
    with watch(model) as record:
        cache = model(text[:, :7]).past_key_values
        cache.batch_select_indices(torch.tensor([2, 0]))
        model(text[[2, 0], 7:8], past_key_values=cache)
        cache.batch_repeat_interleave(2)
        model(text[[2, 2, 0, 0], 8:9], past_key_values=cache)
    assert torch.equal(record.calls[0].ids["tokens"][:, :9], text[[2, 2, 0, 0]])
    assert_grown(record, "llama", torch.ones(4, 9).long())


def test_without_a_cache_every_step_is_a_call_of_its_own():
    record, _ = generated(made("gpt2"), {"input_ids": tokens()}, use_cache=False)
    assert [call["decoder.0.self"].keys for call in record.calls] == [11 + n for n in range(NEW)]


def test_two_caches_that_take_turns_are_two_calls():
    model, text = made("llama"), tokens(9)
    with watch(model) as record:
        caches = [model(text[n : n + 1, :5]).past_key_values for n in (0, 1)]
        for place in range(5, 9):
            for n, cache in enumerate(caches):
                model(text[n : n + 1, place : place + 1], past_key_values=cache)
        caches[0].batch_repeat_interleave(2)
    assert len(record.calls[0].ids["tokens"]) == 1, "a move after which no query came is none"
    assert [call["decoder.0.self"].keys for call in record.calls] == [9, 9]
    for n, call in enumerate(record.calls):
        weights = eager_weights(model, {"input_ids": call.ids["tokens"]}, FAMILIES["llama"].names)
        assert torch.equal(call.ids["tokens"][0], text[n])
        assert_sees(call["decoder.1.self"], weights["decoder.1.self"])


def test_assisted_generation_is_many_calls_each_of_them_right():
    model, text = made("llama"), tokens(11)[:1]
    with watch(model) as record:
        out = model.generate(text, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, prompt_lookup_num_tokens=3)
    for call in record.calls:
        sight = call["decoder.1.self"]
        first, last = sight.queries[0].item(), sight.queries[-1].item()
        grown = torch.cat([out[:, :first], call.ids["tokens"][:, first - last - 1 :]], 1)
        weights = eager_weights(model, {"input_ids": grown}, FAMILIES["llama"].names)["decoder.1.self"]
        assert_sees(sight, weights[:, :, first:], first=first)


def test_copies_of_a_cache_go_their_own_ways():
    model, text = made("llama"), tokens(11)
    with watch(model) as record:
        prompt = model(text[:, :7]).past_key_values
        for rows in ([2, 0, 1], [1, 1, 1]):
            cache = copy.deepcopy(prompt)
            cache.reorder_cache(torch.tensor(rows))
            model(text[rows, 7:], past_key_values=cache)
    assert [call["decoder.0.self"].queries.tolist() for call in record.calls] == [[*range(7)], *[[*range(7, 11)]] * 2]
    wanted = eager_weights(model, {"input_ids": text}, FAMILIES["llama"].names)["decoder.1.self"]
    for call, rows in zip(record.calls[1:], ([2, 0, 1], [1, 1, 1]), strict=True):
        assert_sees(call["decoder.1.self"], wanted[rows, :, 7:], first=7)


def test_caches_and_the_search_are_left_as_they_were():
    model = made("marian")
    kinds = (transformers.Cache, transformers.EncoderDecoderCache, GenerationMixin, transformers.StoppingCriteriaList)
    before = [dict(vars(kind)) for kind in kinds]
    with watch(model), watch(model):
        model.generate(tokens(), max_new_tokens=2, num_beams=2)
        assert [dict(vars(kind)) for kind in kinds] != before
    assert [dict(vars(kind)) for kind in kinds] == before


def test_a_layer_by_itself_with_a_cache_is_refused_with_the_way_out():
    model = made("llama")
    for part in (model.model.layers[1], model.model.layers[1].self_attn):
        with pytest.raises(LensError, match=r"watch the model that it belongs to, .* with layers="), watch(part):
            model.generate(tokens(), max_new_tokens=2, do_sample=False)
        with watch(part) as record:
            model(tokens(), use_cache=False)
        assert len(record.calls) == 1


class StopSecond(transformers.StoppingCriteria):
    """Ends the second sample at this length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, input_ids: Tensor, scores: Any, **options: Any) -> Tensor:
        return (torch.arange(len(input_ids)) == 1) & (input_ids.shape[1] >= self.length)


@pytest.mark.parametrize("family", ["llama", "marian"])
def test_a_sample_that_ends_before_the_others_of_its_batch_sees_nothing_from_then_on(family):
    model, begin = made(family), 11 if family == "llama" else 1
    stop = transformers.StoppingCriteriaList([StopSecond(begin + 3)])
    given = {"input_ids": tokens(), "max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    with watch(model, keep="qk") as record:
        model.generate(**given, stopping_criteria=stop)
    with watch(model, keep="qk") as alone:
        model.generate(**{**given, "input_ids": tokens()[1:2], "max_new_tokens": 3, "min_new_tokens": 3})
    seen = begin + 2  # the last token is not read again
    kind = "tokens" if family == "llama" else "target"
    assert (record.calls[0].ids[kind][1, seen:] == -1).all()
    for name in [name for name in record.names if "decoder" in name]:
        sight, one = record[name], alone[name]
        assert (sight.logsumexp[1, :, seen:] == -torch.inf).all()
        assert (sight.logsumexp[[0, 2]] > -torch.inf).all()
        assert torch.allclose(sight.entropy[1, :, :seen], one.entropy[0], atol=1e-5)
        keys = one.keys
        assert torch.allclose(sight.received[1, :, :keys], one.received[0], atol=1e-5)
        assert torch.allclose(sight.map[1, :, :seen, :keys], one.map[0], atol=1e-5)
        assert not sight.weights(1, 0, slice(seen, None)).any()
    counts = record.statistics()["decoder.0.self"].queries
    assert counts.tolist() == [2 * (begin + NEW - 1) + seen] * len(counts)


def test_a_second_generation_with_the_same_cache_begins_anew_in_all_rows():
    model, cache = made("llama"), transformers.DynamicCache(config=made("llama").config)
    options = {"do_sample": False, "pad_token_id": 0, "past_key_values": cache}
    stop = transformers.StoppingCriteriaList([StopSecond(12)])
    with watch(model) as record:
        out = model.generate(tokens(), max_new_tokens=3, min_new_tokens=3, stopping_criteria=stop, **options)
        model.generate(torch.cat([out, tokens(2)], 1), max_new_tokens=2, min_new_tokens=2, **options)
    (call,) = record.calls
    blind = (call["decoder.0.self"].logsumexp[1, 0] == -torch.inf).nonzero().flatten().tolist()
    assert blind == [11, 12]
