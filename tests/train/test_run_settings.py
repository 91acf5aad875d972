"""What a recipe may leave out, what a run says about itself, and what may change when it goes on."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import clearhead
from clearhead.errors import ConfigError, DataError, DiskFullError
from clearhead.model_folder import ModelFolder
from clearhead.storage import atomic
from clearhead.tasks.answerer import Evaluation
from clearhead.tasks.processor import RowCheck
from clearhead.tasks.translation import TranslationAnswerer, TranslationProcessor
from clearhead.text import Row
from clearhead.train import finished_model, run_training
from clearhead.train.data import split_off
from clearhead.train.fit import choose_settings, fill_open
from clearhead.train.observers import Sample
from clearhead.train.recipe import check_recipe, read_recipe
from tests.train.corpus import write_corpus, write_recipe

pytestmark = pytest.mark.unchecked  # whole runs

SHORT = "steps = 4\nlog_every = 2\nevaluate_every = 2\nsave_every = 100"


def quick(folder: Path, **changes: str) -> Path:
    return write_recipe(folder, **{"train": SHORT, "decode": "beam = 1", **changes})


def train(recipe: Path, out: Path, *overrides: str, **more: bool) -> Path:
    return run_training(str(recipe), overrides=overrides, out=out, device="cpu", **more)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Data


def test_a_share_of_train_may_be_dev(tmp_path, capsys):
    recipe = quick(tmp_path)
    recipe.write_text(recipe.read_text().replace('dev = "dev.tsv"', "dev = 0.1"))
    out = train(recipe, tmp_path / "run")
    assert "train: kept 55 of 55\ndev: kept 6 of 6" in capsys.readouterr().err
    assert "bleu" in ModelFolder.open(out).metrics["dev"]


def test_what_is_split_off_follows_from_the_seed_and_is_not_trained_on():
    rows = [Row((str(number),), "a.tsv", number) for number in range(100)]
    kept, chosen = split_off(rows, 0.07, seed=3)
    assert (len(kept), len(chosen)) == (93, 7)
    assert sorted(kept + chosen, key=lambda row: row.line) == rows
    assert (kept, chosen) == split_off(rows, 0.07, seed=3)
    assert chosen != split_off(rows, 0.07, seed=4)[1]
    assert len(split_off(rows, 0.0001, seed=3)[1]) == 1, "at least one"
    assert split_off(rows, 0.07, seed=3, ordered=True) == (rows[:93], rows[93:]), "neighbours stay together"


def test_a_share_that_leaves_nothing_to_learn_from_is_refused(tmp_path):
    recipe = quick(tmp_path)
    recipe.write_text(recipe.read_text().replace('dev = "dev.tsv"', "dev = 0.1\nlines = 1"))
    with pytest.raises(DataError, match=r"data.dev = 0.1 splits off all 1 row of data.train, .*train.tsv:1\)"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 2.5])
def test_a_share_that_makes_no_sense_is_refused(share):
    values = {"task": "translation", "data": {"train": "a.tsv", "dev": share}}
    with pytest.raises(ConfigError, match=r"data\.dev: should be a file, .* greater than 0 and less than 1"):
        check_recipe(values, "test")


def test_a_test_entry_is_scored_at_the_end(tmp_path):
    write_corpus(tmp_path)
    out = train(quick(tmp_path, data='test = "train.tsv"\nlines = 9'), tmp_path / "run")
    metrics = ModelFolder.open(out).metrics
    assert clearhead.load(out, device="cpu").evaluate(tmp_path / "train.tsv") == metrics["test"]
    assert "Scores on test:" in (out / "model" / "README.md").read_text()


# Models that fit


def test_a_recipe_without_a_model_gets_one_that_fits_and_goes_on_with_it(tmp_path, capsys):
    recipe = quick(tmp_path)
    text = recipe.read_text()
    recipe.write_text(text[: text.index("[model]")] + text[text.index("[train]") :])
    out = train(recipe, tmp_path / "run")
    assert "chosen for 61 examples: shape = tiny, dropout = 0.2\n" in capsys.readouterr().err
    card = (out / "model" / "README.md").read_text(encoding="utf-8")
    assert '| chosen from the data | model.shape = "tiny", model.dropout = 0.2 |' in card
    saved, _ = read_recipe(str(out / "recipe.toml"))
    assert saved.model == {"shape": "tiny", "dropout": 0.2}
    assert saved.train.learning_rate == 0.01, "what the recipe says stays"
    train(recipe, out, "train.steps=6", resume=True)
    assert ModelFolder.open(out).config["model"]["width"] == 128


@pytest.mark.parametrize(
    ("rows", "gpu", "width", "layers"),
    [
        (100, False, 128, 2),
        (40_000, False, 256, 3),
        (10**6, False, 256, 3),
        (40_000, True, 256, 3),
        (10**6, True, 512, 6),
    ],
)
def test_a_model_fits_the_data_and_the_machine(rows, gpu, width, layers):
    recipe = check_recipe({"task": "translation", "data": {"train": "a.tsv"}, "train": {"warmup": 7}}, "test")
    row = Row(("我", "I"), "a.tsv", 1)
    fitted = fill_open(recipe, choose_settings(recipe, [row] * rows, gpu=gpu))
    config = TranslationProcessor.make_config(fitted, vocabulary=100)
    assert (config.width, config.layers) == (width, layers)
    assert fitted.train.warmup == 7


# What is said


def test_a_run_says_why_it_ended_and_shows_a_few_answers(tmp_path, capsys):
    train(quick(tmp_path), tmp_path / "run")
    said = capsys.readouterr().err
    assert "ended after step 4: all steps are done (train.steps = 4)" in said
    assert said.count("right would be: water I I fish books books he") == 2, "at both evaluations"
    train(quick(tmp_path), tmp_path / "timed", "train.minutes=0.001", "train.steps=1000")
    assert "its time is over (train.minutes = 0.001)" in capsys.readouterr().err
    train(quick(tmp_path), tmp_path / "patient", "train.patience=1", "train.steps=1000", "train.learning_rate=1e-30")
    assert "no better bleu in 1 evaluations (train.patience)" in capsys.readouterr().err


def test_settings_that_do_nothing_and_dev_in_train_are_said(tmp_path, capsys):
    recipe = quick(tmp_path)
    train(recipe, tmp_path / "same", "data.dev=train.tsv")
    assert "61 of 61 inputs of dev are also in train" in capsys.readouterr().err
    recipe.write_text(recipe.read_text().replace('dev = "dev.tsv"', ""))
    train(recipe, tmp_path / "without", "train.patience=3")
    assert "train.patience and train.metric do nothing without data.dev" in capsys.readouterr().err


def test_answers_of_any_kind_are_shown_as_text(capsys):
    from clearhead.train.observers import ProgressReport
    from tests.train.test_observers import moment

    shown = moment(10, loss=1.0)._replace(samples=[Sample("a\x1b[2Jb", "", "right [red] " + 60 * "x")])
    progress = ProgressReport("loss")
    progress.evaluated(shown)
    said = capsys.readouterr().err
    assert "a\\x1b[2Jb → nothing (right would be: right [red] xxx" in said
    assert "\x1b" not in said


def test_a_disk_that_is_too_small_is_said_before_the_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "_free_bytes", lambda _: 100_000)
    with pytest.raises(DiskFullError, match=r"a run with 4 more checkpoints and a model needs .* and 100\.0 kB"):
        train(quick(tmp_path), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_final_scores_are_bounded_in_time(monkeypatch, capsys):
    class Slow(TranslationAnswerer):
        def evaluate(self, rows, options):
            return Evaluation({"bleu": float(len(rows))}, rows, [])

    clock = iter([0.0, 64.0])  # the first 64 rows take 64 seconds
    monkeypatch.setattr(finished_model, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    rows = [Row(("a", "b"), "dev.tsv", line) for line in range(300)]
    processor = TranslationProcessor.__new__(TranslationProcessor)
    processor.check_row = lambda row: RowCheck()
    slow = Slow(processor, torch.nn.Identity())
    found = finished_model._score_rows("dev", slow, rows, trained=30.0)
    assert "scoring 120 rows of dev: about 2 min 0 s" in capsys.readouterr().err
    assert found["dev"] == {"bleu": 120.0, "rows": "the first 120 of 300; clearhead evaluate scores all"}


# Going on


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first")
    train(quick(folder), folder / "run")
    return folder


@pytest.fixture
def begun(first, tmp_path):
    shutil.copytree(first, tmp_path / "copy")
    return tmp_path / "copy" / "toy.toml", tmp_path / "copy" / "run"


@pytest.mark.parametrize(
    "change", ["seed=9", "train.learning_rate=0.5", "model.dropout=0.3", "data.longest=7", "loss.label_smoothing=0.3"]
)
def test_a_resume_that_is_refused_changes_no_file(begun, change):
    recipe, out = begun
    before = contents(out)
    name = "seed" if change.startswith("seed") else change.partition("=")[0]
    name = "model" if name.startswith("model") else name
    with pytest.raises(ConfigError, match=f"started with another {name}, which must not change on resume"):
        train(recipe, out, change, resume=True)
    assert contents(out) == before


def test_a_resume_with_other_data_changes_no_file(begun):
    recipe, out = begun
    (recipe.parent / "train.tsv").write_text("我\tI\n你\tyou\n", encoding="utf-8")
    before = contents(out)
    with pytest.raises(ConfigError, match="the data of this run have changed"):
        train(recipe, out, "train.steps=9", resume=True)
    assert contents(out) == before


def test_what_changes_nothing_that_is_learned_may_change(begun):
    recipe, out = begun
    changes = ["train.log_every=1", "train.evaluate_lines=3", "decode.beam=3", "decode.length_penalty=0.5"]
    train(recipe, out, *changes, "train.steps=6", resume=True)
    folder = ModelFolder.open(out)
    assert (folder.config["settings"]["beam"], folder.config["settings"]["length_penalty"]) == (3, 0.5)
    assert folder.metrics["stopped"] == "steps"


@pytest.mark.parametrize("task", [["x"], {"a": 1}, 3])
def test_a_task_that_is_no_name_is_refused(task):
    with pytest.raises(ConfigError, match=r"task: .* is not known; choose from translation, classification"):
        check_recipe({"task": task, "data": {"train": "a.tsv"}}, "test")


def test_a_run_that_never_trained_begins_anew_with_the_new_recipe(tmp_path):
    recipe = quick(tmp_path)
    out = tmp_path / "run"
    train(recipe, out)
    for name in ("checkpoints", "model", "metrics.jsonl"):  # as a kill before the first checkpoint leaves it
        shutil.rmtree(out / name) if (out / name).is_dir() else (out / name).unlink()
    before = contents(out)
    with pytest.raises(DataError):
        train(recipe, out, "data.train=nofile.tsv", resume=True)
    assert contents(out) == before
    train(recipe, out, "model.width=32", "model.heads=2", "seed=9", resume=True)
    assert ModelFolder.open(out).config["model"]["width"] == 32


def test_a_test_entry_that_cannot_be_scored_is_refused_before_training(tmp_path):
    (tmp_path / "empty.tsv").write_text("我\t\n你\t\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"data\.test has no row that can be scored; .*empty\.tsv:1 is with an empty"):
        train(quick(tmp_path), tmp_path / "run", "data.test=empty.tsv")
    assert not (tmp_path / "run").exists()
