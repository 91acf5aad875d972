"""What is chosen where a recipe leaves it open: by script, number of rows, tokens and machine."""

from __future__ import annotations

import importlib.util
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clearhead.shipped as shipped
from clearhead.errors import ConfigError
from clearhead.text import Row
from clearhead.text.hf_tokenizers import FIXED
from clearhead.train import fit, run_training
from clearhead.train.data import read_start
from clearhead.train.recipe import SCRATCH, Recipe, check_recipe, read_recipe, to_toml
from clearhead.train.starting_weights import find_encoder, read_pretrained

CHINESE, ENGLISH, RUSSIAN = "我爱你，我看书。", "I love you, I read books.", "Я люблю тебя."


def recipe(task: str = "classification", **sections: Any) -> Recipe:
    return check_recipe({"task": task, "data": {"train": "a.tsv", "dev": 0.1}, **sections}, "test")


def rows(text: str, count: int) -> list[Row]:
    return [Row((text, "label"), "a.tsv", line) for line in range(count)]


def choose(asked: Recipe, lines: list[Row], length: int = 20, *, gpu: bool = False) -> dict[str, Any]:
    """All that is chosen from scratch for rows of this number of tokens."""
    asked = fit.fill_open(asked, {"train.init_from": SCRATCH})
    chosen = fit.choose_settings(asked, lines, gpu=gpu)
    lengths = np.full((len(lines), 1), length)
    return chosen | fit.choose_length(asked, fit.fill_open(asked, chosen).train, lengths, processes=1)


# Tokenizers


def test_a_small_chinese_corpus_is_read_by_characters_that_occur_twice():
    lines = rows("我爱你", 200) + rows("龘", 1)
    chosen = choose(recipe(), lines)
    assert chosen["text.tokenizer"] == "character"
    assert chosen["text.vocabulary"] == 300, "the smallest"
    many = [Row(("".join(map(chr, range(0x4E00, 0x4E64))), "x"), "a.tsv", 1)] * 2
    assert choose(recipe(), many)["text.vocabulary"] == FIXED + 100


