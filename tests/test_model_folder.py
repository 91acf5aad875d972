"""The model folder: whole or not there, and refused when it is not what was written."""

import errno
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from clearhead import model_folder
from clearhead.errors import CheckpointError, ConfigError, DiskFullError
from clearhead.model.weight_storage import load_weights, pack_weights, to_int8, unpack_weights
from clearhead.model_folder import ModelFolder
from clearhead.storage import file_checksum, verify_checksums
from clearhead.tasks import TASKS
from tests.echoing import CARD, ECHO, EchoAnswerer, EchoOptions, echo, write_echo

FILES = {"README.md", "checksums.json", "config.json", "marks.txt", "metrics.json", "model.safetensors"}


@pytest.fixture(autouse=True)
def _echo_is_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS._loaded, "echo", ECHO)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    write_echo(tmp_path / "saved")
    return tmp_path / "saved"


def names_in(path: Path) -> set[str]:
    return {child.name for child in path.iterdir()}


def change_json(path: Path, **changes: object) -> None:
    """Changes a file as someone would who keeps the checksums right."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    listed = json.loads((path.parent / "checksums.json").read_text())
    listed["files"][path.name] = file_checksum(path)
    (path.parent / "checksums.json").write_text(json.dumps(listed))


# Written and read


def test_what_was_written_is_read(tmp_path: Path) -> None:
    model = write_echo(tmp_path / "deep" / "down", recipe='task = "echo"\n')
    found = ModelFolder.open(tmp_path / "deep" / "down")
    again = found.model("cpu")
    assert names_in(found.path) == FILES | {"recipe.toml"}
    assert names_in(tmp_path / "deep") == {"down"}
    assert found.metrics == {"dev": {"same": 12.5}}
    assert (found.path / "README.md").read_text() == CARD
    assert found.task is ECHO
    assert EchoAnswerer(found.processor(), again).predict(["ab"], EchoOptions())[0].text == "ba!"
    assert not again.training
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)
        assert again.state_dict()[name].dtype == torch.float32
    assert all(parameter.requires_grad for parameter in again.parameters())


def test_the_config_says_what_is_in_the_folder(saved: Path) -> None:
    processor, _ = echo()
    config = json.loads((saved / "config.json").read_text())
    assert {key: config[key] for key in config if key not in ("clearhead", "model")} == {
        "format": 1,
        "task": "echo",
        "architecture": "EncoderDecoder",
        "weights": "float32",
        "settings": {"breaks": "bug"},
    }
    assert config["model"] == processor.config.to_dict()
    assert config["clearhead"].count(".") == 2


def test_a_run_s_folder_stands_for_the_model_in_it(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    saved.rename(tmp_path / "run" / "model")
    assert ModelFolder.open(tmp_path / "run").path == tmp_path / "run" / "model"


@pytest.mark.parametrize(("weights", "shrinks"), [("float32", 1.0), ("bfloat16", 0.6), ("int8", 0.5)])
def test_smaller_weights_are_nearly_the_same(tmp_path: Path, weights: str, shrinks: float) -> None:
    processor, _ = echo()
    processor.config = processor.config.change(width=96, feedforward=160)
    model = processor.build()
    write_echo(tmp_path / "one", processor=processor, model=model, weights=weights)
    again = ModelFolder.open(tmp_path / "one").model("cpu")
    for name, value in model.state_dict().items():
        limit = {"float32": 0.0, "bfloat16": 2**-8, "int8": 1.01 / 254}[weights] * value.abs().max()
        limit = limit if value.ndim == 2 else 0.0
        assert (again.state_dict()[name] - value).abs().max() <= limit, name
    plain = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert (tmp_path / "one" / "model.safetensors").stat().st_size < shrinks * plain + 12_000


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=6, max_size=6))
def test_int8_is_off_by_half_a_scale_at_most(values: list[float]) -> None:
    matrix = torch.tensor(values).reshape(2, 3)
    whole, scale = to_int8(matrix)
    off = (matrix.double() - whole.double() * scale.double()[:, None]).abs()
    assert (off <= scale.double()[:, None] * (0.5 + 1e-5)).all()
    assert torch.equal(unpack_weights({"w": whole, "w.scale": scale})["w"], whole.float() * scale[:, None])


def test_int8_refuses_what_it_has_no_place_for() -> None:
    model = nn.Linear(3, 2)
    nn.init.constant_(model.weight, float("nan"))
    with pytest.raises(CheckpointError, match="weight contains infinities or NaN"):
        pack_weights(model, "int8")


def test_a_shared_weight_is_stored_once_and_stays_shared() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    stored = pack_weights(model, "int8")
    assert set(stored) == {"0.weight", "0.weight.scale", "0.bias", "1.bias"}
    with torch.device("meta"):
        other = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        other[1].weight = other[0].weight
    load_weights(other, unpack_weights(stored))
    assert other[0].weight is other[1].weight
    assert other[0].weight.device.type == "cpu"


def test_numbers_that_are_no_weights_keep_their_type() -> None:
    model = nn.BatchNorm1d(3)
    assert unpack_weights(pack_weights(model, "int8"))["num_batches_tracked"].dtype == torch.int64


# Refused


@pytest.mark.parametrize("name", sorted(FILES - {"checksums.json", "README.md"}))
@pytest.mark.parametrize("damage", ["missing", "altered", "truncated"])
def test_a_damaged_file_is_named(saved: Path, name: str, damage: str) -> None:
    file = saved / name
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    elif damage == "altered":
        place = len(content) // 2
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    else:
        file.write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match=name) as caught:
        ModelFolder.open(saved)
    assert "\n" not in str(caught.value)


def test_a_folder_without_checksums_is_refused(saved: Path) -> None:
    (saved / "checksums.json").unlink()
    with pytest.raises(CheckpointError, match=r"checksums.json is missing.*copy the folder again"):
        ModelFolder.open(saved)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 1}', '{"format": 2, "files": {}}'])
def test_checksums_that_are_none_are_refused(saved: Path, content: str) -> None:
    (saved / "checksums.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"checksums\.json"):
        ModelFolder.open(saved)


def test_a_file_that_must_be_listed_is(saved: Path) -> None:
    (saved / "checksums.json").write_text(json.dumps({"format": 1, "files": {}}))
    with pytest.raises(CheckpointError, match=r"does not list config\.json"):
        ModelFolder.open(saved)


def test_other_files_do_no_harm(saved: Path) -> None:
    (saved / "notes.txt").write_text("mine")
    assert "notes.txt" not in verify_checksums(saved)
    ModelFolder.open(saved)


def test_a_newer_format_is_refused_with_the_remedy(saved: Path) -> None:
    change_json(saved / "config.json", format=2)
    with pytest.raises(CheckpointError, match=r"newer clearhead \(format 2; this one reads 1\); upgrade"):
        ModelFolder.open(saved)


def test_a_hugging_face_checkpoint_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "marian", "architectures": ["MarianMTModel"]}')
    with pytest.raises(CheckpointError, match=r"is a Hugging Face checkpoint; clearhead\.from_huggingface"):
        ModelFolder.open(tmp_path)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], r"is no model folder: it holds no config\.json$"),
        (["report.txt", "recipe.toml"], r"is a training run that has not finished; .* --resume"),
        (["checkpoints/00000004/state.json"], r"is a training run that has not finished; .* --resume"),
        (["a/config.json", "b/model/config.json"], r"holds 2 models but is none; name one, such as .*/a$"),
        (["a.c", "b.c", "c.c", "d.c"], r"is no model folder: it holds no config\.json, but a\.c, b\.c, c\.c, …$"),
    ],
)
def test_a_folder_without_a_model_is_called_what_it_is(tmp_path: Path, files: list[str], words: str) -> None:
    for file in files:
        name, _, content = file.partition(": ")
        (tmp_path / "it" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "it" / name).write_text(content)
    (tmp_path / "it").mkdir(exist_ok=True)
    with pytest.raises(CheckpointError, match=words) as caught:
        ModelFolder.open(tmp_path / "it")
    assert "\n" not in str(caught.value)


def test_a_file_is_called_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "my.record").write_text("")
    with pytest.raises(CheckpointError, match=r"my\.record is a file; a model is a folder"):
        ModelFolder.open(tmp_path / "my.record")


def test_the_card_may_be_edited_or_removed(saved: Path) -> None:
    (saved / "README.md").write_text("# My translator\n")
    assert ModelFolder.open(saved).task.name == "echo"
    (saved / "README.md").unlink()
    assert ModelFolder.open(saved).task.name == "echo"
    assert "README.md" in json.loads((saved / "checksums.json").read_text())["files"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "1"}, "format = '1'"),
        ({"task": 3}, "task = 3"),
        ({"task": "juggling"}, "task 'juggling'; this clearhead knows"),
        ({"model": {"vocabulary": 31, "wdith": 12}}, "did you mean 'width'"),
        ({"model": {"width": 12}}, "describes no possible model"),
        ({"model": {"vocabulary": 31}}, "does not hold this model"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(saved: Path, changes: dict[str, object], words: str) -> None:
    change_json(saved / "config.json", **changes)
    with pytest.raises(CheckpointError, match=words.replace("(", r"\(")):
        ModelFolder.open(saved).model("cpu")


def test_a_place_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere is no model folder"):
        ModelFolder.open(tmp_path / "nowhere")


def test_what_cannot_be_stored_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="float32, bfloat16, int8, not as 'int4'"):
        write_echo(tmp_path / "new", weights="int4")
    assert names_in(tmp_path) == set()


# Whole, or not there


def test_a_folder_with_something_in_it_is_never_overwritten(saved: Path, tmp_path: Path) -> None:
    before = (saved / "model.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match="exists already; name another folder, or remove it first"):
        write_echo(saved)
    assert (saved / "model.safetensors").read_bytes() == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointError, match="exists already"):
        write_echo(tmp_path / "file")


def test_an_empty_folder_and_a_link_to_one_are_filled(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    write_echo(tmp_path / "link")
    assert names_in(tmp_path / "empty") == FILES


@pytest.mark.parametrize("words", ["errno", "safetensors"])
def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    from safetensors import SafetensorError

    def fails(*_: object, **__: object) -> None:
        if words == "errno":
            raise OSError(errno.ENOSPC, "No space left on device")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(model_folder, "save_file", fails)
    with pytest.raises(DiskFullError, match=r"the disk is full: .* needs [\d.]+ kB, and .* free"):
        write_echo(tmp_path / "new")
    assert names_in(tmp_path) == set()


FULL = """
import pathlib, sys, torch
sys.path.insert(0, sys.argv[2])
from clearhead.errors import DiskFullError
from tests.echoing import write_echo, echo
processor, _ = echo()
processor.config = processor.config.change(vocabulary=50_000)
try:
    write_echo(pathlib.Path(sys.argv[1], "new"), processor=processor, model=processor.build())
except DiskFullError as error:
    print(error)
    print(list(pathlib.Path(sys.argv[1]).iterdir()))
"""


def test_a_disk_that_is_really_full_is_survived(tmp_path: Path) -> None:
    mount = [
        "unshare",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        'mount -t tmpfs -o size=1m none "$1" && shift && "$@"',
    ]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*mount, "-", tmp_path, "true"], capture_output=True).returncode
    ):
        pytest.skip("a small file system of its own may not be mounted here")
    root = Path(__file__).parents[1]
    command = [*mount, "-", tmp_path, sys.executable, "-c", FULL, tmp_path, root]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "needs 2.4 MB, and 1.0 MB are free" in done.stdout
    assert done.stdout.splitlines()[1] == "[]"


def test_the_folder_is_as_readable_as_any_other(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "file").write_text("")
    assert saved.stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert {file.stat().st_mode for file in saved.iterdir()} == {(tmp_path / "plain" / "file").stat().st_mode}
