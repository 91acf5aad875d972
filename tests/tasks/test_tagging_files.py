"""Files of tagged sentences, tag schemes, and the words of raw text."""

import gzip
import json
import re
import time
import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities

from clearhead.errors import ConfigError, DataError
from clearhead.tasks.tagging.schemes import LETTERS, Span, count_repairs, detect_scheme, read_tags, write_tags
from clearhead.tasks.tagging.sentences import Sentence, find_words, group_documents, join_words
from clearhead.tasks.tagging.tagged_files import read_tagged
from clearhead.text import Row

PLAIN = "EU\tB-ORG\nrejects\tO\nGerman\tB-MISC\n\nPeter\tB-PER\nBlackburn\tI-PER\n"
WANTED = [("EU rejects German", [(0, 2, "ORG"), (11, 17, "MISC")]), ("Peter Blackburn", [(0, 15, "PER")])]


def sentences(path: Path, **options: object) -> list[Sentence]:
    return [Sentence.from_row(row) for row in read_tagged(path, **options)]


def content(path: Path, **options: object) -> list[tuple[str, list[tuple[int, int, str]]]]:
    return [(one.text, [tuple(span) for span in one.exact_entities()]) for one in sentences(path, **options)]


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str | bytes, name: str = "data.conll") -> Path:
        data = text if isinstance(text, bytes) else text.encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return tmp_path / name

    return write


# columns


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        PLAIN.rstrip("\n"),
        PLAIN.replace("\t", " "),
        PLAIN.replace("\n", "\r\n"),
        "\ufeff" + PLAIN + "\n\ufeff",
        PLAIN.replace("\n\n", "\n\t\n\n\n"),
        PLAIN.replace("\n\n", "\n\n-DOCSTART- -X- O O\n\n"),
        "# a comment of several words\n#\n" + PLAIN.replace("\n\n", "\n\n# sent_id = 2\n"),
        PLAIN.replace("\t", "\tNN\t_\t"),
    ],
    ids=["tab", "no last newline", "space", "CRLF", "marks", "blank lines", "DOCSTART", "comments", "four"],
)
def test_columns_of_many_kinds_give_the_same_sentences(write, text):
    assert content(write(text)) == WANTED


def test_gzipped_columns_and_other_names(write):
    assert content(write(PLAIN, "data.txt.gz")) == content(write(PLAIN, "data.iob2")) == WANTED


def test_a_hash_that_is_a_word_is_no_comment(write):
    (one,) = sentences(write("#\tO\n#tag\tB-group\nwon\tO\n# a remark\n"))
    assert one.text == "# #tag won"
    assert one.entities == (Span(1, 2, "group"),)


def test_white_space_that_is_no_separator_is_a_word(write):
    (one,) = sentences(write("a O\n\u3000 O\n\xa0 O\nb B-X\n"))
    assert one.word_texts() == ["a", "\u3000", "\xa0", "b"]


def test_columns_can_be_named(write):
    path = write("1 EU B-ORG NNP\n2 rejects O VBZ\n")
    assert content(path, columns=["-", "word", "tag", "-"]) == [("EU rejects", [(0, 2, "ORG")])]
    for wrong in (["word", "-"], {"word": "a"}, ["word", "tag", "tag"]):
        with pytest.raises(ConfigError, match="columns"):
            list(read_tagged(path, columns=wrong))
    with pytest.raises(DataError, match=r"data.conll:1: 4 columns for the 2 names word, tag"):
        list(read_tagged(path, columns=["word", "tag"]))


def test_neighbours_are_of_one_document_up_to_the_next_mark_or_name(write):
    marked = write("-DOCSTART-\tO\n\na\tO\n\nb\tO\n\n-DOCSTART-\tO\n\nc\tO\n")
    named = write("1\ta\tO\n\n1\tb\tO\n\n2\tc\tO\n", "named.tsv")
    lines = [{"text": text, "entities": [], "article": name} for text, name in (("a", 1), ("b", 1), ("c", 2))]
    objects = write("\n".join(map(json.dumps, lines)), "data.jsonl")
    renamed = {"text": "text", "document": "article"}
    for path, names in ((marked, None), (named, ["document", "word", "tag"]), (objects, renamed)):
        groups = group_documents(sentences(path, columns=names), context=1)
        assert [[one.text for one in group] for group in groups] == [["a", "b"], ["c"]]
        assert len(group_documents(sentences(path, columns=names), context=0)) == 3
    assert len(group_documents(sentences(write(PLAIN)), context=1)) == 1, "a file without marks is one document"
    assert len(group_documents(sentences(objects), context=1)) == 3, "objects that name no document are texts"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("EU\nrejects\n", r"data.conll:1: one column, where a word and its tag are wanted.*'EU'"),
        ("EU B-ORG\nrejects VBZ O\n", r"data.conll:2: 3 columns where the first line has 2: 'rejects VBZ O'"),
        ("EU B-ORG\nrejects\n", r"data.conll:2: 1 column where the first line has 2: 'rejects'"),
        ("EU ORG\n", r"data.conll:1: 'ORG' is no tag; wanted is O, or B-"),
        ("EU\tB-ORG\n\tO\n", r"data.conll:2: a tag without a word"),
        ("EU\tB-ORG\nna\xefve\tO\n".encode("latin-1"), r"data.conll:2: not UTF-8: byte 0xEF at place 3"),
        ("\n\n", r"data.conll has no word in it"),
        ("", r"data.conll is empty"),
    ],
)
def test_a_broken_file_is_refused_in_one_line_with_its_place(write, text, problem):
    with pytest.raises(DataError, match=problem) as caught:
        list(read_tagged(write(text)))
    assert "\n" not in str(caught.value)


