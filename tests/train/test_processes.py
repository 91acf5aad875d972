"""Two processes train what one would have trained, whether they share the weights out or not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.train.corpus import write_recipe


def torchrun(recipe: Path, out: Path, *more: str, processes: int = 2) -> None:
    done = started(recipe, out, *more, processes=processes)
    assert done.returncode == 0, done.stderr


def started(recipe: Path, out: Path, *more: str, processes: int = 2) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    command = ["-m", "clearhead", "train", str(recipe), "--out", str(out), "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*launcher, *command, *more], env=environment, capture_output=True, text=True, timeout=300)


def final(out: Path) -> dict:
    return load_file(out / "model" / "model.safetensors")


def apart(one: dict, other: dict) -> float:
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    """A recipe without chance, in float64, and what one process makes of it."""
    base = tmp_path_factory.mktemp("exact")
    changes = 'precision = "float64"\nsteps = 6\nevaluate_every = 3\nsave_every = 2\naccumulate = 2'
    recipe = write_recipe(base, model="dropout = 0.0", train=changes)
    torchrun(recipe, base / "one", "--set", "train.batch_tokens=256", processes=1)
    return recipe, base / "one"


def test_two_processes_equal_one(exact, tmp_path):
    recipe, one = exact
    # Half the budget each: the global batches are the same.
    torchrun(recipe, tmp_path / "two", "--set", "train.batch_tokens=128", "--set", "train.shard=false")
    # 1e-10 in float64; what is stored is float32, so equal or one rounding apart.
    assert apart(final(one), final(tmp_path / "two")) < 1e-7
    ours, theirs = ((out / "metrics.jsonl").read_text().splitlines() for out in (one, tmp_path / "two"))
    assert len(ours) == len(theirs)


def test_a_sharded_run_equals_one_process_and_goes_on(exact, tmp_path):
    """FSDP; what is equal after it was resumed was equal before."""
    recipe, one = exact
    sharded = ("--set", "train.batch_tokens=128", "--set", "train.shard=true")
    torchrun(recipe, tmp_path / "two", *sharded, "--set", "train.steps=4")
    files = {path.suffix for path in (tmp_path / "two" / "checkpoints" / "00000004").iterdir()}
    assert files == {".safetensors", ".json"}, "and no pickle"
    torchrun(recipe, tmp_path / "two", *sharded, "--resume")
    assert apart(final(one), final(tmp_path / "two")) < 1e-7


def test_more_processes_than_sentences_do_no_harm(tmp_path):
    recipe = write_recipe(tmp_path, train="steps = 3\nbatch_tokens = 16\nshard = true")
    torchrun(recipe, tmp_path / "run", "--set", "data.lines=3")


def test_another_number_of_processes_is_refused(exact):
    recipe, one = exact
    with pytest.raises(
        AssertionError, match="started with 1 processes, which share every batch; 2 would train on other"
    ):
        torchrun(recipe, one, "--set", "train.batch_tokens=256", "--set", "train.steps=7", "--resume")


@pytest.mark.parametrize("wrong", ["a recipe that is not there", "a folder that only the first process opens"])
def test_a_mistake_is_said_once_and_is_the_cause_that_torchrun_gives(tmp_path, wrong):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a letter").touch()
    recipe = tmp_path / "nowhere.toml" if "recipe" in wrong else write_recipe(tmp_path)
    words = "no file " if "recipe" in wrong else "contains a letter, which is not from a training run"
    done = started(recipe, tmp_path / "letters")
    assert done.returncode == 1, "torchrun knows no other"
    ours = [line for line in done.stderr.splitlines() if line.startswith("clearhead: ")]
    assert len(ours) == 1, done.stderr
    assert words in ours[0]
    assert words in done.stderr.split("Root Cause")[1]
    assert done.stderr.count("Traceback") == 1, "torchrun's own, which comes whenever a process fails"
