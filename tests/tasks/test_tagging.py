"""Tagging as its user meets it: a file of words and tags in, entities with probabilities out."""

import csv
import json
import random
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

import clearhead
from clearhead.cli import main
from clearhead.errors import CheckpointError, ConfigError, DataError
from clearhead.explore import Scene
from clearhead.explore.live_model import LiveModel
from clearhead.lens import Record
from clearhead.model import Labels, ModelConfig
from clearhead.predictor import Predictor
from clearhead.tasks.metrics import count_labels
from clearhead.tasks.settings import Options
from clearhead.tasks.tagging.linear_chain import IMPOSSIBLE, ScoredSpan, Steps, log_partition, sequence_scores
from clearhead.tasks.tagging.schemes import Span
from clearhead.tasks.tagging.sentences import Sentence, group_documents
from clearhead.tasks.tagging.tagger import Tagger, score_words
from clearhead.tasks.tagging.tagging_answerer import (
    TaggingAnswerer,
    count_entities,
    count_tables,
    format_counts,
)
from clearhead.tasks.tagging.tagging_processor import TaggedWords, TaggingProcessor
from clearhead.tasks.tagging.tagging_task import (
    TASK,
    TaggingObjective,
    draw_hidden,
    report_entities,
    score_frequent_tags,
    tag_by_frequency,
)
from clearhead.text import Report, Row
from clearhead.text.batches import Batch
from clearhead.train import run_training
from clearhead.train.data import find_repeated
from clearhead.train.recipe import Recipe, check_recipe

NAMES = {"PER": ["Anna", "Bob", "Carla", "Dov"], "LOC": ["Rome", "Oslo", "Lima", "Kiel"]}
LAST = ["Lee", "Stone"]
OTHERS = ["the", "a", "saw", "went", "to", "in", "and", ".", ",", "likes"]

RECIPE = """
task = "tagging"
seed = 5

[data]
train = "train.conll"
dev = "dev.conll"

[text]
vocabulary = 320
letter_case = true
convolutions = 2

[model]
shape = "tiny"
width = 24
heads = 3
feedforward = 37
layers = 1
dropout = 0.0

[loss]
crf = true

[train]
steps = 60
batch_tokens = 512
shapes = 3
warmup = 10
learning_rate = 0.02
log_every = 20
evaluate_every = 30
heads_every = 0
tensorboard = false
"""


def tagged(count: int, seed: int) -> list[list[tuple[str, str]]]:
    """Sentences in which names are entities; a last name belongs to the person before it."""
    chance, made = random.Random(seed), []
    for _ in range(count):
        sentence = []
        for _ in range(chance.randint(2, 5)):
            sentence += [(word, "O") for word in chance.choices(OTHERS, k=chance.randint(0, 3))]
            label = chance.choice(["PER", "LOC"])
            sentence.append((chance.choice(NAMES[label]), f"B-{label}"))
            if label == "PER" and chance.random() < 0.5:
                sentence.append((chance.choice(LAST), "I-PER"))
        made.append([*sentence, (".", "O")])
    return made


def columns(sentences: list[list[tuple[str, str]]]) -> str:
    return "\n".join("".join(f"{word}\t{tag}\n" for word, tag in sentence) for sentence in sentences)


def rows_of(sentences: list[list[tuple[str, str]]], folder: Path) -> list[Row]:
    (folder / "rows.conll").write_text(columns(sentences), encoding="utf-8")
    return list(TaggingProcessor.read(folder / "rows.conll"))


def recipe_of(**sections: dict[str, object]) -> Recipe:
    values = {"data": {"train": "train.conll"}, "text": {"vocabulary": 320}, "model": {"width": 20, "heads": 5}}
    return check_recipe({"task": "tagging", **values, **sections}, "test")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tagging")
    broken = [("Bob", "I-PER"), ("saw", "O"), ("Rome", "I-LOC")]  # two tags out of sequence
    (folder / "train.conll").write_text(columns([*tagged(150, 1), broken]), encoding="utf-8")
    (folder / "dev.conll").write_text(columns(tagged(30, 2)), encoding="utf-8")
    (folder / "toy.toml").write_text(RECIPE, encoding="utf-8")
    return run_training(str(folder / "toy.toml"), out=folder / "run", device="cpu")


@pytest.fixture(scope="module")
def tagger(run: Path) -> Predictor:
    return clearhead.load(run, device="cpu")


def spans(answer: object) -> list[tuple[int, int, str]]:
    return [(one.start, one.end, one.label) for one in answer.entities]


# training and answers


