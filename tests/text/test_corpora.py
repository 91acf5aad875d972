"""Corpora: every format gives the same rows, and what is wrong with a line is said with its file and number."""

import gzip
import json
import lzma
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.errors import ConfigError, DataError
from clearhead.text import Report, Row, read

PAIRS = [("你好。", "Hello."), ("再见", "Bye, now"), ('他说："好"', 'He said "yes"'), ("", "empty")]
NAMES = ["zh", "en"]


def packed(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def as_tsv(pairs) -> bytes:
    return "".join(f"{zh}\t{en}\n" for zh, en in pairs).encode()


def as_csv(pairs) -> bytes:
    quoted = ['"' + '","'.join(value.replace('"', '""') for value in pair) + '"\n' for pair in [NAMES, *pairs]]
    return "".join(quoted).encode()


def as_jsonl(pairs) -> bytes:
    return "".join(json.dumps({"en": en, "zh": zh, "id": 3}) + "\n" for zh, en in pairs).encode()


FORMATS = {".tsv": as_tsv, ".csv": as_csv, ".jsonl": as_jsonl}


def problem(source, wanted=NAMES) -> str:
    with pytest.raises(DataError) as caught:
        list(read(source, wanted))
    return str(caught.value)


def refusal(source, columns, wanted=NAMES) -> str:
    """Of columns, which comes before any row is asked for."""
    with pytest.raises(ConfigError) as caught:
        read(source, wanted, columns)
    return str(caught.value)


@pytest.fixture
def write(tmp_path):
    def written(name: str, data: bytes | str):
        path = tmp_path / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return path

    return written


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize(
    "change", ["as it is", "gzip", "xz", "byte-order mark", "carriage returns", "no last line feed"]
)
def test_every_format_gives_the_same_rows(write, suffix, change):
    data = FORMATS[suffix](PAIRS)
    if change == "byte-order mark":
        data = b"\xef\xbb\xbf" + data
    elif change == "carriage returns":
        data = data.replace(b"\n", b"\r\n")
    elif change == "no last line feed":
        data = data.removesuffix(b"\n")
    name, data = {"gzip": (".gz", packed(data)), "xz": (".xz", lzma.compress(data))}.get(change, ("", data))
    path = write(f"pairs{suffix}{name}", data)
    rows = list(read(path, NAMES))
    assert [row.values for row in rows] == PAIRS
    assert [row.line for row in rows] == ([2, 3, 4, 5] if suffix == ".csv" else [1, 2, 3, 4])
    assert rows[2].where == f"{path}:{rows[2].line}"


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("blank", ["\n", "\n\n\n", "\r\n \n", "  "])
def test_blank_lines_at_the_end_are_no_rows(write, suffix, blank):
    path = write(f"pairs{suffix}", FORMATS[suffix](PAIRS) + blank.encode())
    assert [row.values for row in read(path, NAMES)] == PAIRS


def test_empty_fields_are_a_row_wherever_they_stand(write):
    assert [row.values for row in read(write("a.tsv", "a\tb\n\t\n"), NAMES)] == [("a", "b"), ("", "")]
    assert [row.values for row in read(write("b.tsv", "a\n\n"), ["text"])] == [("a",), ("",)]


def test_a_json_has_an_object_a_line_like_a_jsonl(write):
    assert [row.values for row in read(write("pairs.json", FORMATS[".jsonl"](PAIRS)), NAMES)] == PAIRS
    with pytest.raises(DataError, match=r"list\.json:1: an object with zh, en is needed, not a list"):
        list(read(write("list.json", '[{"zh": "a", "en": "b"}]\n'), NAMES))


def test_endings_may_be_in_capitals(write):
    path = write("PAIRS.TSV.GZ", packed(as_tsv(PAIRS)))
    assert [row.values for row in read(path, NAMES)] == PAIRS


@pytest.mark.parametrize("gz", ["", ".gz"])
def test_parallel_files_are_read_side_by_side(write, gz):
    pack = packed if gz else bytes
    chinese = write(f"a.zh{gz}", pack("".join(f"{zh}\r\n" for zh, _ in PAIRS).encode()))
    english = write(f"a.en{gz}", pack("\n".join(en for _, en in PAIRS).encode()))
    rows = list(read({"zh": chinese, "en": str(english)}, NAMES))
    assert [row.values for row in rows] == PAIRS
    assert [row.where for row in rows] == [f"{chinese}:{line}" for line in (1, 2, 3, 4)]
    assert [row.values for row in read({"zh": chinese, "en": english}, ["en"])] == [(en,) for _, en in PAIRS]


def test_columns_of_a_tsv_go_by_their_place_and_a_dash_skips_one(write):
    path = write("three.tsv", "1\t你好\tHello\tmore\n2\t再见\tBye\tmore\n")
    assert [row.values for row in read(path, NAMES, ["-", "zh", "en"])] == [("你好", "Hello"), ("再见", "Bye")]
    assert [row.values for row in read(path, NAMES, ["-", "en", "zh", "-"])] == [("Hello", "你好"), ("Bye", "再见")]
    assert [row.values for row in read(path, ["en"], ["-", "zh", "en"])] == [("Hello",), ("Bye",)]
    assert [row.values for row in read(path, ["id"])] == [("1",), ("2",)]


def test_columns_of_csv_and_jsonl_go_by_their_name(write):
    assert [row.values for row in read(write("a.csv", as_csv(PAIRS)), ["en", "zh"])] == [pair[::-1] for pair in PAIRS]
    assert [row.values for row in read(write("a.jsonl", as_jsonl(PAIRS)), ["en"])] == [(en,) for _, en in PAIRS]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_mapping_says_what_a_file_with_names_calls_its_columns(write, suffix):
    path = write(f"a{suffix}", FORMATS[suffix](PAIRS))
    for columns in ({"source": "zh", "target": "en"}, {"target": "en", "source": "zh"}):
        assert [row.values for row in read(path, ["source", "target"], columns)] == PAIRS
    assert [row.values for row in read(path, NAMES, ["-", "en", "zh"])] == PAIRS, "a list has the names as they are"


def test_a_mapping_for_a_tsv_is_refused_with_what_to_do_instead(write):
    path = write("dev.tsv", "Hello\t你好\n")
    assert refusal(path, {"target": "en", "source": "zh"}, ["source", "target"]) == (
        f"{path}: a TSV has no header line with zh, en in it; give columns as the list of its fields in their order, "
        'such as ["source", "target"], or save it as .csv with the header zh,en'
    )


def test_columns_do_not_matter_where_each_has_a_file_of_its_own(write):
    files = {"zh": write("a.zh", "你好\n"), "en": write("a.en", "Hello\n")}
    for columns in (None, ["-", "en", "zh"], ["other"], {"zh": "chinese", "en": "english"}, {"zh": "chinese"}):
        assert [row.values for row in read(files, NAMES, columns)] == [("你好", "Hello")]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([], "columns must name zh, en; they name nothing"),
        (["-", "zh"], "columns must name en; they name -, zh"),
        ({"zh": "a"}, "columns must name en; they name zh"),
        ({"zh": "a", "en": "b", "de": "c"}, "columns name de, which is none of zh, en"),
        ({"zh": "a", "en": "a"}, "columns name 'a' more than once: a, a"),
        (["zh", "en", "zh"], "columns name 'zh' more than once: zh, en, zh"),
        ("zh,en", "columns must be a list of names, or a mapping of zh, en to names; got 'zh,en'"),
    ],
)
@pytest.mark.parametrize("suffix", FORMATS)
def test_columns_that_do_not_name_each_wanted_one_once_are_refused(write, suffix, columns, said):
    assert refusal(write(f"a{suffix}", FORMATS[suffix](PAIRS)), columns) == said


