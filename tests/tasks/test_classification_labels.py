"""Classification with several labels, pairs of texts, weights, calibration, reports and long texts."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import classification_report, confusion_matrix, f1_score

import clearhead
from clearhead.cli import main
from clearhead.errors import ConfigError, DataError
from clearhead.model.output_heads import GAIN, NGRAM_ROWS
from clearhead.predictor import Predictor
from clearhead.tasks.classification.calibration import (
    choose_thresholds,
    expected_calibration_error,
    fit_temperature,
    undo_temperature,
)
from clearhead.tasks.classification.classification_task import TASK, ClassifierObjective, hide_tokens
from clearhead.tasks.classification.classifier_answerer import ClassifierAnswerer, ClassifierOptions, score_labels
from clearhead.tasks.classification.classifier_processor import ClassifierProcessor, LabelColumn
from clearhead.tasks.metrics import count_confusions, count_labels
from clearhead.tasks.text_windows import split_windows, text_windows
from clearhead.text import Report
from clearhead.text.batches import Batch
from clearhead.train import run_training
from tests.tasks.test_classification import RECIPE, labelled, recipe_of, rows_of

NAMES = ["animal", "food", "time"]


def many_labelled(count: int, seed: int) -> list[tuple[str, str]]:
    """Two sentences joined, with the numbers of both labels; every seventh has none."""
    first, second = labelled(count, seed), labelled(count + 1, seed + 100)[1:]
    pairs = []
    for number, ((one, label), (other, more)) in enumerate(zip(first, second, strict=True)):
        labels = sorted({NAMES.index(label), NAMES.index(more)})
        pairs.append(("here is the", "") if number % 7 == 0 else (f"{one} {other}", ",".join(map(str, labels))))
    return pairs


def write_tsv(path: Path, rows: list[tuple[str, ...]]) -> None:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    write_tsv(folder / "train.tsv", many_labelled(280, 1))
    write_tsv(folder / "dev.tsv", many_labelled(60, 2))
    (folder / "names.txt").write_text("animal\nfood\ntime\n")
    recipe = RECIPE.replace("longest = 20", 'longest = 40\nmulti_label = true\nlabel_names = "names.txt"')
    (folder / "toy.toml").write_text(recipe, encoding="utf-8")
    return run_training(str(folder / "toy.toml"), out=folder / "run", device="cpu")


@pytest.fixture(scope="module")
def tagger(many: Path) -> Predictor:
    return clearhead.load(many, device="cpu")


# several labels


def test_each_label_is_answered_for_itself(tagger):
    both, none = tagger.predict(["a dog and very good cheese", "here is the"])
    assert set(both.labels) == {"animal", "food"}
    assert both.text == ", ".join(both.labels)
    assert (none.labels, none.text) == ((), "")
    assert set(both.scores) == set(NAMES)
    assert sum(both.scores.values()) > 1.2


def test_one_threshold_may_stand_for_those_of_all_labels(tagger):
    texts = [text for text, _ in many_labelled(20, 9)]
    for answer, usual in zip(tagger.predict(texts, threshold=0.3), tagger.predict(texts), strict=True):
        assert set(answer.labels) == {label for label, score in usual.scores.items() if score >= 0.3}
        assert "sure" not in answer.to_json()
    assert tagger.evaluate(many_labelled(60, 9), threshold=0.0)["accuracy"] == 0.0, "every text has all labels"
    with pytest.raises(ConfigError, match=r"threshold: should be less than or equal to 1, got 1\.5"):
        tagger.predict("a", threshold=1.5)


def test_a_table_and_a_curve_of_several_labels(many, tagger, tmp_path, capsys):
    write_tsv(tmp_path / "a.tsv", [("a dog and very good cheese",)])
    assert main(["predict", str(many), str(tmp_path / "a.tsv"), "--device", "cpu"]) == 0
    assert set(capsys.readouterr().out.strip().split("\t")[1].split(",")) == {"animal", "food"}
    rows = many_labelled(60, 9)
    write_tsv(tmp_path / "dev.tsv", rows)
    assert main(["evaluate", str(many), str(tmp_path / "dev.tsv"), "--json", "--device", "cpu"]) == 0
    for point in json.loads(capsys.readouterr().out)["curve"]:
        answers = tagger.predict([text for text, _ in rows], threshold=point["threshold"])
        right = tagger.evaluate(
            [row for row, answer in zip(rows, answers, strict=True) if answer.labels], threshold=point["threshold"]
        )
        assert point["answered"] == round(sum(bool(answer.labels) for answer in answers) / len(rows), 4)
        assert point["right"] == right["accuracy"]


def test_its_json_has_labels_and_scores(many, capsys):
    assert main(["predict", str(many), "a dog and soup", "--json", "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"input", "labels", "scores", "notes"}
    assert sorted(found["labels"]) == ["animal", "food"]


def test_its_scores_are_those_of_scikit_learn(tagger, many):
    found = tagger.evaluate_rows(many.parent / "dev.tsv")
    right = np.array([[str(number) in row.values[1].split(",") for number in range(3)] for row in found.rows])
    given_ = np.array([[name in one.labels for name in NAMES] for one in found.predictions])
    assert found.scores["macro_f1"] == pytest.approx(f1_score(right, given_, average="macro"), abs=5e-5)
    assert found.scores["micro_f1"] == pytest.approx(f1_score(right, given_, average="micro"), abs=5e-5)
    assert found.scores["accuracy"] == pytest.approx((right == given_).all(1).mean(), abs=5e-5)
    assert found.scores["macro_f1"] > 0.8
    assert {"calibration_error", "calibration_error_before"} <= set(found.scores)
    assert "micro avg" in TASK.report(tagger.processor, found.rows, found.predictions)
    with pytest.raises(ConfigError, match="texts with several labels have no confusion matrix; --report"):
        TASK.confusion(tagger.processor, found.rows, found.predictions)


def test_thresholds_and_temperature_are_saved_with_the_model(tagger, many):
    stored = json.loads((many / "model" / "config.json").read_text())["settings"]
    assert stored["thresholds"] == tagger.processor.stored.thresholds
    assert stored["temperature"] == tagger.processor.stored.temperature != 1.0
    assert len(stored["thresholds"]) == 3
    metrics = json.loads((many / "model" / "metrics.json").read_text())
    assert "macro_f1" in metrics["baseline"]
    assert tagger.processor.metric == "macro_f1"


def test_a_label_column_is_names_or_numbers():
    column = LabelColumn(multi_label=True, separator="|", names=("a", "b", "7"))
    assert column.parse(" b |0|b") == ("b", "a")
    assert column.parse("7") == ("7",), "a name that is a number is a name"
    assert column.parse("٠") == ("٠",), "only ASCII digits write an index"
    with pytest.raises(DataError, match=r"train\.tsv:2: the label '9' is not one of the 3 in data"):
        column.collect(rows_of([("a", "0"), ("b", "9")]))
    assert LabelColumn(multi_label=True).collect(rows_of([("a", "x"), ("b", "")])) == {"x": 1}
    with pytest.raises(DataError, match=r"train\.tsv: at least two different labels are needed; found x"):
        LabelColumn(multi_label=True).collect(rows_of([("a", "x"), ("b", "x")]))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, r"data\.label_names: .*names\.txt cannot be read: No such file"),
        ("a\n\nb\n", r"names\.txt:2: empty line"),
    ],
)
def test_a_file_of_names_with_something_wrong_leaves_no_run(tmp_path, content, said):
    write_tsv(tmp_path / "train.tsv", many_labelled(20, 1))
    if content is not None:
        (tmp_path / "names.txt").write_text(content)
    recipe = RECIPE.replace('dev = "dev.tsv"\n', 'multi_label = true\nlabel_names = "names.txt"\n')
    (tmp_path / "toy.toml").write_text(recipe)
    with pytest.raises(DataError, match=said):
        run_training(str(tmp_path / "toy.toml"), out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


# pairs of texts


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whether two texts are about the same thing."""
    folder = tmp_path_factory.mktemp("pairs")
    for name, count, seed in (("train", 300, 1), ("dev", 30, 2)):
        first, second = labelled(count, seed), labelled(count, seed + 50)
        rows = []
        for number, (text, label) in enumerate(first):
            other, its = second[(number + (number % 2)) % count]
            rows.append((text, other, "same" if label == its else "different"))
        write_tsv(folder / f"{name}.tsv", rows)
    columns = 'longest = 40\ncolumns = ["text", "other", "label"]'
    recipe = RECIPE.replace("longest = 20", columns).replace("steps = 80", "steps = 10")
    (folder / "toy.toml").write_text(recipe, encoding="utf-8")
    return run_training(str(folder / "toy.toml"), out=folder / "run", device="cpu")