def test_it_has_learned_the_names(tagger):
    answer = tagger.predict("Anna Lee went to Rome, and Dov saw Oslo.")
    assert spans(answer) == [(0, 8, "PER"), (17, 21, "LOC"), (27, 30, "PER"), (35, 39, "LOC")]
    assert answer.text == "[Anna Lee](PER) went to [Rome](LOC), and [Dov](PER) saw [Oslo](LOC)."
    assert [one.text for one in answer.entities] == ["Anna Lee", "Rome", "Dov", "Oslo"]
    assert all(0.5 < one.score <= 1 for one in answer.entities)


def test_what_was_repaired_in_the_training_data_is_reported(run):
    train, dev = (run / "report.txt").read_text().splitlines()
    assert train.startswith("train: kept 151 of 151; flaws: 2 tags out of sequence, repaired")
    assert "(train.conll:" in train
    assert dev == "dev: kept 30 of 30"


def test_json_has_the_keys_of_the_contract(run, capsys):
    assert main(["predict", str(run), "Bob saw Oslo", "--json", "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"input", "entities", "notes"}
    assert [set(one) for one in found["entities"]] == [{"start", "end", "label", "text", "score"}] * 2
    assert found["entities"][1]["text"] == "Oslo"
    assert main(["evaluate", str(run), str(run.parent / "dev.conll"), "--json", "--device", "cpu"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["entity_f1"] > 0.9
    assert set(scores) == {
        *("entity_precision", "entity_recall", "entity_f1"),
        *("token_accuracy", "token_macro_f1", "token_weighted_f1"),
    }


def test_entities_in_a_column_of_a_table_are_json(run, tagger, tmp_path, capsys):
    (tmp_path / "a.csv").write_text('id,text\n1,"Bob saw Oslo, Anna"\n')
    assert main(["predict", str(run), str(tmp_path / "a.csv"), "--device", "cpu"]) == 0
    [row] = csv.DictReader(capsys.readouterr().out.splitlines())
    entities = [entity._asdict() for entity in tagger.predict("Bob saw Oslo, Anna").entities]
    assert (row["text"], json.loads(row["entities"])) == ("Bob saw Oslo, Anna", entities)
    assert len(entities) > 1


def test_the_command_line_prints_tables_and_a_baseline(run, capsys):
    data = str(run.parent / "dev.conll")
    train = str(run.parent / "train.conll")
    assert main(["evaluate", str(run), data, "--report", "--baseline", "--train", train, "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "baseline: the most frequent tag of each word" in out
    assert out.count("weighted avg") == 2


def every_word(scores: list[torch.Tensor], steps: object) -> list[list[ScoredSpan]]:
    """In place of a decoder: each word is an entity."""
    return [[ScoredSpan(Span(place, place + 1, "LOC"), 0.5) for place in range(len(one))] for one in scores]


@pytest.mark.parametrize(
    "words",
    [
        ["Ａｎｎａ", "。", "Ｒｏｍｅ"],
        ["e\u0301\u0301", "ﬁ", "ﬃx"],
        ["👩\u200d💻", "👍", "❤\ufe0f"],
        ["臺", "灣", "漢"],
        ["①", "㎏", "½"],
        ["İ", "ß", "Å"],
    ],
)
@pytest.mark.parametrize(("begin", "between"), [("", " "), ("\ufeff", "\t"), ("\x00", "\x00"), ("\r\n", "　\u200b ")])
def test_offsets_are_those_of_the_raw_input(tagger, monkeypatch, words, begin, between):
    monkeypatch.setattr(tagger.processor.decoder, "decode", every_word)
    text = begin + between.join(words) + between
    answer = tagger.predict(text)
    assert [one.text for one in answer.entities] == words
    assert [text[one.start : one.end] for one in answer.entities] == words
    assert answer.text.replace("[", "").replace("](LOC)", "") == text


def test_an_empty_text_has_no_entities_and_says_so(tagger):
    for answer in tagger.predict(["", " \n\ufeff"]):
        assert (answer.entities, list(answer.notes)) == ((), ["the text has no words"])
    assert tagger.predict([]) == []


def test_a_text_of_ten_thousand_characters_is_tagged_to_its_end(tagger):
    part = "Anna went to Rome and Bob saw Oslo . "
    text = part * (10_000 // len(part) + 1)
    answer = tagger.predict(text)
    assert spans(answer) == [
        (len(part) * copy + begin, len(part) * copy + end, label)
        for copy in range(len(text) // len(part))
        for begin, end, label in ((0, 4, "PER"), (13, 17, "LOC"), (22, 25, "PER"), (30, 34, "LOC"))
    ]
    assert len(tagger.predict("x" * 10_000).entities) <= 100
    assert tagger.predict("Rome," * 2_000).entities[-1].end == 9_999


def test_batched_equals_single(tagger):
    model = tagger.processor.build().double().eval()
    model.load_state_dict(tagger.model.state_dict())
    answerer = TaggingAnswerer(tagger.processor, model)
    texts = [*(" ".join(word for word, _ in one) for one in tagged(17, seed=4)), "", "Rome " * 200, "未知 😀"]
    inputs = [tagger.processor.inputs.check(text) for text in texts]
    together = answerer.predict(inputs, Options())
    for batch in (1, 7):
        for one, other in zip(answerer.predict(inputs, Options(batch=batch)), together, strict=True):
            assert spans(one) == spans(other)
            assert [e.score for e in one.entities] == pytest.approx([e.score for e in other.entities], abs=1e-6)


def test_a_saved_model_answers_as_before(tagger, tmp_path):
    parts = {"task": TASK, "processor": tagger.processor, "model": tagger.model}
    clearhead.model_folder.write(tmp_path / "copy", **parts, metrics={}, card="# a test\n")
    loaded = clearhead.load(tmp_path / "copy", device="cpu")
    inputs = [" ".join(word for word, _ in one) for one in tagged(13, seed=6)]
    assert loaded.predict(inputs) == tagger.predict(inputs)
    assert loaded.processor.types == ["LOC", "PER"]


def test_damaged_settings_are_refused(tagger, tmp_path):
    processor = tagger.processor
    processor.save(tmp_path)
    for wrong in ({"labels": []}, {"tags": "iob9"}, {"window": "64"}, {"labels": ["O", "B-A"]}):
        with pytest.raises(CheckpointError):
            TaggingProcessor.load(tmp_path, processor.config, {**processor.settings, **wrong})


# scores


def test_words_are_scored_as_the_file_has_them(tagger, tmp_path, monkeypatch):
    monkeypatch.setattr(tagger.processor.decoder, "decode", every_word)
    (tmp_path / "odd.conll").write_text("Anna,went B-LOC\nto--- B-LOC\n\ufffd\u200b B-LOC\n")
    scores = tagger.evaluate(tmp_path / "odd.conll")
    assert (scores["entity_f1"], scores["token_accuracy"]) == (1.0, 1.0)


def test_the_scheme_of_the_data_does_not_matter_for_entities(tagger, tmp_path):
    files = {
        "iob1.conll": "Anna I-PER\nLee I-PER\nsaw O\nRome I-LOC\n",
        "bioes.conll": "Anna B-PER\nLee E-PER\nsaw O\nRome S-LOC\n",
        "bmes.conll": "Anna B-PER\nvon M-PER\nLee E-PER\n\nsaw O\nRome S-LOC\n",
        "spans.jsonl": json.dumps({"text": "saw Rome", "entities": [{"start": 4, "end": 8, "label": "LOC"}]}),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        rows = list(TaggingProcessor.read(tmp_path / name))
        assert tagger.answerer.evaluate(rows, Options()).scores["entity_recall"] >= 0.5
    scored = tagger.evaluate_rows(tmp_path / "bioes.conll")
    assert "S-LOC" in report_entities(tagger.processor, scored.rows, scored.predictions)


def test_labels_that_training_never_saw_count_as_missed_with_a_note(tagger, tmp_path):
    (tmp_path / "new.conll").write_text("Anna B-PER\nsaw O\n\na O\nRembrandt B-ART\n")
    scores = tagger.evaluate(tmp_path / "new.conll")
    assert scores["entity_recall"] == 0.5
    assert scores["note"] == (
        f"1 entity with a label that is not in the training data, counted as missed (first {tmp_path / 'new.conll'}:4)"
    )
    rows = list(TaggingProcessor.read(tmp_path / "new.conll"))
    assert len(tagger.processor.examples(rows, Report()).rows) == 2, "the loss on dev takes them as O"


def test_the_tables_are_those_of_seqeval_and_scikit_learn(tmp_path):
    seqeval, sklearn = import_module("seqeval.metrics"), import_module("sklearn.metrics")
    chance = random.Random(3)
    tags = ["O", "O", "B-LOC", "I-LOC", "B-PER", "I-PER", "B-creative-work"]
    wanted = [chance.choices(tags, k=chance.randint(1, 9)) for _ in range(60)]
    given = [[tag if chance.random() < 0.7 else chance.choice(tags) for tag in row] for row in wanted]
    rows = rows_of([[("x", tag) for tag in row] for row in wanted], tmp_path)
    sentences = [Sentence.from_row(row) for row in rows]
    predicted = [Sentence.from_row(row).entities for row in rows_of([[("x", t) for t in r] for r in given], tmp_path)]
    tables = count_tables(sentences, predicted)
    tags_table, entities_table = tables.format().removeprefix("Tokens\n\n").split("\n\nEntities\n\n")
    assert entities_table == seqeval.classification_report(wanted, given, digits=3).rstrip("\n")
    scores = tables.scores()
    assert scores["entity_f1"] == round(seqeval.f1_score(wanted, given), 4)
    assert scores["entity_precision"] == round(seqeval.precision_score(wanted, given), 4)
    # Word by word the repaired tags are compared, which scikit-learn gets here, too.
    one = [tag for sentence in sentences for tag in sentence.tags("iob2")]
    other = [
        tag
        for sentence, spans in zip(sentences, predicted, strict=True)
        for tag in Sentence(sentence.text, sentence.words, spans).tags("iob2")
    ]
    names = tables.tag_names()
    assert names == ["B-LOC", "I-LOC", "B-PER", "I-PER", "B-creative-work", "O"]
    theirs = sklearn.classification_report(one, other, labels=names, digits=3, zero_division=0).splitlines()
    mine = tags_table.splitlines()
    # Where all labels are there, scikit-learn calls the micro average accuracy.
    assert [line for line in mine if "micro" not in line] == [line for line in theirs if "accuracy" not in line]
    micro = sklearn.precision_recall_fscore_support(one, other, labels=names, average="micro", zero_division=0)[:3]
    assert tables.tags.table(names)["micro avg"][:3] == pytest.approx(micro, abs=1e-12)
    assert scores["token_accuracy"] == round(sklearn.accuracy_score(one, other), 4)
    assert scores["token_weighted_f1"] == round(sklearn.f1_score(one, other, average="weighted"), 4)


def test_no_label_breaks_the_table():
    table = format_counts(count_labels([["B-\x1b[2J\n"]], [["O"]]), ["B-\x1b[2J\n", "O"])
    names = [line.split()[0] for line in table.splitlines()[2:4]]
    assert names == ["B-\\x1b[2J\\n", "O"]


def test_the_table_is_laid_out_as_in_the_literature():
    counts = count_labels([["B-LOC"], ["I-LOC"], ["O"], ["O"]], [["B-LOC"], ["O"], ["O"], ["O"]])
    assert format_counts(counts, ["B-LOC", "I-LOC", "O"]) == "\n".join(
        [
            "              precision    recall  f1-score   support",
            "",
            "       B-LOC      1.000     1.000     1.000         1",
            "       I-LOC      0.000     0.000     0.000         1",
            "           O      0.667     1.000     0.800         2",
            "",
            "   micro avg      0.750     0.750     0.750         4",
            "   macro avg      0.556     0.667     0.600         4",
            "weighted avg      0.583     0.750     0.650         4",
        ]
    )
    empty = count_entities([[]], [[]])
    assert empty.table([])["micro avg"] == (0.0, 0.0, 0.0, 0)


def test_the_report_has_both_tables_and_what_was_repaired(tagger, tmp_path):
    rows = rows_of([[("Anna", "I-PER"), ("saw", "O"), ("Rome", "B-LOC")]], tmp_path)
    scored = tagger.answerer.evaluate(rows, Options())
    text = report_entities(tagger.processor, scored.rows, scored.predictions)
    assert "I-PER" not in text
    assert text.count("weighted avg") == 2
    assert "1 tag out of sequence, repaired as conlleval reads it" in text


def test_the_baseline_is_the_most_frequent_tag_of_each_word(tagger, tmp_path):
    train = [[("Anna", "B-PER"), ("Lee", "I-PER")], [("Lee", "O"), ("Bob", "B-PER"), ("Lee", "I-PER")]]
    sentences = [Sentence.from_row(row) for row in rows_of(train, tmp_path)]
    (fresh,) = [Sentence.from_row(row) for row in rows_of([[("Anna", "O"), ("Lee", "O"), ("Zoe", "O")]], tmp_path)]
    assert tag_by_frequency(sentences, [fresh]) == [[Span(0, 2, "PER")]]
    rows = rows_of(tagged(40, 1), tmp_path), rows_of(tagged(9, 8), tmp_path)
    baseline = score_frequent_tags(tagger.processor, *rows)
    assert baseline.name == "the most frequent tag of each word"
    assert set(baseline.scores) >= {"entity_f1", "token_macro_f1"}


# looking


def test_a_look_is_one_pass_over_the_text_with_its_entities(tagger):
    record = tagger.look("Anna saw Rome")
    (call,) = record.calls
    assert call.about.text == "[Anna](PER) saw [Rome](LOC)"
    pieces = tagger.tracer.pieces("tokens", call.ids["tokens"][0].tolist())
    assert pieces[0] == "<s>"
    assert "".join(pieces[1:-1]).replace("▁", " ") == " Anna saw Rome"
    with pytest.raises(DataError, match="the task tagging cannot use --answer; omit it"):
        tagger.look("Anna", answer="PER")


def test_a_look_shows_what_training_never_saw_as_the_text_has_it(tagger, tmp_path):
    record = tagger.look("Anna saw 住 and 😀 , ROME")
    record.save(tmp_path / "one.record")
    for call in (record.calls[0], Record.load(tmp_path / "one.record").calls[0]):
        unknown = [number == tagger.processor.tokenizer.pad for number in call.ids["tokens"][0].tolist()]
        texts = call.texts("tokens", 0, [0])
        assert [text for text, hidden in zip(texts, unknown, strict=True) if hidden][:2] == ["▁住", "▁😀"]
        assert "".join(texts[1:-1]).replace("▁", "") == "Annasaw住and😀,ROME", "in the letter case of the text"
        (note,) = call.about.notes
        assert note.startswith("read as unknown, for the vocabulary lacks them: 住, 😀")
    record.label(lambda number: f"#{number}")
    assert record.calls[0].texts("tokens", 0, [0])[0] == f"#{tagger.processor.tokenizer.start}", (
        "labels of one's own win"
    )


def test_the_page_of_a_tagger_has_its_entities_and_works_without_heads(tagger):
    live = LiveModel.from_predictor(tagger)
    record = live.look("Anna saw Rome")
    output = Scene(record).to_json()["output"]
    assert output["axis"] == "", "it writes no tokens"
    assert [part[:2] for part in output["parts"]] == [("Anna", "PER"), (" saw ", ""), ("Rome", "LOC")]
    assert output["parts"][1][2] is None
    assert 0 < output["parts"][0][2] <= 1
    assert live.answer_without(record, 0, {record.names[0]: [0]}).before_text == "[Anna](PER) saw [Rome](LOC)"


def test_a_long_text_is_looked_at_in_windows_that_show_it_once(tagger):
    text = "Anna saw Rome . " * 60
    record = tagger.look(text.strip())
    assert len(record.calls) > 1
    assert "".join(call.about.text for call in record.calls).count("[Rome](LOC)") == 60


# data


def test_data_without_an_entity_leave_no_run(tmp_path):
    (tmp_path / "train.conll").write_text("a O\nb O\n\nc O\n")
    (tmp_path / "toy.toml").write_text(RECIPE.replace('dev = "dev.conll"\n', ""))
    with pytest.raises(DataError, match="there is nothing to learn: no word of 2 sentences is in an entity"):
        run_training(str(tmp_path / "toy.toml"), out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_a_column_of_far_too_many_labels_is_refused_at_once(tmp_path):
    rows = rows_of([[(f"w{number}", f"B-{number:04}")] for number in range(101)], tmp_path)
    with pytest.raises(DataError, match=r"101 different labels \(0000, 0001, 0002, …\), and tagging takes at most 100"):
        TaggingProcessor.prepare(rows, recipe_of())


def test_a_sentence_that_is_in_train_with_other_tags_is_found_in_dev(tmp_path):
    train = rows_of([[("Anna", "B-PER"), ("sings", "O")], [("Rome", "B-LOC")]], tmp_path)
    processor = TaggingProcessor.prepare(train, recipe_of())
    (tmp_path / "other").mkdir()
    dev = rows_of([[("Anna", "O"), ("sings", "O")], [("Oslo", "B-LOC")]], tmp_path / "other")
    assert [row.line for row in find_repeated(processor, train, dev)] == [1]


def test_long_sentences_are_trained_on_in_windows_each_word_once(tmp_path):
    sentences = [[("Rome", "B-LOC"), *[("a", "O")] * 99], [("Anna", "B-PER")]]
    rows = rows_of(sentences, tmp_path)
    processor = TaggingProcessor.prepare(rows, recipe_of(data={"train": "x", "longest": 40}))
    assert processor.window == 40
    examples = processor.examples(rows, Report())
    assert int(examples.counts.sum()) == 101
    assert int(examples.lengths.max()) <= 42
    assert len(examples) > 3
    assert [examples.where(place)[-2:] for place in (0, len(examples) - 1)] == [":1", "02"]
    assert len(examples.rows) == 2


def test_a_batch_is_what_one_writes_down_by_hand(tmp_path):
    rows = rows_of([[("Anna", "B-PER"), ("saw", "O")], [("Rome", "B-LOC")]], tmp_path)
    processor = TaggingProcessor.prepare(rows, recipe_of(loss={"tags": "iob2"}))
    batch = processor.examples(rows, Report()).collate(Batch(np.array([1, 0]), (20,)))
    encoded = [len(word.pieces) for word in processor.encoder.encode(["Anna", "saw", "Rome"])]
    assert batch.lengths.tolist() == [2 + encoded[2], 2 + encoded[0] + encoded[1]]
    assert batch.words[:, :2].tolist() == [[1, 0], [1, 1 + encoded[0]]]
    assert batch.word_lengths.tolist() == [1, 2]
    assert processor.decoder.tags == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    assert batch.tags[:, :3].tolist() == [[1, -100, -100], [3, 0, -100]]


def test_chinese_is_read_character_by_character(tmp_path):
    (tmp_path / "zh.bmes").write_text("王 B-NAME\n明 E-NAME\n2 O\n0 O\n岁 O\n", encoding="utf-8")
    rows = list(TaggingProcessor.read(tmp_path / "zh.bmes"))
    processor = TaggingProcessor.prepare(rows, recipe_of(text={"tokenizer": "character", "unknown": 0.1}))
    assert processor.settings["characters"]
    sentence = processor.inputs.check("王明20岁")
    assert sentence.word_texts() == ["王", "明", "2", "0", "岁"]
    (known, fresh) = processor.encoder.encode(["王", "龘"])
    assert len(known.pieces) == 1
    assert fresh.pieces == [processor.tokenizer.pad], (
        "a character that training never saw is unknown, not spelled in bytes"
    )


# context


def of_documents(tmp_path: Path, text: str, longest: int = 256, **sections: dict[str, object]) -> TaggingProcessor:
    """A processor that reads neighbouring sentences of the file `rows.conll` with this text."""
    (tmp_path / "rows.conll").write_text(text, encoding="utf-8")
    rows = list(TaggingProcessor.read(tmp_path / "rows.conll"))
    data = {"train": "x", "context": 4, "longest": longest}
    return TaggingProcessor.prepare(rows, recipe_of(data=data, **sections))


def scores_of(processor: TaggingProcessor, model: Tagger, sentences: list[Sentence]) -> torch.Tensor:
    documents = group_documents(sentences, processor.context)
    return torch.cat(score_words(model, processor.encode(documents), pad=processor.tokenizer.pad, most=8))


@torch.no_grad()
def test_neighbours_of_the_same_document_are_read_and_others_are_not(tmp_path):
    text = "Anna\tB-PER\nsaw\tO\n\nRome\tB-LOC\n\n-DOCSTART-\tO\n\nBob\tB-PER\n"
    processor = of_documents(tmp_path, text)
    torch.manual_seed(0)
    model = processor.build().double().eval()
    anna, rome, bob = (processor.inputs.of_row(row) for row in processor.read(tmp_path / "rows.conll"))
    together = scores_of(processor, model, [anna, rome, bob])
    joined, alone = processor.inputs.check("Anna saw Rome"), [scores_of(processor, model, [one]) for one in (rome, bob)]
    assert torch.allclose(together[:3], scores_of(processor, model, [joined]), atol=1e-12), "as one text"
    assert not torch.allclose(together[2:3], alone[0], atol=1e-3), "without its neighbour"
    assert torch.allclose(together[3:], alone[1], atol=1e-12)


@torch.no_grad()
def test_texts_of_one_request_are_no_context_of_each_other(tmp_path):
    processor = of_documents(tmp_path, columns(tagged(5, seed=3)))
    torch.manual_seed(0)
    answerer = TaggingAnswerer(processor, processor.build().eval())
    texts = [processor.inputs.check(text) for text in ("Anna saw Rome", "Bob went to Oslo")]
    both = answerer.predict(texts, Options())
    assert [answer.text for answer in both] == [answerer.predict([text], Options())[0].text for text in texts]
    assert {text.document for text in texts} == {None}


def test_documents_are_learned_from_in_whole_sentences(tmp_path):
    sentences = tagged(40, seed=4)
    processor = of_documents(tmp_path, columns(sentences), longest=64)
    rows, recipe = list(processor.read(tmp_path / "rows.conll")), recipe_of(data={"train": "x", "context": 4})
    learned, scored = processor.examples(rows, Report(), recipe), processor.examples(rows, Report())
    tags = [processor.decoder.numbers[tag] for row in rows for tag in processor.inputs.of_row(row).tags("bioes")]
    for examples, times in ((learned, 4), (scored, 1)):  # learned in windows of three sizes, and sentence by sentence
        assert examples.tags.flat[:-1].tolist() == times * tags
        assert int(examples.begins.flat.sum()) == times * len(sentences)
        assert int(examples.lengths.max()) <= 64 + 2
    assert len(scored) < len(sentences) / 2
    assert learned.begins.flat[learned.begins.starts].all(), "every window begins with a sentence"
    assert learned.begins.lengths.tolist()[-len(sentences) :] == [len(sentence) for sentence in sentences]
    assert learned.where(1) == rows[int(learned.begins.flat[: int(learned.counts[0])].sum())].where


@torch.no_grad()
def test_the_loss_of_a_crf_over_a_document_is_that_of_its_sentences(tmp_path):
    processor = of_documents(tmp_path, columns(tagged(6, seed=5)), loss={"crf": True})
    rows = list(processor.read(tmp_path / "rows.conll"))
    torch.manual_seed(0)
    model = processor.build().double().eval()
    for part in (model.first_tag, model.next_tag, model.last_tag):
        torch.nn.init.normal_(part)
    scores = scores_of(processor, model, [processor.inputs.of_row(row) for row in rows])
    examples = processor.examples(rows, Report())
    batch = examples.collate(Batch(np.arange(len(examples)), (int(examples.lengths.max()),)))
    objective = TaggingObjective(processor, recipe_of())
    whole = objective.loss(model, batch).item()
    steps, apart = model.steps() + Steps.legal(processor.decoder.legality, IMPOSSIBLE), 0.0
    for row, words in zip(rows, scores.split([len(processor.inputs.of_row(row).words) for row in rows]), strict=True):
        tags = [processor.decoder.numbers[tag] for tag in processor.inputs.of_row(row).tags("bioes")]
        length = torch.tensor([len(tags)])
        right = sequence_scores(words[None].double(), torch.tensor([tags]), length, steps)
        apart += float(log_partition(words[None].double(), length, steps) - right)
    assert len(examples) == 1
    assert whole == pytest.approx(apart, rel=1e-5)


def test_a_model_folder_has_the_context(tmp_path):
    processor = of_documents(tmp_path, columns(tagged(5, seed=3)))
    processor.save(tmp_path)
    assert TaggingProcessor.load(tmp_path, processor.config, processor.settings).context == 4


def test_context_that_cannot_be_had_is_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"data.context = 65 is more than a quarter of data.longest = 256.*at most 64"
    ):
        recipe_of(data={"train": "x", "context": 65})
    (tmp_path / "a.jsonl").write_text('{"text": "Rome", "entities": [{"start": 0, "end": 4, "label": "LOC"}]}\n' * 2)
    with pytest.raises(
        DataError, match=r"a.jsonl: no two neighbouring rows are of one document, which data.context = 8"
    ):
        TaggingProcessor.prepare(
            list(TaggingProcessor.read(tmp_path / "a.jsonl")), recipe_of(data={"train": "x", "context": 8})
        )


# loss


def batch_of(processor: TaggingProcessor, rows: list[Row]) -> TaggedWords:
    examples = processor.examples(rows, Report())
    return examples.collate(Batch(np.arange(len(rows)), (int(examples.lengths.max()),)))


def test_the_loss_is_the_cross_entropy_by_hand(tmp_path):
    rows, recipe = rows_of(tagged(5, seed=3), tmp_path), recipe_of(loss={"crf": False})
    processor = TaggingProcessor.prepare(rows, recipe)
    torch.manual_seed(2)
    model = processor.build().double().eval()
    batch = batch_of(processor, rows)
    scores = model.word_scores(model.encode(*batch[:3]), batch.words).log_softmax(-1)
    by_hand = -sum(
        scores[row, word, tag].item()
        for row, tags in enumerate(batch.tags.tolist())
        for word, tag in enumerate(tags)
        if tag >= 0
    )
    assert TaggingObjective(processor, recipe).loss(model, batch).item() == pytest.approx(by_hand, abs=1e-9)


def test_without_learned_steps_a_crf_prefers_what_is_legal(tmp_path):
    rows, losses, weights = rows_of(tagged(5, seed=3), tmp_path), [], {}
    for crf in (True, False):
        recipe = recipe_of(loss={"crf": crf})
        processor = TaggingProcessor.prepare(rows, recipe)
        model = processor.build().double().eval()
        weights = weights or model.state_dict()
        model.load_state_dict({name: weights[name] for name in model.state_dict()})
        losses.append(TaggingObjective(processor, recipe).loss(model, batch_of(processor, rows)).item())
    chained, plain = losses
    assert 0 < chained < plain


def test_hidden_pieces_are_inside_the_text_and_only_in_training(tmp_path):
    recipe = recipe_of(text={"vocabulary": 320, "unknown": 0.9})
    rows = rows_of(tagged(5, seed=3), tmp_path)
    processor = TaggingProcessor.prepare(rows, recipe)
    tokens, lengths = torch.tensor([[1, 9, 8, 2, 0], [1, 2, 0, 0, 0]]), torch.tensor([4, 2])
    torch.manual_seed(0)
    hidden = draw_hidden(TaggedWords(tokens, lengths, tokens, tokens, lengths, tokens, tokens > 1), 0.9)
    assert hidden.int().tolist() == [[0, 1, 1, 0, 0], [0, 0, 0, 0, 0]]
    batch, objective, model = batch_of(processor, rows), TaggingObjective(processor, recipe), processor.build().eval()
    assert objective.loss(model, batch).item() == objective.loss(model, batch).item()


def test_hidden_pieces_are_guessed_with_the_weight_of_the_recipe(tmp_path):
    rows = rows_of(tagged(7, seed=3), tmp_path)

    def losses(masked: float) -> tuple[float, float]:
        model = {"width": 20, "heads": 5, "dropout": 0.0}
        recipe = recipe_of(text={"vocabulary": 320, "unknown": 0.5}, loss={"masked": masked}, model=model)
        processor = TaggingProcessor.prepare(rows, recipe)
        batch = batch_of(processor, rows)
        torch.manual_seed(0)
        tagger = processor.build().train()
        torch.manual_seed(1)
        trained = TaggingObjective(processor, recipe).loss(tagger, batch).item()
        torch.manual_seed(1)
        places = draw_hidden(batch, 0.5)
        tokens = batch.tokens.masked_fill(places, processor.encoder.unknown_piece)
        guesses = tagger.logits(tagger.encode(tokens, batch.lengths, batch.cases)).log_softmax(-1)
        right = guesses.gather(2, batch.tokens.long()[..., None])[..., 0][places]
        return trained, -right.mean().item() * int(batch.word_lengths.sum())

    (plain, _), (both, guessed) = losses(0.0), losses(0.25)
    assert both == pytest.approx(plain + 0.25 * guessed, rel=1e-5)
    with pytest.raises(ConfigError, match=r"text\.unknown = 0 hides none"):
        recipe_of(text={"vocabulary": 320, "unknown": 0.0}, loss={"masked": 0.3})


def test_smoothing_and_crf_are_refused_together():
    with pytest.raises(ConfigError, match="label_smoothing is for the loss of single words"):
        recipe_of(loss={"label_smoothing": 0.1})
    assert recipe_of(loss={"crf": False, "label_smoothing": 0.1}).loss.label_smoothing == 0.1


# Hugging Face

BERT = ModelConfig(
    vocabulary=31,
    width=24,
    heads=3,
    layers=2,
    feedforward=37,
    activation="gelu",
    positions="learned",
    max_length=64,
    embedding_norm=True,
    scale_embeddings=False,
    segments=2,
    labels=Labels(5),
)


def test_a_plain_tagger_scores_words_as_transformers_scores_their_first_pieces(tmp_path):
    transformers = import_module("transformers")
    torch.manual_seed(4)
    model = Tagger(BERT).eval()
    clearhead.to_huggingface(model, tmp_path, labels=["O", "B-A", "I-A", "B-B", "I-B"])
    theirs = transformers.BertForTokenClassification.from_pretrained(tmp_path).eval()
    tokens, lengths = torch.randint(1, 31, (3, 11)), torch.tensor([11, 7, 2])
    words = torch.tensor([[1, 4, 9], [1, 2, 5], [1, 0, 0]])
    with torch.no_grad():
        logits = theirs(tokens, attention_mask=(torch.arange(11) < lengths[:, None]).long()).logits
        scores = model.word_scores(model.encode(tokens, lengths, torch.zeros_like(tokens)), words)
    wanted = logits.gather(1, words[:, :, None].expand(-1, -1, 5))
    for row, count in enumerate((3, 3, 1)):
        assert torch.allclose(scores[row, :count], wanted[row, :count], atol=1e-5)


@pytest.mark.parametrize("extra", [{"crf": True}, {"cases": True}, {"convolutions": 2}])
def test_what_transformers_cannot_express_is_refused(extra, tmp_path):
    with pytest.raises(
        CheckpointError, match=r"a Hugging Face checkpoint has no place for (first_tag|cases|convolutions)"
    ):
        clearhead.to_huggingface(Tagger(BERT, **extra), tmp_path)
    assert not list(tmp_path.iterdir())


# the shipped recipe


def test_the_tiny_recipe_learns_from_shipped_data(tmp_path):
    changes = ["data.lines=250", "data.dev=0.1", "train.steps=24", "train.evaluate_every=24", "train.log_every=8"]
    changes += ["train.warmup=5", "train.tensorboard=false", "train.heads_every=0", "train.batch_tokens=1024"]
    folder = run_training("tag-tiny", overrides=changes, out=tmp_path / "run", device="cpu")
    logged = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [values["loss"] for values in logged if "loss" in values]
    assert losses[2] < 0.5 * losses[0]
    model = clearhead.load(folder, device="cpu")
    assert model.predict("Justin Bieber is in New York.").text
    assert model.look("I love New York").names
