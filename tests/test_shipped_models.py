"""The models that come with the package: what their cards say is so, and odd inputs do them no harm."""

import json
import sys
from pathlib import Path

import pytest
import torch

import clearhead
import clearhead.shipped as shipped
from clearhead.tasks.segmentation import has_loop

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from poems import find_shared, has_right_form

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


LARGEST = {"zh-en": 15, "poems-zh": 3, "encoder-zh": 7}  # MiB


@pytest.fixture(scope="module")
def predictor():
    return clearhead.load("zh-en", device="cpu")


@pytest.mark.parametrize("name", shipped.models())
def test_a_shipped_model_is_small(name):
    assert sum(path.stat().st_size for path in shipped.model(name).iterdir()) <= LARGEST[name] * 2**20


def test_its_scores_are_those_of_its_weights(predictor):
    folder = shipped.model(predictor.name)
    metrics = json.loads((folder / "metrics.json").read_text())
    rows = list(predictor.processor.read(shipped.corpus("tatoeba-zh-en.dev")))[:200]
    scores = predictor.evaluate(rows)
    for name in ("bleu", "chrf"):  # another CPU may decide a near tie otherwise
        assert abs(scores[name] - metrics["dev_first_200"][name]) < 0.3


def test_short_and_odd_inputs_end_and_do_not_loop(predictor):
    inputs = SHORT + SIGNS + MIXED + AGAIN
    for text, found in zip(inputs, predictor.predict(inputs), strict=True):
        tokens = predictor.processor.target.encode(found.text)
        assert text in AGAIN or not has_loop(tokens), (text, found.text)  # what repeats itself may be repeated
        assert len(tokens) <= 2 * len(predictor.processor.source.encode(text)) + 12, (text, found.text)


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


@pytest.fixture(scope="module")
def poet():
    if "poems-zh" not in shipped.models():
        pytest.skip("the model poems-zh is not in this tree: models/poems-zh/recipe.toml trains it")
    return clearhead.load("poems-zh", device="cpu")


def test_the_poet_keeps_the_form_whatever_the_title(poet):
    titles = [
        "秋日登高",
        "春晓",
        "送友人",
        "望月怀远",
        "早春",
        "江雪",
        "夜泊",
        "题壁",
        "雨后",
        "寄远人",
        "人工智能",
        "a",
    ]
    poems = [found.text for found in poet.predict(titles, seed=3)]
    assert sum(map(has_right_form, poems)) >= 10
    assert len(set(poems)) == len(poems)
    assert poems == [found.text for found in poet.predict(titles, seed=3)]


def test_the_poet_reads_traditional_characters(poet):
    assert poet.predict("江樓晚望").text == poet.predict("江楼晚望").text


def test_the_poet_reads_a_title_of_several_lines_as_one(poet):
    wanted = poet.predict("秋日登高", longest=16).text
    for title in ("秋日\n登高", " 秋日\r\n\r\n登高\n", "\n秋日登高", "秋日\u2028登高"):
        assert poet.predict(title, longest=16).text == wanted


def test_the_poet_reads_and_writes_no_rare_variants(poet):
    assert poet.predict("聞鴈", longest=16).text == poet.predict("闻雁", longest=16).text
    known = {token: number for token, number in poet.processor.tokenizer.engine.get_vocab().items() if len(token) == 1}
    assert poet.processor.tokenizer.decode([known["鴈"], known["劒"], known["雁"]]) == "雁剑雁"


@pytest.mark.parametrize(
    ("poem", "right"),
    [
        ("床前明月光，疑是地上霜。举头望明月，低头思故乡。", True),
        ("床前明月光，疑是地上霜。", False),
        ("床前明月光，疑是地上霜。举头望明月，低头思故乡", False),
        ("床前明月光。疑是地上霜，举头望明月。低头思故乡，", False),
        ("床前明月光，疑是地上霜。举头望明月，低头a故乡。", False),
        ("床前明月光，疑是地上霜。举头望明月明月，低头思故乡故乡。", False),
        ("朝辞白帝彩云间，千里江陵一日还。两岸猿声啼不住，轻舟已过万重山。", True),
    ],
)
def test_the_form_of_a_poem(poem, right):
    assert has_right_form(poem) == right


def test_ten_characters_in_a_row_are_found_with_and_without_punctuation():
    training = ["静夜思\n床前明月光，疑是地上霜。举头望明月，低头思故乡。"]
    poems = [
        "窗前明月光，疑是地上霜。",
        "床前明月光，疑是地下霜。",
        "山前明月光，疑是地下霜。",
        "床前明月。光疑是地上霜，",
    ]
    assert [run is not None for run in find_shared(poems, training)] == [True, False, False, True]


def test_the_chinese_encoder_fills_gaps_and_its_vectors_know_what_texts_are_about():
    encoder = clearhead.load("encoder-zh", device="cpu")
    assert encoder.predict("请重新启动你的电<mask>。").text == "请重新启动你的电脑。"
    processor, texts = encoder.processor, ["这个手机的电池不耐用", "手机充电太慢了", "球队昨晚赢了比赛"]
    vectors = []
    for tokens in processor.tokenizer.encode_all(texts):
        padded = torch.tensor([[processor.tokenizer.start, *tokens, processor.tokenizer.end]])
        with torch.no_grad():
            vectors.append(encoder.model(padded).mean(1)[0])
    similar = [float(torch.cosine_similarity(vectors[0], other, dim=0)) for other in vectors[1:]]
    assert similar[0] > similar[1] + 0.1, similar