def test_a_pair_is_read_with_a_separator_and_segments(pairs):
    predictor = clearhead.load(pairs, device="cpu")
    processor, tokenizer = predictor.processor, predictor.processor.tokenizer
    assert (processor.pairs, processor.columns, processor.config.segments) == (True, ("text", "other", "label"), 2)
    written = predictor.predict("a dog\ta cat")
    assert predictor.predict([("a dog", "a cat")]) == [written]
    assert predictor.predict("a cat\ta dog").scores != written.scores
    record = predictor.look("a dog\ta cat")
    marks = (tokenizer.start, tokenizer.end)
    assert record.calls[0].ids["tokens"].tolist() == text_windows(
        [tokenizer.encode("a dog"), tokenizer.encode("a cat")], 100, *marks
    )
    assert set(predictor.evaluate(pairs.parent / "dev.tsv")) >= {"accuracy"}, "columns are those of training"
    for wrong in ("a dog", "a\tb\tc"):
        with pytest.raises(DataError, match="the input must be two texts with a tab between"):
            predictor.predict(wrong)


def test_rows_of_a_table_may_be_pairs(pairs, tmp_path, capsys):
    (tmp_path / "a.csv").write_text("text,id,candidate\nthe cat,1,the dog\n")
    run = ["predict", str(pairs), str(tmp_path / "a.csv"), "--device", "cpu", "--columns", "other=candidate"]
    assert main(run) == 0
    assert main([*run, "--json"]) == 0
    head, row, found = capsys.readouterr().out.splitlines()
    answer = clearhead.load(pairs, device="cpu").predict(("the cat", "the dog"))
    assert head == "text,id,candidate,label,score"
    assert row == f"the cat,1,the dog,{answer.label},{answer.score:.4f}"
    assert {"input": "the cat\tthe dog", "id": "1", "label": answer.label}.items() <= json.loads(found).items()


