"""CPU threads of the command line: how many compute, and that a waiting thread leaves its core to others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from clearhead import cli
from clearhead.cli.program import SPINS, WAIT_POLICY, limit_spinning
from clearhead.tasks import TASKS
from tests.echoing import ECHO, write_echo


def spinning() -> dict[str, str]:
    return {name: os.environ[name] for name in (WAIT_POLICY, SPINS) if name in os.environ}


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (WAIT_POLICY, SPINS):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)


@pytest.fixture
def no_torch_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")


@pytest.mark.usefixtures("no_torch_yet")
def test_threads_that_wait_sleep() -> None:
    limit_spinning()
    assert spinning() == {"OMP_WAIT_POLICY": "PASSIVE"}


@pytest.mark.usefixtures("no_torch_yet")
@pytest.mark.parametrize("name", [WAIT_POLICY, SPINS])
def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "ACTIVE")
    limit_spinning()
    assert spinning() == {name: "ACTIVE"}


def test_nothing_is_set_when_it_would_be_too_late() -> None:
    assert "torch" in sys.modules
    limit_spinning()
    assert spinning() == {}


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(TASKS._loaded, "echo", ECHO)
    write_echo(tmp_path / "saved")
    (tmp_path / "pairs.tsv").write_text("abc\tcba!\n")
    return tmp_path


@pytest.mark.parametrize("command", ["predict", "evaluate", "train", "look", "figures"])
def test_a_command_computes_with_as_many_threads_as_it_is_told(
    saved: Path, monkeypatch: pytest.MonkeyPatch, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAYON_NUM_THREADS", "2")
    asked = list[int]()
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    arguments = {
        "predict": ["predict", saved / "saved", "abc"],
        "evaluate": ["evaluate", saved / "saved", saved / "pairs.tsv"],
        "train": ["train", "nowhere.toml"],
        "look": ["look", saved / "nowhere", "abc"],
        "figures": ["figures", saved / "nowhere", "abc", "--out", saved / "figures"],
    }[command]
    cli.main(list(map(str, arguments)))
    assert asked == []
    assert os.environ["RAYON_NUM_THREADS"] == "2"
    cli.main([*map(str, arguments), "--threads", "3"])
    assert asked == [3]
    assert os.environ["RAYON_NUM_THREADS"] == "3"
    assert cli.main([*map(str, arguments), "--threads", "0"]) == 2
    assert "--threads" in capsys.readouterr().err
    assert asked == [3]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere PyTorch has another OpenMP, which shows other lines")
def test_openmp_is_told_in_time() -> None:
    environment = {**os.environ, "OMP_DISPLAY_ENV": "VERBOSE"}
    command = [sys.executable, "-m", "clearhead", "predict", "nowhere", "x"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "OMP_WAIT_POLICY = 'PASSIVE'\n" in done.stderr
    assert "GOMP_SPINCOUNT = '0'\n" in done.stderr
