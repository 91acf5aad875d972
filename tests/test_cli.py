"""The command line: what it prints, what it says when something is wrong, and how it exits."""

import errno
import io
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from clearhead import cli, shipped
from clearhead.cli.program import READ_AHEAD
from clearhead.errors import TrainingError
from clearhead.formatting import format_bytes
from clearhead.tasks import TASKS
from clearhead.tasks.answerer import Evaluation, ScoringAnswerer
from tests.echoing import ECHO, EchoAnswerer, echo, write_echo

ROOT = Path(__file__).parents[1]


class Done(NamedTuple):
    code: int
    out: str
    err: str


def run(*arguments: object, stdin: Any = b"") -> Done:
    """One command in this process."""
    with CliRunner().isolation(stdin if isinstance(stdin, bytes) else b"") as (out, err, _):
        if not isinstance(stdin, bytes):
            sys.stdin = stdin
        code = cli.main([str(argument) for argument in arguments])
        sys.stdout.flush()
        return Done(code, out.getvalue().decode(), err.getvalue().decode())


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(TASKS._loaded, "echo", ECHO)
    write_echo(tmp_path / "model")
    return tmp_path / "model"


# predict


def test_each_text_is_answered_with_a_line(model: Path) -> None:
    assert run("predict", model, "abc", "", "[red]人工智能[/red]") == (0, "cba!\n\n]der/[能智工人]der[!\n", "")


def test_a_text_that_begins_with_a_dash_goes_after_two(model: Path) -> None:
    assert run("predict", model, "--", "-5 度").out == "度 5-!\n"
    assert run("predict", model, "-5 度").code == 2


@pytest.mark.parametrize("dash", [["-"], []])
def test_each_line_of_the_input_is_answered_with_a_line(model: Path, dash: list[str]) -> None:
    lines = "\ufeffabc\r\n\n  \nx\u2028y\x85\x0bz\n" + "最后"
    done = run("predict", model, *dash, stdin=lines.encode())
    assert done == (0, "cba!\n\n  !\nz\\x0b\\u0085y\u2028x!\n后最!\n", "")
    assert run("predict", model, *dash, stdin=b"") == (0, "", "")


def test_order_is_kept_whatever_the_batch(model: Path) -> None:
    lines = [f"{number:03d}" for number in range(150)]
    for batch in (1, 2, 7, 64):
        done = run("predict", model, "-", "--batch", batch, stdin="\n".join(lines).encode())
        assert done.out.split() == [line[::-1] + "!" for line in lines]


class Endless:
    """A standard input that is interrupted after a thousand lines."""

    def isatty(self) -> bool:
        return False

    @property
    def buffer(self) -> Iterator[bytes]:
        yield from [b"x\n"] * 1000
        raise KeyboardInterrupt


def test_an_endless_input_is_answered_as_it_comes(model: Path) -> None:
    done = run("predict", model, "-", "--batch", "3", stdin=Endless())
    assert (done.code, done.err) == (130, "clearhead: interrupted\n")
    answered = 1000 - 1000 % (3 * READ_AHEAD)  # what was read but not yet answered is lost
    assert done.out == "x!\n" * answered


def test_json_is_an_object_a_line(model: Path) -> None:
    done = run("predict", model, "aB", "你好", "--json", "--best", "3")
    first, second = map(json.loads, done.out.splitlines())
    assert first == {
        "input": "aB",
        "output": "Ba!",
        "score": -0.5,
        "alternatives": [{"output": "AB", "score": -2.0}, {"output": "ab", "score": None}],
        "notes": [],
    }
    assert "你好" in done.out
    assert second["input"] == "你好"


