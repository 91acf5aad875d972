"""How an answer is searched for: drawn by a seed, begun with a prefix, cut at a length, streamed piece by piece."""

import random

import pytest
import torch

import clearhead
from clearhead.decode import Hypothesis
from clearhead.errors import ConfigError
from clearhead.predictor import Predictor
from clearhead.tasks.sequence_to_sequence.generation import GeneratedText
from clearhead.tasks.sequence_to_sequence.search import Search
from clearhead.tasks.translation import TASK, TranslationGeneration
from tests.tasks.translators import learned, prepared, untrained, write
from tests.train.corpus import sentences

TEXT, PARTS = "我爱你看书", "我爱你看书。你看他吃鱼。他爱水看你。你吃鱼爱我。"


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    return clearhead.load(
        write(tmp_path_factory.mktemp("models") / "toy", learned().processor, learned().model), device="cpu"
    )


def watch_decoding(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of all token sequences that are decoded from now on."""
    decode_text, lengths = TranslationGeneration.decode_text, list[int]()

    def decode(request: TranslationGeneration, hypothesis: Hypothesis) -> str:
        lengths.append(len(hypothesis.tokens))
        return decode_text(request, hypothesis)

    monkeypatch.setattr(TranslationGeneration, "decode_text", decode)
    return lengths


def into_chinese() -> Predictor:
    """An untrained translator into Chinese, with a piece for each of a few characters."""
    processor = prepared([(english, chinese) for chinese, english in sentences(40)], {"tokenizer": "character"})
    assert processor.stored.bleu_tokenizer == "zh"
    return Predictor(untrained(processor), TASK, processor, name="toy")


# sampling


def test_what_is_drawn_follows_from_the_seed(translator):
    def drawn(seed: int, **more: int) -> list[str]:
        answers = translator.predict([TEXT] * 5, temperature=2.0, seed=seed, **more)
        return [answer.text for answer in answers]

    assert drawn(3) == drawn(3)
    assert drawn(3) == drawn(3, batch=2), "and not from the batch"
    assert drawn(3) != drawn(4)
    assert len(set(drawn(3))) > 1, "the same text is drawn anew each time that it is asked"


@pytest.mark.parametrize("longest", [None, 4])
def test_what_is_drawn_does_not_depend_on_how_inputs_arrive(translator, longest):
    """Not on inputs before it, nor on how many parts they had, nor on whether they looped and were written again."""
    inputs = [TEXT, PARTS, "", TEXT, PARTS, TEXT]
    options = {"temperature": 2.0, "seed": 5, "longest": longest}
    together = [answer.text for answer in translator.predict(inputs, **options)]
    apart = [translator.predict(one, inputs_before=place, **options).text for place, one in enumerate(inputs)]
    halves = [
        answer.text
        for begin in (0, 2, 4)
        for answer in translator.predict(inputs[begin : begin + 2], inputs_before=begin, batch=1, **options)
    ]
    assert together == apart == halves
    assert together[0] != together[3] != together[5], "each input draws numbers of its own"
    if longest is not None:  # so short that nothing loops: a stream is not written again
        streamed = ["".join(translator.stream(one, inputs_before=place, **options)) for place, one in enumerate(inputs)]
        assert streamed == together


def test_an_answer_that_is_drawn_has_a_score_and_no_alternatives(translator):
    answer = translator.predict(TEXT, temperature=1.0)
    assert answer.score <= 0
    assert answer.alternatives == []


def test_little_heat_or_few_tokens_are_the_likeliest(translator):
    wanted = translator.predict(TEXT, beams=1).text
    for little in ({"temperature": 0.001}, {"temperature": 3.0, "top_k": 1}, {"temperature": 3.0, "min_p": 1.0}):
        assert translator.predict(TEXT, **little).text == wanted
    assert translator.predict(TEXT, temperature=3.0, top_p=1e-9).text == wanted


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"temperature": 1.0, "beams": 2}, "temperature samples a single answer and excludes beams and best"),
        ({"temperature": 1.0, "best": 2}, "temperature samples a single answer and excludes beams and best"),
        (
            {"top_k": 3, "min_p": 0.1},
            "top_k, min_p: no effect without sampling .temperature 0.; set a temperature, such as 1",
        ),
        ({"temperature": -1.0}, "predict: temperature: should be greater than or equal to 0, got -1.0"),
        ({"temperature": float("inf")}, "predict: temperature: should be a finite number, got inf"),
        ({"temperature": 1.0, "top_p": 0.0}, "predict: top_p: should be greater than 0, got 0.0"),
        ({"temperature": 1.0, "top_k": 0}, "predict: top_k: should be greater than or equal to 1, got 0"),
        ({"seed": -1}, "predict: seed: should be greater than or equal to 0, got -1"),
        ({"longest": 0}, "predict: longest: should be greater than or equal to 1, got 0"),
    ],
)
def test_options_that_do_not_go_together_or_make_no_sense_are_refused(translator, options, said):
    with pytest.raises(ConfigError, match=said):
        translator.predict(TEXT, **options)
    with pytest.raises(ConfigError, match=said):
        list(translator.stream(TEXT, **options))


def test_one_beam_may_be_named_beside_a_temperature(translator):
    assert translator.predict(TEXT, temperature=2.0, beams=1) == translator.predict(TEXT, temperature=2.0)


# prefix and longest


@pytest.mark.parametrize("search", [{"beams": 1}, {"beams": 3}, {"temperature": 2.0}])
def test_a_prefix_is_kept(translator, search):
    for answer in translator.predict([TEXT, "水"], prefix="he see fish", **search):
        assert answer.text.startswith("he see fish")
    assert not translator.predict(TEXT, **search).text.startswith("he see fish")


def test_only_the_first_of_several_parts_begins_with_the_prefix(translator):
    plain, begun = translator.predict(PARTS, beams=1), translator.predict(PARTS, beams=1, prefix="he see fish")
    assert begun.text.startswith("he see fish")
    assert begun.text.count("he see fish") == 1 + plain.text.count("he see fish")
    assert begun.text.endswith(translator.predict("你吃鱼爱我。", beams=1).text)


def test_an_empty_prefix_and_an_empty_input_are_nothing(translator):
    assert translator.predict(TEXT, prefix="") == translator.predict(TEXT)
    assert translator.predict("", prefix="he") == GeneratedText("", [], None, [])


@pytest.mark.parametrize("search", [{"beams": 1}, {"beams": 3}, {"temperature": 2.0}])
@pytest.mark.parametrize("longest", [1, 2, 3])
def test_longest_is_a_limit_of_tokens_and_what_it_cuts_off_is_noted(translator, search, longest, monkeypatch):
    lengths = watch_decoding(monkeypatch)
    answer = translator.predict("我爱你看书看书", longest=longest, **search)
    assert lengths == [longest]
    assert answer.notes[0] == "the translation was cut off at its longest length"


def test_a_limit_that_is_not_reached_changes_nothing(translator):
    tokens = len(translator.processor.target.encode(translator.predict(TEXT).text))
    assert translator.predict(TEXT, longest=tokens + 1) == translator.predict(TEXT), "with the end"


def test_a_limit_holds_for_each_part_and_begins_after_the_prefix(translator):
    target = translator.processor.target
    many = translator.predict(PARTS, beams=1, longest=1)
    assert len(target.encode(many.text)) <= 4
    begun = translator.predict(TEXT, beams=1, longest=1, prefix="he see fish").text
    assert begun.startswith("he see fish ")
    assert len(target.encode(begun)) == len(target.encode("he see fish")) + 1


# streams


@pytest.mark.parametrize("options", [{}, {"prefix": "he see"}, {"longest": 2}])
@pytest.mark.parametrize("text", [TEXT, "水", PARTS, "", "Hello, 世界 123!"])
def test_the_pieces_of_a_stream_are_the_answer_with_one_beam(translator, text, options):
    pieces = list(translator.stream(text, **options))
    assert "".join(pieces) == translator.predict(text, beams=1, **options).text
    assert all(pieces)
    if text == PARTS and not options:
        assert len(pieces) > 10


def test_a_stream_draws_what_predict_draws(translator):
    for text in (TEXT, PARTS):
        drawn = translator.predict(text, temperature=0.7, seed=11)
        assert "".join(translator.stream(text, temperature=0.7, seed=11)) == drawn.text


def test_beams_cannot_be_streamed(translator):
    with pytest.raises(
        ConfigError, match="beam search has its answer only at the end and cannot stream it; use 1 beam"
    ):
        list(translator.stream(TEXT, beams=2))


def test_a_piece_is_there_before_the_next_is_worked_out(translator, monkeypatch):
    steps = watch_decoding(monkeypatch)
    stream = translator.stream(TEXT)
    assert next(stream)
    assert len(steps) == 1


def test_a_caller_is_not_in_inference_mode_between_the_pieces(translator):
    stream = translator.stream(TEXT)
    assert next(stream)
    assert not torch.is_inference_mode_enabled()
    assert torch.ones(1, requires_grad=True).add(1).requires_grad


@pytest.mark.parametrize("seed", range(8))
def test_half_a_character_is_never_shown(seed, monkeypatch):
    """What is shown is not taken back, and in the end it is what predict answers, whatever bytes the model writes."""
    translator, chance = into_chinese(), random.Random(seed)
    processor = translator.processor
    words = [processor.target.encode(word) for word in ("你", "好", "𠀀", "(", ")", ",", "a", "!")]
    tokens = [token for _ in range(30) for token in chance.choice(words)]
    broken = [*(token for token in tokens if chance.random() > 0.1), *words[2][:2]]
    for written in (tokens, broken):
        monkeypatch.setattr(Search, "stream", lambda *_, written=written, **__: iter(written))
        monkeypatch.setattr(
            Search, "run", lambda *_, written=written, **__: [[Hypothesis(written, -1.0, -1.0, finished=True)]]
        )
        pieces, whole = list(translator.stream("I")), translator.predict("I", beams=1).text
        assert "".join(pieces) == whole
        assert len(pieces) > 10
        assert ("\ufffd" in whole) == (written is broken)


def test_an_answer_in_chinese_is_streamed_character_by_character(monkeypatch):
    translator = into_chinese()
    processor = translator.processor
    tokens = processor.target.encode("我看书,(好)(a)龘")
    assert processor.target.pieces(tokens)[-3:] == ["<0xE9>", "<0xBE>", "<0x98>"]
    monkeypatch.setattr(Search, "stream", lambda *_, **__: iter(tokens))
    assert list(translator.stream("I")) == ["我", "看", "书", "，", "（好", "）", "(a", ")", "龘"]