@pytest.mark.parametrize("suffix", [*FORMATS, ".txt"])
def test_lines_that_end_in_carriage_returns_alone_are_refused(write, suffix):
    data = FORMATS.get(suffix, as_tsv)(PAIRS).replace(b"\n", b"\r")
    for path in (write(f"mac{suffix}", data), write(f"mac{suffix}.gz", packed(data))):
        said = f"{path}: its lines end in carriage returns alone, as those of an old Mac; convert them to line feeds"
        assert problem({"zh": path, "en": path} if suffix == ".txt" else path) == f"{said}, as tr '\\r' '\\n' does"
    assert [row.values for row in read(write("one.tsv", "a\tb\r"), NAMES)] == [("a", "b")]


def test_a_quoted_field_of_a_csv_may_go_over_lines_and_rows_keep_their_first_line(write):
    path = write("a.csv", 'zh,en\n"一\n二","one\ntwo"\n三,three\n')
    assert [(row.values, row.line) for row in read(path, NAMES)] == [(("一\n二", "one\ntwo"), 2), (("三", "three"), 5)]


@given(st.lists(st.text(st.characters(exclude_characters="\t\r\n", exclude_categories=["Cs"])), min_size=1))
def test_a_line_ends_at_a_line_feed_and_nowhere_else(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("lines") / "a.tsv"
    lines = [f"{text}\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\ra\tb" for text in texts]
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    rows = list(read(path, ["text"], ["text", "-"]))
    assert [row.values[0] for row in rows] == [line.removesuffix("\tb") for line in lines]


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.tsv", "你好\n", "a.tsv:1: 1 field for the 2 columns zh, en: '你好'"),
        ("a.tsv", "a\tb\nc\td\te\n", "a.tsv:2: 3 fields where the first line has 2: 'c\\td\\te'"),
        ("a.tsv", "a\tb\n\n\nc\td\n", "a.tsv:2: 1 field where the first line has 2: the line is empty; delete it"),
        ("a.tsv", "\na\tb\n", "a.tsv:1: 1 field for the 2 columns zh, en: the line is empty; delete it"),
        ("a.tsv", b"a\tb\nc\t\xe4\xbd\xffd\n", "a.tsv:2: not UTF-8: byte 0xE4 at place 3 of the line"),
        (
            "a.tsv",
            "a\tb".encode("utf-16"),
            "a.tsv:1: not UTF-8: byte 0xFF at place 1 of the line (invalid start byte); it",
        ),
        ("a.tsv", packed(b"a\tb\n"), "it begins like a gzip file, whose name should end in .gz"),
        ("a.tsv", b"", "a.tsv is empty"),
        ("a.tsv.gz", packed(b""), "a.tsv.gz is empty"),
        ("a.tsv", lzma.compress(b"a\tb\n"), "it begins like an xz file, whose name should end in .xz"),
        ("a.tsv.xz", b"a\tb\n", "a.tsv.xz:1: the xz file is damaged or incomplete: Input format not supported"),
        ("a.tsv.gz", b"a\tb\n", "a.tsv.gz:1: the gzip file is damaged or incomplete: Not a gzipped file"),
        (
            "a.tsv.gz",
            packed(b"a\tb\n" * 999)[:-20],
            "a.tsv.gz:1: the gzip file is damaged or incomplete: Compressed file",
        ),
        (
            "a.tsv.gz",
            packed(b"a\tb\n" * 999)[:-8] + bytes(8),
            "a.tsv.gz:1000: the gzip file is damaged or incomplete: CRC",
        ),
        ("a.csv", "zh,eng\n1,2\n", "a.csv:1: the header line has no en; did you mean 'eng'?"),
        ("a.csv", "x,y\n1,2\n", "a.csv:1: the header line has no zh, en; choose from x, y"),
        ("a.csv", "zh,en,zh\n1,2,3\n", "a.csv:1: the header line has zh more than once; rename all but one"),
        ("a.csv", "zh,en\n1,2\n3\n", "a.csv:3: 1 field where the header line has 2: '3'"),
        (
            "a.csv",
            "zh,en\n1,2\n\n3,4\n",
            "a.csv:3: 0 fields where the header line has 2: the line is empty; delete it",
        ),
        ("a.csv", 'zh,en\n1,"2\n3,4\n', "a.csv:2: not CSV: unexpected end of data"),
        ("a.csv", 'zh,en\n1,2\n3,"4"5\n', "a.csv:3: not CSV: ',' expected after '\"'"),
        ("a.csv", b"zh,en\n1,2\n3,\xff\n", "a.csv:3: not UTF-8: byte 0xFF at place 3"),
        ("a.csv", "zh,en\n\n", "a.csv has a header line and no rows"),
        ("a.csv", "zh,en\n", "a.csv has a header line and no rows"),
        ("a.jsonl", '{"zh": "a", "en": "b"}\n{"zh": "a"\n', "a.jsonl:2: not JSON: Expecting ',' delimiter at place 11"),
        (
            "a.jsonl",
            '{"zh": "a", "en": "b"}\n\n{"zh": "a", "en": "b"}\n',
            "a.jsonl:2: not JSON: Expecting value at place 1: the line is empty; delete it",
        ),
        ("a.jsonl", "\n\n", "a.jsonl:1: not JSON: Expecting value at place 1: the line is empty; delete it"),
        ("a.jsonl", "[" * 100_000 + "\n", "a.jsonl:1: not JSON: "),
        ("a.jsonl", '["a", "b"]\n', 'a.jsonl:1: an object with zh, en is needed, not a list: \'["a", "b"]\''),
        ("a.jsonl", '{"zh": "a", "eng": "b"}\n', "a.jsonl:1: no 'en'; did you mean 'eng'?"),
        ("a.jsonl", '{"text": "a"}\n', "a.jsonl:1: no 'zh'; choose from text"),
        ("a.jsonl", "{}\n", "a.jsonl:1: no 'zh'; choose from nothing"),
        ("a.jsonl", '{"zh": "a", "en": 3}\n', "a.jsonl:1: 'en' must be a text, not a number"),
        ("a.jsonl", '{"zh": null, "en": "3"}\n', "a.jsonl:1: 'zh' must be a text, not null"),
        ("a.jsonl", '{"zh": "a\\ud800", "en": "3"}\n', "a.jsonl:1: 'zh' has half a character, \\ud800, at 2"),
        (
            "a.xlsx",
            "a\tb\n",
            "a.xlsx: unknown file type; use .tsv, .csv, .jsonl",
        ),
        ("a.dat.gz", packed(b"a\tb\n"), "a.dat.gz: unknown file type"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 100 and "\n" not in value else "",
)
def test_a_broken_line_is_refused_with_its_file_and_number(write, name, data, said):
    path = write(name, data)
    assert said in problem(path)


def test_what_comes_before_a_broken_line_is_given_first(write):
    rows = read(write("a.tsv", "a\tb\nc\td\ne\n"), NAMES)
    assert [next(rows).line, next(rows).line] == [1, 2]
    with pytest.raises(DataError, match=r"a\.tsv:3: 1 field"):
        next(rows)


def test_parallel_files_of_different_length_are_refused_with_both_counts(write):
    short, long = write("a.zh", "1\n2\n"), write("a.en", "1\n2\n3\n4\n5\n")
    said = problem({"zh": short, "en": long})
    assert said == f"parallel files must have the same number of lines: {short} has 2, {long} has 5"
    said = problem({"zh": long, "en": short})
    assert said == f"parallel files must have the same number of lines: {long} has 5, {short} has 2"


def test_a_column_without_a_file_is_refused(write):
    assert problem({"zh": write("a.zh", "1\n")}) == "no file is given for en; there is one for zh"


@pytest.mark.parametrize("wanted", [[], ["-", "zh"], ["zh", "zh"]])
def test_wanted_columns_must_be_different_names(write, wanted):
    said = refusal(write("a.tsv", "a\tb\n"), None, wanted)
    assert said == f"the wanted columns must be different names, at least one; got {wanted}"


def test_a_missing_file_is_noticed_at_once_and_near_names_are_given(write, tmp_path):
    write("train.tsv", "a\tb\n")
    with pytest.raises(DataError, match=r"no file .*tran\.tsv; did you mean 'train\.tsv'\?"):
        read(tmp_path / "tran.tsv", NAMES)
    with pytest.raises(DataError, match=r"no file .*zzz\.tsv$"):
        read(tmp_path / "zzz.tsv", NAMES)
    with pytest.raises(DataError, match=r"no file .*nowhere.x\.tsv$"):
        read(tmp_path / "nowhere" / "x.tsv", NAMES)
    with pytest.raises(DataError, match=r"is a folder, a file is needed; it contains train\.tsv"):
        read(tmp_path, NAMES)
    with pytest.raises(DataError, match=r"no file .*a\.en"):
        read({"zh": tmp_path / "train.tsv", "en": tmp_path / "a.en"}, NAMES)


def test_a_large_file_is_streamed(tmp_path):
    path = tmp_path / "large.tsv.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(50):
            file.write(b"a source of some words\ta target of some words\n" * 400)  # 0.9 MB in all
    tracemalloc.start()
    assert sum(1 for _ in read(path, NAMES)) == 20_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 400_000


def test_a_report_tells_what_was_dropped_and_where():
    report = Report()
    assert str(report) == "kept 0 of 0"
    report.keep(1200)
    assert str(report) == "kept 1,200 of 1,200"
    for file, line in (("x/a.tsv", 5), ("x/a.tsv", 77), ("y/b.tsv", 2)):
        report.drop(Row(("", "b"), file, line), "empty")
    assert str(report) == "kept 1,200 of 1,203; dropped 3 empty (a.tsv:5, :77, b.tsv:2)"
    report.drop(Row(("", "b"), "y/b.tsv", 3), "empty")
    report.drop(Row(("a b", "b"), "y/b.tsv", 9), "longer than 128 tokens")
    assert str(report) == (
        "kept 1,200 of 1,205; dropped 4 empty (a.tsv:5, :77, b.tsv:2, …), 1 longer than 128 tokens (b.tsv:9)"
    )
    assert report.total == 1205


def test_the_last_field_of_a_txt_takes_the_rest_of_the_line(tmp_path):
    file = tmp_path / "labelled.txt"
    file.write_text("1 a good film\n0 a  bad one \n\n", encoding="utf-8")
    rows = list(read(file, ["text", "label"], ["label", "text"]))
    assert [row.values for row in rows] == [("a good film", "1"), ("a  bad one ", "0")]
    assert [row.values for row in read(file, ["label"], ["label", "-"])] == [("1",), ("0",)]
    with pytest.raises(ConfigError, match=r"say which fields the lines of a \.txt have, as columns = \[\"label\", "):
        read(file, ["text", "label"])
    file.write_text("1 a good film\n0\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"labelled\.txt:2: 1 field where the first line has 2: '0'"):
        list(read(file, ["text", "label"], ["label", "text"]))
