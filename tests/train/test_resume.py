"""A run that is killed and goes on ends with the same bits as one that never was."""

from __future__ import annotations

import json
import os
import shutil
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from safetensors.torch import load_file

from clearhead.errors import CheckpointError, ConfigError, DataError, TrainingError
from clearhead.train import run_training
from clearhead.train.observers import Moment, Observer
from clearhead.train.recipe import read_recipe, to_toml
from clearhead.train.run_folder import HEADER, begin_run
from tests.train.corpus import write_recipe
from tests.train.forked_runs import Ended, Run, list_killed_runs, train_in_forks

pytestmark = pytest.mark.unchecked  # whole runs


def assert_same(one: Path, other: Path) -> None:
    """The same weights, bit for bit, and the same metrics, byte for byte."""
    for name in ("metrics.jsonl", "model/model.safetensors", "model/metrics.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    newest = [sorted((path / "checkpoints").iterdir())[-1] for path in (one, other)]
    states = [load_file(path / "state.safetensors") for path in newest]
    assert states[0].keys() == states[1].keys()
    assert all((states[0][name] == states[1][name]).all() for name in states[0])


@pytest.fixture(scope="module")
def struck(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Ended]]:
    """Runs that were killed, interrupted or left alone: their folder, and how they ended, in this order."""
    base = tmp_path_factory.mktemp("struck")
    recipe = str(write_recipe(base))
    # The third fsync of a folder is the second checkpoint's; the first is that of the tokenizers.
    runs = list_killed_runs(recipe, base, ["before fsync:3", "SIGKILL:6", "after rename:2"], {})
    runs += [
        Run(recipe, str(base / "interrupted"), struck="SIGINT:2"),
        Run(recipe, str(base / "interrupted"), (), True),
    ]
    runs += [Run(recipe, str(base / "closed"), struck="SIGHUP:2")]
    runs += [Run(recipe, str(base / "ignoring"), struck="SIGHUP:2", ignored="SIGHUP")]
    return base, train_in_forks(runs)


def test_three_kills_change_nothing(struck):
    base, ends = struck
    assert [end.code for end in ends[:5]] == [0, *[-signal.SIGKILL] * 3, 0], ends[:5]
    assert_same(base / "straight", base / "killed")


def test_an_interrupted_run_says_how_to_go_on(struck):
    base, ends = struck
    interrupted, resumed = ends[5:7]
    assert (interrupted.code, resumed.code) == (1, 0)
    assert "interrupted at step 6, which is saved; continue with --resume" in interrupted.said
    assert "Traceback" not in interrupted.said
    assert_same(base / "straight", base / "interrupted")


def test_a_closed_terminal_saves_like_an_interruption_unless_its_signal_is_ignored(struck):
    base, ends = struck
    assert ends[7].code == 1
    assert "interrupted at step 6, which is saved" in ends[7].said
    assert ends[8].code == 0, "as under nohup"
    assert_same(base / "straight", base / "ignoring")


def train(recipe: Path, out: Path, *overrides: str, **more: object) -> Path:
    return run_training(str(recipe), overrides=["decode.beam=1", *overrides], out=out, device="cpu", **more)