def test_segments_change_the_scores_of_a_pair(pairs):
    predictor = clearhead.load(pairs, device="cpu")
    before = predictor.predict([("a dog", "a cat")])
    with torch.no_grad():
        predictor.model.encoder.segments.weight[1] += torch.linspace(-1, 1, 24)
    assert predictor.predict([("a dog", "a cat")])[0].scores != before[0].scores


# the loss


def small_task(**sections) -> tuple[ClassifierObjective, torch.nn.Module, object]:
    rows, recipe = rows_of(labelled(31, seed=1)), recipe_of(**sections)
    processor = ClassifierProcessor.prepare(rows, recipe)
    torch.manual_seed(2)
    model = processor.build().double()
    for module in model.modules():
        module.training = isinstance(module, type(model))  # as in training, but without dropout
    examples = processor.examples(rows[:7], Report())
    return (
        ClassifierObjective(processor, recipe),
        model,
        examples.collate(Batch(np.arange(7), (int(examples.lengths.max()),))),
    )


def test_balanced_weights_are_those_of_scikit_learn():
    objective, model, batch = small_task(loss={"class_weights": "balanced"})
    counts = torch.tensor([11.0, 10.0, 10.0])  # of 31
    assert torch.allclose(objective.weights, 31 / (3 * counts))
    scores = score_labels(objective.processor, model, batch.tokens, batch.lengths)
    wanted = F.cross_entropy(scores, batch.labels, objective.weights.double(), reduction="sum")
    assert objective.loss(model, batch).item() == pytest.approx(wanted.item(), abs=1e-9)
    model.eval()
    assert objective.loss(model, batch).item() == pytest.approx(
        F.cross_entropy(scores, batch.labels).item() * 7, abs=1e-9
    )


