"""Recipes: read, overridden, refused in one clear line, and written out whole."""

import tomllib
from pathlib import Path

import pytest

from clearhead import shipped
from clearhead.errors import ConfigError
from clearhead.train.recipe import check_recipe, read_recipe, resolve_sources, to_toml
from tests.train.corpus import write_recipe


def test_a_recipe_is_read_and_its_paths_start_from_its_folder(tmp_path):
    recipe, base = read_recipe(str(write_recipe(tmp_path)))
    assert recipe.train.steps == 24
    assert resolve_sources(recipe.data.train, base) == [tmp_path / "train.tsv"]


def test_overrides_are_values_of_their_kind(tmp_path):
    path = str(write_recipe(tmp_path))
    recipe, _ = read_recipe(
        path, ["train.steps=7", "train.average=last", "model.dropout=0.3", "data.train=['a', 'b']"], 9
    )
    assert (recipe.train.steps, recipe.train.average, recipe.model["dropout"], recipe.seed) == (7, "last", 0.3, 9)
    assert recipe.data.train == ["a", "b"]


def test_a_recipe_may_begin_with_a_byte_order_mark(tmp_path):
    path = write_recipe(tmp_path)
    expected = read_recipe(str(path))
    path.write_text("\ufeff" + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert read_recipe(str(path)) == expected


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.step=7", "train.step: 'step' is not known; did you mean 'steps'?"),
        ("trian.steps=7", "trian: 'trian' is not known; did you mean 'train'?"),
        ("train.steps=many", "train.steps: should be a valid integer.*got 'many'"),
        ("train.steps=-1", "train.steps: should be greater than or equal to 0, got -1"),
        (
            "train.schedule=cosin",
            "train.schedule: should be 'inverse-sqrt', 'cosine', 'linear' or 'constant', got 'cosin'",
        ),
        ("task=translate", "'translate' is not known; did you mean 'translation'?"),
        ("train.steps", "--set wants key=value"),
        ("seed.x=1", "seed is no section"),
        ("model.layer=3", "model: ModelConfig has no 'layer'; did you mean 'layers'"),
        ("model.shape=tinny", "model: no shape is called 'tinny'"),
        ("model.vocabulary=500", "model.vocabulary: the tokenizer decides that; set text.vocabulary"),
        ("model.shape=['a']", "model: no shape is called"),
        ("train.betas=[0.9, 3]", "train.betas.1: should be less than 1, got 3"),
        ("train.betas=[0.9, nan]", "train.betas.1: should be a finite number, got nan"),
        ("train.learning_rate=inf", "train.learning_rate: should be a finite number, got inf"),
        ("train.weight_decay=inf", "train.weight_decay: should be a finite number, got inf"),
        ("train.minutes=inf", "train.minutes: should be a finite number, got inf"),
        ("train.clip=nan", "train.clip: should be a finite number, got nan"),
        ("data.ratio=inf", "data.ratio: should be a finite number, got inf"),
        ("model.norm_epsilon=inf", "model: norm_epsilon must be a finite number of at least 0, got inf"),
        ("seed=99999999999999999999999", "seed: should be less than 9223372036854775808"),
        ("train.metric=ter", "train.metric: 'ter' is not known"),
        ("text.script=traditional", "text.script: should be 'simplified', got 'traditional'"),
        ("decode.beams=3", "decode.beams: 'beams' is not known; did you mean 'beam'"),
        ("data.train=3", r"data.train: should be a file, .* or a list of these, got 3"),
        ("data.train=['a', 3]", r"data.train: should be a file, .*got \['a', 3\]"),
        ("data.dev={source = 3}", r"data.dev: should be a file, .*got \{'source': 3\}"),
        ("data.columns=source", "data.columns: should be a list of names, or .*got 'source'"),
        ("train.keep=1", "train.keep must be at least 2"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path, override, said):
    path = write_recipe(tmp_path, train='average = "last"')
    with pytest.raises(ConfigError, match=said) as caught:
        read_recipe(str(path), [override])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "a.toml: task, data: are missing"),
        ({"task": "translation", "data": {}}, "a.toml: data.train: is missing"),
        ({"data": {}, "sed": 1}, "a.toml: task, data.train: are missing\na.toml: sed: 'sed' is not known"),
    ],
)
def test_what_is_missing_is_said_in_one_line(values, said):
    with pytest.raises(ConfigError) as caught:
        check_recipe(values, "a.toml")
    assert str(caught.value).startswith(said)


def test_an_unknown_recipe_gets_the_nearest_name():
    with pytest.raises(ConfigError, match="did you mean 'translate-zh-en-tiny'"):
        read_recipe("translate-zh-en-tinny")


def test_a_file_that_is_no_toml_is_refused(tmp_path):
    (tmp_path / "bad.toml").write_text("task = ")
    with pytest.raises(ConfigError, match=r"bad\.toml is no TOML"):
        read_recipe(str(tmp_path / "bad.toml"))


def test_an_unknown_shipped_corpus_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"did you mean 'tatoeba-zh-en\.train'"):
        resolve_sources("shipped:tatoeba-zh-en.trian", tmp_path)


@pytest.mark.parametrize("name", shipped.recipes())
def test_a_recipe_written_out_is_the_same_recipe(name):
    recipe, _ = read_recipe(name)
    again = check_recipe(tomllib.loads(to_toml(recipe)), "again")
    assert again == recipe


def test_odd_texts_survive_being_written_out(tmp_path):
    recipe, _ = read_recipe(str(write_recipe(tmp_path)), ['about = "say \\"你好\\"\\n\\u007f \\\\ # ["'])
    assert check_recipe(tomllib.loads(to_toml(recipe)), "again").about == 'say "你好"\n\x7f \\ # ['


def test_a_path_that_is_not_beside_the_recipe_starts_from_here(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine.tsv").write_text("a\tb\n")
    monkeypatch.chdir(tmp_path / "here")
    assert resolve_sources(["mine.tsv", "train.tsv"], tmp_path) == [Path("mine.tsv"), tmp_path / "train.tsv"]
