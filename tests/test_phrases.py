"""What zh-en is trained on beside its corpora: clean, different from each other, and nothing of it in dev."""

import gzip
import hashlib
import importlib
import re
import sys
import unicodedata
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from clearhead import shipped
from clearhead.text import read
from clearhead.text.chinese import load_converter

ROOT = Path(__file__).parents[1] / "models" / "zh-en"
HAN = re.compile(r"[\u3400-\u9fff]")
MARKUP = re.compile(r"[<>{}\\\[\]|*_`]|&\w+;|https?:|  ")
STOPS = tuple("。！？.!?")


FILES = ("phrases.tsv", "headlines.tsv")
CORPUS = [
    ("我饿了。", "I'm hungry."),
    ("你呢？", "And you?"),
    ("走吧！", "Let's go!"),
    ("他来了。好！", "He came. Good!"),
]


@pytest.fixture(scope="module", params=FILES)
def phrases(request):
    return [row.values for row in read(ROOT / request.param, ["chinese", "english"])]


@pytest.fixture(scope="module")
def prepare():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        yield importlib.import_module("prepare")
    for name in ("prepare", "copied"):
        del sys.modules[name]


@pytest.fixture(scope="module")
def copied(prepare):
    return sys.modules["copied"]


@pytest.mark.parametrize(("name", "least"), [("phrases.tsv", 2500), ("headlines.tsv", 300)])
def test_every_line_has_two_columns_and_nothing_is_empty(name, least):
    lines = (ROOT / name).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    assert len(lines) >= least
    for line in lines:
        columns = line.split("\t")
        assert len(columns) == 2, line
        assert all(columns), line
        assert columns == [column.strip() for column in columns], line


def test_no_chinese_stands_twice():
    counts = Counter(row.values[0] for name in FILES for row in read(ROOT / name, ["chinese", "english"]))
    assert not [chinese for chinese, count in counts.items() if count > 1]


def test_there_is_no_markup_and_nothing_invisible(phrases):
    for text in (text for pair in phrases for text in pair):
        assert not MARKUP.search(text), text
        assert all(unicodedata.category(character)[0] != "C" for character in text), text


def test_chinese_is_on_the_left_in_simplified_characters_and_english_on_the_right(phrases):
    convert = load_converter("simplified").convert
    for chinese, english in phrases:
        assert HAN.search(chinese), chinese
        assert convert(chinese) == chinese, chinese
        assert not HAN.search(english), english
        assert all(unicodedata.name(letter).startswith("LATIN") for letter in english if letter.isalpha()), english


def test_a_phrase_ends_alike_on_both_sides_and_a_sentence_begins_with_a_capital(phrases):
    for chinese, english in phrases:
        assert chinese.endswith(STOPS) == english.endswith(STOPS), (chinese, english)
        assert not chinese.endswith(STOPS) or not english[0].islower(), (chinese, english)


def test_the_shipped_corpus_is_this_file():
    packed = shipped.corpus("phrases-zh-en")
    data = (ROOT / "phrases.tsv").read_bytes()
    assert gzip.decompress(packed.read_bytes()) == data
    assert packed.read_bytes()[4:8] == bytes(4), "the time of packing is left out, so that equal data give equal bytes"
    assert hashlib.sha256(data).hexdigest() in (packed.parent / "README.md").read_text(encoding="utf-8")


def test_no_phrase_is_in_dev(phrases):
    convert = load_converter("simplified").convert

    def key(text):
        return "".join(character for character in convert(text) if unicodedata.category(character)[0] in "LN")

    dev = {key(row.values[0]) for row in read(shipped.corpus("tatoeba-zh-en.dev"), ["chinese"])}
    assert key("這很貴！") == key("这很贵")
    assert not [chinese for chinese, _ in phrases if key(chinese) in dev]


def test_terms_are_learned_in_many_sentences():
    phrases = [row.values for row in read(ROOT / "phrases.tsv", ["chinese", "english"])]
    for term in ("人工智能", "机器学习", "深度学习", "神经网络", "注意力", "机器翻译", "语言模型", "数据集"):
        assert sum(term in chinese for chinese, _ in phrases) >= 5, term


