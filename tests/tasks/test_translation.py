"""The translation task as its user meets it: texts in, texts out, whatever the texts are."""

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch

import clearhead
from clearhead.decode import Hypothesis
from clearhead.errors import CheckpointError, ConfigError, DataError
from clearhead.model import EncoderDecoder
from clearhead.predictor import Predictor
from clearhead.tasks.segmentation import has_loop
from clearhead.tasks.sequence_to_sequence.generation import GeneratedText
from clearhead.tasks.sequence_to_sequence.search import PartNumber
from clearhead.tasks.sequence_to_sequence.text_to_text import PairExamples
from clearhead.tasks.translation import (
    TASK,
    TranslationAnswerer,
    TranslationGeneration,
    TranslationProcessor,
    TranslationSettings,
    find_lost_numbers,
)
from clearhead.text import Report, Row
from clearhead.text.batches import Batch
from tests.tasks.translators import learned, options, prepared, recipe_of, rows_of, untrained, write
from tests.train.corpus import WORDS, sentences


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    """What a user has: a folder, loaded."""
    return clearhead.load(
        write(tmp_path_factory.mktemp("models") / "toy", learned().processor, learned().model), device="cpu"
    )


def texts(count: int, seed: int = 11) -> list[str]:
    return [chinese for chinese, _ in sentences(count, seed)]


# answers


def test_it_has_learned_the_language(translator):
    assert translator.predict("我爱你").text == "I love you"


def test_answers_come_in_the_order_of_the_inputs(translator):
    words = list(WORDS) * 3
    assert [answer.text for answer in translator.predict(words, batch=4)] == list(WORDS.values()) * 3


def test_nothing_in_nothing_out(translator):
    for nothing in ("", " ", " \n\t\u3000\u200b "):
        assert translator.predict(nothing) == GeneratedText("", [], None, [])
    assert translator.predict([]) == []
    assert [answer.text for answer in translator.predict(["", "我", "  ", "你", ""])] == ["", "I", "", "you", ""]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character"])
def test_nothing_is_nothing_to_every_kind_of_tokenizer(kind):
    processor = prepared(sentences(50), {"tokenizer": kind})
    answerer = TranslationAnswerer(processor, untrained(processor))
    assert answerer.predict(["", "  ", "\n"], options()) == [GeneratedText("", [], None, [])] * 3


@pytest.mark.parametrize("beams", [1, 5])
def test_batched_equals_single(translator, beams):
    answerer = TranslationAnswerer(translator.processor, copy.deepcopy(translator.model).double())
    inputs = [*texts(13), "我" * 30, "Hello, 世界 123!", ""]
    together = answerer.predict(inputs, options(beams=beams, best=beams))
    for batch in (1, 5):
        alone = answerer.predict(inputs, options(beams=beams, best=beams, batch=batch))
        for one, other in zip(together, alone, strict=True):
            assert one.text == other.text
            assert [text for text, _ in one.alternatives] == [text for text, _ in other.alternatives]
            assert one.score == pytest.approx(other.score, abs=1e-12)


def test_the_best_come_best_first_and_differ(translator):
    (answer,) = translator.predict(["我爱你看书"], beams=5, best=4)
    scores = [answer.score, *(score for _, score in answer.alternatives)]
    assert len(scores) == 4
    assert all(better >= worse for better, worse in pairwise(scores))
    assert len({answer.text, *(text for text, _ in answer.alternatives)}) == 4
    assert translator.predict("我爱你看书").alternatives == []


def test_a_score_is_the_mean_log_probability_of_a_word_with_the_end(translator):
    processor, model = translator.processor, translator.model
    answer = translator.predict("我爱", beams=1)
    source = torch.tensor([[*processor.source.encode("我爱"), processor.source.end]])
    written = [*processor.target.encode(answer.text), processor.target.end]
    read = torch.tensor([[processor.target.start, *written[:-1]]])
    with torch.no_grad():
        chances = model.logits(model(source, read)).log_softmax(-1)[0]
    assert answer.score == pytest.approx(float(chances[range(len(written)), written].mean()), abs=1e-5)