def test_no_output_controls_the_terminal(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = "a\x1b[2J\x9b\x07"
    assert run("predict", model, hostile).out == "\\x07\\u009bJ2[\\x1ba!\n"
    assert run("predict", model, hostile, "--stream").out == "\\x07\\u009bJ2[\\x1ba!\n"
    written = run("predict", model, hostile, "--json").out
    assert "\x9b" not in written
    assert json.loads(written)["input"] == hostile
    assert run("echo", model, "shout", "a\tb\n\x1bc").out == "A\tB\\n\\x1bC!\n", "one output a line"
    monkeypatch.setitem(TASKS._loaded, "echo", replace(ECHO, writes_lines=True))
    assert run("predict", model, "\ta\x1b").out == "\\x1ba\t!\n"


def test_several_answers_are_numbered_by_their_rank(model: Path) -> None:
    done = run("predict", model, "-", "--best", "2", stdin=b"aB\n\ncD\n")
    assert done.out.splitlines() == ["1\t-0.5000\tBa!", "2\t-2.0000\tAB", "1\t\t", "1\t-0.5000\tDc!", "2\t-2.0000\tCD"]


def test_notes_go_to_stderr(model: Path) -> None:
    done = run("predict", model, "-", stdin=b"a\n" + b"b" * 60 + b"\n")
    assert done.err == "clearhead: line 2: split into 2 parts\n"
    assert len(done.out.splitlines()) == 2


def test_an_input_that_is_not_utf8_is_refused_after_what_came_before(model: Path) -> None:
    done = run("predict", model, "-", stdin=b"abc\nde\n\xff\xfe\nxyz\n")
    assert done.code == 2
    assert done.out == "cba!\ned!\n"
    assert done.err == (
        "clearhead: line 3 of the standard input is not UTF-8: byte 0xFF at place 1; convert it first, as iconv does\n"
    )
    assert run("predict", model, "ok", "\udcff").err.startswith("clearhead: text 2 is not UTF-8: byte 0xFF")


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_at_a_terminal_it_says_what_to_do(model: Path) -> None:
    done = run("predict", model, stdin=Terminal(io.BytesIO()))
    assert done == (
        2,
        "",
        "clearhead: there is nothing to answer; give an INPUT, or - for the lines of the standard input\n",
    )
    assert run("predict", model, "-", stdin=Terminal(io.BytesIO(b"ab\n"))).out == "ba!\n"
    assert (
        run("predict", model, "-", "a").err
        == "clearhead: - means the lines of the standard input; it cannot be combined with other texts\n"
    )


# streams


class Recorder(io.StringIO):
    """An output that keeps what was there at each flush."""

    def __init__(self) -> None:
        super().__init__()
        self.flushed: list[str] = []

    def flush(self) -> None:
        self.flushed.append(self.getvalue())


def test_a_stream_prints_each_piece_as_soon_as_it_is_there(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("predict", model, "abc", "", "你好", "--stream") == (0, "cba!\n\n好你!\n", "")
    assert run("predict", model, "-", "--stream", stdin=b"abc\nx\ty\n").out == "cba!\ny x!\n"
    monkeypatch.setattr(sys, "stdout", output := Recorder())
    assert cli.main(["predict", str(model), "abc", "--stream"]) == 0
    assert output.flushed[:5] == ["c", "cb", "cba", "cba!", "cba!\n"]


def test_a_stream_of_objects_or_of_a_task_without_one_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run("predict", model, "abc", "--stream", "--json")
    assert done == (2, "", "clearhead: --stream prints pieces of text, --json whole objects; choose one\n")

    class Mute(ScoringAnswerer[Any, Any, str, Any]):
        options, predict, score = EchoAnswerer.options, EchoAnswerer.predict, EchoAnswerer.score

    monkeypatch.setitem(TASKS._loaded, "echo", replace(ECHO, answerer=Mute))
    done = run("predict", model, "abc", "--stream")
    assert done == (2, "", "clearhead: echo produces its whole answer at once and cannot stream it\n")


# options and commands of tasks


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["predict", "MODEL", "abc", "--temperature", "1"],
            "echo has no option --temperature; it has --batch, --beam, --best",
        ),
        (
            ["predict", "MODEL", "abc", "--stream", "--prefix", "x"],
            "echo has no option --prefix; it has --batch, --beam, --best",
        ),
        (
            ["evaluate", "MODEL", "pairs.tsv", "--length-penalty", "2"],
            "echo has no option --length-penalty; it has --batch",
        ),
        (["look", "MODEL", "abc", "--most", "3"], "look has no option 'most'"),
        (["predict", "MODEL", "abc", "--lowercase"], "No such option: --lowercase"),
    ],
)
def test_an_option_of_another_task_or_command_is_refused_in_one_line(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.tsv").write_text("abc\tcba!\n")
    done = run(*(argument.replace("MODEL", str(model)) for argument in arguments))
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert done.err.count("\n") == 1


def test_an_option_outside_of_its_limits_is_refused_before_the_model_is_loaded() -> None:
    for option, value in (("--batch", "0"), ("--best", "0"), ("--top-p", "1.5"), ("--beam", "x")):
        done = run("predict", "nowhere", "text", option, value)
        assert done.code == 2
        assert f"Invalid value for '{option}'" in done.err
        assert done.err.count("\n") == 1


def test_help_of_a_command_lists_the_options_of_all_tasks_and_whose_they_are(model: Path) -> None:
    shown = run("predict", model, "--help")
    assert (shown.code, shown.err) == (0, "")
    for option in ("--batch", "--beam", "--best", "--longest", "--prefix", "--temperature", "--top-k", "--stream"):
        assert option in shown.out
    panels = shown.out.split("╭─ For ")
    others = {
        "--beam": "all tasks but classification, tagging, answers, language-model ─",
        "--ctc-weight": "transcription ─",
    }
    for option, owners in others.items():
        (panel,) = [panel for panel in panels if option in panel]
        assert panel.startswith(owners), option  # and no title is cut
    assert "--lowercase" not in shown.out, "it is evaluate's"
    assert "--lowercase" in run("evaluate", "--help").out
    assert "--temperature" not in run("evaluate", "--help").out
    for command in ("look", "figures"):
        shown = run(command, "--help")
        assert "For Hugging Face models" in shown.out
        assert "--most" in shown.out


def test_a_task_may_have_a_command_of_its_own(model: Path) -> None:
    assert run("echo", model, "shout", "word", "你好") == (0, "WORD!\n你好!\n", "")
    assert run("echo", model, "shout") == (0, "", "")
    shown = run("echo", "--help")
    assert shown.code == 0
    assert "shout: Prints each word in capitals." in shown.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["echo", "MODEL", "shot", "word"], "echo has no action 'shot'; did you mean 'shout'?"),
        (["echo", "MODEL"], "Missing argument"),
        (["echo", "nowhere", "shout", "word"], "there is no folder 'nowhere'"),
        (["echo", "zh-en", "shout", "word"], "zh-en is a model for translation, not for echo"),
        (["translation", "zh-en"], "No such command 'translation'"),
    ],
)
def test_a_task_s_command_says_in_one_line_what_is_wrong(model: Path, arguments: list[str], said: str) -> None:
    done = run(*(argument.replace("MODEL", str(model)) for argument in arguments))
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert done.err.count("\n") == 1