def test_weights_by_name_must_be_those_of_labels():
    objective, _, _ = small_task(loss={"class_weights": {"food": 3.0}})
    assert objective.weights.tolist() == [1.0, 3.0, 1.0]
    with pytest.raises(ConfigError, match=r"loss\.class_weights: no label is called 'foot'; did you mean 'food'"):
        small_task(loss={"class_weights": {"foot": 3.0}})
    for wrong in ("even", {"food": 0}):
        with pytest.raises(ConfigError, match=r"loss\.class_weights: should be \"balanced\""):
            recipe_of(loss={"class_weights": wrong})


def test_hidden_tokens_are_a_share_of_those_that_may_be_hidden():
    torch.manual_seed(3)
    tokens = torch.randint(5, 50, (50, 40))
    tokens[:, 0], tokens[:, -1] = 1, 2
    hidden = hide_tokens(tokens, 0.3, 0, (1, 2))
    assert 0.27 < (hidden == 0).float().mean() < 0.31
    assert (hidden[:, 0] == 1).all()
    assert (hidden[:, -1] == 2).all()
    assert torch.equal(torch.where(hidden == 0, tokens, hidden), tokens)


# calibration


def test_the_calibration_error_is_the_one_counted_by_hand():
    confidence = np.array([0.95, 0.96, 0.97, 0.50, 0.51])
    right = np.array([True, True, False, True, False])
    # the bins (14/15, 1] and (7/15, 8/15]
    wanted = 3 / 5 * abs(2 / 3 - 0.96) + 2 / 5 * abs(1 / 2 - 0.505)
    assert expected_calibration_error(confidence, right) == pytest.approx(wanted)
    assert expected_calibration_error(np.array([1.0, 0.0]), np.array([True, False])) == 0


@pytest.mark.parametrize("many_labels", [False, True])
def test_a_temperature_undoes_scores_that_are_too_sure(many_labels):
    chance = np.random.default_rng(0)
    logits = chance.normal(size=(4000, 3)) * 2
    shares = 1 / (1 + np.exp(-logits)) if many_labels else np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    if many_labels:
        labels = (chance.random(shares.shape) < shares).astype(np.int64)
    else:
        labels = (chance.random((4000, 1)) > shares.cumsum(1)).sum(1)
    found = fit_temperature(3 * logits, labels)
    assert found == pytest.approx(3.0, rel=0.1)
    scaled = torch.tensor(3 * logits / found)
    calibrated = (scaled.sigmoid() if many_labels else scaled.softmax(-1)).numpy()
    sure = torch.tensor(3 * logits)
    wanted = (sure.sigmoid() if many_labels else sure.softmax(-1)).numpy()
    assert np.allclose(undo_temperature(calibrated, found, multi_label=many_labels), wanted, atol=1e-9)


def test_calibration_divides_the_scores_of_the_model_and_undoes_itself_in_the_report():
    objective, model, _ = small_task(model={"width": 20, "heads": 5, "ngrams": 2})
    processor, answerer = objective.processor, ClassifierAnswerer(objective.processor, model)
    rows = rows_of(labelled(31, seed=1))
    with torch.no_grad():
        model.eval().ngrams.rows.weight.normal_()
    model.divide_scores(0.5)  # too sure
    before = answerer.predict([row.values[0] for row in rows], ClassifierOptions())
    objective.calibrate(model, [], rows)
    after = answerer.predict([row.values[0] for row in rows], ClassifierOptions())
    assert [one.label for one in before] == [one.label for one in after]
    assert processor.stored.temperature > 1
    scores = answerer.score(rows, after, ClassifierOptions())
    shares, temperature = np.array([list(one.scores.values()) for one in before]), processor.stored.temperature
    wanted = shares ** (1 / temperature) / (shares ** (1 / temperature)).sum(1, keepdims=True)
    assert np.allclose([list(one.scores.values()) for one in after], wanted)
    processor.store(temperature=1.0)
    assert answerer.score(rows, before, ClassifierOptions())["calibration_error"] == scores["calibration_error_before"]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=12))
def test_no_threshold_has_a_better_f1(rows):
    shares = np.array([[share / 10 + 0.05] for share, _ in rows])
    right = np.array([[int(is_right)] for _, is_right in rows])
    [chosen] = choose_thresholds(shares, right)
    values = [f1_score(right, shares >= limit, zero_division=0) for limit in np.arange(0, 1.01, 0.05)]
    if right.any():
        assert f1_score(right, shares >= chosen) == pytest.approx(max(values))
    else:
        assert chosen == 0.5


