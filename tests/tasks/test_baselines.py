"""The baseline that a text model is compared with, and where it is printed."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

import clearhead
from clearhead.cli import main
from clearhead.errors import DataError, PackageError
from clearhead.tasks import TASKS
from clearhead.tasks.answerer import Baseline
from clearhead.tasks.answers.answer_processor import AnswerProcessor
from clearhead.tasks.answers.answer_settings import AnswerSettings
from clearhead.tasks.baselines import TfidfBaseline
from clearhead.tasks.classification.classifier_processor import ClassifierProcessor
from clearhead.train import run_training
from clearhead.train.data import find_contradictions, find_repeated, read_training_rows
from clearhead.train.finished_model import compare_with_baseline
from clearhead.train.recipe import read_recipe
from tests.tasks.test_classification import RECIPE, labelled, rows_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("baselines")
    lines = [f"{text}\t{label}\n" for text, label in labelled(120, 1)]
    (folder / "train.tsv").write_text("".join(lines), encoding="utf-8")
    recipe = RECIPE.replace('dev = "dev.tsv"', "dev = 0.25").replace("steps = 80", "steps = 2")
    (folder / "toy.toml").write_text(recipe, encoding="utf-8")
    return run_training(str(folder / "toy.toml"), out=folder / "run", device="cpu")


def test_it_is_what_one_writes_with_scikit_learn():
    train, rest = labelled(60, seed=3), labelled(20, seed=4)
    texts, labels = zip(*train, strict=True)
    baseline = TfidfBaseline().fit(texts, labels)
    vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    regression = LogisticRegression(max_iter=1000).fit(vectors.fit_transform(texts), labels)
    wanted = regression.predict_proba(vectors.transform([text for text, _ in rest]))
    assert np.allclose(baseline.probabilities([text for text, _ in rest]), wanted)
    assert baseline.labels == list(regression.classes_)


def test_chinese_is_split_into_characters():
    baseline = TfidfBaseline().fit(["房间很好", "服务很好", "房间很差", "服务很差"], ["1", "1", "0", "0"])
    assert baseline.predict(["早餐好", "早餐差"]) == ["1", "0"]
    assert baseline.name == "TF-IDF (characters, 1–3-grams) with logistic regression"


def test_several_labels_are_answered_each_for_itself():
    texts = ["red fish", "red car", "blue fish", "blue car", "green car", "green fish"]
    labels = [["red", "animal"], ["red"], ["animal"], [], [], ["animal"]]
    baseline = TfidfBaseline(multi_label=True).fit(texts, labels)
    assert baseline.labels == ["animal", "red"]
    assert baseline.predict(["red", "fish", "blue green"]) == [["red"], ["animal"], []]


def test_texts_without_words_are_refused_in_words():
    with pytest.raises(DataError, match="the baseline cannot learn from these texts: empty vocabulary"):
        TfidfBaseline().fit(["!", "?"], ["a", "b"])


def test_without_scikit_learn_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(PackageError, match=r"needs the package scikit-learn.*clearhead\[baselines\]"):
        TfidfBaseline().fit(["a b", "c d"], ["1", "2"])


def test_a_model_that_loses_says_so_in_its_card(run):
    metrics = json.loads((run / "model" / "metrics.json").read_text())
    assert metrics["baseline"]["accuracy"] > metrics["dev"]["accuracy"], "two steps are too few to learn anything"
    assert metrics["baseline"]["rows"] == 30
    card = (run / "model" / "README.md").read_text()
    assert "the model LOSES to its baseline on dev: accuracy" in card
    assert "TF-IDF (words, 1–2-grams) with logistic regression" in card
    better = {"test": {"accuracy": 0.5}, "dev": {"accuracy": 0.1}, "baseline": {"name": "B", "accuracy": 0.4}}
    assert (
        compare_with_baseline(better, "accuracy")
        == "the model beats its baseline on test: accuracy 0.5 against 0.4 (B)"
    )


def test_evaluate_prints_the_baseline_of_the_training_rows_alone(run, capsys, monkeypatch):
    monkeypatch.chdir(run.parent)
    seen = []

    def spy(processor, train, rows):
        seen.append((len(train), len(rows)))
        return Baseline("a spy", {"accuracy": 0.25})

    spied = replace(TASKS["classification"], baseline=spy)
    monkeypatch.setitem(TASKS._loaded, "classification", spied)
    assert main(["evaluate", str(run), "train.tsv", "--baseline", "--json", "--device", "cpu"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["baseline"] == {"name": "a spy", "accuracy": 0.25}
    assert seen == [(90, 120)], "a quarter was split off for dev: the baseline must not learn from it"
    assert main(["evaluate", str(run), "train.tsv", "--baseline", "--train", "train.tsv", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.endswith("\nbaseline: a spy\naccuracy  0.25\n")
    assert seen[1:] == [(120, 120)]


def test_missing_training_data_are_one_line_with_a_remedy(run, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = str(run.parent / "train.tsv")
    assert main(["evaluate", str(run), data, "--baseline", "--device", "cpu"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "the baseline needs the training data: no file" in said
    assert "give it with --train FILE" in said
    assert main(["evaluate", str(run), data, "--train", data, "--device", "cpu"]) == 2
    assert "it needs --baseline" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--baseline"], "translation has no baseline to compare with"),
        (["--report"], "translation has no tables to report"),
        (["--figure", "a.png"], "translation has no confusion matrix to draw"),
    ],
)
def test_what_a_task_lacks_is_refused_before_anything_is_scored(option, said, capsys):
    assert main(["evaluate", "zh-en", "nowhere.tsv", *option, "--device", "cpu"]) == 2
    assert capsys.readouterr().err == f"clearhead: {said}\n"


def test_training_rows_are_those_of_the_run(run):
    recipe, base = read_recipe(str(run.parent / "toy.toml"))
    rows = read_training_rows(recipe, base)
    assert len(rows) == 90
    dev = [row for row in rows_of(labelled(120, 1)) if row.line not in {one.line for one in rows}]
    assert len(dev) == 30


def test_inputs_that_are_in_train_and_dev_are_found(run):
    processor = clearhead.load(run, device="cpu").processor
    train = rows_of([("a dog", "animal"), ("soup ", "food"), ("now", "time")])
    dev = rows_of([("soup", "animal"), ("Soup", "food"), ("now", "time")], "dev.tsv")
    assert [row.line for row in find_repeated(processor, train, dev)] == [1, 3]
    assert find_repeated(processor, train, []) == []


def test_inputs_with_answers_that_exclude_each_other_are_found(run):
    train = rows_of([("a dog", "animal"), ("soup ", "food"), ("soup", "food"), ("a dog", "time"), (" a dog", "animal")])
    processor = clearhead.load(run, device="cpu").processor
    different = TASKS["classification"].contradict
    [contradiction] = find_contradictions(different, processor, train)
    assert [row.line for row in contradiction] == [1, 4, 5]
    several = processor.stored.model_copy(update={"multi_label": True})
    many = ClassifierProcessor(processor.tokenizer, processor.config, several)
    pairs = rows_of([("a", "x,y"), ("a", "y, x"), ("b", "x"), ("b", "")])
    assert find_contradictions(different, many, pairs)[0][0].line == 3
    exclusive = TASKS["answers"].contradict
    questions = rows_of([("why?", "so"), ("why?", "no"), ("who?", ""), ("who?", "me"), ("how?", "so"), ("how?", "so ")])
    for kind, lines in (("intents", [[1, 2], [3, 4]]), ("pairs", [[3, 4]])):
        answers = AnswerProcessor(processor.tokenizer, processor.config, AnswerSettings(kind=kind, labels=["so", "no"]))
        assert [[row.line for row in rows] for rows in find_contradictions(exclusive, answers, questions)] == lines
    assert TASKS["translation"].contradict is None  # a text may be translated in several ways
