"""Texts of a million characters: the work for them is bounded or linear, and what is not read is said."""

import re

import pytest

from clearhead.errors import DataError
from clearhead.model import Encoder, ModelConfig
from clearhead.tasks import TASKS, segmentation, summarisation, text_windows
from clearhead.tasks.answerer import AnyAnswerer
from clearhead.tasks.answers.answer_settings import AnswerOptions
from clearhead.tasks.answers.answers_task import read_pairs
from clearhead.tasks.classification.classifier_answerer import ClassifierOptions
from clearhead.tasks.pretraining import mask_filling
from clearhead.tasks.segmentation import join_texts
from clearhead.text import Row, Tokenizer
from clearhead.train.recipe import Recipe, check_recipe

MILLION = ["a" * 10**6, "我" * 10**6, "cat dog " * 125_000, "😀" * 10**6]
KINDS = ["one letter", "Chinese", "words", "emoji"]
TEXTS = [f"{word} {other}" for word in ("cat", "dog", "cow") for other in ("runs", "sleeps", "eats", "sees us")]
CUT = "the text has 1,000,000 characters: only the first 600 were read"
WINDOWS = "longer than the 32 tokens that the model reads at once: the mean over "


def recipe_of(task: str, **sections: dict[str, object]) -> Recipe:
    values = {"data": {"train": "train.tsv"}, "text": {"vocabulary": 300}, "model": {"width": 20, "heads": 5}}
    return check_recipe({"task": task, **values, **sections}, "test")


def rows_of(*columns: list[str]) -> list[Row]:
    return [Row(values, "train.tsv", line) for line, values in enumerate(zip(*columns, strict=True), start=1)]


def make_answerer(recipe: Recipe, *columns: list[str]) -> AnyAnswerer:
    """An untrained model with its processor, which does not know how long texts of training were."""
    processor = recipe.kind.processor.prepare(rows_of(*columns), recipe)
    return recipe.kind.answerer(processor, processor.build().eval())


LABELS = [text.split()[0] for text in TEXTS]


@pytest.fixture
def read(monkeypatch):
    """Sets small limits; what was read: lengths of texts for the tokenizer, and shapes of batches for the encoder."""
    monkeypatch.setattr(text_windows, "MAX_CHARACTERS", 600)
    monkeypatch.setattr(text_windows, "READ_AT_ONCE", 32)
    characters, batches = list[int](), list[tuple[int, ...]]()
    encode_all, forward = Tokenizer.encode_all, Encoder.forward

    def encode_counted(tokenizer, texts):
        characters.extend(map(len, texts))
        return encode_all(tokenizer, texts)

    def forward_counted(encoder, tokens, **options):
        batches.append(tuple(tokens.shape))
        return forward(encoder, tokens, **options)

    monkeypatch.setattr(Tokenizer, "encode_all", encode_counted)
    monkeypatch.setattr(Encoder, "forward", forward_counted)
    return characters, batches


def assert_bounded(characters: list[int], batches: list[tuple[int, ...]]) -> None:
    assert max(characters) == 600
    assert max(size for _, size in batches) <= 32
    assert sum(rows * size for rows, size in batches) < 2 * 4 * 600, "four bytes a character, with overlap and ends"


@pytest.mark.parametrize("text", MILLION, ids=KINDS)
def test_a_classifier_reads_the_beginning_in_windows_and_says_so(read, text):
    [answer] = make_answerer(recipe_of("classification"), TEXTS, LABELS).predict([text], ClassifierOptions())
    assert_bounded(*read)
    assert answer.notes[0] == CUT
    assert WINDOWS in answer.notes[1]


@pytest.mark.parametrize("text", MILLION, ids=KINDS)
def test_a_question_is_read_as_far_as_a_text_of_a_classifier(read, text):
    answerer = make_answerer(recipe_of("answers"), TEXTS, LABELS)
    [answer] = answerer.predict([text], AnswerOptions())
    assert_bounded(*read)
    assert answer.notes == (CUT,)
    tracer = TASKS["answers"].tracer("answers", answerer)
    assert len(tracer.traces(text, answer=None, options=AnswerOptions())) > 1