# reports


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=1, max_size=30))
def test_the_table_is_that_of_scikit_learn(pairs):
    right, answers = zip(*pairs, strict=True)
    table = count_labels([[one] for one in right], [[one] for one in answers]).table(list("abc"))
    wanted = classification_report(right, answers, labels=list("abc"), output_dict=True, zero_division=0)
    for name, row in table.items():
        if name != "micro avg":  # for scikit-learn it is the accuracy, if every row has one label
            found = [row.precision, row.recall, row.f1, row.support]
            assert found == pytest.approx([wanted[name][key] for key in ("precision", "recall", "f1-score", "support")])
    accuracy = sum(one == other for one, other in pairs) / len(pairs)
    assert table["micro avg"].f1 == pytest.approx(accuracy)
    assert (
        count_confusions(right, answers, "abc")[1].tolist()
        == confusion_matrix(right, answers, labels=list("abc")).tolist()
    )


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sets(st.sampled_from("abc")), st.sets(st.sampled_from("abc"))), min_size=1, max_size=20))
def test_the_table_of_several_labels_is_that_of_scikit_learn(pairs):
    table = count_labels([sorted(one) for one, _ in pairs], [sorted(other) for _, other in pairs]).table(list("abc"))
    right, answers = (np.array([[int(x in row[side]) for x in "abc"] for row in pairs]) for side in (0, 1))
    wanted = classification_report(right, answers, target_names=list("abc"), output_dict=True, zero_division=0)
    for name, row in table.items():
        found = [row.precision, row.recall, row.f1, row.support]
        assert found == pytest.approx([wanted[name][key] for key in ("precision", "recall", "f1-score", "support")])


