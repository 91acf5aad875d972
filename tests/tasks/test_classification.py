"""Classification as its user meets it: a file of texts and labels in, labels with probabilities out."""

import json
import math
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import clearhead
from clearhead.attention import Mask
from clearhead.cli import main
from clearhead.errors import CheckpointError, ConfigError, DataError
from clearhead.explore import Scene
from clearhead.lens import Record
from clearhead.predictor import Predictor
from clearhead.tasks.classification.classification_task import TASK, ClassifierObjective, hide_tokens
from clearhead.tasks.classification.classifier_answerer import (
    ClassifierAnswerer,
    ClassifierOptions,
    LabelPrediction,
    score_answers,
)
from clearhead.tasks.classification.classifier_processor import ClassifierProcessor
from clearhead.tasks.processor import PairInputs, TextExamples
from clearhead.text import Report, Row
from clearhead.text.batches import Batch
from clearhead.train import run_training
from clearhead.train.recipe import Recipe, check_recipe

WORDS = {"animal": ["cat", "dog", "horse", "fish"], "food": ["bread", "rice", "soup", "cheese"], "time": ["now", "day"]}
OTHERS = ["the", "a", "is", "here", "good", "very", "and", "not"]

RECIPE = """
task = "classification"
seed = 5

[data]
train = "train.tsv"
dev = "dev.tsv"
longest = 20

[text]
vocabulary = 320

[model]
shape = "tiny"
width = 24
heads = 3
feedforward = 37
layers = 1
dropout = 0.0

[train]
steps = 80
batch_tokens = 512
shapes = 3
warmup = 10
learning_rate = 0.01
log_every = 20
evaluate_every = 40
tensorboard = false
"""


def labelled(count: int, seed: int) -> list[tuple[str, str]]:
    """Sentences with one word that decides; labels in turn."""
    chance, made = random.Random(seed), []
    for number in range(count):
        label = list(WORDS)[number % len(WORDS)]
        words = [*chance.choices(OTHERS, k=chance.randint(0, 6)), chance.choice(WORDS[label])]
        chance.shuffle(words)
        made.append((" ".join(words), label))
    return made


def rows_of(pairs: list[tuple[str, str]], file: str = "data/train.tsv") -> list[Row]:
    return [Row(pair, file, line) for line, pair in enumerate(pairs, start=1)]


def recipe_of(**sections: dict[str, object]) -> Recipe:
    values = {"data": {"train": "train.tsv"}, "text": {"vocabulary": 320}, "model": {"width": 20, "heads": 5}}
    return check_recipe({"task": "classification", **values, **sections}, "test")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classification")
    for name, count, seed in (("train", 240, 1), ("dev", 30, 2)):
        lines = [f"{text}\t{label}\n" for text, label in labelled(count, seed)]
        holes = ["cat\t\n", "\tfood\n", "is it?\tfood\n", " is it?\ttime\n"] if name == "train" else ["cat\tplant\n"]
        (folder / f"{name}.tsv").write_text("".join([*lines, *holes]), encoding="utf-8")
    (folder / "toy.toml").write_text(RECIPE, encoding="utf-8")
    return run_training(str(folder / "toy.toml"), out=folder / "run", device="cpu")


@pytest.fixture(scope="module")
def classifier(run: Path) -> Predictor:
    return clearhead.load(run, device="cpu")


# training and answers


def test_it_has_learned_which_word_decides(classifier):
    assert classifier.predict("here is the dog").label == "animal"
    assert classifier.predict("soup is not very good").text == "food"
    scores = classifier.evaluate(labelled(60, seed=9))
    assert scores["accuracy"] > 0.9
    assert set(scores) == {"accuracy", "macro_f1", "calibration_error", "calibration_error_before"}


