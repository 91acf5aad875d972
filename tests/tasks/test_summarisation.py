"""Summaries as their user meets them: one text, one summary, however long, and ROUGE as rouge-score gives it."""

import json
from pathlib import Path

import pytest
import torch
from rouge_score.rouge_scorer import RougeScorer

import clearhead
from clearhead import model_folder
from clearhead.errors import ConfigError, DataError
from clearhead.model import PointerGenerator
from clearhead.predictor import Predictor
from clearhead.tasks.metrics import rouge_scores
from clearhead.tasks.sequence_to_sequence.search import PartNumber
from clearhead.tasks.summarisation import TASK, SummaryProcessor
from clearhead.text import Report, Row
from clearhead.train import run_training
from clearhead.train.recipe import Recipe, check_recipe

SHAPE = {"shape": "tiny", "width": 32, "heads": 2, "feedforward": 64, "layers": 1, "dropout": 0.0}
PAIRS = [
    ("The cat sat on the mat. It rained all day. The dog was out.", "The cat sat inside."),
    ("We took the train. The train was late. Nobody was pleased.", "The train was late."),
    ("Ann sold her car. She bought a bicycle. She is happy now.", "Ann has a bicycle."),
]


def rows_of(pairs: list[tuple[object, object]]) -> list[Row]:
    return [Row(tuple(pair), "train.tsv", line) for line, pair in enumerate(pairs, start=1)]


def recipe_of(model: dict[str, object] | None = None, **sections: dict[str, object]) -> Recipe:
    values = {"data": {"train": "train.tsv"}, "text": {"vocabulary": 320}, "model": {**SHAPE, **(model or {})}}
    return check_recipe({"task": "summarisation", **values, **sections}, "test")