def test_other_kinds_of_files_are_refused(write):
    with pytest.raises(DataError, match=r"tagging reads CoNLL columns .* and .jsonl, not .csv"):
        read_tagged(write("a,b\n", "data.csv"))
    with pytest.raises(DataError, match=r"no file .*/dato.conll; did you mean 'data.csv'|no file .*/dato.conll"):
        read_tagged(write("", "data.csv").parent / "dato.conll")


def test_characters_a_line_are_joined_without_spaces(write):
    (one,) = sentences(write("吴 B-NAME\n重 M-NAME\n阳 E-NAME\n， O\n2 O\n0 O\n岁 O\n"))
    assert (one.text, one.scheme, one.exact_entities()) == ("吴重阳，20岁", "bmes", [Span(0, 3, "NAME")])


# JSONL


def test_jsonl_has_entities_by_characters(write):
    lines = [
        {"text": "The EU’s envoy", "entities": [{"start": 4, "end": 6, "label": "ORG"}]},
        {
            "text": "王小明在北京",
            "entities": [{"start": 4, "end": 6, "label": "LOC"}, {"start": 0, "end": 3, "label": "PER"}],
        },
        {"text": "", "entities": []},
    ]
    path = write("\n".join(json.dumps(line) for line in lines) + "\n\n", "data.jsonl")
    found = content(path)
    assert found[:2] == [("The EU’s envoy", [(4, 6, "ORG")]), ("王小明在北京", [(0, 3, "PER"), (4, 6, "LOC")])]
    renamed = write('{"sentence": "EU", "spans": [{"start": 0, "end": 2, "label": "ORG"}]}', "other.jsonl")
    assert content(renamed, columns={"text": "sentence", "entities": "spans"}) == [("EU", [(0, 2, "ORG")])]


def test_entities_of_a_long_text_are_found_in_one_pass_over_its_words(write):
    marks = [{"start": 5 * number + 1, "end": 5 * number + 3, "label": "X"} for number in range(40_000)]
    path = write(json.dumps({"text": "abcd " * 40_000, "entities": marks}), "data.jsonl")
    begin = time.process_time()
    (one,) = sentences(path)
    assert time.process_time() - begin < 5, "by the square of their number it took 20"
    assert one.entities == tuple(Span(number, number + 1, "X") for number in range(40_000))


@given(st.text("a -.", max_size=12), st.lists(st.integers(0, 12), max_size=6, unique=True))
def test_an_entity_has_the_words_that_it_touches_and_no_earlier_one_has(text, borders):
    spans = [Span(*pair, "X") for pair in pairwise(sorted(border for border in borders if border <= len(text)))]
    words, taken, wanted = find_words(text), set[int](), list[Span]()
    for span in spans:
        touched = {number for number, (begin, end) in enumerate(words) if begin < span.end and end > span.begin} - taken
        taken |= touched
        wanted += [Span(min(touched), max(touched) + 1, "X")] if touched else []
    marks = json.dumps([{"start": span.begin, "end": span.end, "label": "X"} for span in spans])
    assert list(Sentence.from_row(Row((text, marks), "data.jsonl", 1)).entities) == wanted


def test_an_entity_inside_a_word_is_learned_as_the_word_and_counted(write):
    path = write('{"text": "Donaudampfer fährt", "entities": [{"start": 0, "end": 5, "label": "LOC"}]}', "data.jsonl")
    (one,) = sentences(path)
    assert one.entities == (Span(0, 1, "LOC"),)
    assert (one.exact_entities(), one.misplaced) == ([Span(0, 5, "LOC")], 1)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            '{"text": "EU", "entities": [{"start": 0, "end": 3, "label": "ORG"}]}',
            "from 0 to 3 is not inside the text of 2",
        ),
        ('{"text": "EU", "entities": [{"start": 1, "end": 1, "label": "ORG"}]}', "from 1 to 1 is not inside"),
        ('{"text": "EU", "entities": [{"start": 0, "end": 2}]}', 'must be {"start": 0, "end": 2, "label": "ORG"}'),
        (
            '{"text": "ab cd", "entities": [{"start": 0, "end": 3, "label": "A"}, '
            '{"start": 2, "end": 5, "label": "B"}]}',
            "two entities overlap, A from 0 to 3 and B from 2 to 5",
        ),
        ('{"text": "EU"}', "no 'entities'"),
        ('{"text": 3, "entities": []}', "'text' must be a text, not a number"),
        ("[]", "an object with text, entities is needed, not a list"),
        ("{", "not JSON"),
    ],
)
def test_a_broken_line_of_jsonl_is_refused_with_its_place(write, line, problem):
    path = write('{"text": "fine", "entities": []}\n' + line + "\n", "data.jsonl")
    with pytest.raises(DataError, match=r"data.jsonl:2: .*" + re.escape(problem)):
        list(read_tagged(path))


