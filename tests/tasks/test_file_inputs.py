"""What tasks share whose inputs are files: reading tables and folders, loading, samples, pictures in traces."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from clearhead.errors import ConfigError, DataError, RecordError
from clearhead.tasks.file_inputs import FileInputs, LoadedInput, is_generated
from clearhead.tasks.media import PictureInput, SoundInput, media_from_json, media_to_json
from clearhead.text import Report
from clearhead.text.corpora import Row


class Numbers(FileInputs):
    """Files with one number in each."""

    kind = "sound"
    suffixes = (".number", ".num")
    generators: ClassVar = {
        "counts": lambda part, rows: ((np.array([count]), f"{part} {count}") for count in range(rows or 3))
    }

    def load_file(self, path: Path) -> np.ndarray:
        try:
            return np.array([float(path.read_text())])
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: {error}") from None

    def load_value(self, value) -> np.ndarray:
        if not isinstance(value, np.ndarray):
            raise DataError(f"an array is needed, got {value!r}")
        return value

    def save_file(self, content, path: Path) -> None:
        path.write_text(str(float(content[0])))


def read(source: str | Path) -> Iterator[Row]:
    return Numbers.read(source, ("number", "text"))


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_paths_of_a_table_are_relative_to_its_folder(tmp_path):
    table = write(tmp_path, "data/rows.tsv", "in/a.number\tone\n/b.number\ttwo\n")
    rows = list(read(table))
    assert [row.values for row in rows] == [(f"{tmp_path}/data/in/a.number", "one"), ("/b.number", "two")]
    lines = [json.dumps({"number": "in/a.number", "text": "one"})]
    table = write(tmp_path, "data/rows.jsonl", "\n".join(lines))
    assert next(read(table)).values == (f"{tmp_path}/data/in/a.number", "one")


def test_a_header_line_of_a_table_is_no_row(tmp_path):
    table = write(tmp_path, "rows.tsv", "number\ttext\na.number\tone\n")
    assert [row.values for row in read(table)] == [(f"{tmp_path}/a.number", "one")]
    write(tmp_path, "number", "5")
    assert len(list(read(table))) == 2, "there is a file of this name"


def test_an_empty_path_is_refused_with_its_place():
    with pytest.raises(DataError, match=r"^input 3 is empty; the path of a sound file is needed$"):
        Numbers().check(" ", "input 3")


def test_a_folder_of_files_with_texts_beside_them_is_data(tmp_path):
    write(tmp_path, "b.number", "2")
    write(tmp_path, "b.txt", "\ufefftwo\nlines\n")
    write(tmp_path, "deep/a.NUM", "1")
    write(tmp_path, ".hidden.number", "3")
    (tmp_path / "lost.number").symlink_to("nowhere")
    rows = list(read(tmp_path))
    assert [(Path(row.values[0]).name, row.values[1]) for row in rows] == [
        ("b.number", "two lines"),
        ("a.NUM", ""),
        ("lost.number", ""),
    ]
    report = Report()
    kept = Numbers().keep_readable(rows, report)
    assert [float(row.values[0].content[0]) for row in kept] == [2.0]
    assert "1 without a text (a.NUM)" in str(report)
    assert "1 with a missing sound file (lost.number)" in str(report)


def test_a_folder_without_such_files_is_refused(tmp_path):
    write(tmp_path, "b.txt", "two")
    with pytest.raises(DataError, match=r"has no sound files \(.number, .num\) with a .txt file beside each"):
        read(tmp_path)


def test_a_text_beside_a_file_that_is_not_utf_8_is_refused(tmp_path):
    write(tmp_path, "b.number", "2")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe2")
    with pytest.raises(DataError, match=r"b\.txt cannot be read as UTF-8"):
        list(read(tmp_path))


def test_generated_data_have_parts_and_sizes():
    rows = list(read("made:counts.dev:2"))
    assert [(row.values[1], row.where) for row in rows] == [
        ("dev 0", "made:counts.dev:1"),
        ("dev 1", "made:counts.dev:2"),
    ]
    assert len(list(read("made:counts.train"))) == 3
    assert is_generated(Path("made:counts.train"))
    for wrong, problem in {
        "made:count.dev": "no program makes 'count'; did you mean 'counts'",
        "made:counts": "write made:counts.train",
        "made:counts.all": "write made:counts.train",
        "made:counts.dev:none": "write made:counts.train",
        "made:counts.dev:0": "write made:counts.train",
        "made:counts.dev:٣": "write made:counts.train",
    }.items():
        with pytest.raises(ConfigError, match=problem):
            read(wrong)


def test_a_missing_and_an_unreadable_file_are_counted_with_their_lines(tmp_path):
    write(tmp_path, "good.number", "1")
    write(tmp_path, "bad.number", "one")
    lines = ["good.number\tone"] * 4 + ["gone.number\tgone", "bad.number\tbad", "\tnone"]
    table = write(tmp_path, "rows.tsv", "\n".join(lines))
    report = Report()
    assert len(Numbers().keep_readable(read(table), report)) == 4
    said = str(report)
    assert "2 with a missing sound file (rows.tsv:5, :7)" in said
    assert "1 with an unreadable sound file (rows.tsv:6)" in said


def test_nothing_left_names_the_first_error(tmp_path):
    table = write(tmp_path, "rows.tsv", "gone.number\tone\nlost.number\ttwo\n")
    with pytest.raises(
        DataError, match=r"no row is left to use: .*2 with a missing sound file.*first error.*gone\.num"
    ):
        Numbers().keep_readable(read(table), Report())


def test_inputs_are_paths_or_contents(tmp_path):
    inputs, path = Numbers(), write(tmp_path, "a.number", "5")
    assert inputs.load_input(path) == LoadedInput(str(path), np.array([5.0]))
    assert inputs.check(str(path)) == str(path)
    assert inputs.check(np.array([7.0])).content == 7
    with pytest.raises(DataError, match=r"^input 2: an array is needed, got 7$"):
        inputs.check(7, "input 2")
    with pytest.raises(DataError, match="got an empty text"):
        inputs.load_input(" ")
    with pytest.raises(DataError, match=r"^http://a/b: a sound is read from a file, not from an address$"):
        inputs.load_input("http://a/b")
    with pytest.raises(DataError, match=r"^gone$"):
        inputs.load_input(LoadedInput("a.number", None, "with a missing sound file", "gone"))


@pytest.mark.parametrize(
    ("inputs", "single"),
    [
        ("a.number", True),
        (Path("a.number"), True),
        (np.zeros(3), True),
        ((np.zeros(3), 8000), True),
        (LoadedInput("a", np.zeros(3)), True),
        (["a.number"], False),
        (("a.number", "b.number"), False),
        ((np.zeros(3), np.zeros(2)), False),
        (iter(["a.number"]), False),
    ],
)
def test_one_input_is_told_from_several(inputs, single):
    assert Numbers().is_single(inputs) is single


def test_rows_of_equal_content_have_equal_keys(tmp_path):
    inputs = Numbers()
    paths = [write(tmp_path, name, text) for name, text in (("a.number", "5"), ("b.number", "5.0"), ("c.number", "6"))]
    one, same, other = (
        inputs.identify(row) for row in inputs.load_rows(Row((str(path), ""), "f", 1) for path in paths)
    )
    assert one == same != other


def test_an_input_is_shown_by_its_path_or_by_its_row(tmp_path):
    inputs, path = Numbers(), write(tmp_path, "a.number", "5")
    rows = inputs.load_rows([Row((str(path), "five"), "rows.tsv", 3), Row((np.zeros(1), "zero"), "made:counts.dev", 7)])
    assert [inputs.show_row(row) for row in rows] == [str(path), "made:counts.dev:7"]


def test_samples_are_a_folder_of_data(tmp_path):
    inputs = Numbers()
    rows = [Row((np.array([count]), f"text {count}"), "made:counts.dev", 1) for count in range(11)]
    rows.insert(1, Row((str(tmp_path / "gone"), "gone"), "f", 1))
    written = inputs.write_samples(tmp_path, rows)
    again = inputs.keep_readable(read(tmp_path), Report())
    assert len(written) == 7
    assert [row.values[1] for row in again] == [f"text {count}" for count in range(7)]
    assert [float(row.values[0].content[0]) for row in again] == [*range(7)]


def test_pictures_and_sounds_survive_json_exactly():
    chance = np.random.default_rng(1)
    picture = PictureInput(chance.integers(0, 256, (5, 7, 3), np.uint8), 2, 3, "cat.png")
    sound = SoundInput(
        chance.normal(size=(11, 3)).astype(np.float32), 1.5, 0.01, 0.04, [(0, "a", 0.5), (2, "b", 1.0)], "cat.wav"
    )
    for media in (picture, sound):
        again = media_from_json(json.loads(json.dumps(media_to_json(media))))
        assert type(again) is type(media)
        for one, other in zip(media, again, strict=True):
            assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


@pytest.mark.parametrize(
    "changes", [{"kind": "smell"}, {"data": "?"}, {"shape": [1]}, {"rows": None}, {"shape": [-1, 3, 7]}, {"rows": 0}]
)
def test_damaged_media_in_a_record_are_refused(changes):
    picture = PictureInput(np.zeros((5, 7, 3), np.uint8), 2, 3, "cat.png")
    with pytest.raises(RecordError, match="damaged"):
        media_from_json({**media_to_json(picture), **changes})
    with pytest.raises(RecordError, match="damaged"):
        media_from_json(None)
