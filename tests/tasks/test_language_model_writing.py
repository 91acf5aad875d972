"""Continuations: temperature, cuts, seeds, stops, repetition rules, windows, streams, and prompts of every kind."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.decode import Writer
from clearhead.errors import ConfigError, DecodeError
from clearhead.model import ModelConfig, small_passes
from clearhead.predictor import Predictor
from clearhead.tasks.language_model.continuation import hold_back, window_begin
from clearhead.tasks.language_model.language_processor import LanguageOptions, LanguageProcessor, LanguageSettings
from clearhead.tasks.language_model.language_task import TASK
from clearhead.text import Tokenizer

TEXTS = ["the cat sat on the mat.\n", "秋日登高望远山。\n", "To be, or not to be: that is it.\n\n"]


def make_predictor(kind="character", context=11, **settings):
    """A model with random weights, whose continuations are as varied as can be."""
    tokenizer = Tokenizer.train(TEXTS, kind=kind, vocabulary=330, exact=True)
    shape = {"width": 20, "heads": 5, "kv_heads": 5, "layers": 2, "feedforward": 17, "dropout": 0.0}
    config = ModelConfig.named("modern", vocabulary=tokenizer.size, **shape)
    torch.manual_seed(7)
    processor = LanguageProcessor(tokenizer, config, LanguageSettings(context=context, **settings))
    model = processor.build().eval().requires_grad_(False)
    with torch.no_grad():  # larger scores: the most probable tokens are clearly so
        model.vocabulary.words.weight *= 30
    return Predictor(model, TASK, processor, name="test")


@pytest.fixture(scope="module")
def predictor():
    return make_predictor()


def test_the_most_probable_tokens_follow_the_definition_beyond_the_context(predictor):
    """At temperature 0 each token is the argmax of a plain forward pass over the window, without any cache."""
    processor, model = predictor.processor, predictor.model
    prompt = "the cat sat on the mat"
    written = predictor.predict(prompt, temperature=0.0, longest=20)
    tokens = [processor.tokenizer.start, *processor.tokenizer.encode(prompt)]
    before = len(tokens)
    for _ in range(20):
        read = torch.tensor([tokens[window_begin(len(tokens), 11) :]])
        logits = model.logits(model(read))[0, -1]
        logits[[processor.tokenizer.pad, processor.tokenizer.start]] = -torch.inf
        if int(logits.argmax()) == processor.tokenizer.end:
            break
        tokens.append(int(logits.argmax()))
    assert written.text == processor.tokenizer.decode(tokens[before:])
    assert written.finish == ("length" if len(tokens) - before == 20 else "end")


@pytest.mark.parametrize("kind", ["character", "bpe"])
@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 1.0}, {"top_k": 5, "stop": ["e", "山山"]}])
def test_streaming_gives_the_same_text_in_pieces(kind, options):
    predictor = make_predictor(kind)
    for seed in range(2):
        whole = predictor.predict("the ca", longest=14, seed=seed, **options).text
        pieces = list(predictor.stream("the ca", longest=14, seed=seed, **options))
        assert "".join(pieces) == whole
        assert all(pieces)


def test_a_seed_decides_the_text_whatever_else_is_in_the_batch(predictor):
    prompts = ["the", "秋日", "To be, or not to be: that", "", "x"]
    together = [one.text for one in predictor.predict(prompts, longest=9, seed=4)]
    again = [one.text for one in predictor.predict(prompts, longest=9, seed=4, batch=2)]
    assert together == again
    assert predictor.predict("the", longest=9, seed=4).text == together[0]
    assert [one.text for one in predictor.predict(prompts, longest=9, seed=5)] != together
    assert len({one.text for one in predictor.predict(["the"] * 6, longest=9)}) > 3, "each input draws its own"


def test_inputs_in_several_calls_draw_what_they_draw_in_one(predictor):
    together = [one.text for one in predictor.predict(["the"] * 5, longest=9, seed=4)]
    apart = [predictor.predict("the", longest=9, seed=4, inputs_before=place).text for place in range(5)]
    streamed = ["".join(predictor.stream("the", longest=9, seed=4, inputs_before=place)) for place in range(5)]
    assert apart == streamed == together
    assert len(set(together)) > 2


def test_a_longer_text_begins_with_the_shorter_one(predictor):
    long, short = (predictor.predict("the", longest=longest, seed=2) for longest in (30, 12))
    if long.finish == "length":
        assert long.text.startswith(short.text)


def test_a_stop_text_ends_the_text_before_it(predictor):
    plain = predictor.predict("the", longest=24, seed=1).text
    stop = plain[10:12]
    cut = predictor.predict("the", longest=24, seed=1, stop=[stop, "never there"])
    assert cut.text == plain[: plain.index(stop)]
    assert cut.finish == "stop"
    assert "".join(predictor.stream("the", longest=24, seed=1, stop=[stop])) == cut.text
    with pytest.raises(ConfigError, match="an empty text would stop at once"):
        predictor.predict("the", stop=[""])


@given(st.text("ab", max_size=8), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_what_is_held_back_may_become_a_stop_and_nothing_else_is(text, stops):
    shown = hold_back(text, stops)
    rest = text[len(shown) :]
    assert text.startswith(shown)
    assert not rest or any(stop.startswith(rest) and stop != rest for stop in stops)
    for size in range(len(rest) + 1, len(text) + 1):  # nothing longer could become one
        assert not any(stop.startswith(text[-size:]) and len(stop) > size for stop in stops)


def test_temperature_and_cuts_change_what_is_drawn(predictor):
    greedy = predictor.predict("the", temperature=0.0, longest=9).text
    assert predictor.predict("the", temperature=1.0, top_k=1, longest=9, seed=9).text == greedy
    assert predictor.predict("the", temperature=1.0, top_p=1e-6, longest=9, seed=9).text == greedy
    assert predictor.predict("the", temperature=1.0, min_p=1.0, longest=9, seed=9).text == greedy
    assert predictor.predict("the", temperature=2.0, longest=9, seed=9).text != greedy
    with pytest.raises(ConfigError, match="top_k: no effect without sampling"):
        predictor.predict("the", temperature=0.0, top_k=3)


def test_no_run_of_tokens_comes_twice_even_from_the_prompt(predictor):
    for size in (1, 2, 3):
        options = LanguageOptions(temperature=0.0, no_repeat_ngram=size, longest=25)
        prompt = predictor.processor.tokenizer.encode("the cat the")
        (text,) = predictor.answerer.begin_texts([prompt], options)
        predictor.answerer.write([text])
        runs = [tuple(text.tokens[place : place + size]) for place in range(len(text.tokens) - size + 1)]
        old, new = runs[: len(prompt) - size + 1], runs[len(prompt) - size + 1 :]
        assert new
        assert len(set(new)) == len(new)
        assert not set(old) & set(new)


def test_the_steps_of_a_small_model_are_computed_under_the_lock_that_threads_share(predictor, monkeypatch):
    held, compute = [], Writer._compute_logits
    lock = small_passes.pass_lock(predictor.model, 1)
    monkeypatch.setattr(Writer, "_compute_logits", lambda *args: (held.append(lock._is_owned()), compute(*args))[1])
    for _ in predictor.stream("the", longest=3):
        assert not lock._is_owned()
    assert set(held) == {True}


def test_a_repetition_penalty_makes_texts_more_varied(predictor):
    def kinds(penalty):
        text = predictor.predict("the", temperature=0.0, repetition_penalty=penalty, longest=25).text
        return len(set(text)) / max(1, len(text))

    assert kinds(3.0) >= kinds(1.0)


def test_prompts_of_every_kind_are_continued(predictor):
    hostile = ["", " ", "\n\n", "<s></s><pad>", "\x00\x1b[2J", "秋日登高", "𝔘\U0001f600", "a\ud800b", "</script>"]
    for prompt, answer in zip(hostile, predictor.predict(hostile, longest=5), strict=True):
        assert isinstance(answer.text, str), prompt
        assert not prompt or prompt not in answer.text
    assert predictor.predict([]) == []


def test_a_prompt_longer_than_the_context_is_read_from_a_later_token_on_and_said(predictor):
    answer = predictor.predict("the cat sat on the mat", longest=3)
    assert answer.notes[0] == "the prompt has 23 tokens; the model reads the last 8"
    assert predictor.stream_notes("the cat sat on the mat") == list(answer.notes[:1])
    assert predictor.stream_notes("the") == []


def test_the_end_of_prompts_is_appended_and_the_start_may_be_left_out():
    plain, titled = make_predictor(), make_predictor(prompt_end="\n")
    assert titled.predict("the", longest=9, seed=3).text == plain.predict("the\n", longest=9, seed=3).text
    inside = make_predictor(prompt_start=False).processor
    assert inside.encode_prompt("a") == inside.tokenizer.encode("a")
    assert inside.encode_prompt("") == [inside.tokenizer.start]


@pytest.mark.parametrize(
    ("end", "prompt", "wanted"),
    [
        ("\n", " the\n\ncat \n", "the cat\n"),
        ("\n", "山\r\n水", "山水\n"),
        ("=>", "the=>cat\n", "the cat=>"),
        ("", " the\n", " the\n"),
    ],
)
def test_what_ends_a_prompt_does_not_stand_inside_it(end, prompt, wanted):
    processor = make_predictor(prompt_end=end).processor
    assert processor.tokenizer.decode(processor.encode_prompt(prompt)) == wanted


def test_the_end_token_ends_a_text():
    predictor = make_predictor()
    with torch.no_grad():
        words = predictor.model.vocabulary.words.weight
        words.zero_()[predictor.processor.tokenizer.end] = 1.0
        predictor.model.decoder.final_norm.weight.fill_(100.0)
    answer = predictor.predict("the", longest=9)
    assert answer.finish in ("end", "length")
    assert answer.to_json()["output"] == answer.text


def test_broken_logits_are_refused():
    predictor = make_predictor()
    with torch.no_grad():
        predictor.model.vocabulary.words.weight.fill_(torch.nan)
    with pytest.raises(DecodeError, match="NaN or infinite"):
        predictor.predict("the", longest=3)


@given(st.text(max_size=12), st.integers(0, 3))
@settings(max_examples=8, deadline=None)
def test_no_prompt_breaks_a_model(text, seed):
    predictor = SHARED.setdefault("one", make_predictor("bpe"))
    answer = predictor.predict(text, longest=6, seed=seed)
    assert "".join(predictor.stream(text, longest=6, seed=seed)) == answer.text


SHARED: dict[str, Predictor] = {}
