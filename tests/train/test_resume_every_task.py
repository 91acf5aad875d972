"""Every shipped recipe whose name ends in -tiny: a run that is killed and resumed ends with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

import clearhead.shipped as shipped
from clearhead.tasks import TASKS
from clearhead.train.recipe import read_recipe
from clearhead.train.run_folder import FILES
from tests.train.forked_runs import SHORT, find_problem, list_killed_runs, train_in_forks
from tests.train.test_resume import assert_same

pytestmark = pytest.mark.unchecked  # whole runs

RECIPES = [name for name in shipped.recipes() if name.endswith("-tiny")]
KILL = "SIGKILL:6"  # line of the metrics: step 5; the newest checkpoint is of step 4, and evaluations are at 4 and 8


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str, str]]:
    """The folder of each recipe with its runs `straight` and `killed`, what went wrong, and what was said at last."""
    base = tmp_path_factory.mktemp("runs")
    # The plays of lm-tiny are one document, so that data.lines does not shorten them.
    shares = {name: {"data.dev": 0.003} if name == "lm-tiny" else {} for name in RECIPES}
    plans = {name: list_killed_runs(name, base / name, [KILL], SHORT | shares[name]) for name in RECIPES}
    ends = iter(train_in_forks([run for runs in plans.values() for run in runs]))
    results = {}
    for name, plan in plans.items():
        ended = [next(ends) for _ in plan]
        results[name] = base / name, find_problem(plan, ended), ended[-1].said
    return results


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_killed_run_ends_with_the_same_bits(runs, recipe):
    folder, problem, said = runs[recipe]
    assert not problem
    assert "going on after step 4" in said, "it was killed between two checkpoints"
    assert_same(folder / "straight", folder / "killed")
    written = {path.name for path in (folder / "straight").iterdir() if not path.name.startswith(".")}
    assert written <= FILES, "--overwrite refuses a folder with files that no run writes"


def test_every_task_has_a_tiny_recipe():
    assert {read_recipe(name)[0].task for name in RECIPES} == set(TASKS)