@pytest.mark.parametrize(
    ("task", "text", "count", "kind"),
    [
        ("tagging", CHINESE, 9, "character"),
        ("answers", CHINESE, 9, "character"),
        ("answers", CHINESE, fit.CHARACTERS_BELOW // len(CHINESE) + 1, "bpe"),
        ("classification", ENGLISH, 9, "bpe"),
        ("translation", CHINESE, 9, "bpe"),
        ("language-model", CHINESE, 9, "bpe"),
    ],
)
def test_the_tokenizer_follows_script_size_and_task(task, text, count, kind):
    chosen = fit.choose_settings(recipe(task), rows(text, count), gpu=False)
    assert chosen["text.tokenizer"] == kind


@pytest.mark.parametrize(("count", "size"), [(10, fit.SMALLEST_VOCABULARY), (10_000, 3384), (100_000, 8000)])
def test_a_vocabulary_grows_with_the_corpus(count, size):
    assert choose(recipe(), rows(ENGLISH, count))["text.vocabulary"] == size


# Models and lengths


def test_every_key_of_the_table_is_open():
    keys = {key for _, settings in fit.TABLE for key in settings if not key.startswith("model.")}
    assert keys <= {f"{section}.{name}" for section, names in fit.OPEN.items() for name in names}


@pytest.mark.parametrize("count", [20, 241, 1_600, 7_000, 60_000])
def test_a_run_is_evaluated_twenty_times_and_ends_when_it_no_longer_gains(count):
    chosen = choose(recipe(), rows(ENGLISH, count))
    steps, every = chosen["train.steps"], chosen["train.evaluate_every"]
    assert steps // every in (20, 21)
    assert chosen["train.patience"] == 8
    assert chosen["train.warmup"] == min(400, round(steps / 10))
    batches = count * 20 / chosen["train.batch_tokens"]
    assert steps / batches <= fit.choose_epochs("classification", count, trained=False) + 20


def test_few_rows_make_small_batches_but_never_smaller_than_a_row():
    assert choose(recipe(), rows(ENGLISH, 241))["train.batch_tokens"] == 512
    assert choose(recipe(), rows(ENGLISH, 241), length=700)["train.batch_tokens"] == 2048
    assert choose(recipe(), rows(ENGLISH, 20), length=700)["train.batch_tokens"] == 875


@pytest.mark.parametrize("train", [{"steps": 9}, {"minutes": 2.0}])
def test_a_recipe_that_sets_its_length_keeps_the_fixed_defaults_of_length(train):
    chosen = choose(recipe(train=train, model={"shape": "tiny"}), rows(ENGLISH, 241))
    assert not [key for key in chosen if key.startswith(("train.", "model."))]


def test_what_a_recipe_sets_stays():
    asked = recipe(train={"learning_rate": 0.5, "patience": 3}, text={"vocabulary": 321}, model={"shape": "classic"})
    chosen = choose(asked, rows(CHINESE, 241))
    filled = fit.fill_open(asked, chosen)
    assert (filled.train.learning_rate, filled.train.patience, filled.text.vocabulary) == (0.5, 3, 321)
    assert filled.model == {"shape": "classic"}
    assert filled.train.steps == chosen["train.steps"]


def test_few_rows_learn_at_a_higher_rate_only_where_the_model_is_chosen_too():
    for count, rate in ((241, fit.SMALL_RATE), (fit.SMALL_CORPUS, 1e-3)):
        assert choose(recipe(), rows(ENGLISH, count))["train.learning_rate"] == rate
    assert "train.learning_rate" not in choose(recipe(model={"shape": "tiny"}), rows(ENGLISH, 241))


def test_a_run_without_dev_gets_no_patience():
    asked = recipe(data={"train": "a.tsv"})
    assert "train.patience" not in choose(asked, rows(ENGLISH, 241))


def test_trained_weights_get_smaller_steps_and_adapters_larger_ones():
    for more, rate in (({}, 1e-4), ({"lora_rank": 4}, 1e-3)):
        asked = recipe(train={"init_from": "somewhere", **more})
        chosen = fit.choose_settings(asked, rows(CHINESE, 241), gpu=False)
        fixed = {"train.warmup": 100, "train.schedule": "linear", "train.steps": 2000}
        assert chosen == {"train.learning_rate": rate, **fixed}, "neither tokenizer nor model"


def test_what_was_chosen_is_kept_when_the_recipe_is_read_again():
    asked = recipe()
    resolved = fit.fill_open(asked, {"train.init_from": SCRATCH, **choose(asked, rows(CHINESE, 241))})
    again = fit.fill_from(asked, check_recipe(tomllib.loads(to_toml(resolved)), "test"))
    assert again == resolved
    assert fit.choose_start(again, rows(CHINESE, 241)) is None
    assert fit.list_chosen(asked, again) == fit.list_chosen(asked, resolved)
    assert fit.list_chosen(resolved, resolved) == {}


# Trained encoders by name and by script


@pytest.mark.parametrize(("text", "name"), [(CHINESE, "encoder-zh"), (ENGLISH, "minilm"), (RUSSIAN, "none")])
def test_the_script_chooses_the_encoder(text, name, monkeypatch):
    monkeypatch.setattr(fit, "find_encoder", Path)
    for task in fit.READING:
        assert fit.choose_start(recipe(task), rows(text, 9)) == (name, None)
    assert fit.choose_start(recipe("translation"), rows(text, 9)) is None


@pytest.mark.parametrize(
    "sections",
    [{"model": {"shape": "tiny"}}, {"text": {"vocabulary": 300}}, {"text": {"tokenizer": "bpe"}}]
    + [{"train": {"init_from": name}} for name in ("none", "minilm")],
)
def test_a_recipe_with_a_model_a_tokenizer_or_a_start_decides_itself(sections):
    assert fit.choose_start(recipe(**sections), rows(ENGLISH, 9)) is None


def test_minilm_is_found_in_its_package_and_its_absence_is_said(monkeypatch, tmp_path):
    folder = find_encoder("minilm")
    assert folder is not None
    assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"] == "bert"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'minilm.* is not installed; pip install "clearhead\[english\]"'):
        read_pretrained("minilm", tmp_path)
    start = fit.choose_start(recipe(), rows(ENGLISH, 9))
    assert start == ("minilm", 'is not installed; pip install "clearhead[english]"')


def test_an_encoder_that_reads_too_few_tokens_is_left_and_that_is_said(tmp_path):
    asked = recipe(data={"train": "a.tsv", "longest": 600})
    chosen, start, said = read_start(tmp_path, asked, rows(ENGLISH, 9), tmp_path)
    assert (chosen, start) == ({"train.init_from": "none"}, None)
    problem = "reads at most 512 tokens, and data.longest is 600"
    assert said == [f"training from scratch: minilm, the encoder for these texts, {problem}"]


@pytest.mark.parametrize("name", shipped.recipes())
def test_only_the_recipes_for_few_examples_leave_their_start_to_the_data(name):
    start = fit.choose_start(read_recipe(name)[0], rows(CHINESE, 9))
    assert start == (("encoder-zh", None) if name.startswith("few-") else None)


def test_none_means_random_weights_and_needs_no_folder():
    asked = recipe(train={"init_from": "none"}, model={"shape": "tiny"})
    assert asked.train.start_name is None
    with pytest.raises(ConfigError, match="adapters are for trained weights"):
        recipe(train={"init_from": "none", "lora_rank": 2})


@pytest.mark.unchecked
def test_a_run_starts_from_the_encoder_of_its_language_says_so_and_goes_on_with_it(monkeypatch, tmp_path, capsys):
    small = ["model.shape=tiny", "model.width=16", "model.heads=2", "model.feedforward=32", "data.longest=16"]
    short = ["train.steps=2", "train.tensorboard=false", "train.heads_every=0"]
    (tmp_path / "texts.txt").write_text(f"{CHINESE}\n" * 20, encoding="utf-8")
    data = [f"data.train={tmp_path / 'texts.txt'}", 'data.columns=["text"]', "data.dev=0.1", "text.vocabulary=300"]
    encoder = run_training(
        "pretrain-tiny",
        overrides=[*data, *small, *short],
        out=tmp_path / "encoder",
        device="cpu",
    )
    monkeypatch.setattr(shipped, "model", lambda name: encoder / "model" if name == "encoder-zh" else None)
    lines = [f"{text}\t{label}\n" for label, text in enumerate(("我爱书", "你看我")) for _ in range(9)]
    (tmp_path / "train.tsv").write_text("".join(lines), encoding="utf-8")
    text = 'task = "classification"\n[data]\ntrain = "train.tsv"\ndev = 0.1\nlongest = 12\n[train]\nheads_every = 0\n'
    text += '[head]\nkind = "trained"\n'
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    options: dict[str, Any] = {"out": tmp_path / "run", "device": "cpu"}
    run_training(str(tmp_path / "mine.toml"), **options, overrides=["train.evaluate_every=9"])
    said = capsys.readouterr().err
    assert "chosen for 16 examples in Chinese: init_from = encoder-zh, steps = 20" in said
    assert "starting from encoder-zh:\n  taken: " in said
    saved, _ = read_recipe(str(tmp_path / "run" / "recipe.toml"))
    assert (saved.train.init_from, saved.train.learning_rate, saved.train.steps) == ("encoder-zh", 1e-4, 20)
    assert "| started from | encoder-zh |" in (tmp_path / "run" / "model" / "README.md").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "run" / "start.json").read_text(encoding="utf-8"))["init_from"] == "encoder-zh"
    run_training(str(tmp_path / "mine.toml"), **options, overrides=["train.evaluate_every=9"], resume=True)
    assert read_recipe(str(tmp_path / "run" / "recipe.toml"))[0] == saved