# evaluate, models, train


def test_scores_are_printed_with_their_signature(model: Path, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("abc\tcba!\nde\twrong\n")
    (tmp_path / "a.txt").write_text("abc\nde\n")
    (tmp_path / "b.txt").write_text("cba!\nwrong\n")
    one = run("evaluate", model, tmp_path / "pairs.tsv")
    assert one == (0, "same       50.0\nsignature  lowercase:False|[red]\n", "")
    assert run("evaluate", model, tmp_path / "a.txt", tmp_path / "b.txt") == one
    done = run(
        "evaluate", model, tmp_path / "pairs.tsv", "--json", "--lowercase", "--beam", 2, "--columns", "target,source"
    )
    assert json.loads(done.out) == {"same": 0.0, "signature": "lowercase:True|[red]"}
    three = run("evaluate", model, "a", "b", "c")
    assert three.code == 2
    assert three.err == "clearhead: 3 files for the 2 columns source, target; give one for each, or one for all\n"


def test_columns_of_a_csv_are_given_with_their_names_in_it(model: Path, tmp_path: Path) -> None:
    table = tmp_path / "pairs.csv"
    table.write_text("en,zh\ncba!,abc\nwrong,de\n")
    done = run("evaluate", model, table, "--columns", "source=zh,target=en")
    assert done.out.startswith("same       50.0\n")
    for columns in ("source=zh,target", "source=zh,source=en"):
        done = run("evaluate", model, table, "--columns", columns)
        assert done.code == 2
        assert done.err.startswith(
            f"clearhead: --columns {columns}: give each column once, as TASK_COLUMN=FILE_COLUMN, "
        )
    done = run("evaluate", model, "a.zh", "a.en", "--columns", "source=zh,target=en")
    assert done.err == (
        "clearhead: --columns source=zh,target=en is for a single CSV or JSONL; with one file per column, list the "
        "names in the order of the files, such as --columns source,target\n"
    )
    (tmp_path / "pairs.tsv").write_text("cba!\tabc\n")
    done = run("evaluate", model, tmp_path / "pairs.tsv", "--columns", "target=en,source=zh")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "pairs.tsv: a TSV has no header line with zh, en in it; give columns as the list" in done.err


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_what_was_left_out_of_a_score_is_said(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    (tmp_path / "pairs.tsv").write_text("abc\tcba!\n")
    evaluation = Evaluation({"same": 50.0, "note": "kept 1 of 2"}, [], [])
    monkeypatch.setattr(EchoAnswerer, "evaluate", lambda *_: evaluation)
    done = run("evaluate", model, tmp_path / "pairs.tsv", *more)
    assert done.err == "clearhead: kept 1 of 2\n"
    assert done.out == ('{"same": 50.0, "note": "kept 1 of 2"}\n' if more else "same  50.0\n")


def test_wrong_data_is_refused_with_its_line(model: Path, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("abc\tcba!\nde\n")
    done = run("evaluate", model, tmp_path / "pairs.tsv")
    assert done.code == 2
    assert "pairs.tsv:2: 1 field where the first line has 2" in done.err
    assert run("evaluate", model, tmp_path / "nowhere.tsv").code == 2


def test_what_is_shipped_is_listed(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text('about = "small [bold]\\u001b"\nlicence = "CC BY 2.0"\n')
    (model / "recipe.toml").write_bytes(recipe.read_bytes())
    table = tmp_path / "pairs.tsv.gz"
    table.write_bytes(b"x" * 2**20)
    for kind, path in (("model", model), ("recipe", recipe), ("corpus", table)):
        monkeypatch.setattr(shipped, "corpora" if kind == "corpus" else f"{kind}s", lambda kind=kind: [f"my-{kind}"])
        monkeypatch.setattr(shipped, kind, lambda _, path=path: path)
    done = run("models")
    assert (done.code, done.err) == (0, "")
    size = sum(file.stat().st_size for file in model.rglob("*"))
    shown = [line.split() for line in done.out.splitlines() if "my-" in line]
    assert shown == [
        ["my-model", "echo", format_bytes(size).split()[0], "kB", "same", "12.5", "CC", "BY", "2.0"],
        ["my-recipe", "small", r"[bold]\x1b"],
        ["shipped:my-corpus", "1.0", "MB"],
    ]
    for kind in ("models", "recipes", "corpora"):
        monkeypatch.setattr(shipped, kind, list)
    assert run("models").out.split("\n\n") == [
        "no models are shipped",
        "no recipes are shipped",
        "no corpora are shipped",
        "",
    ]


def test_the_licence_of_the_shipped_translator_is_told() -> None:
    (line,) = [line for line in run("models").out.splitlines() if line.startswith("zh-en ")]
    assert line.endswith("Apache-2.0 for the weights, as clearhead (see README.md)"), "the first sentence of many"


def test_training_is_called_with_what_was_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import clearhead.train

    called: list[object] = []
    monkeypatch.setattr(clearhead.train, "run_training", lambda *args, **options: called.append((args, options)))
    changes = [
        "--set",
        "train.steps=3",
        "--set",
        "a=[1]",
        "--out",
        "there",
        "--seed",
        "5",
        "--device",
        "cpu",
        "--resume",
    ]
    assert run("train", "tiny.toml", *changes) == (0, "", "")
    options = {"out": Path("there"), "seed": 5, "device": "cpu", "resume": True, "overwrite": False}
    assert called == [(("tiny.toml",), {"overrides": ["train.steps=3", "a=[1]"], **options})]
    assert run("train", "tiny.toml", "--resume", "--overwrite").code == 2


# What goes wrong


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (TrainingError("loss is NaN at step 3"), 1, "loss is NaN at step 3"),
        (MemoryError(), 1, "out of memory; use a smaller --batch"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 12"), 1, "out of memory; use"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "x.tsv"), 2, "x.tsv: No such file or directory"),
        (PermissionError(errno.EACCES, "Permission denied", "x.tsv"), 2, "x.tsv: Permission denied"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "No space left on device"),
        (ModuleNotFoundError("No module named 'sacrebleu'", name="sacrebleu"), 2, 'pip install "clearhead[train]"'),
        (ModuleNotFoundError("No", name="matplotlib.pyplot"), 2, 'pip install "clearhead[explore]"'),
        (KeyboardInterrupt(), 130, "interrupted"),
        (KeyError("x"), 1, "KeyError: 'x'; this is a bug: please report it"),
        (TrainingError("\x1b[31mred\x07\nnext"), 1, r"\x1b[31mred\x07"),
    ],
)
def test_every_error_has_its_words_and_its_code(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, words: str
) -> None:
    import clearhead.train

    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(clearhead.train, "run_training", fails)
    done = run("train", "tiny.toml")
    assert done.code == code
    assert done.err.startswith("clearhead: ")
    assert words in done.err
    assert "Traceback" not in done.err
    monkeypatch.setenv("CLEARHEAD_TRACEBACK", "1")
    if isinstance(error, Exception):
        with pytest.raises(type(error)):
            run("train", "tiny.toml")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], "No such command 'trian'"),
        (["predict", "--bach", "3"], "No such option: --bach"),
        (["predict"], "Missing argument"),
        (["predict", "nowhere", "text"], "there is no folder 'nowhere', and no shipped model is called 'nowhere'"),
        (["predict", "MODEL", "text", "--batch", "0"], "--batch"),
        (["predict", "MODEL", "text", "--device", "gpu"], "'gpu' is no device; choose auto, cpu or cuda"),
        (["predict", "MODEL/config.json", "text"], "is a file; a model is a folder"),
        ([], "a command is missing"),
    ],
)
def test_wrong_input_exits_with_2_and_one_line(model: Path, arguments: list[str], words: str) -> None:
    done = run(*(argument.replace("MODEL", str(model)) for argument in arguments))
    assert done.code == 2
    assert words in done.err
    assert done.err.count("\n") == 1