def test_the_recipe_gives_the_defaults(translator):
    processor, model, inputs = translator.processor, translator.model, texts(7)
    parts = processor.source, processor.target, processor.config
    changed = TranslationProcessor(*parts, TranslationSettings(beam=3, length_penalty=0.5))
    wanted = translator.answerer.predict(inputs, options(beams=3, length_penalty=0.5, best=2))
    assert TranslationAnswerer(changed, model).predict(inputs, options(best=2)) == wanted
    other = TranslationProcessor(*parts, TranslationSettings(beam=3, length_penalty=-9.0))
    assert TranslationAnswerer(other, model).predict(inputs, options(best=2)) != wanted


# options


def test_an_unknown_option_is_refused_with_the_nearest_name(translator):
    with pytest.raises(ConfigError, match="predict has no option 'beam'; did you mean 'beams'"):
        translator.predict("我", beam=3)
    with pytest.raises(ConfigError, match="predict has no option 'x'; choose from batch, beams, length_penalty, "):
        translator.predict("我", x=0.5)
    with pytest.raises(ConfigError, match="evaluate has no option 'temperature'"):
        translator.evaluate([("我", "I")], temperature=0.5)
    with pytest.raises(ConfigError, match="predict has no option 'lowercase'"):
        translator.predict("我", lowercase=True)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"best": 6}, "best=6 is not possible with 5 beams; choose at most 5"),
        ({"best": 3, "beams": 2}, "best=3 is not possible with 2 beams"),
        ({"best": 2, "beams": 1}, "best=2 is not possible with 1 beams"),
        ({"best": 0}, "predict: best: should be greater than or equal to 1, got 0"),
        ({"beams": 0}, "predict: beams: should be greater than or equal to 1, got 0"),
        ({"batch": 0}, "predict: batch: should be greater than or equal to 1, got 0"),
        ({"batch": -1}, "predict: batch: should be greater than or equal to 1, got -1"),
        ({"length_penalty": float("nan")}, "predict: length_penalty: should be a finite number, got nan"),
    ],
)
def test_options_that_make_no_sense_are_refused(translator, wrong, said):
    with pytest.raises(ConfigError, match=said):
        translator.predict("我", **wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"beams": 2.5}, r"beams: should be a valid integer, got 2\.5"),
        ({"beams": "3"}, "beams: should be a valid integer, got '3'"),
        ({"best": True}, "best: should be a valid integer, got True"),
        ({"batch": "many"}, "batch: should be a valid integer, got 'many'"),
        ({"length_penalty": "x"}, "length_penalty: should be a valid number, got 'x'"),
        ({"length_penalty": [1]}, r"length_penalty: should be a valid number, got \[1\]"),
    ],
)
def test_options_of_another_kind_are_refused(translator, wrong, said):
    with pytest.raises(ConfigError, match=f"^predict: {said}$"):
        translator.predict("我", **wrong)
    if "best" not in wrong:
        with pytest.raises(ConfigError, match=f"^evaluate: {said}$"):
            translator.evaluate([("我", "I")], **wrong)
        with pytest.raises(ConfigError, match=f"^look: {said}$"):
            translator.look("我", **wrong)


def test_numbers_of_numpy_are_numbers(translator):
    assert translator.predict("我", beams=np.int64(2), length_penalty=np.float32(1)).text == "I"


def test_numbers_that_the_translation_lost_are_noted(translator, monkeypatch):
    monkeypatch.setattr(TranslationGeneration, "decode_text", lambda *_: "I see 1,234,560 books")
    text = "我看1,234,567书，345书"
    note = "numbers of the text are missing in the translation: 1,234,567"
    assert translator.predict(text).notes[-1] == note
    assert translator.look(text).calls[0].about.notes[-1] == note
    assert not any("numbers" in note for note in translator.predict("我看1234560书").notes)
    long = translator.predict("我看" + 20 * "1234567890").notes
    assert long[-1].endswith(f"missing in the translation: {6 * '1234567890'}…")


@pytest.mark.parametrize(
    ("text", "translation", "lost"),
    [
        ("2000年", "the year 20000", []),
        ("１９９８年有365天，365天！", "A year has its days.", ["1998", "365"]),
        ("圆周率是3.14159", "Pi is 3.14195", ["14159"]),
        ("1,234,567", "1.234.567", []),
        ("1,234,567", "1 234 567", []),
        ("12345", "12,345", []),
        ("150万人，25岁，23:59，2024年12月31日", "1.5 million, twenty-five, 11:59 p.m., December 31, 2024", []),
    ],
)
def test_only_numbers_that_are_written_in_digits_can_be_lost(text, translation, lost):
    assert find_lost_numbers(text, translation) == lost


