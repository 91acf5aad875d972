"""Two processes train what one would have trained, whether they share the weights out or not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.train.corpus import write_recipe
from tests.train.forked_runs import Ended, Run, train_in_forks

pytestmark = pytest.mark.unchecked  # whole runs


def torchrun(recipe: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command = ["-m", "clearhead", "train", str(recipe), "--out", str(out), "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*launcher, *command, *more], env=environment, capture_output=True, text=True, timeout=300)


def final(out: Path) -> dict:
    return load_file(out / "model" / "model.safetensors")


def apart(ours: dict, theirs: dict) -> float:
    return max(float((ours[name].double() - theirs[name].double()).abs().max()) for name in ours)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Ended]]:
    """Runs of one and of two processes by the same recipe, without chance, in float64: their folder, and their ends."""
    base = tmp_path_factory.mktemp("processes")
    changes = 'precision = "float64"\nsteps = 6\nevaluate_every = 3\nsave_every = 2\naccumulate = 2\nbatch_tokens = 256'
    recipe = str(write_recipe(base, model="dropout = 0.0", train=changes))
    # Half the budget each: the global batches are the same.
    two, sharded = {"processes": 2}, ("train.batch_tokens=128", "train.shard=true")
    runs = {
        "one": Run(recipe, str(base / "one")),
        "two": Run(recipe, str(base / "two"), ("train.batch_tokens=128",), **two),
        "sharded": Run(recipe, str(base / "sharded"), (*sharded, "train.steps=4"), **two),
        "resumed": Run(recipe, str(base / "sharded"), sharded, resume=True, **two),
        "another number": Run(recipe, str(base / "one"), ("train.steps=7",), resume=True, **two),
    }
    return base, dict(zip(runs, train_in_forks(list(runs.values())), strict=True))


def test_two_processes_equal_one(trained):
    base, ends = trained
    assert (ends["one"].code, ends["two"].code) == (0, 0), ends
    # 1e-10 in float64; what is stored is float32, so equal or one rounding apart.
    assert apart(final(base / "one"), final(base / "two")) < 1e-7
    ours, theirs = ((base / name / "metrics.jsonl").read_text().splitlines() for name in ("one", "two"))
    assert len(ours) == len(theirs)


def test_a_sharded_run_equals_one_process_and_goes_on(trained):
    """FSDP; what is equal after it was resumed was equal before."""
    base, ends = trained
    assert (ends["sharded"].code, ends["resumed"].code) == (0, 0), ends
    files = {path.suffix for path in (base / "sharded" / "checkpoints" / "00000004").iterdir()}
    assert files == {".safetensors", ".json"}, "and no pickle"
    assert "going on after step 4" in ends["resumed"].said
    assert apart(final(base / "one"), final(base / "sharded")) < 1e-7


def test_another_number_of_processes_is_refused(trained):
    _, ends = trained
    assert ends["another number"].code == 2
    said = "started with 1 processes, which share every batch; 2 would train on other"
    assert said in ends["another number"].said


def test_more_processes_than_sentences_do_no_harm_under_torchrun(tmp_path):
    recipe = write_recipe(tmp_path, train="steps = 3\nbatch_tokens = 16\nshard = true")
    done = torchrun(recipe, tmp_path / "run", "--set", "data.lines=1")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "model").is_dir()


def test_a_mistake_is_the_cause_that_torchrun_gives(tmp_path):
    """The folder is opened by the first process alone; the other fails because that one is gone."""
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a letter").touch()
    done = torchrun(write_recipe(tmp_path), tmp_path / "letters")
    assert done.returncode == 1, "torchrun knows no other"
    assert "contains a letter, which is not from a training run" in done.stderr.split("Root Cause")[1]
    assert done.stderr.count("Traceback") == 1, "torchrun's own, which comes whenever a process fails"