def test_answers_below_the_threshold_are_unsure(run, classifier, tmp_path, capsys):
    rows = labelled(60, seed=9)
    texts = [text for text, _ in rows]
    limit = sorted(answer.score for answer in classifier.predict(texts))[30]
    answers = classifier.predict(texts, threshold=limit)
    for answer, usual in zip(answers, classifier.predict(texts), strict=True):
        assert (answer.label, answer.score, answer.sure) == (usual.label, usual.score, usual.score >= limit)
        assert answer.to_json()["sure"] is answer.sure
        assert ("unsure: the probability" in "".join(answer.notes)) is not answer.sure
        assert usual.sure is None
        assert "sure" not in usual.to_json()
    scores, sure = classifier.evaluate(rows, threshold=limit), [answer.sure for answer in answers]
    right = [answer.label == label for answer, (_, label) in zip(answers, rows, strict=True) if answer.sure]
    assert scores["answered"] == round(sum(sure) / len(sure), 4)
    assert scores["accuracy_of_answered"] == round(sum(right) / len(right), 4)
    assert scores["accuracy"] == classifier.evaluate(rows)["accuracy"]
    (tmp_path / "a.csv").write_text("date,comment\n1,here is\n", encoding="utf-8")
    options = ["--threshold", "1", "--columns", "text=comment", "--device", "cpu"]
    assert main(["predict", str(run), str(tmp_path / "a.csv"), *options]) == 0
    done = capsys.readouterr()
    answer = classifier.predict("here is")
    assert done.out == f"date,comment,label,score,sure\n1,here is,{answer.label},{answer.score:.4f},false\n"
    assert "a.csv:2: unsure: the probability" in done.err


