"""The models that come with the package: what their cards say is so, and odd inputs do them no harm."""

import json

import pytest

import clearhead
import clearhead.shipped as shipped
from clearhead.tasks.segmentation import has_loop

SHORT = ["我", "好", "你好", "谢谢", "再见", "不", "3", "42", "2024", "3.14", "北京", "张伟", "王小明", "Tom", "Python"]
SIGNS = ["A", "?", "。", "！！！", "……", "<s>", "</s><pad>", "\u202eabc", "http://a.b/c?d=e&f=g"]
MIXED = ["😀", "👨‍👩‍👧‍👦", "我❤️你", "OK吗", "用 Python 写 code", "𠀀𠀁", "ᠮᠣᠩᠭᠣᠯ"]
AGAIN = [
    "啊啊啊啊啊啊啊啊啊啊啊啊啊啊啊啊",
    "哈哈哈哈哈哈哈哈",
    "aaaaaaaaaaaaaaaa",
    "11111111",
    "的的的的",
    "😀😀😀😀😀😀",
]


@pytest.fixture(scope="module", params=shipped.models())
def predictor(request):
    return clearhead.load(request.param, device="cpu")


def test_there_is_a_translator_from_chinese_to_english():
    assert "zh-en" in shipped.models()


def test_a_shipped_model_is_small(predictor):
    folder = shipped.model(predictor.name)
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 15 * 2**20


def test_its_scores_are_those_of_its_weights(predictor):
    folder = shipped.model(predictor.name)
    metrics = json.loads((folder / "metrics.json").read_text())
    rows = list(predictor.task.read(shipped.corpus("tatoeba-zh-en.dev")))[:200]
    scores = predictor.evaluate(rows)
    for name in ("bleu", "chrf"):  # another CPU may decide a near tie otherwise
        assert abs(scores[name] - metrics["dev_first_200"][name]) < 0.3


def test_short_and_odd_inputs_end_and_do_not_loop(predictor):
    inputs = SHORT + SIGNS + MIXED + AGAIN
    for text, found in zip(inputs, predictor.predict(inputs), strict=True):
        tokens = predictor.task.target.encode(found.text)
        assert text in AGAIN or not has_loop(tokens), (text, found.text)  # what repeats itself may be repeated
        assert len(tokens) <= 2 * len(predictor.task.source.encode(text)) + 12, (text, found.text)


def test_numbers_are_not_taken_for_loops(predictor):
    number, password = predictor.predict(["100000", "我的密码是11111111。"])
    assert number.text.replace(",", "") == "100000"
    assert "1111" in password.text  # how often is for the model to know
    assert not any("looped" in note for note in password.notes)  # that some of them are missing is noted


def test_empty_in_gives_empty_out(predictor):
    assert [found.text for found in predictor.predict(["", "  ", "\t", "\u3000"])] == [""] * 4


def test_a_long_paragraph_is_split_at_its_sentences_and_rejoined(predictor):
    sentence = "他昨天没有去学校，因为他病了。"
    paragraph = sentence * 134
    assert len(paragraph) > 2000
    found = predictor.predict(paragraph)
    assert "parts" in found.notes[0]
    assert found.text.count("school") > 100


def test_everyday_sentences_are_translated():
    model = clearhead.load("zh-en", device="cpu")
    love, book, traditional, date = (
        found.text for found in model.predict(["我爱你。", "这本书很有意思。", "這本書很有意思。", "2024年1月15日"])
    )
    assert love == "I love you."
    assert "book" in book
    assert "interesting" in book
    assert traditional == book, "both scripts are read"
    assert "15" in date
    assert "2024" in date


@pytest.mark.parametrize(
    ("text", "translation"),
    [
        ("你好", "Hello"),
        ("人工智能改变世界", "Artificial intelligence changes the world"),
        ("张伟是我的朋友。", "Zhang Wei is my friend."),
        ("2024年1月15日", "January 15, 2024"),
        ("test@example.com", "test@example.com"),
        ("1,234,567.89", "1,234,567.89"),
        ("今天天气真好😀", "The weather today is really nice 😀"),
        ("😀😀😀😀😀😀", "😀😀😀😀😀😀"),
        ("👨‍👩‍👧‍👦", "👨‍👩‍👧‍👦"),
        ("Good morning", "Good morning"),
        ("Привет мир", "Привет мир"),
    ],
)
def test_words_names_and_signs_alone_are_translated_or_carried_over(text, translation):
    assert clearhead.load("zh-en", device="cpu").predict(text).text == translation