def test_bytes_that_are_no_character_are_one_sign_and_noted(translator, monkeypatch):
    processor, search = translator.processor, TranslationGeneration.search_parts
    cut = [*processor.target.encode("I"), *processor.target.encode("\U00020000")[:-1]]  # three bytes of four

    def broken(*args):
        return [[one._replace(tokens=cut) for one in found] for found in search(*args)]

    note = "the model wrote bytes that are no character, shown as \ufffd"
    monkeypatch.setattr(TranslationGeneration, "search_parts", broken)
    answer = translator.predict("我")
    assert (answer.text, answer.notes) == ("I\ufffd", [note])
    assert translator.look("我").calls[0].about.notes == [note]
    assert translator.predict("我\ufffd").notes == [], "it stood in the text"


@pytest.mark.unchecked
def test_what_is_no_text_is_refused(translator):
    for wrong in (None, 5, b"I", {"text": "我"}):
        with pytest.raises(DataError, match="expected an input or a list of inputs, got"):
            translator.predict(wrong)
    with pytest.raises(DataError, match="input 2 must be a text, got 7"):
        translator.predict(["我", 7])
    with pytest.raises(ConfigError, match="evaluate: lowercase: should be a valid boolean, got 'no'"):
        translator.evaluate([("我", "I")], lowercase="no")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"beam": 0}, "decode.beam: should be greater than or equal to 1, got 0"),
        ({"beam": "five"}, "decode.beam: should be a valid integer, got 'five'"),
        ({"beam": True}, "decode.beam: should be a valid integer, got True"),
        ({"part": 2.5}, r"decode.part: should be a valid integer, got 2\.5"),
        ({"sentences": 0}, "decode.sentences: should be greater than or equal to 1, got 0"),
        ({"length_penalty": "long"}, "decode.length_penalty: should be a valid number, got 'long'"),
        ({"bleu_tokenizer": "13b"}, "decode.bleu_tokenizer: should be '13a', .* or 'none', got '13b'"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_training(settings, said):
    with pytest.raises(ConfigError, match=said):
        prepared(sentences(50), **settings)


# rough input


@pytest.mark.parametrize(
    "text",
    [
        "😀👍🏽👩‍👩‍👧",
        "Hello 世界 мир ไทย العربية",
        "3.14159 ２０２６年 -5 1,000,000",
        "a",
        "。",
        "??!!",
        "A. Lincoln (1809–1865)",
        "[red]我[/red] <script>",
        "line\nbreak\r\n\x00\x07\x1b[31m",
        "\ud83d half a character",
        "我" * 2000,
    ],
)
@pytest.mark.parametrize("beams", [1, 5])
def test_any_text_gets_an_answer_that_does_not_loop(translator, text, beams):
    answer = translator.predict(text, beams=beams)
    assert answer.score <= 0
    if len(answer.notes) == 0:  # one part
        assert not has_loop(translator.processor.target.encode(answer.text))


def test_marks_of_the_tokenizer_are_only_text_when_a_user_types_them(translator):
    tokenizer = translator.processor.source
    for mark in ("<pad>", "<s>", "</s>"):
        tokens = tokenizer.encode(f"我{mark}爱")
        assert min(tokens) > tokenizer.end
        assert tokenizer.decode(tokens) == f"我{mark}爱"
    # If </s> were the end, the rest would not be read.
    assert translator.predict("我</s>爱看书") != translator.predict("我</s>")
    assert translator.predict("<pad>").score is not None, "not nothing"


# long input


def test_a_long_text_is_split_at_its_sentences_and_the_answers_are_joined(translator, monkeypatch):
    monkeypatch.setattr(translator.processor, "stored", translator.processor.stored.model_copy(update={"part": 12}))
    pieces = ["我爱你看书。", "你看他吃鱼。", "他爱水。"]
    whole = translator.predict("".join(pieces))
    assert whole.text == " ".join(answer.text for answer in translator.predict(pieces))
    assert whole.notes == ["the translation was written in 3 parts"]
    assert translator.predict(pieces[0]).notes == []


def test_many_sentences_are_split_though_they_are_short(translator):
    pieces = ["我爱你看书。", "你看他吃鱼。", "他爱水看你。", "你吃鱼爱我。"]
    few, many = translator.predict(["".join(pieces[:3]), "".join(pieces)])
    assert few.notes == []
    assert many.notes == ["the translation was written in 4 parts"]
    assert many.text == " ".join(answer.text for answer in translator.predict(pieces))


def test_a_paragraph_of_two_thousand_characters_is_read_to_its_end(translator):
    paragraph = "".join(f"{chinese}。" for chinese in texts(600))[:2000]
    parts = translator.answerer.begin(options()).split(paragraph)
    assert max(map(len, parts)) <= 64
    assert "".join(map(translator.processor.source.decode, parts)) == paragraph
    answer = translator.predict(paragraph)
    assert answer.text
    assert answer.notes[0] == f"the translation was written in {len(parts)} parts"


def test_a_long_input_has_no_alternatives_and_says_so(translator):
    answer = translator.predict("我爱你看书。" * 20, best=3)
    assert answer.alternatives == []
    assert "no alternatives" in answer.notes[0]


# loops and cuts


def spoiled(processor: TranslationProcessor, model: EncoderDecoder, *liked: int) -> EncoderDecoder:
    """A model that wants to write the first of these tokens for ever, else the second, and so on."""
    model = copy.deepcopy(model)
    last = model.decoder.final_norm
    with torch.no_grad():
        scores = torch.zeros(processor.target.size, dtype=torch.float64)
        scores[list(liked)] = torch.arange(len(liked), 0, -1).double() * 5
        words = model.vocabulary.output_weight.double()
        # The hidden state that gives the wanted scores as nearly as it can, whatever is read.
        hidden = torch.linalg.lstsq(words[list(liked)], scores[list(liked)][:, None]).solution[:, 0]
        last.weight.zero_()
        last.bias.copy_(hidden)
    return model


def test_an_answer_that_loops_is_written_anew(translator):
    processor = translator.processor
    (love,) = processor.target.encode("love")
    model = spoiled(processor, translator.model, love, processor.target.end)
    for beams in (1, 3):
        request = TranslationGeneration(processor, model, options(beams=beams, batch=1, length_penalty=0.0))
        (found,) = request.search_parts([processor.source.encode("我看书")], request.search, [[]], [PartNumber(0)])
        looping = has_loop(found[0].tokens)
        answerer = TranslationAnswerer(processor, model)
        (answer,) = answerer.predict(["我看书"], options(beams=beams, length_penalty=0.0))
        assert not has_loop(processor.target.encode(answer.text))
        if beams == 1:
            assert looping, "else this tests nothing"
            assert answer.text == "love love love"


def test_only_what_loops_is_written_anew(translator, monkeypatch):
    search, calls = TranslationGeneration.search_parts, []

    def second_loops(self, pieces, how, prefixes, numbers):
        calls.append((len(pieces), how.no_repeat_ngram))
        found = search(self, pieces, how, prefixes, numbers)
        if how.no_repeat_ngram == 0 and pieces:
            found[1] = [found[1][0]._replace(tokens=[300] * 9)]
        return found

    wanted = [answer.text for answer in translator.predict(["我", "你爱", "他"])]
    monkeypatch.setattr(TranslationGeneration, "search_parts", second_loops)
    answers = translator.predict(["我", "你爱", "他"])
    assert [answer.text for answer in answers] == wanted
    assert calls == [(3, 0), (0, 0), (1, 3)]
    anew = "the translation looped; retried without repeated trigrams"
    assert [list(answer.notes) for answer in answers] == [[], [anew], []]


def test_what_a_text_repeats_is_shortened_if_the_answer_loops(translator, monkeypatch):
    processor, search = translator.processor, TranslationGeneration.search_parts
    short, long = ([*processor.source.encode("我"), *processor.source.encode("爱") * times] for times in (3, 40))
    monkeypatch.setattr(TranslationGeneration, "split", lambda _, text: [long if text == "long" else short])

    def never_ending(self, pieces, how, prefixes, numbers):
        found = search(self, pieces, how, prefixes, numbers)
        return [
            [one[0]._replace(tokens=[300] * 90, finished=False)] if piece == long else one
            for piece, one in zip(pieces, found, strict=True)
        ]

    wanted = translator.predict("short").text
    monkeypatch.setattr(TranslationGeneration, "search_parts", never_ending)
    answer = translator.predict("long")
    assert answer.text == wanted
    assert list(answer.notes) == ["the translation looped; retried with repeated input cut to three"]
    (trace,) = translator.tracer.traces("long", answer=None, options=options())
    assert trace.reads["source"] == [*short, processor.source.end]


def test_what_has_a_reason_to_repeat_itself_may(translator):
    processor, request = translator.processor, translator.answerer.begin(options())
    fish, digits = processor.target.encode("fish"), processor.target.encode("1000000")
    assert request.has_looped(Hypothesis(fish * 4, -1.0, -1.0, True), processor.source.encode("鱼"))
    assert not request.has_looped(Hypothesis(fish * 4, -1.0, -1.0, True), processor.source.encode("鱼鱼鱼鱼"))
    assert request.has_looped(Hypothesis(fish * 30, -1.0, -1.0, True), processor.source.encode("鱼鱼鱼鱼"))
    assert not request.has_looped(Hypothesis(digits, -1.0, -1.0, True), processor.source.encode("一百万"))
    assert request.has_looped(Hypothesis(digits, -1.0, -1.0, False), processor.source.encode("一百万")), (
        "it never ended"
    )


def test_an_answer_that_never_ends_is_cut_off_and_says_so(translator):
    processor = translator.processor
    several = [number for word in ("love", "fish", "water") for number in processor.target.encode(word)]
    model = spoiled(processor, translator.model, *several)
    (answer,) = TranslationAnswerer(processor, model).predict(["我爱书"], options(beams=1))
    assert answer.notes[-1] == "the translation was cut off at its longest length"
    # Twice the source with its end, and ten more.
    assert len(processor.target.encode(answer.text)) <= 2 * (len(processor.source.encode("我爱书")) + 1) + 10


def test_a_model_that_writes_nothing_says_so(translator):
    processor = translator.processor
    model = spoiled(processor, translator.model, processor.target.end)
    inputs = ["我爱书", "我爱你看书。" * 5, ""]
    (one, many, empty) = TranslationAnswerer(processor, model).predict(inputs, options(beams=1))
    assert one.text == many.text == empty.text == ""
    assert one.notes == ["the model wrote nothing"]
    assert many.notes == ["the translation was written in 5 parts", "the model wrote nothing for 5 of the parts"]
    assert empty.notes == [], "nothing was asked"


# folders


@pytest.mark.parametrize("shared", [True, False])
def test_a_saved_translator_answers_as_before(tmp_path, shared):
    processor = prepared(sentences(60), {"shared": shared, "script": "simplified"}, beam=3, part=20)
    assert (processor.source is processor.target) == shared
    model = untrained(processor)
    loaded = clearhead.load(write(tmp_path / "model", processor, model), device="cpu")
    inputs = [*texts(11), "愛" * 40, "", "😀"]
    assert loaded.predict(inputs, best=2) == TranslationAnswerer(processor, model).predict(inputs, options(best=2))
    assert (loaded.processor.source is loaded.processor.target) == shared
    assert loaded.processor.settings == processor.settings
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert ("tokenizer.json" in names) == shared
    assert ({"source-tokenizer.json", "target-tokenizer.json"} <= names) != shared


def test_sides_of_their_own_have_sizes_of_their_own():
    processor = prepared(sentences(60), {"shared": False, "vocabulary": 310, "source_vocabulary": 305})
    assert processor.config.vocabulary == processor.target.size
    assert processor.config.source_vocabulary == processor.source.size
    assert processor.source.size != processor.target.size


@pytest.mark.parametrize("wrong", [{"beam": "x"}, {"part": None}, {"bleu_tokenizer": "13b"}])
def test_settings_of_a_folder_that_make_no_sense_are_refused(tmp_path, wrong):
    processor = prepared(sentences(60))
    processor.save(tmp_path)
    with pytest.raises(CheckpointError, match=f"are damaged: {next(iter(wrong))}"):
        TranslationProcessor.load(tmp_path, processor.config, {**processor.settings, **wrong})


# examples


def report_of(
    processor: TranslationProcessor, pairs: list[tuple[str, str]], **limits: float
) -> tuple[PairExamples, Report]:
    report = Report()
    recipe = recipe_of(data={"train": "corpus.tsv", **limits})
    return processor.examples(rows_of(pairs, "data/corpus.tsv"), report, recipe), report


def test_dropped_pairs_are_reported_with_their_reasons(translator):
    pairs = [
        ("我", "I"),
        ("", "I"),
        ("我", " \u3000"),
        ("我" * 21, "I " * 5),
        ("我", "I " * 12),
        ("我", "I " * 10),
        ("我爱", "I love"),
    ]
    examples, report = report_of(translator.processor, pairs, longest=20, ratio=6.0)
    assert str(report) == (
        "kept 3 of 7; dropped 2 with an empty side (corpus.tsv:2, :3), 1 longer than 20 tokens (corpus.tsv:4), "
        "1 with sides that differ more than 6 times in length (corpus.tsv:5)"
    )
    assert [examples.where(place) for place in range(3)] == [f"data/corpus.tsv:{line}" for line in (1, 6, 7)]


def test_limits_are_inclusive_and_may_be_off(translator):
    examples, report = report_of(translator.processor, [("我" * 20, "I"), ("我", "I " * 20)], longest=20, ratio=0)
    assert (len(examples), report.dropped) == (2, {})
    examples, report = report_of(translator.processor, [("我" * 2, "I " * 12)], longest=20, ratio=6.0)
    assert report.dropped == {}


def test_a_corpus_of_which_nothing_is_left_is_refused(translator):
    with pytest.raises(DataError, match=r"no pair is left to use: kept 0 of 2; dropped 2 with an empty side"):
        report_of(translator.processor, [("", "I"), ("我", "")])


def test_a_batch_is_what_one_writes_down_by_hand():
    start, end, pad = 1, 2, 0
    sources, targets = [[7, 8, end], [9, end], [5, 6, 7, end]], [[start, 3, end], [start, 4, 5, 6, end], [start, end]]
    examples = PairExamples(sources, targets, [Row(("", ""), "file.tsv", line) for line in (1, 2, 5)], pad)
    assert examples.lengths.tolist() == [[3, 2], [2, 4], [4, 1]]
    assert examples.counts.tolist() == [2, 4, 1]
    batch = examples.collate(Batch(np.array([1, 0]), (4, 5)))
    assert batch.source.tolist() == [[9, 2, 0, 0], [7, 8, 2, 0]]
    assert batch.lengths.tolist() == [2, 3]
    assert batch.target.tolist() == [[1, 4, 5, 6, 2], [1, 3, 2, 0, 0]]
    assert batch.labels.tolist() == [[4, 5, 6, 2, -100], [3, 2, -100, -100, -100]]
    assert (batch.labels != -100).sum(1).tolist() == examples.counts[[1, 0]].tolist()


def test_the_loss_is_the_sum_over_all_words_that_count(translator):
    processor, model = translator.processor, translator.model
    pairs = sentences(5, seed=8)
    examples = processor.examples(rows_of(pairs), Report())
    sizes = tuple(int(size) + 3 for size in examples.lengths.max(0))
    with torch.no_grad():
        objective = TASK.objective(processor, recipe_of())
        together = objective.loss(model, examples.collate(Batch(np.arange(5), sizes)))
        chances = torch.zeros(())
        for chinese, english in pairs:
            source = torch.tensor([[*processor.source.encode(chinese), processor.source.end]])
            written = [*processor.target.encode(english), processor.target.end]
            hidden = model(source, torch.tensor([[processor.target.start, *written[:-1]]]))
            chances += model.logits(hidden).log_softmax(-1)[0, range(len(written)), written].sum()
    torch.testing.assert_close(together, -chances, rtol=1e-5, atol=1e-5)


def test_columns_without_one_of_the_two_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="columns must name target; they name source"):
        list(TranslationProcessor.read(tmp_path / "x.tsv", ["source"]))