def test_a_curve_shows_how_much_is_right_of_what_is_answered(run, classifier, tmp_path, capsys):
    rows = labelled(60, seed=9)
    (tmp_path / "dev.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows), encoding="utf-8")
    assert main(["evaluate", str(run), str(tmp_path / "dev.tsv"), "--json", "--device", "cpu"]) == 0
    curve = json.loads(capsys.readouterr().out)["curve"]
    assert curve[0]["answered"] == 1.0
    for point in curve:
        scores = classifier.evaluate(rows, threshold=point["threshold"])
        assert (point["answered"], point["right"]) == (scores["answered"], scores["accuracy_of_answered"])
    assert main(["evaluate", str(run), str(tmp_path / "dev.tsv"), "--report", "--device", "cpu"]) == 0
    table = capsys.readouterr().out.partition("threshold   answered      right\n")[2]
    assert len(table.splitlines()) == len(curve)


def test_what_was_left_out_of_training_is_reported(run):
    train, contradictory, dev, repeated = (run / "report.txt").read_text().splitlines()
    said = "1 input of train has answers that exclude each other, in 2 rows"
    example = "'is it?' is 'food' (train.tsv:243) and 'time' (train.tsv:244)"
    assert contradictory == f"warning: {said}; {example}"
    assert train == (
        "train: kept 242 of 244; dropped 1 without a label (train.tsv:241), 1 without a text (train.tsv:242)"
    )
    flaw = "row with a label that is not in the training data, counted as wrong"
    assert dev == f"dev: kept 31 of 31; flaws: 1 {flaw} (dev.tsv:31)"
    said = "7 of 31 inputs of dev are also in train (dev.tsv:3, dev.tsv:12, dev.tsv:18, …), so its scores are too good"
    assert repeated == f"warning: {said}"


def test_the_run_says_how_good_it_is_by_the_scores_of_the_task(run):
    metrics = json.loads((run / "model" / "metrics.json").read_text())
    assert metrics["dev"]["accuracy"] > 0.9
    assert {"accuracy", "macro_f1"} <= set(metrics["dev"])
    assert "accuracy" in (run / "model" / "README.md").read_text()


def test_a_prediction_has_the_probabilities_of_all_labels_likeliest_first(classifier):
    answer = classifier.predict("a good dog")
    assert set(answer.scores) == {"animal", "food", "time"}
    assert sum(answer.scores.values()) == pytest.approx(1, abs=1e-6)
    assert list(answer.scores.values()) == sorted(answer.scores.values(), reverse=True)
    assert (answer.label, answer.score) == next(iter(answer.scores.items()))
    assert answer.ranking() == list(answer.scores.items())[:1]
    (ranked,) = classifier.predict(["a dog"], best=2)
    assert ranked.ranking() == list(ranked.scores.items())[:2]


def test_json_has_label_score_and_scores(run, capsys):
    assert main(["predict", str(run), "a dog", "--json", "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"input", "label", "score", "scores", "notes"}
    assert (found["input"], found["label"], found["notes"]) == ("a dog", "animal", [])
    assert found["scores"]["animal"] == found["score"]
    assert main(["predict", str(run), "a dog", "bread", "--device", "cpu"]) == 0
    assert capsys.readouterr().out == "animal\nfood\n"


def test_an_empty_text_is_answered_too(classifier):
    empty, blank = classifier.predict(["", " \n"])
    assert empty.label in ("animal", "food", "time")
    assert empty == blank
    assert list(empty.notes) == ["the text is empty"]
    assert classifier.predict([]) == []


def test_batched_equals_single(classifier):
    model = classifier.processor.build().double().eval()
    model.load_state_dict(classifier.model.state_dict())
    answerer = ClassifierAnswerer(classifier.processor, model)
    inputs = [*(text for text, _ in labelled(17, seed=4)), "", "cat " * 50, "未知 😀"]
    together = answerer.predict(inputs, ClassifierOptions())
    for batch in (1, 7):
        for one, other in zip(answerer.predict(inputs, ClassifierOptions(batch=batch)), together, strict=True):
            assert one.label == other.label
            assert one.scores == pytest.approx(other.scores, abs=1e-12)


def test_a_saved_model_answers_as_before(classifier, tmp_path):
    parts = {"task": TASK, "processor": classifier.processor, "model": classifier.model}
    clearhead.model_folder.write(tmp_path / "copy", **parts, metrics={}, card="# a test\n")
    loaded = clearhead.load(tmp_path / "copy", device="cpu")
    inputs = [text for text, _ in labelled(13, seed=6)]
    assert loaded.predict(inputs) == classifier.predict(inputs)
    assert loaded.processor.labels == ["animal", "food", "time"]


def test_there_is_nothing_to_stream(classifier):
    with pytest.raises(ConfigError, match="classification produces its whole answer at once and cannot stream it"):
        list(classifier.stream("a dog"))


def test_options_of_a_search_are_refused(classifier):
    with pytest.raises(ConfigError, match="predict has no option 'beams'; did you mean 'best'"):
        classifier.predict("a dog", beams=2)


# scores


def test_scores_are_those_counted_by_hand(classifier, monkeypatch):
    said = {"1": "a", "2": "b", "3": "b", "4": "b", "5": "c"}
    monkeypatch.setattr(classifier.processor, "labels", ["a", "b", "c"])
    monkeypatch.setattr(
        classifier.answerer, "predict", lambda inputs, options: [LabelPrediction(said[text]) for text in inputs]
    )
    scores = classifier.evaluate([("1", "a"), ("2", "a"), ("3", "b"), ("4", "c"), ("5", "c"), ("1", "")])
    # a: 1 hit, 2 right, 1 answered; b: 1 hit, 1 right, 3 answered; c: 1 hit, 2 right, 1 answered
    f1 = [2 / (2 + 1), 2 / (1 + 3), 2 / (2 + 1)]
    assert scores == {
        "accuracy": 0.6,
        "macro_f1": round(sum(f1) / 3, 4),
        "note": "kept 5 of 6; dropped 1 without a label (example:6)",
    }


def test_rows_that_training_would_have_dropped_are_left_out_with_a_note(classifier):
    scores = classifier.evaluate([("a dog", "animal"), (" ", "food")])
    assert scores["accuracy"] == 1.0
    assert scores["note"] == "kept 1 of 2; dropped 1 without a text (example:2)"


def test_labels_that_training_never_saw_count_as_wrong_with_a_note(classifier):
    found = classifier.evaluate_rows([("a dog", "animal"), ("a tree", "plant"), ("some soup", "food")])
    assert found.scores["accuracy"] == round(2 / 3, 4)
    said = "row with a label that is not in the training data, counted as wrong"
    assert found.scores["note"] == f"1 {said} (first example:2)"
    processor, answered = classifier.processor, (classifier.processor, found.rows, found.predictions)
    assert "plant            0.0000  0.0000  0.0000        1" in TASK.report(*answered)
    labels, counts = TASK.confusion(*answered)
    assert (labels[-1], counts.sum(), counts[-1].sum(), counts[:, -1].sum()) == ("plant", 3, 1, 0)
    assert classifier.evaluate([("animal", "a dog")])["accuracy"] == 0.0
    report = Report()
    examples = processor.examples(found.rows, report)
    assert examples.counts.tolist() == [1, 0, 1], "the loss on dev leaves them out"
    assert str(report) == f"kept 3 of 3; flaws: 1 {said} (example:2)"
    batch = examples.collate(Batch(np.array([0, 1, 2]), (int(examples.lengths.max()),)))
    known = examples.collate(Batch(np.array([0, 2]), (int(examples.lengths.max()),)))
    with torch.no_grad():
        loss = ClassifierObjective(processor, recipe_of()).loss
        torch.testing.assert_close(loss(classifier.model, batch), loss(classifier.model, known))
    with pytest.raises(DataError, match="no text with a known label is left to use"):
        processor.examples(found.rows[1:2], Report())


def test_integers_and_booleans_are_labels_in_jsonl(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a", "label": 1}\n{"text": "b", "label": true}\n{"text": "c", "label": "x"}\n')
    assert [row.values for row in ClassifierProcessor.read(file)] == [("a", "1"), ("b", "true"), ("c", "x")]
    named = tmp_path / "named.jsonl"
    named.write_text('{"t": "a", "y": -3}\n')
    assert [row.values for row in ClassifierProcessor.read(named, {"text": "t", "label": "y"})] == [("a", "-3")]
    for wrong, kind in (("1.5", "a number with a fraction"), ("null", "null"), ("[1]", "a list")):
        file.write_text('{"text": "a", "label": "x"}\n{"text": "a", "label": ' + wrong + "}\n")
        said = f"rows.jsonl:2: 'label' must be a text, an integer, true or false, not {kind}"
        with pytest.raises(DataError, match=said):
            list(ClassifierProcessor.read(file))
    file.write_text('{"text": 3, "label": 1}\n')
    with pytest.raises(DataError, match="'text' must be a text, not a number"):
        list(ClassifierProcessor.read(file))


@pytest.mark.parametrize("looking", [1, 2])
def test_predictions_go_on_while_other_threads_look(classifier, looking):
    texts = ["a dog", "bread", "noon", "a cat and a dog"] * 3
    alone = [(one.label, one.score) for one in classifier.predict(texts, batch=1)]
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            classifier.look("a dog")

    with ThreadPoolExecutor(looking + 2) as pool:
        lookers = [pool.submit(look) for _ in range(looking)]
        others = [pool.submit(classifier.predict, texts, batch=1) for _ in range(12)]
        found = [[(one.label, one.score) for one in other.result()] for other in others]
        done.set()
        for looker in lookers:
            looker.result()
    assert found == [alone] * 12


def test_no_rows_cannot_be_scored(classifier):
    with pytest.raises(DataError, match="there are no rows to score"):
        score_answers([], [], multi_label=False)
    with pytest.raises(DataError, match="no row is left to score: kept 0 of 1; dropped 1 without a label"):
        classifier.evaluate([("a dog", "")])


# looking


def test_a_look_is_one_pass_over_the_text(classifier):
    record = classifier.look("here is the dog")
    assert isinstance(record, Record)
    assert record.names == ["encoder.0.self"]
    (call,) = record.calls
    tokenizer = classifier.processor.tokenizer
    enclosed = [tokenizer.start, *tokenizer.encode("here is the dog"), tokenizer.end]
    assert call.ids["tokens"].tolist() == [enclosed]
    assert (call.about.text, call.about.task) == ("animal", "classification")
    (note,) = call.about.notes
    assert note.startswith("the label is animal (")
    assert record["encoder.0.self"].map.shape[-2:] == (len(enclosed), len(enclosed))
    ((label, _, score),) = Scene(record).to_json()["output"]["parts"]
    assert (label, f"the label is animal ({score:.2f})") == ("animal", note)
    with pytest.raises(DataError, match="classification cannot use --answer; omit it"):
        classifier.look("a dog", answer="food")


# data


def test_rows_that_cannot_be_used_are_reported_with_their_reasons():
    processor = ClassifierProcessor.prepare(rows_of(labelled(30, seed=1)), recipe_of())
    pairs = [("a dog", "animal"), ("a tree", "plant"), (" \u200b", "food"), ("soup", ""), ("cat " * 30, "animal")]
    report = Report()
    examples = processor.examples(rows_of(pairs), report, recipe_of(data={"train": "x.tsv", "longest": 20}))
    assert str(report) == (
        "kept 1 of 5; dropped 1 with a label that is not in the training data (train.tsv:2), 1 without a text "
        "(train.tsv:3), 1 without a label (train.tsv:4), 1 longer than 20 tokens (train.tsv:5)"
    )
    assert (len(examples), examples.where(0)) == (1, "data/train.tsv:1")
    assert len(processor.examples(rows_of(pairs), Report())) == 3, "only training has a limit, and needs a known label"
    with pytest.raises(
        DataError, match=r"no text with a known label is left to use: kept 0 of 1; dropped 1 without a label"
    ):
        processor.examples(rows_of([("a dog", "")]), Report())


@pytest.mark.parametrize(("labels", "said"), [(["yes", "yes", ""], "yes"), (["", "", ""], "none")])
def test_one_label_is_nothing_to_learn(labels, said):
    with pytest.raises(DataError, match=f"at least two different labels are needed; found {said}$"):
        ClassifierProcessor.prepare(rows_of([("a", label) for label in labels]), recipe_of())


def test_a_file_with_one_label_leaves_no_run(tmp_path):
    (tmp_path / "train.tsv").write_text("a dog\tanimal\na cat\tanimal\n")
    (tmp_path / "toy.toml").write_text(RECIPE.replace('dev = "dev.tsv"\n', ""))
    with pytest.raises(DataError, match="at least two different labels are needed; found animal"):
        run_training(str(tmp_path / "toy.toml"), out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_a_batch_is_what_one_writes_down_by_hand():
    texts, labels = [[1, 7, 8, 2], [1, 2], [1, 9, 2]], [2, 0, 1]
    examples = TextExamples(texts, labels, rows_of([("", "")] * 3), 0)
    assert examples.lengths.tolist() == [[4], [2], [3]]
    assert examples.counts.tolist() == [1, 1, 1]
    batch = examples.collate(Batch(np.array([2, 0]), (5,)))
    assert batch.tokens.tolist() == [[1, 9, 2, 0, 0], [1, 7, 8, 2, 0]]
    assert batch.lengths.tolist() == [3, 4]
    assert batch.labels.tolist() == [1, 2]


def test_other_examples_have_another_fingerprint():
    texts, rows = [[1, 7, 2], [1, 2]], rows_of([("", "")] * 2)
    prints = {TextExamples(*one, rows, 0).fingerprint() for one in ((texts, [0, 1]), (texts, [1, 0]))}
    prints.add(TextExamples(texts[::-1], [0, 1], rows, 0).fingerprint())
    assert len(prints) == 3
    assert TextExamples(texts, [0, 1], rows, 0).fingerprint() in prints


# loss


def test_the_loss_is_the_cross_entropy_by_hand_and_smoothed_in_training_alone():
    pairs = labelled(30, seed=1)
    processor = ClassifierProcessor.prepare(rows_of(pairs), recipe_of())
    objective = ClassifierObjective(processor, recipe_of(loss={"label_smoothing": 0.3}))
    torch.manual_seed(2)
    model = processor.build().double()
    examples = processor.examples(rows_of(pairs[:5]), Report())
    batch = examples.collate(Batch(np.arange(5), (int(examples.lengths.max()) + 2,)))
    plain = smoothed = 0.0
    model.eval()
    for text, label in pairs[:5]:
        (answer,) = ClassifierAnswerer(processor, model).predict([text], ClassifierOptions())
        logs = {name: math.log(share) for name, share in answer.scores.items()}
        plain -= logs[label]
        smoothed -= 0.7 * logs[label] + 0.3 * sum(logs.values()) / 3
    assert objective.loss(model, batch).item() == pytest.approx(plain, abs=1e-9)
    for module in model.modules():
        module.training = isinstance(module, type(model))  # as in training, but without dropout
    assert objective.loss(model, batch).item() == pytest.approx(smoothed, abs=1e-9)


# folders


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "are damaged: labels, thresholds: are missing"),
        ({"labels": "abc", "thresholds": []}, "are damaged: labels: should be a valid list, got 'abc'"),
        ({"labels": ["a", 2, "c"], "thresholds": []}, r"are damaged: labels\.1: should be a valid string, got 2"),
        ({"labels": ["a", "b"], "thresholds": []}, "has 2 labels and .* its model 3 and"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path, settings, said):
    processor = ClassifierProcessor.prepare(rows_of(labelled(30, seed=1)), recipe_of())
    processor.save(tmp_path)
    with pytest.raises(CheckpointError, match=said):
        ClassifierProcessor.load(tmp_path, processor.config, settings)


def test_learned_positions_must_have_room_for_start_and_end():
    with pytest.raises(ConfigError, match=r"too few for data\.longest = 256 with start and end; make it at least 258"):
        recipe_of(model={"positions": "learned", "max_length": 257})
    recipe_of(model={"positions": "learned", "max_length": 258})


def test_padding_is_neither_hidden_nor_guessed(monkeypatch):
    rows = [Row((text, label), "a.tsv", 1) for text, label in (("good", "yes"), ("a bad and boring plot", "no"))]
    values = {"task": "classification", "data": {"train": "a.tsv"}, "text": {"vocabulary": 310}}
    recipe = check_recipe({**values, "loss": {"token_dropout": 0.9, "masked": 1.0}}, "test")
    processor = ClassifierProcessor.prepare(rows, recipe)
    processor.tokenizer.mask = 9  # as a tokenizer of pre-training has one
    examples = processor.examples(rows, Report())
    batch = examples.collate(Batch(np.arange(2), (int(examples.lengths.max()),)))
    guessed = []
    monkeypatch.setattr(
        "clearhead.tasks.classification.classification_task.masked_token_loss",
        lambda words, hidden, tokens, places: guessed.append(places) or hidden.sum(),
    )
    ClassifierObjective(processor, recipe).loss(processor.build().train(), batch)
    assert guessed[0].any()
    assert not guessed[0][batch.tokens == processor.tokenizer.pad].any()


def test_hidden_tokens_are_guessed_with_the_weight_of_the_recipe(tmp_path):
    rows = [Row((f"good film {number}", "yes"), "a.tsv", number) for number in range(5)]
    rows += [Row((f"bad plot {number}", "no"), "a.tsv", number) for number in range(5, 12)]

    def losses(masked: float) -> tuple[float, float]:
        values = {"task": "classification", "data": {"train": "a.tsv"}, "text": {"vocabulary": 310}}
        values["model"] = {"width": 20, "heads": 5, "dropout": 0.0}
        values["loss"] = {"token_dropout": 0.5, "masked": masked}
        recipe = check_recipe(values, "test")
        processor = ClassifierProcessor.prepare(rows, recipe)
        examples = processor.examples(rows, Report())
        batch = examples.collate(Batch(np.arange(len(rows)), (int(examples.lengths.max()),)))
        torch.manual_seed(0)
        model = processor.build().train()
        torch.manual_seed(1)
        trained = ClassifierObjective(processor, recipe).loss(model, batch).item()
        torch.manual_seed(1)
        tokenizer = processor.tokenizer
        tokens = hide_tokens(batch.tokens, 0.5, tokenizer.pad, (tokenizer.start, tokenizer.end))
        hidden = model(tokens, mask=Mask.padding(batch.lengths, queries=True))
        guesses = model.logits(hidden).log_softmax(-1)
        right = guesses.gather(2, batch.tokens.long()[..., None])[..., 0][tokens != batch.tokens]
        return trained, -right.mean().item() * len(rows)

    (plain, _), (both, guessed) = losses(0.0), losses(0.25)
    assert both == pytest.approx(plain + 0.25 * guessed, rel=1e-5)
    with pytest.raises(ConfigError, match=r"loss\.token_dropout = 0 hides none"):
        check_recipe({"task": "classification", "data": {"train": "a.tsv"}, "loss": {"masked": 0.3}}, "test")


def test_a_pair_is_one_input_as_a_tuple_or_with_a_tab_between():
    inputs = PairInputs()
    singles = [inputs.is_single(value) for value in ("a\tb", ("a", "b"), ["a\tb", "c\td"], ("a\tb", "c\td"))]
    assert singles == [True, True, False, False]
    assert inputs.describe(inputs.check(("a", "b"))) == "a\tb"


def test_a_declaration_without_a_metric_of_its_task_is_refused():
    with pytest.raises(AssertionError, match="'accuracy' is none of the metrics of classification"):
        replace(TASK, metrics=("macro_f1",))
