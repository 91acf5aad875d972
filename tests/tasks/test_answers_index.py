"""The index of answers: exact search, stable ids, and changes that are whole or not there."""

import errno
import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from clearhead.errors import CheckpointError, ConfigError, DiskFullError
from clearhead.storage import CHECKSUMS, atomic, atomic_folder, verify_checksums
from clearhead.tasks.answers import answer_index
from clearhead.tasks.answers.answer_index import AnswerIndex, Entry, find_generation, replace_index

ROOT = Path(__file__).parents[2]


def random_vectors(rows: int, width: int = 7, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def make_index(rows: int = 11, width: int = 7) -> AnswerIndex:
    entries = [Entry(row % 5, f"answer {row % 5}", f"question {row}") for row in range(rows)]
    return AnswerIndex.empty(width).extend(entries, random_vectors(rows, width))


@pytest.mark.parametrize("questions", [1, 3, 16, 29])
def test_the_search_is_exact_for_one_question_and_for_many(questions, monkeypatch):
    monkeypatch.setattr(answer_index, "SIMILARITIES_AT_ONCE", 900)  # so that many questions go in several blocks
    index, asked = make_index(211), random_vectors(questions, seed=1)
    scores, places = index.search(asked, 13)
    wanted = asked.astype(np.float64) @ index.vectors.astype(np.float64).T
    assert scores.shape == places.shape == (questions, 13)
    assert (places == np.argsort(-wanted, axis=1)[:, :13]).all()
    assert np.abs(scores - np.take_along_axis(wanted, places, 1)).max() < 8 * np.finfo(np.float32).eps


def test_fewer_entries_than_wanted_and_none_at_all():
    scores, places = make_index(2).search(random_vectors(1), 10)
    assert scores.shape == places.shape == (1, 2)
    assert AnswerIndex.empty(7).search(random_vectors(3), 10)[0].shape == (3, 0)


def test_ids_are_those_of_the_same_text_or_new_and_never_used_again():
    index = make_index()
    assert index.assign_ids(["answer 3", "fresh", "answer 0", "fresh", "other"]) == [3, 5, 0, 5, 6]
    index = index.extend([Entry(5, "fresh", "why", added=True)], random_vectors(1))
    assert (index.next_id, index.answers[5], index.added.tolist()) == (6, "fresh", [False] * 11 + [True])
    smaller = index.remove([5, 2])
    assert set(smaller.answers) == {0, 1, 3, 4}
    assert len(smaller.entries) == len(smaller.vectors) == 9
    assert smaller.assign_ids(["again"]) == [6], "the id of a removed answer is not given to another"
    with pytest.raises(ConfigError, match="no answer has the id 77; clearhead answers MODEL list shows all"):
        index.remove([0, 77])


def write_model(folder: Path) -> AnswerIndex:
    with atomic_folder(folder) as fresh:
        (fresh / "config.json").write_text("{}")
        make_index().save(fresh)
    return make_index()


def test_a_change_replaces_files_and_checksums_together(tmp_path):
    folder = tmp_path / "model"
    index = write_model(folder)
    for change in range(3):
        index = index.extend([Entry(9 + change, f"新答案 {change}\nwith a second line", "问题")], random_vectors(1))
        replace_index(folder, index)
        assert verify_checksums(folder) == {
            "config.json",
            f"answers-{change + 2}.jsonl",
            f"answers-{change + 2}.safetensors",
        }
        found = AnswerIndex.load(folder)
        assert found.entries == index.entries
        assert (found.vectors == index.vectors).all()
        assert found.next_id == 10 + change
    assert find_generation(folder) == 4
    names = {path.name for path in folder.iterdir()}
    assert "answers-3.jsonl" in names, "the one before stays, for a process that is just reading it"
    assert "answers-2.jsonl" not in names


KILLED = """
import os, pathlib, signal, sys
sys.path.insert(0, sys.argv[2])
import numpy as np
from tests.tasks.test_answers_index import Entry, random_vectors, replace_index, write_model
EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod"}
for deadly in range(1, 100):
    place = pathlib.Path(sys.argv[1], str(deadly))
    index = write_model(place)
    child = os.fork()
    if not child:
        left = deadly

        def count(event, arguments):
            global left
            left -= event in EVENTS
            if event in EVENTS and not left:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        replace_index(place, index.extend([Entry(9, "new", "new?")], random_vectors(1)))
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(deadly, code)
    if code == 0:
        break
"""


def test_a_kill_at_any_file_operation_leaves_the_old_index_or_the_new_one(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KILLED, tmp_path, ROOT], capture_output=True, text=True, check=True
    )
    codes = dict(tuple(map(int, line.split())) for line in done.stdout.splitlines())
    assert list(codes.values()) == [-signal.SIGKILL] * (len(codes) - 1) + [0]
    assert len(codes) > 10, "or the operations were not noticed"
    sizes = []
    for deadly in codes:
        folder = tmp_path / str(deadly)
        verify_checksums(folder)
        index = AnswerIndex.load(folder)
        assert len(index.entries) == len(index.vectors)
        sizes.append(len(index.entries))
        replace_index(folder, index)  # and it can be changed again
        assert len(AnswerIndex.load(folder).entries) == sizes[-1]
        assert not list(folder.glob(".*")), "what the killed process left is removed"
    assert sizes == sorted(sizes)
    assert {11, 12} == set(sizes), "old ones before the moment of the change, new ones after it"


def full_disk(*arguments: object, **options: object) -> None:
    for path in arguments:
        if isinstance(path, Path):
            path.write_bytes(b"half of it")
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("module", "writer"),
    [(answer_index, "save_file"), (answer_index, "_write_entries"), (atomic, "write_json")],
    ids=["vectors", "entries", "checksums"],
)
def test_a_full_disk_leaves_the_old_index_and_nothing_else(tmp_path, monkeypatch, module, writer):
    folder = tmp_path / "model"
    index = write_model(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(module, writer, full_disk)
    with pytest.raises(DiskFullError, match=r"the disk is full: .*model/.* needs .*, and .* are free") as raised:
        replace_index(folder, index.remove([0]))
    if module is answer_index:
        assert "more than" not in str(raised.value), "not what was written of it: that may be less than is free"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert AnswerIndex.load(folder).entries == index.entries


def test_damaged_files_are_refused_by_name(tmp_path):
    folder = tmp_path / "model"
    write_model(folder)
    listing = folder / "answers-1.jsonl"
    whole = listing.read_text()
    for wrong, said in (
        ("", "is no index of answers"),
        ("{", "is no index of answers"),
        (whole.replace('"format": 1', '"format": 7'), "newer clearhead"),
        (whole + '{"id": 1, "answer": "a", "question": "b", "added": false}\n', "has 12 entries, but there are 11"),
        (whole.replace('"answer"', '"reply"'), "is no index of answers"),
    ):
        listing.write_text(wrong)
        with pytest.raises(CheckpointError, match=said):
            AnswerIndex.load(folder)
    assert AnswerIndex.load(tmp_path) is None
    listing.write_text(whole)
    vectors = make_index().vectors.copy()
    vectors[3, 2] = np.nan
    answer_index.save_file({"vectors": vectors}, listing.with_suffix(".safetensors"))
    with pytest.raises(CheckpointError, match=r"answers-1\.safetensors has vectors that are NaN or infinite"):
        AnswerIndex.load(folder)
    assert json.loads((folder / CHECKSUMS).read_text())["format"] == 1