# schemes

spans = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.sampled_from(["A", "B-b", "C"])), max_size=6)


@given(spans, st.integers(0, 3), st.sampled_from(list(LETTERS)))
def test_tags_give_back_the_entities_that_they_were_written_from(gaps, rest, scheme):
    entities, place = [], 0
    for gap, size, label in gaps:
        entities.append(Span(place + gap, place + gap + size, label))
        place += gap + size
    tags = write_tags(entities, place + rest, scheme)
    assert read_tags(tags) == entities
    assert count_repairs(tags, scheme) == 0


tag_sequences = st.lists(
    st.one_of(st.just("O"), st.builds("{}-{}".format, st.sampled_from("BIES"), st.sampled_from(["A", "B"]))),
    max_size=12,
)


@given(tag_sequences)
def test_wrong_sequences_are_read_as_seqeval_reads_them(tags):
    expected = [(begin, end + 1, label) for label, begin, end in get_entities(tags)]
    assert read_tags(tags) == expected


def test_schemes_are_told_apart():
    assert detect_scheme([["I-A", "B-A"], ["O", "I-B"]]) == "iob1"
    assert detect_scheme([["I-A", "B-B"]]) == "iob2"
    assert detect_scheme([["O", "B-A"], ["U-A"]]) == "bioes"
    assert detect_scheme([["B-A", "M-A"]]) == "bmes"


def test_repairs_are_counted_by_tags():
    assert count_repairs(["B-A", "I-B", "O", "E-A"], "bioes") == 3
    assert count_repairs(["B-A", "L-A", "U-B"], "bioes") == 0


# words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        (" \t\x00\ufeff\n", []),
        ("Hello,world!", ["Hello", ",", "world", "!"]),
        ("Ｈｅｌｌｏ　Ｗｏｒｌｄ！", ["Ｈｅｌｌｏ", "Ｗｏｒｌｄ", "！"]),
        ("Zoe\u0308 and Zoë", ["Zoe\u0308", "and", "Zoë"]),
        ("\ufeffEU\x00UN", ["EU", "UN"]),
        ("👩\u200d💻👍🏽 ok❤\ufe0f", ["👩\u200d💻", "👍", "🏽", "ok", "❤\ufe0f"]),
        ("O'Brien didn't, they'll", ["O'Brien", "didn", "'t", ",", "they", "'ll"]),
        ("U.S. Corp. 1,000.50 10:30 3,a", ["U.S.", "Corp", ".", "1,000.50", "10:30", "3", ",", "a"]),
        ("AL-AIN--x @user #tag a@b.com", ["AL-AIN", "-", "-", "x", "@user", "#tag", "a@b.com"]),
        ("漢語abc，カタ", ["漢", "語", "abc", "，", "カ", "タ"]),
        ("ﬁne ① ²", ["ﬁne", "①", "²"]),
        ("\u0301a", ["\u0301", "a"]),
        ("x" * 250, ["x" * 100, "x" * 100, "x" * 50]),
    ],
)
def test_words_of_a_raw_text(text, words):
    assert [text[begin:end] for begin, end in find_words(text)] == words


def test_every_character_is_a_word_where_files_have_it_so():
    text = "2005年e\u0301 ok"
    assert [text[a:b] for a, b in find_words(text, characters=True)] == ["2", "0", "0", "5", "年", "e\u0301", "o", "k"]


@given(st.text())
def test_words_are_in_order_and_leave_out_nothing_but_white_space_and_what_is_invisible(text):
    found = find_words(text)
    assert all(a < b for a, b in found)
    assert all(one[1] <= other[0] for one, other in pairwise(found))
    inside = {place for a, b in found for place in range(a, b)}
    for place, mark in enumerate(text):
        if place not in inside:
            assert mark.isspace() or unicodedata.category(mark) in ("Cc", "Cf", "Cs")


@given(st.lists(st.sampled_from(["Li", "说", "：", "1,5", "😀", "a b"]), min_size=1))
def test_joined_words_are_where_they_are_said_to_be(words):
    text, places = join_words(words)
    assert [text[begin:end] for begin, end in places] == words