def test_a_damaged_model_is_refused(model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"")
    done = run("predict", model, "text")
    assert (done.code, done.out) == (2, "")
    assert "model.safetensors has changed" in done.err


def test_a_model_that_runs_out_of_memory_says_so(tmp_path: Path) -> None:
    processor, _ = echo()
    processor.settings["breaks"] = "memory"
    write_echo(tmp_path / "large", processor=processor)
    assert run("predict", tmp_path / "large", "break").code == 1


def test_help_and_version() -> None:
    assert run("--version") == (0, "clearhead 0.1.0\n", "")
    tasks = [task for name, task in TASKS.items() if task.actions and name != "echo"]
    listed = run("--help").out
    for command in ("train", "predict", "evaluate", "models", *(task.name for task in tasks)):
        assert f"│ {command} " in listed
        assert run(command, "--help").code == 0


# Streams that are closed


@pytest.mark.parametrize(
    ("stream", "arguments"),
    [
        ("stdout", ["--help"]),
        ("stdout", ["--version"]),
        ("stdout", ["models"]),
        ("stdout", ["predict", "--help"]),
        ("stdout", ["predict", "MODEL", "abc"]),
        ("stderr", ["predict", "nowhere", "abc"]),
        ("stderr", ["predict", "MODEL", "a" * 60]),
    ],
)
def test_a_pipe_without_a_reader_ends_a_command_quietly(
    model: Path, monkeypatch: pytest.MonkeyPatch, stream: str, arguments: list[str]
) -> None:
    streams = {"stdout": io.StringIO(), "stderr": io.StringIO()}
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as pipe:
        for name, other in {**streams, stream: pipe}.items():
            monkeypatch.setattr(sys, name, other)
        assert cli.main([argument.replace("MODEL", str(model)) for argument in arguments]) == 141
        assert os.fstat(writer).st_rdev == os.stat(os.devnull).st_rdev, "or Python would complain at its exit"
    assert streams["stderr"].getvalue() == ""


