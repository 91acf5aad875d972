"""The phrases that are shipped and trained on: clean, different from each other, and none of them in dev."""

import gzip
import hashlib
import importlib.util
import re
import sys
import unicodedata
from pathlib import Path
from random import Random

import pytest

from clearhead import shipped
from clearhead.text import read
from clearhead.text.scripts import converter

ROOT = Path(__file__).parents[1] / "models" / "zh-en"
HAN = re.compile(r"[\u3400-\u9fff]")
MARKUP = re.compile(r"[<>{}\\\[\]|*_`]|&\w+;|https?:|  ")
STOPS = tuple("。！？.!?")


@pytest.fixture(scope="module")
def phrases():
    return [row.values for row in read(ROOT / "phrases.tsv", ["chinese", "english"])]


@pytest.fixture(scope="module")
def copied():
    spec = importlib.util.spec_from_file_location("copied", ROOT / "copied.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["copied"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["copied"]


def test_every_line_has_two_columns_and_nothing_is_empty():
    lines = (ROOT / "phrases.tsv").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    assert len(lines) >= 2500
    for line in lines:
        columns = line.split("\t")
        assert len(columns) == 2, line
        assert all(columns), line
        assert columns == [column.strip() for column in columns], line


def test_no_chinese_stands_twice(phrases):
    assert len({chinese for chinese, _ in phrases}) == len(phrases)


def test_there_is_no_markup_and_nothing_invisible(phrases):
    for text in (text for pair in phrases for text in pair):
        assert not MARKUP.search(text), text
        assert all(unicodedata.category(character)[0] != "C" for character in text), text


def test_chinese_is_on_the_left_in_simplified_characters_and_english_on_the_right(phrases):
    convert = converter("simplified").convert
    for chinese, english in phrases:
        assert HAN.search(chinese), chinese
        assert convert(chinese) == unicodedata.normalize("NFKC", chinese), chinese
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
    convert = converter("simplified").convert

    def key(text):
        return "".join(character for character in convert(text) if unicodedata.category(character)[0] in "LN")

    dev = {key(row.values[0]) for row in read(shipped.corpus("tatoeba-zh-en.dev"), ["chinese"])}
    assert key("這很貴！") == key("这很贵")
    assert not [chinese for chinese, _ in phrases if key(chinese) in dev]


def test_terms_are_learned_in_many_sentences_and_the_demo_is_in_none(phrases):
    for term in ("人工智能", "机器学习", "深度学习", "神经网络", "注意力", "机器翻译", "语言模型", "数据集"):
        assert sum(term in chinese for chinese, _ in phrases) >= 5, term
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
