"""The linear head: logistic regression over vectors and n-grams, as cross-validation chooses, stored with the model."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import clearhead
from clearhead.cli import main
from clearhead.errors import CheckpointError, ConfigError
from clearhead.tasks.classification.classifier_processor import ClassifierSettings
from clearhead.tasks.classification.linear_head import NgramHead, Texts, fit_linear_head, join_columns
from clearhead.tasks.lexical.ngrams import NgramFeatures
from clearhead.train import run_training
from clearhead.train.recipe import read_recipe

WORDS = {0: ["sunny", "warm", "mild"], 1: ["rainy", "cold", "windy"]}


def make_texts(count: int, seed: int, *, informative: str) -> tuple[Texts, torch.Tensor]:
    """Texts whose label is in their vectors or in their words, as `informative` says."""
    chance = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    named = labels if informative == "words" else chance.integers(0, 2, count)
    texts = [f"a {chance.choice(WORDS[label])} day in {chance.choice(['May', 'June', 'July'])}" for label in named]
    vectors = torch.from_numpy(chance.normal(size=(count, 7))).float()
    if informative == "vectors":
        vectors[:, 3] += torch.from_numpy(labels * 6.0 - 3).float()
    return Texts(texts, vectors + 5), torch.from_numpy(labels)


NONE = Texts([], torch.zeros(0, 7))


@pytest.mark.parametrize(("informative", "used"), [("words", "n-grams"), ("vectors", "vectors")])
def test_cross_validation_finds_where_the_labels_are(informative, used):
    train, targets = make_texts(40, 1, informative=informative)
    head = fit_linear_head(train, targets, NONE, labels=2, multi_label=False, seed=1)
    other = {"n-grams": "vectors", "vectors": "n-grams"}[used]
    assert head.losses[used] < head.losses[other]
    assert head.accuracies[used] == 1.0
    assert used in head.chosen
    test, wanted = make_texts(100, 2, informative=informative)
    assert float((head.weights.scores(test).argmax(1) == wanted).float().mean()) >= 0.95
    assert f"{head.chosen}: {head.accuracies[head.chosen]:.2f} right in cross-validation" in head.describe()


def test_several_labels_have_a_sigmoid_each():
    train, targets = make_texts(40, 3, informative="words")
    both = torch.stack([targets, 1 - targets, torch.ones_like(targets)], 1).float()
    head = fit_linear_head(train, both, NONE, labels=3, multi_label=True, seed=1)
    assert float(((head.weights.scores(train) > 0).float() == both).float().mean()) >= 0.95


def test_unlabelled_texts_are_used_where_that_helps():
    train, targets = make_texts(8, 4, informative="words")
    unlabelled, _ = make_texts(300, 5, informative="words")
    head = fit_linear_head(train, targets, unlabelled, labels=2, multi_label=False, seed=1)
    name = "vectors and n-grams, unlabelled texts"
    assert set(head.losses) == {"n-grams", "vectors", "vectors and n-grams", name}
    assert head.losses[name] < head.losses["vectors and n-grams"]


def test_columns_side_by_side_are_the_dense_ones():
    texts = ["a cold day", "", "warm warm days in May"]
    sparse, dense = NgramFeatures.fit(texts).transform(texts), torch.arange(6.0).view(3, 2)
    assert torch.equal(join_columns([sparse, dense]).dense(), torch.cat([sparse.dense(), dense], 1))


def test_a_damaged_head_is_refused(tmp_path):
    features = NgramFeatures.fit(["one day", "two days"])
    NgramHead(features, torch.zeros(len(features.counts), 2)).save(tmp_path)
    loaded = NgramHead.load(tmp_path, 2)
    assert loaded is not None
    assert loaded.scores(["one"]).tolist() == [[0.0, 0.0]]
    with pytest.raises(CheckpointError, match=r"ngrams\.safetensors has shape \(6, 2\), \(6, 3\) is needed"):
        NgramHead.load(tmp_path, 3)
    assert NgramHead.load(tmp_path / "nowhere", 2) is None


RECIPE = """
task = "classification"
[data]
train = "train.json"
dev = "dev.json"
unlabelled = "unlabelled.txt"
columns = { text = "sentence", label = "kind" }
[train]
init_from = "encoder-zh"
heads_every = 0
tensorboard = false
"""
GOOD, BAD = ["很好用", "非常满意", "质量不错", "喜欢"], ["很难用", "非常失望", "质量太差", "讨厌"]
THINGS = ["手机", "耳机", "充电器", "键盘", "鼠标", "屏幕"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("few")
    rows = [
        {"sentence": f"这个{thing}{word}", "kind": kind}
        for number, thing in enumerate(THINGS)
        for kind, words in ((1, GOOD), (0, BAD))
        for word in (words[number % 4], words[(number + 1) % 4])
    ]
    for name, part in (("train", rows[:16]), ("dev", rows[16:])):
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in part]
        (folder / f"{name}.json").write_text("".join(lines), encoding="utf-8")
    (folder / "unlabelled.txt").write_text("".join(f"我的{thing}{word}\n" for thing in THINGS for word in GOOD + BAD))
    (folder / "few.toml").write_text(RECIPE, encoding="utf-8")
    return run_training(str(folder / "few.toml"), out=folder / "run", device="cpu")


def test_a_run_without_steps_fits_its_head_and_says_from_what(run):
    metrics = json.loads((run / "model" / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["step"] == 0
    assert metrics["chosen"]["head.kind"].startswith("linear (")
    assert metrics["dev"]["accuracy"] >= 0.75
    assert "steps = 0" in (run / "recipe.toml").read_text(encoding="utf-8")


def test_the_folder_gives_the_probabilities_of_its_run_without_scikit_learn(run, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn", None)
    predictor = clearhead.load(run, device="cpu")
    rows = list(predictor.processor.read(run.parent / "dev.json", {"text": "sentence", "label": "kind"}))
    metrics = json.loads((run / "model" / "metrics.json").read_text(encoding="utf-8"))
    assert predictor.evaluate(rows)["accuracy"] == metrics["dev"]["accuracy"]
    assert predictor.predict("这个鼠标非常满意").label == "1"
    if predictor.processor.ngram_head is not None:
        scores = predictor.predict("这个鼠标非常满意").scores
        predictor.processor.ngram_head = None
        assert predictor.predict("这个鼠标非常满意").scores != scores


@pytest.mark.parametrize(
    ("changes", "linear"),
    [
        ([], True),
        (["train.steps=9"], False),
        (["train.minutes=1"], False),
        (["head.kind=trained"], False),
        (["train.init_from=none"], False),
        (["train.init_from=none", "head.kind=linear"], True),
        (["train.lora_rank=2"], False),
    ],
)
def test_gradients_are_used_where_they_are_asked_for(tmp_path, changes, linear):
    (tmp_path / "few.toml").write_text(RECIPE, encoding="utf-8")
    recipe, _ = read_recipe(str(tmp_path / "few.toml"), changes)
    stored = ClassifierSettings(labels=["0", "1"], thresholds=[0.5, 0.5])
    processor = SimpleNamespace(pairs=False, stored=stored)
    assert recipe.has_linear_head(processor, 2000) is linear
    assert recipe.needs_steps(processor, 2000) is not linear
    assert recipe.has_linear_head(processor, 2001) is (recipe.head.kind == "linear")


def test_a_linear_head_refuses_steps(tmp_path):
    (tmp_path / "few.toml").write_text(RECIPE, encoding="utf-8")
    with pytest.raises(ConfigError, match="leaves the encoder as it is: leave"):
        read_recipe(str(tmp_path / "few.toml"), ["head.kind=linear", "train.steps=5"])


def test_a_run_without_steps_that_needs_them_is_refused(run, tmp_path):
    with pytest.raises(ConfigError, match=r"steps = 0, but this model learns by gradients: set at least 1"):
        run_training(
            str(run.parent / "few.toml"), out=tmp_path / "run", overrides=["head.kind=trained", "train.steps=0"]
        )


def test_a_finished_run_without_steps_is_resumed_as_it_is(run, capsys):
    before = (run / "model" / "model.safetensors").read_bytes()
    assert main(["train", str(run.parent / "few.toml"), "--out", str(run), "--resume", "--device", "cpu"]) == 0
    assert (run / "model" / "model.safetensors").read_bytes() == before
    assert "already at its end, step 0 of 0" in capsys.readouterr().err