CLOSED = "clearhead: the standard output is closed; redirect it to a file, or to /dev/null\n"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["models"], ["predict", "MODEL", "abc"]])
def test_a_closed_output_is_refused_in_one_line(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main([argument.replace("MODEL", str(model)) for argument in arguments]) == 2
    assert capsys.readouterr().err == CLOSED


def test_messages_for_a_closed_stderr_do_not_go_to_the_output(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert cli.main(["predict", str(model), "a" * 60]) == 0
    assert cli.main(["predict", "nowhere", "a"]) == 2
    sys.stderr.close()
    assert capsys.readouterr().out == "a" * 60 + "!\n"


def test_a_closed_input_is_refused_where_it_is_needed(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert cli.main(["predict", str(model), "abc"]) == 0
    for command in (["predict", str(model)], ["predict", str(model), "-"], ["look", str(model), "-"]):
        assert cli.main(command) == 2
        error = capsys.readouterr().err
        assert "the standard input is closed; give an INPUT" in error
        assert error.count("\n") == 1


def test_a_file_never_gets_the_number_of_a_closed_stream() -> None:
    code = "import os; from clearhead.cli.program import prepare_streams; prepare_streams(); "
    code += "os._exit(os.open(os.devnull, os.O_RDONLY))"
    closed = ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, code]
    assert subprocess.run(closed).returncode > 2


@pytest.mark.parametrize(
    ("arguments", "place"),
    [(["\udcff.toml"], "RECIPE"), (["a.toml", "--set", "a=\udcff"], "--set"), (["a.toml", "--out", "\udcff"], "--out")],
)
def test_bytes_that_no_recipe_can_hold_are_refused_before_training(arguments: list[str], place: str) -> None:
    done = run("train", *arguments)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.err.startswith(f"clearhead: {place} is not UTF-8: byte 0xFF at place ")


# As a program of its own


def program(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "LC_ALL": "C", "PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, ROOT / "tests" / "echoing.py", *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environment, **{**pipes, **options})  # type: ignore[call-overload]


def test_a_pipe_that_closes_early_ends_it_quietly_in_utf8(model: Path) -> None:
    with program("predict", model, "-", "--batch", "1") as running:
        assert running.stdin is not None
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdin.write("你好\n".encode())
        running.stdin.flush()
        assert running.stdout.readline() == "好你!\n".encode()  # answered before the next line is there
        running.stdout.close()
        running.stdin.write(b"abc\n" * 3)
        running.stdin.flush()
        assert running.wait(60) == 141
        assert running.stderr.read() == b""


def test_python_m_clearhead_is_quick_to_help() -> None:
    code = "import runpy, sys; sys.argv = ['clearhead', '--help']\n"
    code += "try: runpy.run_module('clearhead', run_name='__main__')\n"
    code += "except SystemExit as done: print(done.code, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 False"


def test_the_command_is_installed_under_its_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"clearhead": "clearhead.__main__:main"}


def test_only_commands_with_options_of_tasks_have_them() -> None:
    for command in (["models", "--batch", "3"], ["train", "classify-tiny", "--beam", "3"]):
        done = run(*command)
        assert done.code == 2
        assert "No such option" in done.err


def test_too_many_threads_are_refused(model: Path) -> None:
    assert run("predict", model, "--threads", 100_000, "a").code == 2
