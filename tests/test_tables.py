"""Tables in, tables out: what `predict` prints for the rows of a CSV, TSV or JSONL."""

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from clearhead.tasks import TASKS
from tests.echoing import ECHO, EchoAnswerer, write_echo
from tests.test_cli import Terminal, run


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An echo, in the folder in which the files of a test are."""
    monkeypatch.setitem(TASKS._loaded, "echo", ECHO)
    monkeypatch.chdir(tmp_path)
    write_echo(tmp_path / "model")
    return Path("model")


def write(name: str, content: str | bytes) -> str:
    raw = content.encode() if isinstance(content, str) else content
    Path(name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return name


@pytest.mark.parametrize("name", ["a.csv", "A.CSV.gz"])
def test_a_csv_keeps_its_columns_and_gets_the_answers_beside_them(model, name):
    rows = [
        ["id", "source", "note"],
        ["01", "abc", 'says "hi", twice'],
        ["02", "你好", "two\nlines"],
        ["03", "", "a\rb"],
    ]
    written = io.StringIO(newline="")
    csv.writer(written, quoting=csv.QUOTE_ALL).writerows(rows)
    done = run("predict", model, write(name, written.getvalue()), "--batch", 1)
    assert (done.code, done.err) == (0, "")
    read = list(csv.reader(io.StringIO(done.out, newline=""), strict=True))
    assert [row[:3] for row in read] == rows
    assert [row[3] for row in read] == ["output", "cba!", "好你!", ""]


def test_what_excel_wrote_is_given_back_as_excel_reads_it(model):
    done = run("predict", model, write("a.csv", "\ufeffsource,备注\r\nab,好\r\n"))
    assert done.out == "\ufeffsource,备注,output\r\nab,好,ba!\r\n"


def test_the_only_column_needs_no_name(model):
    assert run("predict", model, write("a.csv", "comment\nab\n")).out == "comment,output\nab,ba!\n"
    assert run("predict", model, write("a.tsv", "ab\ncd\n")) == (0, "ab\tba!\ncd\tdc!\n", "")
    done = run("predict", model, write("a.jsonl", '{"comment": "ab"}\n'))
    assert json.loads(done.out)["output"] == "ba!"


def test_a_tsv_without_a_header_has_fields_in_order(model):
    table = write("a.tsv", "7\tab\tx\n8\tcd\ty\n")
    done = run("predict", model, table, "--columns", "-,source")
    assert done == (0, "7\tab\tx\tba!\n8\tcd\ty\tdc!\n", "")
    done = run("predict", model, table)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("clearhead: a.tsv:1: 3 fields, and no header line with source; name the fields in order")
    assert "--columns -,source" in done.err
    objects = run("predict", model, table, "--json", "--columns", "id,source")
    assert list(json.loads(objects.out.splitlines()[0])) == [
        *("input", "id", "field_3", "output", "score", "alternatives", "notes")
    ]


def test_a_tsv_like_the_training_data_is_read_as_such_and_it_is_said(model):
    done = run("predict", model, write("a.tsv", "ab\tx\n"))
    assert done == (0, "ab\tx\tba!\n", "clearhead: a.tsv has no header line; its fields are taken for source, target\n")


@pytest.mark.parametrize(("header", "columns"), [("id\tsource", []), ("id\ttext", ["--columns", "source=text"])])
def test_a_tsv_with_a_header_is_read_by_its_names(model, header, columns):
    done = run("predict", model, write("a.tsv", f"{header}\n1\tab\n"), *columns)
    assert done == (0, f"{header}\toutput\n1\tab\tba!\n", "")


def test_a_jsonl_keeps_nested_values_and_gets_the_keys_of_json(model):
    row = {"id": 12345678901234567890, "source": "ab", "meta": {"tags": ["x", None], "ok": True}}
    done = run("predict", model, write("a.jsonl", json.dumps(row) + "\n"), "--best", 2)
    answer = {"output": "ba!", "score": -0.5, "alternatives": [{"output": "AB", "score": -2.0}], "notes": []}
    assert json.loads(done.out) == {**row, **answer}


def test_json_of_a_table_has_the_input_the_other_columns_and_the_answer(model):
    done = run("predict", model, write("a.csv", "id,text\n1,ab\n2,cd\n"), "--columns", "source=text", "--json")
    first, second = map(json.loads, done.out.splitlines())
    assert first == {"input": "ab", "id": "1", "output": "ba!", "score": -0.5, "alternatives": [], "notes": []}
    assert (second["input"], second["id"]) == ("cd", "2")
    done = run("predict", model, write("a.csv", "source,input\nab,x\n"), "--json")
    assert {"predicted_input": "ab", "input": "x"}.items() <= json.loads(done.out).items()
    assert done.err == "clearhead: a.csv has a column input; the model's is called predicted_input\n"


def test_a_column_that_is_there_already_is_kept_and_the_answer_gets_another_name(model):
    done = run("predict", model, write("a.csv", "source,output\nab,x\n"))
    assert done.out == "source,output,predicted_output\nab,x,ba!\n"
    assert done.err == "clearhead: a.csv has a column output; the model's is called predicted_output\n"
    rows = '{"source": "ab"}\n{"source": "cd", "output": 1, "predicted_output": 2}\n'
    done = run("predict", model, write("a.jsonl", rows))
    assert [json.loads(line).get("predicted_predicted_output") for line in done.out.splitlines()] == ["ba!", "dc!"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", "id,source\n1,ab\n2\n", "a.csv:3: 1 field where the header line has 2: '2'"),
        (
            "a.csv",
            "id,text\n1,ab\n",
            "a.csv:1: the columns are id, text; say which have the texts, each once: --columns source=NAME",
        ),
        (
            "a.csv",
            "source,source\nab,b\n",
            "a.csv:1: the columns are source, source; say which have the texts, each once",
        ),
        ("a.csv", "id,source\n", "a.csv has a header line and no rows"),
        ("a.tsv", "id\tsource\n", "a.tsv has a header line and no rows"),
        ("a.tsv", "id\tsource\n2\n", "a.tsv:2: 1 field where the first line has 2: '2'"),
        ("a.jsonl", '{"source": "ab"}\n{"sauce": "x"}\n', "a.jsonl:2: no 'source'; did you mean 'sauce'?"),
        ("a.jsonl", '{"source": "ab"}\n{"source": 5}\n', "a.jsonl:2: 'source' must be a text, not a number"),
        ("a.csv", "source\n好评如潮\n".encode("gb18030"), "it may be GB18030, as Excel saves Chinese; save it"),
        ("a.csv", "source\nété\n".encode("latin-1"), "a.csv:2: not UTF-8: byte 0xE9 at place 1 of the line"),
    ],
)
def test_a_row_that_is_wrong_is_named_before_any_is_answered(model, name, content, said):
    done = run("predict", model, write(name, content))
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert said in done.err
    assert "GB18030" not in done.err or "GB18030" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a.csv", "text"], "a.csv is a table; give it alone, and other inputs in another call"),
        (["a.csv", "--best", "2"], "a.csv has one row for each input, so --best has no place in it; use --json"),
        (["a.csv", "--stream"], "--stream prints pieces of one text; a table's rows are answered whole"),
        (["abc", "--columns", "source=x"], "--columns says where a table has its texts; give one .csv, .tsv or .jsonl"),
        (["a.csv", "--columns", "text=source"], "--columns names text; echo reads source"),
    ],
)
def test_what_has_no_meaning_for_a_table_is_refused(model, arguments, said):
    write("a.csv", "source\nab\n")
    done = run("predict", model, *arguments)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_rows_are_answered_in_batches_and_inputs_are_counted(model, monkeypatch):
    before = list[tuple[int, int]]()

    class Counting(EchoAnswerer):
        def predict(self, inputs: Any, options: Any, *, inputs_before: int = 0) -> Any:
            before.append((inputs_before, len(inputs)))
            return super().predict(inputs, options)

    monkeypatch.setitem(TASKS._loaded, "echo", ECHO.__class__(**{**vars(ECHO), "answerer": Counting}))
    done = run("predict", model, write("a.csv", "source\n" + "ab\n" * 21), "--batch", 2)
    assert before == [(0, 8), (8, 8), (16, 5)]
    assert done.out == "source,output\n" + "ab,ba!\n" * 21


def test_notes_of_answers_name_the_line(model):
    done = run("predict", model, write("a.csv", 'id,source\n"1\n2",a\n3,' + "b" * 60 + "\n"))
    assert done.err == "clearhead: a.csv:4: split into 2 parts\n"


def test_a_table_on_a_terminal_cannot_control_it(model, monkeypatch):
    table = write("a.tsv", "a\x1b[2J\n")
    assert run("predict", model, table).out == "a\x1b[2J\tJ2[\x1ba!\n", "a file gets what was in the table"
    monkeypatch.setattr("sys.stdout", output := Terminal(io.BytesIO(), encoding="utf-8"))
    from clearhead.cli import main

    assert main(["predict", str(model), table]) == 0
    output.flush()
    assert output.buffer.getvalue() == b"a\\x1b[2J\tJ2[\\x1ba!\n"


# texts that look like rows


def test_a_text_that_looks_like_a_row_is_remarked_on_once(model):
    done = run("predict", model, "-", stdin=b'{a\n{"text": "x"}\n{"text": "y"}\n')
    assert len(done.out.splitlines()) == 3
    assert done.err == (
        "clearhead: line 2 is a JSON object, and all of it is read as one text; to read a column, name the file: "
        "clearhead predict MODEL FILE.jsonl --columns source=KEY\n"
    )
    done = run("predict", model, "-", stdin="2024年5月1日 10:30\t好\n2024-05-02\t坏\n".encode())
    assert done.err.startswith("clearhead: line 1 begins with a date and a tab, and all of it is read as one text")
    assert done.err.endswith("FILE.tsv --columns -,source\n")
    assert run("predict", model, "nowhere.csv", "--stream").err == (
        "clearhead: text 1 looks like the name of a table, and is read as a text; "
        "a table is a file that exists, given as INPUT\n"
    )
    assert run("predict", model, "2024-05-01", "see a.csv", "x\ty").err == ""