def test_the_demo_is_in_none(phrases):
    assert not [chinese for chinese, _ in phrases if chinese.rstrip("。！") == "人工智能改变世界"]


def test_every_blank_of_a_template_is_known_and_stands_on_both_sides(copied):
    used = set()
    for row in read(ROOT / "templates.tsv", ["chinese", "english"]):
        chinese, english = (set(copied.BLANK.findall(side)) for side in row.values)
        assert chinese, row
        assert chinese == english, row
        used |= {blank.rstrip("2") for blank in chinese}
    assert used == set(copied.FILLERS)


def test_filled_templates_have_no_blank_left_and_are_the_same_each_time(copied):
    templates = [row.values for row in read(ROOT / "templates.tsv", ["chinese", "english"])]
    once, again = ([copied.filled(template, random) for template in templates] for random in (Random(5), Random(5)))
    assert once == again
    assert not [pair for pair in once if any(copied.BLANK.search(side) for side in pair)]
    assert copied.filled(("{date}", "{date}"), Random(3)) != copied.filled(("{date}", "{date}"), Random(4))


def test_copies_are_the_same_on_both_sides_and_of_every_length(copied):
    random = Random(7)
    for kind in ("digits", "grouped", "figure", "stamp", "letters", "handle", "email", "url", "file", "version"):
        pairs = [copied.FILLERS[kind](random) for _ in range(300)]
        assert all(chinese == english for chinese, english in pairs), kind
    assert {len(copied.digits(random)[0]) for _ in range(2000)} == set(range(1, 31))
    assert {kind for kinds in copied.ALONE.values() for kind in kinds.split()} <= set(copied.FILLERS)


def test_a_date_with_a_time_keeps_both(copied):
    random, months = Random(7), {}
    for _ in range(500):
        chinese, english = copied.moment(random)
        found = re.search(r"(\d+)月(\d+)[日号]", chinese)
        month, day = re.search(r"([A-Z][a-z]+) (\d+),", english).groups()
        assert months.setdefault(found[1], month) == month, (chinese, english)
        assert day == found[2], (chinese, english)
        assert re.search(r", \d+:\d\d(:00)?( [AP]M)?$", english), english
    assert len(months) == 12


def test_joined_lines_are_whole_sentences_of_the_corpus(prepare):
    once, again = (list(prepare.joined(CORPUS, Random(5))) for _ in range(2))
    assert once == again
    assert len(once) == prepare.JOINED
    single = dict(CORPUS[:3])  # the fourth is more than one sentence
    for chinese, english in once[:200]:
        sentences = re.findall(r".*?[。！？]", chinese)
        assert len(set(sentences)) == len(sentences) in (2, 3)
        assert english == " ".join(single[sentence] for sentence in sentences)


def test_emoji_come_in_rows_and_a_rare_one_once(prepare):
    rows = [chinese for chinese, _ in prepare.emojis(Random(5))]
    equal = {emoji: [row for row in rows if row and not row.replace(emoji, "")] for emoji in ("😀", "❤️", "👨‍👩‍👧")}
    for emoji, found in equal.items():
        assert len(set(found)) == len(found) == 4, "alone, and in three rows"
        assert emoji in found
        assert len(max(found)) <= prepare.LONGEST_ROW * len(emoji)
    endings = prepare.emoji_endings(400 * CORPUS, Random(5))
    texts = "\n".join([*rows, *(chinese for chinese, _ in endings)])
    rare = [emoji for emoji in prepare.WORDS["rare_emojis"] if len(emoji) == 1]
    assert {texts.count(emoji) for emoji in rare} == {1}


def test_what_is_said_in_dev_is_not_trained_on_in_any_script(prepare):
    guard = prepare.Guard(["這很貴。"])
    assert list(guard.allowed([("这很贵！", "This is expensive!"), ("贵", "expensive")])) == [("贵", "expensive")]
    assert guard.refused == 1