def test_training_texts_are_read_at_once_however_long_they_may_be(read):
    long = "cat runs " * 30
    for task, options in (("classification", ClassifierOptions()), ("answers", AnswerOptions())):
        recipe = recipe_of(task, data={"train": "train.tsv", "longest": 70})
        answerer = make_answerer(recipe, TEXTS, LABELS)
        answerer.processor.configure(recipe)
        assert answerer.processor.settings["longest"] == 70
        assert 32 < len(answerer.processor.tokenizer.encode(long)) <= 70
        read[1].clear()
        [answer] = answerer.predict([long], options)
        assert (len(read[1]), list(answer.notes)) == (1, [])


def test_of_a_long_pair_each_text_is_cut_so_that_the_windows_are_few(read):
    answerer = make_answerer(recipe_of("classification"), TEXTS, TEXTS[::-1], LABELS)
    [answer] = answerer.predict([("cat " * 150, "dog " * 150)], ClassifierOptions())
    assert sum(rows for rows, _ in read[1]) == text_windows.PAIR_WINDOWS**2
    assert answer.notes[0] == "only the first 112 tokens of each text of the pair were read"


def test_a_model_whose_tokens_see_their_neighbours_reads_any_number_at_once():
    for model in ({"window": 8}, {"encoder_window": 8}):
        recipe = recipe_of("classification", model=model)
        assert text_windows.window_size(recipe.kind.processor.make_config(recipe, vocabulary=300)) > 10**9


def test_a_question_that_would_be_cut_is_not_added():
    with pytest.raises(
        DataError, match=r"the question has 1,000,000 characters, more than 100,000; .*nothing was added"
    ):
        read_pairs([MILLION[0], "b"])
    with pytest.raises(DataError, match="the answer has 100,001 characters"):
        read_pairs(["b", "a" * 100_001])


def test_a_text_with_masks_is_refused_beyond_what_is_read_at_once():
    tokenizer = Tokenizer.train(TEXTS, vocabulary=300, mask=True)
    encoder = Encoder(ModelConfig.named("tiny", vocabulary=tokenizer.size, width=20, heads=5))
    fill = {"model": encoder, "tokenizer": tokenizer, "mask": tokenizer.mask, "limit": 32, "best": 1, "most": 8}
    with pytest.raises(DataError, match="a text of 40 tokens is longer than the 32 that the model reads at once"):
        mask_filling.fill_masks(texts=["<mask> " + "9" * 37], **fill)
    [plain] = mask_filling.fill_masks(texts=[MILLION[2]], **fill)
    assert plain.notes == ["the text has no <mask> to fill"]


def test_a_text_to_summarise_is_refused_beyond_what_is_read_at_once(monkeypatch):
    monkeypatch.setattr(summarisation, "MAX_SOURCE_TOKENS", 40)
    model = {"width": 20, "heads": 5, "encoder_window": 8}
    for changes, fits in (({}, False), ({"model": model}, True)):
        answerer = make_answerer(recipe_of("summarisation", **changes), TEXTS, LABELS)
        request = answerer.begin(answerer.options())
        assert len(request.split("9" * 40)[0]) == 40
        if fits:
            assert len(request.split("9" * 41)[0]) == 41
        else:
            with pytest.raises(DataError, match=r"'9{40}'… has 41 tokens, .*at most 40 are read at once"):
                request.split("9" * 41)


@pytest.mark.parametrize("task", [{"task": "translation"}, {"task": "pretraining", "objective": "denoise"}], ids=str)
def test_a_text_that_would_be_written_in_thousands_of_parts_is_refused_before(task):
    recipe = recipe_of(task["task"], **{key: value for key, value in task.items() if key != "task"})
    answerer = make_answerer(recipe, *([TEXTS] if recipe.kind.name == "pretraining" else [TEXTS, LABELS]))
    request = answerer.begin(answerer.options())
    assert len(request.split("cat dog " * 1000)) > 1
    with pytest.raises(DataError, match=r"'cat dog .*'… has 1,000,000 characters, more than 100,000; give it as"):
        request.split(MILLION[2])


def test_joining_the_parts_of_an_answer_looks_at_ends_alone(monkeypatch):
    searched = list[int]()

    class Counted:
        def match(self, text: str) -> re.Match[str] | None:
            searched.append(len(text))
            return re.match(r"[\u3000-\u9fff]", text)

    monkeypatch.setattr(segmentation, "WIDE_MARK", Counted())
    assert join_texts(["你好。"] * 100) == "你好。" * 100
    assert searched == [1] * 99
