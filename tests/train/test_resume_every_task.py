"""Every shipped recipe whose name ends in -tiny: a run that is killed and resumed ends with the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import clearhead.shipped as shipped
from clearhead.tasks import TASKS
from clearhead.train.recipe import read_recipe
from clearhead.train.run_folder import FILES
from tests.train.test_resume import assert_same

ROOT = Path(__file__).parents[2]
RECIPES = [name for name in shipped.recipes() if name.endswith("-tiny")]
KILLED_AT = 6  # line of the metrics: step 5; the newest checkpoint is of step 4, and evaluations are at 4 and 8


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """The folder of each recipe with its runs `straight` and `killed`, and what went wrong."""
    base = tmp_path_factory.mktemp("runs")
    command = [sys.executable, "-m", "tests.train.forked_runs", str(base), str(KILLED_AT), *RECIPES]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert found.returncode == 0, found.stderr
    lines = dict(line.split("\t") for line in found.stdout.splitlines())
    return {name: (base / name, lines[name]) for name in RECIPES}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_killed_run_ends_with_the_same_bits(runs, recipe):
    folder, problem = runs[recipe]
    assert not problem, f"{problem}: {(folder / 'log.txt').read_text()[-2000:]}"
    assert "going on after step 4" in (folder / "log.txt").read_text(), "it was killed between two checkpoints"
    assert_same(folder / "straight", folder / "killed")
    written = {path.name for path in (folder / "straight").iterdir() if not path.name.startswith(".")}
    assert written <= set(FILES), "--overwrite refuses a folder with files that no run writes"


def test_every_task_has_a_tiny_recipe():
    assert {read_recipe(name)[0].task for name in RECIPES} == set(TASKS)