def untrained(model: dict[str, object] | None = None, **sections: dict[str, object]) -> Predictor:
    processor = SummaryProcessor.prepare(rows_of(PAIRS), recipe_of(model, **sections))
    torch.manual_seed(5)
    return Predictor(processor.build().eval(), TASK, processor, name="toy")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped recipe, shortened."""
    changes = ["train.steps=48", "train.warmup=12", "train.evaluate_every=48", "train.heads_every=0", "decode.beam=1"]
    changes += ["train.batch_tokens=1024", "train.log_every=12", "train.evaluate_lines=10", "train.tensorboard=false"]
    return run_training("summarise-tiny", overrides=changes, out=tmp_path_factory.mktemp("runs") / "run", device="cpu")


@pytest.fixture(scope="module")
def summariser(run_folder: Path) -> Predictor:
    return clearhead.load(run_folder, device="cpu")


# the shipped recipe


def test_the_tiny_recipe_learns_to_copy_names_it_has_never_read(run_folder):
    scores = json.loads((run_folder / "model" / "metrics.json").read_text())
    assert scores["dev"]["rouge1"] > 1.5 * scores["baseline"]["rouge1"]
    assert scores["baseline"]["name"] == "lead-1 (the first sentence)"
    losses = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in losses if "loss" in line]
    assert losses[-1] < losses[0] / 2


def test_a_summary_streams_and_keeps_to_its_longest(summariser):
    text = "Please meet Rita at the park at 9:15 on Sunday. The neighbours have a new dog."
    assert "".join(summariser.stream(text)) == summariser.predict(text, beams=1).text
    for longest in (3, 5):
        short = summariser.predict(text, longest=longest)
        assert len(summariser.processor.target.encode(short.text)) <= longest
        assert "the summary was cut off at its longest length" in short.notes


# texts


@pytest.mark.parametrize("window", [None, 16])
@pytest.mark.parametrize("copying", [False, True])
def test_a_text_of_three_thousand_tokens_is_summarised_whole_and_noted(window, copying):
    predictor = untrained({"encoder_window": window, "copying": copying}, decode={"longest": 7})
    text = " ".join(["The train was late."] * 800)
    tokens = len(predictor.processor.source.encode(text))
    assert tokens > 3000
    answer = predictor.predict(text, beams=2)
    longest = predictor.processor.stored.longest_text
    said = f"the text has {tokens:,} tokens, more than any in training ({longest}); nothing was cut"
    assert not answer.text or said in answer.notes
    request = predictor.answerer.begin(TASK.read_options("predict", {}))
    assert request.split(text) == [predictor.processor.source.encode(text)]
    assert all("parts" not in note for note in answer.notes)


@pytest.mark.parametrize("beams", [1, 3])
def test_no_trigram_is_written_twice(beams):
    predictor = untrained(decode={"longest": 60})
    allowed = untrained(decode={"longest": 60, "no_repeat_ngram": 0})
    found = []
    for one in (predictor, allowed):
        request = one.answerer.begin(TASK.read_options("predict", {"beams": beams}))
        target = one.processor.target
        rules = {"start": target.start, "end": target.end, "max_length": 60, "forbidden": range(3, 259)}
        written = request.search.run(request.make_writer([[5, 6, 7]]), [PartNumber(0)], **rules)[0][0].tokens
        trigrams = list(zip(written, written[1:], written[2:], strict=False))
        found.append(len(set(trigrams)) == len(trigrams))
    assert found[0]
    assert not found[1], "without the rule this model repeats itself"


def test_texts_that_are_longer_than_the_data_allow_are_dropped_with_a_word():
    recipe = recipe_of(data={"train": "train.tsv", "longest": 20})
    processor, report = SummaryProcessor.prepare(rows_of(PAIRS), recipe), Report()
    with pytest.raises(DataError, match="longer than 20 tokens"):
        processor.examples(rows_of(PAIRS), report, recipe)


def test_lists_are_sentences_and_references(tmp_path):
    file = tmp_path / "data.jsonl"
    lines = [{"source": ["One.", "Two."], "target": ["A b.", "C."]}, {"source": "One. Two.", "target": "A b."}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = list(SummaryProcessor.read(file, {"text": "source", "summary": "target"}))
    assert [row.values for row in rows] == [("One. Two.", ("A b.", "C.")), ("One. Two.", "A b.")]
    assert [SummaryProcessor.target_of(row) for row in rows] == ["A b.", "A b."]
    file.write_text('{"text": ["One.", 2], "summary": "A"}\n')
    with pytest.raises(DataError, match=r"data.jsonl:1: 'text\[1\]' must be a text, not a number"):
        list(SummaryProcessor.read(file))


def test_a_row_without_a_summary_is_dropped():
    processor = SummaryProcessor.prepare(rows_of(PAIRS), recipe_of())
    for nothing in ("", (), ("",), " "):
        assert processor.check_row(Row(("A text.", nothing), "a", 1)).problem == "with an empty side"


def test_wrong_settings_are_refused_in_one_line():
    with pytest.raises(ConfigError, match="set only one of them"):
        recipe_of({"window": 8, "encoder_window": 8})
    with pytest.raises(ConfigError, match=r"text\.shared = true"):
        SummaryProcessor.prepare(
            rows_of(PAIRS), recipe_of({"copying": True}, text={"vocabulary": 320, "shared": False})
        )


def test_a_saved_summariser_answers_as_before(tmp_path):
    predictor = untrained({"copying": True})
    assert isinstance(predictor.model, PointerGenerator)
    parts = {"task": TASK, "processor": predictor.processor, "model": predictor.model}
    model_folder.write(tmp_path / "model", **parts, metrics={}, card="# a test\n")
    again = clearhead.load(tmp_path / "model", device="cpu")
    assert again.processor.settings == predictor.processor.settings
    assert again.processor.stored.longest_text > 0
    assert again.predict(PAIRS[0][0]) == predictor.predict(PAIRS[0][0])


# scores


def test_rouge_is_that_of_rouge_score():
    outputs = ["The cats were sitting on the mats", "nothing in common", ""]
    references = ["The cat sat on a mat.", "Running dogs", "A text"]
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    wanted = [scorer.score(right, output) for output, right in zip(outputs, references, strict=True)]
    found = rouge_scores(outputs, [[right] for right in references])
    for kind in ("rouge1", "rouge2", "rougeL"):
        mean = 100 * sum(one[kind].fmeasure for one in wanted) / 3
        assert found[kind] == pytest.approx(mean, abs=0.005)
    assert found["rouge1"] > 0
    assert found["rouge_signature"] == "rouge-score 0.1.2|stemmed words"


def test_chinese_is_compared_by_characters():
    """By hand: 5 of 6 characters are the same, 4 of 5 pairs, and the same 5 in their order."""
    found = rouge_scores(["我爱北京天安"], [["我爱北京天空"]])
    assert (found["rouge1"], found["rouge2"], found["rougeL"]) == (83.33, 80.0, 83.33)
    assert found["rouge_signature"] == "rouge-score 0.1.2|characters"
    assert RougeScorer(["rouge1"], use_stemmer=True).score("我爱北京", "我爱北京")["rouge1"].fmeasure == 0


def test_the_best_of_several_references_counts():
    found = rouge_scores(["a b"], [["c d", "a b"]])
    assert found["rouge1"] == 100.0
    with pytest.raises(DataError, match="no rows"):
        rouge_scores([], [])


def test_the_baseline_is_the_first_sentence_or_three_lines_of_a_dialogue():
    processor = SummaryProcessor.prepare(rows_of(PAIRS), recipe_of())
    rows = rows_of([("A b c. D e f.", "a b c"), ("G h. I j.", ("x", "g h"))])
    found = TASK.baseline(processor, [], rows)
    assert (found.name, found.scores["rouge1"]) == ("lead-1 (the first sentence)", 100.0)
    rows = rows_of([("A: one\nB: two\nA: three\nB: four", "a one b two a three")])
    found = TASK.baseline(processor, [], rows)
    assert (found.name, found.scores["rouge1"]) == ("lead-3 (the first 3 lines)", 100.0)