class Interrupting(Observer):
    """Ctrl-C at a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def logged(self, moment: Moment) -> None:
        if moment.step == self.step:
            os.kill(os.getpid(), signal.SIGINT)


def test_a_checkpoint_of_an_interruption_is_not_averaged(tmp_path):
    changes = 'average = "last"\nsteps = 8\nlog_every = 1\nsave_every = 2\nevaluate_every = 8'
    recipe = write_recipe(tmp_path, train=changes, decode="beam = 1")
    straight, out = train(recipe, tmp_path / "straight"), tmp_path / "run"
    for step in (5, 7):
        with pytest.raises(TrainingError, match=f"interrupted at step {step}"):
            train(recipe, out, resume=step > 5, observers=[Interrupting(step)])
    train(recipe, out, resume=True)
    assert_same(straight, out)
    assert [path.name for path in sorted((out / "checkpoints").iterdir())] == ["00000006", "00000008"]


def test_a_finished_run_may_be_given_more_steps(tmp_path):
    recipe = write_recipe(tmp_path)
    train(recipe, tmp_path / "long", "train.steps=12")
    train(recipe, tmp_path / "short", "train.steps=8")
    train(recipe, tmp_path / "short", "train.steps=12", resume=True)
    states = [load_file(tmp_path / name / "checkpoints/00000012/state.safetensors") for name in ("long", "short")]
    assert all((states[0][name] == states[1][name]).all() for name in states[0])


def test_a_run_is_not_overwritten_by_accident(tmp_path):
    recipe = write_recipe(tmp_path, train="steps = 2")
    out = train(recipe, tmp_path / "run")
    with pytest.raises(ConfigError, match="already holds a run; --resume continues it, --overwrite replaces it"):
        train(recipe, out)
    train(recipe, out, overwrite=True)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="which is not from a training run"):
        train(recipe, tmp_path / "thesis", overwrite=True)
    assert (tmp_path / "thesis" / "chapter1.txt").exists()


def test_a_folder_with_more_than_a_run_in_it_is_not_thrown_away(tmp_path):
    recipe = write_recipe(tmp_path, train="steps = 2").rename(tmp_path / "recipe.toml")  # beside its data
    mine = recipe.read_text()
    for more in ({"overwrite": True}, {"resume": True}, {}):
        with pytest.raises(ConfigError, match=r"contains dev\.tsv,"):
            train(recipe, tmp_path, **more)
    assert recipe.read_text() == mine
    out = train(recipe, tmp_path / "run")
    (out / "notes.txt").write_text("it went well")
    with pytest.raises(ConfigError, match=r"contains notes\.txt, which is not from a training run"):
        train(recipe, out, overwrite=True)
    train(recipe, out, "train.steps=3", resume=True)
    assert (out / "notes.txt").exists()


@pytest.mark.parametrize("left", [".recipe.toml", ".task.tmp-clearhead-1a2b3c4d"])
def test_a_run_that_ended_before_it_began_may_begin_again(tmp_path, left):
    wanted, _ = read_recipe(str(write_recipe(tmp_path)))
    out = tmp_path / "run"
    for more in ({}, {"resume": True}, {"overwrite": True}):
        out.mkdir()
        (out / left).write_text("half of a reci")
        with ExitStack() as held:
            held.enter_context(begin_run(out, wanted, held, **{"resume": False, "overwrite": False, **more}))
        assert (out / "recipe.toml").read_text() == HEADER + to_toml(wanted)
        shutil.rmtree(out)


def test_a_run_goes_on_with_its_own_recipe_or_not_at_all(tmp_path):
    recipe = write_recipe(tmp_path, train="steps = 2")
    out = train(recipe, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"was started with another model, train\.warmup, .*; restore them, or start"):
        train(recipe, out, "train.warmup=9", "model.dropout=0.2", resume=True)
    with pytest.raises(ConfigError, match=r"was started with another train\.warmup, .*; restore it, or start again"):
        train(recipe, out, "train.warmup=9", resume=True)
    (out / "recipe.toml").unlink()
    with pytest.raises(ConfigError, match="which is not from a training run"):
        train(recipe, out, resume=True)


def test_a_corrupt_checkpoint_is_refused_with_the_remedy(tmp_path):
    recipe = write_recipe(tmp_path, train="steps = 8")
    out = train(recipe, tmp_path / "run")
    newest = out / "checkpoints" / "00000008" / "state.safetensors"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"state\.safetensors.*delete that folder to go on from step 4"):
        train(recipe, out, "train.steps=9", resume=True)


def test_a_full_disk_loses_no_checkpoint(tmp_path, monkeypatch):
    recipe = write_recipe(tmp_path, train="steps = 12")
    real, calls = os.fsync, []

    def full(descriptor: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if "state.safetensors" in name:
            calls.append(name)
            if len(calls) == 3:
                raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="the disk is full"):
        train(recipe, tmp_path / "run")
    monkeypatch.undo()
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["00000004", "00000008"], "whole ones only, and nothing half-written"
    train(recipe, tmp_path / "run", resume=True)
    assert_same(train(recipe, tmp_path / "straight"), tmp_path / "run")


def test_metrics_are_cut_back_to_the_checkpoint(tmp_path):
    recipe = write_recipe(tmp_path, train="steps = 8")
    out = train(recipe, tmp_path / "run")
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "loss": 1.0}\n{"step": 10, "lo')
    train(recipe, out, "train.steps=12", resume=True)
    steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert steps == [3, 6, 8, 8, 9, 12, 12]


def test_a_run_that_failed_before_it_began_may_be_tried_again(tmp_path):
    recipe = write_recipe(tmp_path, train="steps = 2")
    whole = (tmp_path / "train.tsv").read_text()
    (tmp_path / "train.tsv").write_text(whole + "no tab here\n")
    with pytest.raises(DataError, match=r"train\.tsv:62"):
        train(recipe, tmp_path / "run")
    (tmp_path / "train.tsv").write_text(whole)
    train(recipe, tmp_path / "run")
    assert (tmp_path / "run" / "model" / "config.json").is_file()


def test_the_words_of_a_card_may_change(tmp_path):
    recipe = write_recipe(tmp_path, train="steps = 2")
    train(recipe, tmp_path / "run")
    train(recipe, tmp_path / "run", "about=A toy.", resume=True)
    assert "A toy." in (tmp_path / "run" / "model" / "README.md").read_text()


def test_a_run_is_thrown_away_only_for_one_that_can_begin(tmp_path):
    recipe = write_recipe(tmp_path, train="steps = 2")
    out = train(recipe, tmp_path / "run")
    with pytest.raises(DataError, match=r"nofile\.tsv"):
        train(recipe, out, "data.train=nofile.tsv", overwrite=True)
    assert (out / "model" / "model.safetensors").is_file()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("damage", [b"\xff\xfe", b"= = ="])
def test_a_damaged_recipe_of_a_run_is_named(tmp_path, damage):
    recipe = write_recipe(tmp_path, train="steps = 2")
    out = train(recipe, tmp_path / "run")
    with (out / "recipe.toml").open("ab") as file:
        file.write(damage)
    with pytest.raises(CheckpointError, match=r"run.recipe\.toml is damaged .*; start anew with --overwrite"):
        train(recipe, out, resume=True)


def test_other_folders_are_left_alone(tmp_path):
    recipe = write_recipe(tmp_path, train="steps = 2")
    with pytest.raises(ConfigError, match=r"contains dev\.tsv,"):  # the user's own data and recipe
        train(recipe, tmp_path, overwrite=True)
    (tmp_path / "exported" / "model").mkdir(parents=True)
    (tmp_path / "exported" / "model" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"contains model, which is not from"):
        train(recipe, tmp_path / "exported", overwrite=True)
    assert (tmp_path / "exported" / "model" / "config.json").exists()


def test_two_processes_do_not_train_in_one_folder(tmp_path):
    recipe = write_recipe(tmp_path, train="steps = 2")
    out = train(recipe, tmp_path / "run")
    wanted, _ = read_recipe(str(recipe))
    with ExitStack() as held:
        held.enter_context(begin_run(out, wanted, held, resume=True, overwrite=False))
        with pytest.raises(ConfigError, match="another process is training in"):
            train(recipe, out, resume=True)
    train(recipe, out, resume=True)


def test_changed_data_are_noticed(tmp_path):
    recipe = write_recipe(tmp_path, train="steps = 2")
    out = train(recipe, tmp_path / "run")
    lines = (tmp_path / "train.tsv").read_text().splitlines(keepends=True)
    (tmp_path / "train.tsv").write_text("".join(reversed(lines)))
    with pytest.raises(ConfigError, match="the data of this run have changed"):
        train(recipe, out, "train.steps=4", resume=True)


def test_there_must_be_a_run_to_go_on_with(tmp_path):
    with pytest.raises(ConfigError, match="there is no run in"):
        train(write_recipe(tmp_path), tmp_path / "runn", resume=True)


def test_more_patience_and_fewer_steps(tmp_path, capsys):
    recipe = write_recipe(tmp_path, train="steps = 24\npatience = 1\nmetric = 'bleu'\nlearning_rate = 1e-9")
    out = train(recipe, tmp_path / "run")
    assert json.loads((out / "model" / "metrics.json").read_text())["stopped"] == "patience"
    train(recipe, out, resume=True)
    said = "already at the end of its patience, 1: nothing is trained; a larger train.patience goes on"
    assert said in capsys.readouterr().err
    train(recipe, out, "train.patience=9", resume=True)
    assert json.loads((out / "model" / "metrics.json").read_text())["stopped"] == "steps"
    assert "going on after step " in capsys.readouterr().err
    said = "already past its end, step 24 of 4: nothing is trained; a larger train.steps goes on"
    train(recipe, out, "train.patience=9", "train.steps=4", resume=True)
    assert said in capsys.readouterr().err
    train(recipe, out, "train.patience=9", "train.minutes=1e-9", resume=True)
    assert "already at its end, step 24 of 24: nothing is trained" in capsys.readouterr().err
    train(recipe, out, "train.patience=9", "train.minutes=1e-9", "train.steps=99", resume=True)
    assert "already at the end of its time, 1e-09 min: nothing is trained; a larger train.minutes goes on" in (
        capsys.readouterr().err
    )
    assert json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 24


def test_scores_during_training_are_those_of_the_weights_of_the_moment(tmp_path):
    recipe = write_recipe(tmp_path, train='steps = 160\naverage = "none"\nevaluate_every = 80\nsave_every = 80')
    out = train(recipe, tmp_path / "run", "train.evaluate_lines=7", "decode.beam=1")
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    scores = [line["dev"]["chrf"] for line in lines if "dev" in line]
    assert scores[1] > scores[0] + 5
    best = json.loads((out / "model" / "metrics.json").read_text())
    assert best["dev"]["chrf"] == max(scores)
