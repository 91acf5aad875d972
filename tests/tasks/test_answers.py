"""Answers as its user meets it: a file of questions and answers in, the best known answer or "I don't know" out."""

import json
import random
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import clearhead
from clearhead.cli import main
from clearhead.errors import CheckpointError, ConfigError, DataError
from clearhead.lens import Record
from clearhead.predictor import Predictor
from clearhead.storage import verify_checksums
from clearhead.tasks.answers.answer_objective import AnswerObjective
from clearhead.tasks.answers.answer_processor import AnswerProcessor
from clearhead.tasks.answers.answer_settings import AnswerOptions
from clearhead.tasks.answers.answers_task import TASK
from clearhead.text import Report, Row
from clearhead.text.batches import BatchPlan
from clearhead.train import run_training
from clearhead.train.recipe import Recipe, check_recipe

WORDS = {
    "card lost": ["card", "lost", "stolen"],
    "exchange rate": ["rate", "dollar", "euro"],
    "账户余额": ["余额", "账户", "多少钱"],
}
OTHERS = ["please", "my", "请问", "the", "what", "now", "谢谢", "is"]
OUTSIDE = ["weather", "song", "天气", "joke", "dinner"]

RECIPE = """
task = "answers"
seed = 5

[data]
train = "train.tsv"
dev = "dev.tsv"
longest = 20

[text]
vocabulary = 330

[model]
shape = "tiny"
width = 24
heads = 3
feedforward = 37
layers = 1
dropout = 0.1

[loss]
label_smoothing = 0.05
contrast = 0.1

[train]
steps = 60
batch_tokens = 512
shapes = 3
warmup = 10
learning_rate = 0.01
log_every = 20
evaluate_every = 30
tensorboard = false
"""
THINGS = ["桌子", "椅子", "电话", "护照", "机票", "lamp", "shirt", "ticket", "parcel", "router", "camera", "kettle"]
MATTERS = {"怎么退": "{}请在三十天内寄回。", "如何修": "{}请联系维修中心。", "多少钱": "{}见价目表。"}


def asked(count: int, seed: int) -> list[tuple[str, str]]:
    """Questions with two words that decide; every eighth is out of scope."""
    chance, made = random.Random(seed), []
    for number in range(count):
        answer = "" if number % 8 == 7 else list(WORDS)[number % len(WORDS)]
        words = [*chance.choices(OTHERS, k=chance.randint(0, 4)), *chance.choices(WORDS.get(answer, OUTSIDE), k=2)]
        chance.shuffle(words)
        made.append((" ".join(words), answer))
    return made


def paired(seed: int) -> list[tuple[str, str]]:
    """Questions with an answer that one other question has at most."""
    chance = random.Random(seed)
    made = [
        (f"{chance.choice(['请问', '你好，', ''])}{thing}{matter}{end}", answer.format(thing))
        for thing in THINGS
        for matter, answer in MATTERS.items()
        for end in ("", "？谢谢")
    ]
    chance.shuffle(made)
    return made


def rows_of(pairs: list[tuple[str, str]], file: str = "data/train.tsv") -> list[Row]:
    return [Row(pair, file, line) for line, pair in enumerate(pairs, start=1)]


def recipe_of(**sections: dict[str, object]) -> Recipe:
    values = {"data": {"train": "train.tsv"}, "text": {"vocabulary": 330}, "model": {"width": 20, "heads": 5}}
    return check_recipe({"task": "answers", **values, **sections}, "test")