def test_evaluate_prints_a_table_and_draws_the_matrix(tmp_path, capsys):
    write_tsv(tmp_path / "train.tsv", labelled(40, 1))
    (tmp_path / "toy.toml").write_text(RECIPE.replace("dev.tsv", "train.tsv").replace("steps = 80", "steps = 1"))
    run = run_training(str(tmp_path / "toy.toml"), out=tmp_path / "run", device="cpu")
    capsys.readouterr()
    figure, data = tmp_path / "confusion.png", str(tmp_path / "train.tsv")
    assert main(["evaluate", str(run), data, "--report", "--figure", str(figure), "--device", "cpu"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[5].split() == ["precision", "recall", "f1", "support"]
    assert said.out.splitlines()[6].split()[0] == "animal"
    assert said.err == f"clearhead: wrote {figure}\n"
    assert figure.read_bytes().startswith(b"\x89PNG")


# long texts


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 40), st.integers(1, 9))
def test_windows_hold_every_token_and_none_is_too_long(count, size):
    windows = split_windows(list(range(count)), size)
    assert {token for window in windows for token in window} == set(range(count))
    assert all(len(window) <= size for window in windows)
    assert len(windows) == max(1, -(-count // size))


def test_a_long_pair_is_read_whole_in_windows_that_fit():
    for first, second in ((3, 30), (30, 3), (30, 40), (5, 5)):
        parts = [list(range(10, 10 + first)), list(range(100, 100 + second))]
        windows = text_windows(parts, 15, 1, 2)
        assert max(map(len, windows)) <= 15
        assert {token for window in windows for token in window} >= {*parts[0], *parts[1]}


def test_a_text_longer_than_learned_positions_is_the_mean_over_windows(tmp_path):
    model = {"width": 20, "heads": 5, "positions": "learned", "max_length": 12}
    recipe = recipe_of(model=model, data={"train": "x.tsv", "longest": 10})
    rows = rows_of([*labelled(30, seed=1), ("cat " * 25, "animal")])
    processor = ClassifierProcessor.prepare(rows, recipe)
    answerer, tokenizer = ClassifierAnswerer(processor, processor.build().eval()), processor.tokenizer
    model, text = answerer.model, rows[-1].values[0]
    [answer] = answerer.predict([text], ClassifierOptions())
    windows = text_windows([tokenizer.encode(text)], 12, tokenizer.start, tokenizer.end)
    assert len(windows) > 1
    said = f"longer than the 12 tokens that the model reads at once: the mean over {len(windows)} windows"
    assert answer.notes == [f"the text is {said}"]
    with torch.no_grad():
        lengths = [torch.tensor([len(window)]) for window in windows]
        tokens = [torch.tensor([window]) for window in windows]
        scores = [score_labels(processor, model, *one) for one in zip(tokens, lengths, strict=True)]
    wanted = torch.cat(scores).mean(0).softmax(-1)
    assert [answer.scores[label] for label in processor.labels] == pytest.approx(wanted.tolist(), abs=1e-6)
    traces = TASK.tracer(TASK.name, answerer).traces(text, answer=None, options=ClassifierOptions())
    assert len(traces) == len(windows)
    dev = Report()
    examples = processor.examples(rows, dev)
    assert len(examples) == 31
    said = "1 longer than the 12 tokens that the model reads at once (the loss is of the first ones)"
    assert str(dev) == f"kept 31 of 31, {said}"
    assert int(examples.lengths.max()) <= 12


def test_ten_thousand_characters_are_classified(tmp_path):
    processor = ClassifierProcessor.prepare(rows_of(labelled(30, seed=1)), recipe_of())
    answerer = ClassifierAnswerer(processor, processor.build().eval())
    [answer] = answerer.predict(["cat dog " * 1250], ClassifierOptions())
    assert answer.notes == []
    assert sum(answer.scores.values()) == pytest.approx(1, abs=1e-5)


# words beside the encoder


def test_runs_of_tokens_have_scores_of_their_own():
    objective, model, batch = small_task(model={"width": 20, "heads": 5, "ngrams": 2})
    plain = score_labels(objective.processor, model, batch.tokens, batch.lengths)
    with torch.no_grad():
        model.ngrams.rows.weight.normal_()
    moved = score_labels(objective.processor, model, batch.tokens, batch.lengths) - plain
    place = int(batch.lengths.argmin())
    tokens = batch.tokens[place, : batch.lengths[place]].tolist()
    hashes = [one + 1 for one in tokens] + [
        ((one + 1) * 1_000_003 + other + 1) % 2_147_483_647 for one, other in pairwise(tokens)
    ]
    rows = model.ngrams.rows.weight[torch.tensor(hashes) % NGRAM_ROWS]
    assert torch.allclose(moved[place], GAIN * rows.sum(0) / len(hashes) ** 0.5)
    with pytest.raises(ValueError, match="also scores n-grams of tokens; pass tokens= as well"):
        model.label_scores(torch.zeros(1, 3, 20).double(), torch.tensor([3]))


# errors at the command line


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.tsv", b"a dog\tanimal\nsoup\n", "a.tsv:2: 1 field where the first line has 2"),
        ("a.tsv", b"a dog\tanimal\nsu\xffp\tfood\n", "a.tsv:2: not UTF-8: byte 0xFF"),
        ("a.tsv", b"\tanimal\n", "no row is left to score: kept 0 of 1; dropped 1 without a text (a.tsv:1)"),
        ("a.csv", b"words,label\na dog,animal\n", "a.csv:1: the header line has no text; choose from words, label"),
    ],
)
def test_broken_data_is_one_line_with_file_and_line(many, tmp_path, capsys, name, content, said):
    (tmp_path / name).write_bytes(content)
    assert main(["evaluate", str(many), str(tmp_path / name), "--device", "cpu"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert said in shown.err


# the shipped recipe


def test_the_tiny_recipe_learns_on_shipped_data_and_can_be_looked_into(tmp_path):
    short = ["train.steps=90", "train.evaluate_every=90", "train.warmup=10", "train.batch_tokens=1024"]
    small = ["train.learning_rate=3e-3", "model.width=64", "model.feedforward=64", "model.dropout=0.1"]
    others = ["train.tensorboard=false", "train.heads_every=0", "text.vocabulary=1000"]
    run = run_training("classify-tiny", out=tmp_path / "run", device="cpu", overrides=[*short, *small, *others])
    metrics = json.loads((run / "model" / "metrics.json").read_text())
    assert metrics["dev"]["accuracy"] > 0.6, "half of the rows are positive"
    predictor = clearhead.load(run, device="cpu")
    assert predictor.predict("What a wonderful day, thank you!").label == "positive"
    assert predictor.look("Thank you!").names == ["encoder.0.self", "encoder.1.self"]
