"""What comes with the package: found by name, whole, and with its licence."""

import gzip
import hashlib
from collections import Counter
from pathlib import Path

import pytest

from clearhead import shipped
from clearhead.errors import ConfigError
from clearhead.text import read

ROOT = Path(__file__).parents[2]
PARTS = ("dev", "train")


def test_corpora_are_found_by_name_and_unknown_names_are_not():
    split = ("entities-en", "messages-en", "sentiment-en", "service-en", "tatoeba-zh-en")
    parts = [f"{name}.{part}" for name in split for part in PARTS]
    assert shipped.corpora() == sorted(["phrases-zh-en", "shakespeare", *parts])
    found = shipped.corpus("tatoeba-zh-en.dev")
    assert found is not None
    assert found.name == "tatoeba-zh-en.dev.tsv.gz"
    for name in ("", ".", "..", "no such", "../corpora/tatoeba-zh-en.dev", "*"):
        assert shipped.recipe(name) is shipped.model(name) is None
        with pytest.raises(ConfigError, match="no shipped corpus is called"):
            shipped.corpus(name)


def test_every_listed_name_is_found():
    for listing, find in ((shipped.recipes, shipped.recipe), (shipped.models, shipped.model)):
        assert all(find(name).exists() for name in listing())


@pytest.mark.parametrize(("part", "rows", "authors"), [("train", 40972, 7106), ("dev", 1491, 269)])
def test_the_corpus_reads_whole_with_its_attribution(part, rows, authors):
    found = list(read(shipped.corpus(f"tatoeba-zh-en.{part}"), ["chinese", "english", "attribution"]))
    assert len(found) == rows
    assert all(all(row.values) for row in found)
    assert sum(row.values[2].startswith("CC-BY 2.0 (France) Attribution: tatoeba.org #") for row in found) == authors


@pytest.mark.parametrize("name", shipped.corpora())
def test_a_corpus_is_what_its_readme_says(name):
    path = shipped.corpus(name)
    assert path.read_bytes()[4:8] == bytes(4), "the time of packing is left out, so that equal data give equal bytes"
    with gzip.open(path) as file:
        assert hashlib.sha256(file.read()).hexdigest() in (path.parent / "README.md").read_text()


@pytest.mark.parametrize("name", ["tatoeba-zh-en", "sentiment-en", "service-en", "messages-en"])
def test_no_row_of_dev_is_in_train(name):
    train, dev = (
        {row.values for row in read(shipped.corpus(f"{name}.{part}"), ["one", "two"])} for part in ("train", "dev")
    )
    assert not train & dev


def test_no_message_of_dev_is_in_train():
    train, dev = (
        set(gzip.decompress(shipped.corpus(f"entities-en.{part}").read_bytes()).decode().lower().split("\n\n"))
        for part in ("train", "dev")
    )
    assert (len(train), len(dev)) == (1625, 325)
    assert not train & dev


def test_the_labels_of_the_comments_are_balanced():
    rows = list(read(shipped.corpus("sentiment-en.train"), ["text", "label"]))
    assert Counter(row.values[1] for row in rows) == {"positive": 3000, "negative": 3000}


@pytest.mark.parametrize(("part", "each", "outside"), [("train", 100, 100), ("dev", 20, 100)])
def test_the_questions_have_twenty_answers_or_none(part, each, outside):
    counts = Counter(row.values[1] for row in read(shipped.corpus(f"service-en.{part}"), ["question", "answer"]))
    assert counts.pop("") == outside
    assert len(counts) == 20
    assert {*counts.values()} == {each}


def test_the_notice_names_licence_and_source():
    for text in ((ROOT / "NOTICE").read_text(), (shipped.CORPORA / "README.md").read_text()):
        assert "CC-BY 2.0 FR" in text
        assert "https://tatoeba.org" in text
        assert "https://www.manythings.org/anki/" in text
        assert "CC-BY 4.0" in text
        assert "GoEmotions" in text
        assert "WNUT 2017" in text
        assert "CC-BY 3.0" in text
        assert "CLINC150" in text


def test_the_font_is_what_its_readme_says():
    font = shipped.FONT
    assert font.stat().st_size < 1_500_000
    assert hashlib.sha256(font.read_bytes()).hexdigest() in (font.parent / "README.md").read_text(encoding="utf-8")
    assert "Droid Sans Fallback" in (ROOT / "NOTICE").read_text()


def test_the_font_has_every_chinese_character_of_the_corpora_and_of_gb2312():
    from matplotlib.ft2font import FT2Font

    font = FT2Font(shipped.FONT)
    assert font.family_name == "Clearhead CJK"
    has = font.get_charmap()
    two_bytes = (bytes((row, cell)) for row in range(0xB0, 0xF8) for cell in range(0xA1, 0xFF))
    wanted = set("".join(code.decode("gb2312", "ignore") for code in two_bytes))
    assert len(wanted) == 6763
    for name in shipped.corpora():
        with gzip.open(shipped.corpus(name), "rt", encoding="utf-8") as file:
            wanted |= {letter for letter in file.read() if letter > "\u2e7f"}
    assert not {letter for letter in wanted if ord(letter) not in has}
    assert ord("\U00030000") not in has, "or this test would pass with any font"