def write_tsv(path: Path, pairs: list[tuple[str, str]]) -> None:
    path.write_text("".join(f"{question}\t{answer}\n" for question, answer in pairs), encoding="utf-8")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("answers")
    write_tsv(folder / "train.tsv", [*asked(240, 1), ("", "card lost"), ("x " * 30, "card lost")])
    write_tsv(folder / "dev.tsv", [*asked(80, 2), ("a tree", "plants")])
    (folder / "toy.toml").write_text(RECIPE, encoding="utf-8")
    return run_training(str(folder / "toy.toml"), out=folder / "run", device="cpu")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on pairs; beside it the same that was interrupted in its second epoch, and resumed."""
    folder = tmp_path_factory.mktemp("pairs")
    made = paired(3)
    write_tsv(folder / "train.tsv", [*made[12:], ("天气好吗", "")])
    write_tsv(folder / "dev.tsv", [*made[:12], ("今天天气好吗", "")])
    recipe = RECIPE.split("[loss]")[0] + RECIPE[RECIPE.index("[train]") :]
    (folder / "toy.toml").write_text(recipe.replace("steps = 60", "steps = 40").replace("= 30", "= 20"))
    for out, steps in (("whole", ()), ("parts", ["train.steps=17"])):
        run_training(str(folder / "toy.toml"), overrides=steps, out=folder / out, device="cpu")
    run_training(str(folder / "toy.toml"), out=folder / "parts", device="cpu", resume=True)
    return folder


@pytest.fixture(scope="module")
def predictor(run: Path) -> Predictor:
    return clearhead.load(run, device="cpu")


@pytest.fixture
def copied(predictor: Predictor, tmp_path: Path) -> Path:
    """A model folder to change."""
    folder = tmp_path / "copy"
    clearhead.model_folder.write(
        folder, task=TASK, processor=predictor.processor, model=predictor.model, metrics={}, card="# a test\n"
    )
    return folder


# intents


def test_it_has_learned_the_answers_and_what_it_does_not_know(predictor):
    assert predictor.processor.kind == "intents", "decided by the data"
    found = predictor.predict("please my stolen card")
    assert (found.text, found.known) == ("card lost", True)
    assert predictor.predict("请问 账户 余额").text == "账户余额"
    unknown = predictor.predict("joke weather")
    assert (unknown.text, unknown.known) == ("I don't know", False)
    assert len(unknown.matches) == 3, "what it would have answered is there all the same"
    scores = predictor.evaluate(asked(160, seed=9))
    assert scores["accuracy"] > 0.95
    assert scores["auroc"] > 0.9
    assert scores["false_rejection_rate"] < 0.2
    names = ["accuracy", "recall_at_5", "mrr", "auroc", "false_rejection_rate", "false_acceptance_rate"]
    assert list(scores) == names


def test_what_was_left_out_is_reported(run):
    train, dev, *_ = (run / "report.txt").read_text().splitlines()
    assert train == (
        "train: kept 240 of 242; dropped 1 without a question (train.tsv:241), 1 longer than 20 tokens (train.tsv:242)"
    )
    flaw = "row with an answer that is not in the training data, counted as wrong"
    assert dev == f"dev: kept 81 of 81; flaws: 1 {flaw} (dev.tsv:81)"


def test_answers_that_training_never_saw_are_wrong_and_no_false_rejections(predictor):
    known = asked(160, seed=9)
    before = predictor.evaluate(known)
    scores = predictor.evaluate([*known, ("when do you open", "at nine")])
    answerable = sum(bool(answer) for _, answer in known)
    assert scores["accuracy"] == pytest.approx(before["accuracy"] * answerable / (answerable + 1), abs=1e-4)
    assert scores["note"].startswith("1 row with an answer that is not in the training data, counted as wrong")
    for name in ("auroc", "false_rejection_rate", "false_acceptance_rate"):
        assert scores[name] == before[name]


def test_a_run_says_what_auto_stands_for(run, pairs):
    for folder, kind in ((run, "intents"), (pairs / "whole", "pairs")):
        chosen = json.loads((folder / "model" / "metrics.json").read_text())["chosen"]
        assert chosen["answers.kind"] == kind
        assert chosen["answers.detector"] in ("probability", "energy", "neighbours", "mahalanobis", "mean")
        said = f'answers.kind = "{kind}", answers.detector = "{chosen["answers.detector"]}"'
        [line] = re.findall(r"\| chosen from the data \| (.*) \|", (folder / "model" / "README.md").read_text())
        assert line.endswith(said)
        assert "init_from" not in line
    processor = AnswerProcessor.prepare(
        rows_of(asked(40, 1)), named := recipe_of(answers={"kind": "pairs", "detector": "energy"})
    )
    processor.configure(named)
    assert processor.chosen_settings == {}, "what the recipe names was not chosen"


def test_the_threshold_rejects_the_stated_share_of_dev(run, predictor):
    calibration = predictor.processor.finder.calibration
    assert calibration.reject == 0.05
    assert set(calibration.auroc) == {"probability", "energy", "neighbours", "mahalanobis", "mean"}
    dev = json.loads((run / "model" / "metrics.json").read_text())["dev"]
    assert dev["false_rejection_rate"] == pytest.approx(0.05, abs=1 / 70)
    assert dev["auroc"] == max(calibration.auroc.values())


def test_another_share_may_be_rejected_in_each_call(run, predictor):
    dev, asking = run.parent / "dev.tsv", ["please my stolen card", "joke weather"]
    for reject, most in ((0.0, 0.0), (0.1, 0.1), (0.5, 0.5)):
        scores = predictor.evaluate(dev, reject=reject)
        assert scores["false_rejection_rate"] == pytest.approx(most, abs=1 / 70)
        assert scores["accuracy"] == predictor.evaluate(dev)["accuracy"], "which counts the best answers"
    assert predictor.evaluate(dev, reject=0.05) == predictor.evaluate(dev), "the share of training"
    assert not any(found.known for found in predictor.predict([*asking, "zzz"], reject=1.0))
    with pytest.raises(ConfigError, match=r"reject: should be less than or equal to 1, got 1\.5"):
        predictor.predict("a", reject=1.5)
    other = clearhead.load(run, device="cpu")
    other.processor.finder.calibration = None
    with pytest.raises(ConfigError, match="this model was not calibrated, as dev has no answerable questions"):
        other.predict("a", reject=0.1)


def test_a_share_to_reject_is_stored_in_the_folder(copied, predictor):
    running, dev = clearhead.load(copied, device="cpu"), asked(160, seed=9)
    before = running.evaluate(dev)
    assert running.act("reject", "0.5") == ["from now on 0.5 of the answerable questions may be refused"]
    assert running.evaluate(dev) == predictor.evaluate(dev, reject=0.5) != before
    assert running.evaluate(dev, reject=0.05) == before, "a call has the last word"
    running.act("add", "when do you open", "at nine")
    running.act("remove", 3)
    assert (
        clearhead.load(copied, device="cpu").evaluate(dev)
        == running.evaluate(dev)
        == predictor.evaluate(dev, reject=0.5)
    )
    for arguments in ([], ["a"], ["0.1", "0.2"]):
        with pytest.raises(ConfigError, match="reject needs one number, the share of answerable questions"):
            running.act("reject", *arguments)
    with pytest.raises(ConfigError, match="reject: should be greater than or equal to 0, got -1"):
        running.act("reject", -1)


def test_a_curve_shows_what_a_threshold_costs(run, predictor, capsys):
    rows = [*asked(160, seed=9), ("when do you open", "at nine")]
    data = run.parent / "asked.tsv"
    write_tsv(data, rows)
    assert main(["evaluate", str(run), str(data), "--json", "--device", "cpu"]) == 0
    first, *rest = json.loads(capsys.readouterr().out)["curve"]
    found = [(predictor.predict(question), answer) for question, answer in rows[:-1]]
    inside = [answer.matches[0].text == right for answer, right in found if right]
    assert (first["answered"], first["right"]) == (1.0, round(sum(inside) / len(inside), 4))
    for point in rest:
        answered = [answer.in_scope >= point["threshold"] for answer, right in found if not right]
        assert point["out_of_scope_answered"] == round(sum(answered) / len(answered), 4)
    assert [point["answered"] for point in rest] == sorted({point["answered"] for point in rest}, reverse=True)
    assert main(["evaluate", str(run), str(data), "--report", "--device", "cpu"]) == 0
    table = capsys.readouterr().out.partition("threshold   answered      right  out_of_scope_answered\n")[2]
    assert len(table.splitlines()) == len(rest) + 1


def test_rows_of_a_table_get_the_answer_if_it_is_known(run, tmp_path, capsys):
    (tmp_path / "a.csv").write_text("id,question\n1,please my stolen card\n2,joke weather\n")
    assert main(["predict", str(run), str(tmp_path / "a.csv"), "--device", "cpu"]) == 0
    head, known, unknown = capsys.readouterr().out.splitlines()
    assert head == "id,question,answer,score,known"
    assert known == "1,please my stolen card,card lost,1.0000,true"
    assert unknown.startswith("2,joke weather,,0.")
    assert unknown.endswith(",false")


def test_a_threshold_from_few_questions_is_told(run, predictor):
    rows = {name: list(AnswerProcessor.read(run.parent / f"{name}.tsv")) for name in ("train", "dev")}
    processor, recipe = clearhead.load(run, device="cpu").processor, recipe_of()
    told = AnswerObjective(processor, recipe).calibrate(
        predictor.model, rows["train"], [row for row in rows["dev"] if row.values[1]][:8]
    )
    assert told is not None
    assert "rests on 8 answerable questions: too few for reject = 0.05; give at least 100 in dev" in told


def test_json_has_known_and_answers(run, capsys):
    assert main(["predict", str(run), "my stolen card", "joke", "--json", "--device", "cpu"]) == 0
    known, unknown = map(json.loads, capsys.readouterr().out.splitlines())
    assert set(known) == {"input", "known", "answers", "notes"}
    assert (known["known"], unknown["known"]) == (True, False)
    first = known["answers"][0]
    assert (first["id"], first["text"]) == (0, "card lost")
    assert sum(one["score"] for one in known["answers"]) == pytest.approx(1)
    assert main(["predict", str(run), "my stolen card", "joke", "--device", "cpu"]) == 0
    assert capsys.readouterr().out == "card lost\nI don't know\n"
    assert main(["predict", str(run), "joke", "--best", "2", "--device", "cpu"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["1", "", "I don't know"]
    assert [line[0] for line in lines] == ["1", "2", "3"]


def test_an_empty_question_is_not_known(predictor):
    for found in predictor.predict(["", " \n\u200b"]):
        assert (found.known, list(found.notes)) == (False, ["the question is empty"])
    assert predictor.predict([]) == []


def test_batched_equals_single_and_order_is_kept(predictor):
    inputs = [*(question for question, _ in asked(17, seed=4)), "", "card " * 50, "未知 😀"]
    predict = predictor.answerer.predict
    together = predict(inputs, AnswerOptions())
    for batch in (1, 7):
        for one, other in zip(predict(inputs, AnswerOptions(batch=batch)), together, strict=True):
            assert [match.id for match in one.matches] == [match.id for match in other.matches]
            assert one.evidence == pytest.approx(other.evidence, rel=1e-4, abs=1e-3)
    alone = [predictor.predict(text) for text in inputs]  # searched by the library
    assert [one.text for one in alone] == [one.text for one in together]


def test_a_saved_model_answers_as_before(predictor, copied):
    loaded = clearhead.load(copied, device="cpu")
    inputs = [question for question, _ in asked(13, seed=6)]
    assert loaded.predict(inputs) == predictor.predict(inputs)


def test_a_report_has_answers_and_detectors(predictor):
    rows = rows_of(asked(40, seed=3))
    found = predictor.answerer.evaluate(rows, AnswerOptions())
    report = TASK.report(predictor.processor, found.rows, found.predictions)
    assert "exchange rate" in report
    for name in ("probability", "energy", "neighbours", "mahalanobis", "mean"):
        assert f"  {name}" in report


def test_a_baseline_is_scored_on_the_same_rows(predictor):
    pytest.importorskip("sklearn")
    found = TASK.baseline(predictor.processor, rows_of(asked(120, 1)), rows_of(asked(40, 2)))
    assert "logistic regression" in found.name
    assert found.scores["accuracy"] > 0.9


def test_a_look_is_one_pass_over_the_question(predictor):
    record = predictor.look("my stolen card")
    assert isinstance(record, Record)
    assert record.names == ["encoder.0.self"]
    assert record.calls[0].about.text == "card lost"
    with pytest.raises(DataError, match="the task answers cannot use --answer; omit it"):
        predictor.look("my card", answer="card lost")


def test_a_question_longer_than_the_learned_positions_is_read_in_parts():
    recipe = recipe_of(data={"train": "x", "longest": 10}, model={"positions": "learned", "max_length": 12})
    processor = AnswerProcessor.prepare(rows_of(asked(40, 1)), recipe)
    model = processor.build().eval()
    long = "card lost rate " * 1000
    short = processor.pool_texts(model, ["card lost rate"])
    vectors = processor.pool_texts(model, ["card", long, "card lost rate"])
    assert vectors.isfinite().all()
    assert torch.allclose(vectors[2], short[0], atol=1e-5)


# the index


def test_what_is_added_is_found_and_what_is_removed_is_not(copied, capsys):
    def answers(*arguments: str) -> list[str]:
        assert main(["answers", str(copied), *arguments, "--device", "cpu"]) == 0
        return capsys.readouterr().out.splitlines()

    asking = "dinner song song dinner"
    assert not clearhead.load(copied, device="cpu").predict(asking).known
    assert answers("add", "song dinner song", "音乐晚餐") == ["answer 3 (new): 1 question added: 音乐晚餐"]
    verify_checksums(copied)
    changed = clearhead.load(copied, device="cpu")
    assert (changed.predict(asking).text, changed.predict(asking).known) == ("音乐晚餐", True)
    assert changed.predict("please my stolen card").text == "card lost", "the others are as before"
    assert changed.evaluate([(asking, "音乐晚餐")])["accuracy"] == 1.0
    assert answers("add", "song dinner song", "音乐晚餐") == ["1 question known already"]
    assert answers("list")[-1] == "3\t1\t音乐晚餐"
    assert answers("list", "3") == ["3\tsong dinner song"]
    listed = json.loads(answers("list", "3", "--json")[0])
    assert listed == {"id": 3, "text": "音乐晚餐", "questions": ["song dinner song"]}
    assert answers("remove", "3", "0") == ["removed answer 3: 音乐晚餐", "removed answer 0: card lost"]
    less = clearhead.load(copied, device="cpu")
    assert not less.predict(asking).known
    assert "card lost" not in [match.text for match in less.predict("please my stolen card").matches]
    assert answers("remove", "1", "2") == ["removed answer 1: exchange rate", "removed answer 2: 账户余额"]
    bare = clearhead.load(copied, device="cpu").predict("my card")
    assert (bare.text, bare.matches) == ("I don't know", ())


def test_a_loaded_model_answers_by_what_others_change_meanwhile(copied, predictor):
    running, other = (clearhead.load(copied, device="cpu") for _ in range(2))
    asking = "dinner song song dinner"
    assert not running.predict(asking).known
    assert running.act("add", "song dinner song", "音乐晚餐") == ["answer 3 (new): 1 question added: 音乐晚餐"]
    assert running.predict(asking).text == other.predict(asking).text == "音乐晚餐"
    finder = other.processor.finder
    assert other.predict(asking).known
    assert other.processor.finder is finder, "an index that nobody has changed is not read again"
    assert other.evaluate([(asking, "音乐晚餐")])["accuracy"] == 1.0
    assert other.act("remove", 3) == ["removed answer 3: 音乐晚餐"]
    assert not running.predict(asking).known
    assert json.loads(running.act("list", 0, as_json=True)[0])["text"] == "card lost"
    with pytest.raises(ConfigError, match="answers has no action 'forget'; choose from add, remove, list, reject"):
        running.act("forget")
    with pytest.raises(ConfigError, match="this model was not loaded from one"):
        Predictor(predictor.model, TASK, predictor.processor, name="new").act("list")


def test_the_index_of_another_model_in_the_same_folder_is_not_taken(copied, tmp_path):
    running = clearhead.load(copied, device="cpu")
    before = running.predict("my card")
    other = tmp_path / "other"
    shutil.copytree(copied, other)
    assert main(["answers", str(other), "remove", "0", "1", "--device", "cpu"]) == 0
    listing = json.loads((other / "checksums.json").read_text())
    listing["files"]["model.safetensors"] = "of other weights"
    (other / "checksums.json").write_text(json.dumps(listing))
    shutil.rmtree(copied)
    assert running.predict("my card") == before
    shutil.copytree(other, copied)
    assert running.predict("my card") == before


def test_a_file_is_added_whole_or_not_at_all(copied, tmp_path, capsys):
    file = tmp_path / "more.tsv"
    write_tsv(file, [("song song", "music"), ("dinner", ""), ("song", "music")])
    before = {path.name for path in copied.iterdir()}
    assert main(["answers", str(copied), "add", str(file), "--device", "cpu"]) == 2
    assert f"{file}:2: the answer is empty; nothing was added" in capsys.readouterr().err
    assert {path.name for path in copied.iterdir()} == before
    write_tsv(file, [("song song", "music"), ("song", "music"), ("a stolen purse", "card lost")])
    assert main(["answers", str(copied), "add", str(file), "--device", "cpu"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == ["answer 3 (new): 2 questions added: music", "answer 0: 1 question added: card lost"]
    assert clearhead.load(copied, device="cpu").predict("song").text == "music"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["add"], "add needs a question and its answer, or one file with both"),
        (["add", "one"], "add needs a question and its answer, or one file with both"),
        (["add", " ", "b"], "the question is empty; nothing was added"),
        (["add", "a", "b\udcff"], r"the answer 'b\udcff' is not UTF-8; nothing was added"),
        (["add", "no.tsv"], "no file no.tsv"),
        (["remove"], "remove needs the ids of answers"),
        (["remove", "x"], "the id of an answer is a number, not 'x'"),
        (["remove", "٢"], "the id of an answer is a number, not '٢'"),
        (["remove", "99"], "no answer has the id 99"),
        (["list", "99"], "no answer has the id 99"),
        (["lst"], "answers has no action 'lst'; did you mean 'list'"),
    ],
)
def test_wrong_actions_are_refused_in_one_line(run, capsys, arguments, said):
    assert main(["answers", str(run), *arguments, "--device", "cpu"]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert len(printed.err.splitlines()) == 1


def test_a_missing_search_library_is_named(predictor, monkeypatch):
    monkeypatch.setitem(sys.modules, "usearch.index", None)
    with pytest.raises(ImportError, match=r"needs the package usearch, .* pip install 'clearhead\[train\]'"):
        predictor.predict("my card")


# pairs


def test_pairs_are_found_among_answers_that_training_never_saw(pairs):
    predictor = clearhead.load(pairs / "whole", device="cpu")
    assert predictor.processor.kind == "pairs", "decided by the data"
    assert predictor.processor.labels == []
    held_out = paired(3)[:12]
    scores = predictor.evaluate([*held_out, ("今天天气好吗", "")])
    assert scores["recall_at_5"] > 0.6
    assert {"auroc", "false_rejection_rate"} <= set(scores)
    known = {*predictor.processor.finder.index.answers.values()}
    assert known == {answer for _, answer in paired(3)}, "answers of dev are in the index, so that they are found"
    questions = {entry.question for entry in predictor.processor.finder.index.entries}
    assert not questions & {question for question, _ in held_out}, "its questions are not"
    new = predictor.evaluate([("雨伞怎么退", "雨伞请在三十天内寄回。")])
    assert set(new) >= {"accuracy", "mrr"}
    assert "雨伞请在三十天内寄回。" not in predictor.processor.finder.index.answers.values(), "only for the time being"


def test_a_pair_that_is_added_is_found_by_question_and_by_answer(pairs, tmp_path, capsys):
    predictor = clearhead.load(pairs / "whole", device="cpu")
    folder = tmp_path / "copy"
    clearhead.model_folder.write(
        folder, task=TASK, processor=predictor.processor, model=predictor.model, metrics={}, card="# a test\n"
    )
    assert main(["answers", str(folder), "add", "营业时间", "九点到五点营业", "--device", "cpu"]) == 0
    assert "(new)" in capsys.readouterr().out
    changed = clearhead.load(folder, device="cpu")
    assert changed.predict("营业时间").text == "九点到五点营业"
    assert changed.predict("九点到五点营业").matches[0].score == pytest.approx(1, abs=1e-5)


def test_mined_negatives_are_wrong_answers_and_resume_is_exact(pairs):
    logged = [json.loads(line) for line in (pairs / "parts" / "metrics.jsonl").read_text().splitlines()]
    [epoch] = {line["epoch"] for line in logged if line["step"] == 17 and "epoch" in line}
    assert epoch > 1, "negatives were mined twice before it was interrupted"
    assert epoch % 1 > 0.1, "in the middle of an epoch"
    whole, parts = (
        load_file(pairs / name / "checkpoints" / "00000040" / "state.safetensors") for name in ("whole", "parts")
    )
    assert whole.keys() == parts.keys()
    for name, tensor in whole.items():
        assert torch.equal(tensor, parts[name]), name
    negatives = whole["examples.negatives"][:, 0].tolist()
    made = paired(3)[12:]
    distinct = list(dict.fromkeys(answer for _, answer in made))
    wrong = [distinct[number] != answer for (_, answer), number in zip(made, negatives, strict=False)]
    assert all(wrong)
    assert len({*negatives}) > 3


def test_the_baseline_of_pairs_is_bm25(pairs):
    pytest.importorskip("bm25s")
    processor = clearhead.load(pairs / "whole", device="cpu").processor
    made = paired(3)
    found = TASK.baseline(processor, rows_of(made[12:]), rows_of(made[:12]))
    assert found.name == "BM25"
    assert found.scores["recall_at_5"] > 0.5


# data


def test_one_answer_is_nothing_to_choose_from():
    with pytest.raises(DataError, match="at least two different answers are needed; the only one is 'yes'"):
        AnswerProcessor.prepare(rows_of([("a", "yes"), ("b", "yes"), ("c", "")]), recipe_of())
    with pytest.raises(DataError, match="at least two different answers are needed; all are empty"):
        AnswerProcessor.prepare(rows_of([("a", ""), ("b", " ")]), recipe_of())


def test_a_kind_may_be_named():
    rows = rows_of(asked(40, 1))
    assert AnswerProcessor.prepare(rows, recipe_of(answers={"kind": "pairs"})).kind == "pairs"
    assert AnswerProcessor.prepare(rows, recipe_of()).config.labels.count == 3
    processor = AnswerProcessor.prepare(rows, recipe_of(answers={"kind": "pairs"}))
    with pytest.raises(DataError, match="no question with an answer is left to use"):
        processor.examples(rows_of([("a question", "")]), Report())


def test_without_dev_every_tenth_training_question_sets_the_threshold():
    processor = AnswerProcessor.prepare(rows_of(asked(80, 1)), recipe_of())
    model = processor.build().eval()
    AnswerObjective(processor, recipe_of()).calibrate(model, rows_of(asked(80, 1)), [])
    assert processor.finder.calibration is not None
    assert len(processor.finder.index.entries) == len({pair for pair in asked(80, 1) if pair[1]}), (
        "all are in the index"
    )


def test_a_contrastive_loss_beside_the_classifier_learns():
    recipe = recipe_of(loss={"label_smoothing": 0.1, "contrast": 0.5})
    processor = AnswerProcessor.prepare(rows_of(asked(80, 1)), recipe)
    processor.configure(recipe)
    torch.manual_seed(1)
    model = processor.build()
    examples = processor.examples(rows_of(asked(80, 1)), Report(), recipe)
    [batch] = BatchPlan(examples.lengths, tokens=10**6, seed=0, shapes=1).epoch(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(12):
        loss = AnswerObjective(processor, recipe).loss(model, examples.collate(batch)) / len(examples)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("settings", [{}, {"kind": "intents", "labels": ["a"], "answers": {"kind": "x"}, "loss": {}}])
def test_settings_that_make_no_sense_are_refused(tmp_path, settings):
    processor = AnswerProcessor.prepare(rows_of(asked(40, 1)), recipe_of())
    processor.save(tmp_path)
    with pytest.raises(CheckpointError, match="are damaged"):
        AnswerProcessor.load(tmp_path, processor.config, settings)
    with pytest.raises(CheckpointError, match=r"has 2 labels and .* its model 3 and"):
        AnswerProcessor.load(tmp_path, processor.config, {**processor.settings, "labels": ["a", "b"]})


def test_unknown_keys_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"answers\.rejct: 'rejct' is not known; did you mean 'reject'"):
        recipe_of(answers={"rejct": 0.1})


# the shipped recipe


def test_the_tiny_recipe_learns(tmp_path):
    changes = ["train.steps=30", "train.evaluate_every=30", "train.warmup=10", "train.tensorboard=false"]
    changes += ["model.width=64", "train.heads_every=0", "train.learning_rate=4e-3"]
    found = run_training("answers-tiny", overrides=changes, out=tmp_path / "run", device="cpu")
    metrics = json.loads((found / "model" / "metrics.json").read_text())["dev"]
    assert metrics["accuracy"] > 0.6, "by chance it would be 0.05"
    assert metrics["auroc"] > 0.7, "by chance it would be 0.5"


def test_a_run_that_goes_on_keeps_answers_that_were_added_and_removed(pairs, tmp_path, capsys):
    run, recipe = tmp_path / "run", str(pairs / "toy.toml")
    shutil.copytree(pairs / "whole", run)
    before = clearhead.load(run, device="cpu").processor.finder.index
    gone = min(before.answers)
    for arguments in (
        ["add", "a zebra", "Stripes."],
        ["add", "a fox", "Red."],
        ["remove", str(gone)],
        ["reject", "0.2"],
    ):
        assert main(["answers", str(run), *arguments]) == 0
    assert main(["answers", str(run), "remove", str(before.next_id), str(before.next_id)]) == 0, "the zebra"
    assert capsys.readouterr().out.count("Stripes.") == 2, "added once, removed once"
    for _ in range(2):
        run_training(recipe, out=run, device="cpu", resume=True)
        said = capsys.readouterr().err
        assert "changes of the index are kept: 1 question added, 1 answer removed\n" in said
        assert said.index('answers.kind = "auto": using "pairs"\n') < said.index("ended after step 40")
        assert said.index('answers.detector = "auto": using "') > said.index("ended after step 40")
        found = clearhead.load(run, device="cpu")
        index = found.processor.finder.index
        assert gone not in index.answers
        assert index.answers[before.next_id + 1] == "Red."
        assert index.next_id == before.next_id + 2
        assert index.reject == 0.2
        assert (found.predict("a fox").text, found.predict("a fox").known) == ("Red.", True)


def test_an_unreadable_index_of_an_earlier_model_does_not_stop_a_run(pairs, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(pairs / "whole", run)
    for path in (run / "model").glob("answers-*.jsonl"):
        path.write_text("{")
    run_training(str(pairs / "toy.toml"), out=run, device="cpu", resume=True)
    assert "answers that were changed after training, if any, are lost: " in capsys.readouterr().err
    assert clearhead.load(run, device="cpu").processor.finder.index.entries
