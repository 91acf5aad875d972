"""The declaration of the task answers, with its tables, its baselines, and `clearhead answers MODEL …`.

These actions change the index of a model folder without training.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from clearhead.errors import ConfigError, DataError, import_extra
from clearhead.formatting import format_count, parse_whole_number
from clearhead.storage import hold_lock
from clearhead.tasks.answerer import Baseline
from clearhead.tasks.answers.answer_index import Entry, open_index, replace_index
from clearhead.tasks.answers.answer_objective import AnswerObjective
from clearhead.tasks.answers.answer_processor import AnswerProcessor, clean_pair
from clearhead.tasks.answers.answer_settings import (
    RANKED_ANSWERS,
    AnswerOptions,
    AnswerPrediction,
    AnswersRecipe,
    Match,
)
from clearhead.tasks.answers.question_answerer import QuestionAnswerer, QuestionTracer, make_report, score_answers
from clearhead.tasks.baselines import TfidfBaseline
from clearhead.tasks.metrics import Curve, trace_curve
from clearhead.tasks.settings import validate
from clearhead.tasks.task import Action, Task
from clearhead.tasks.text_windows import MAX_CHARACTERS
from clearhead.text import Row
from clearhead.text.corpora import unpacked_name

# A word, or one character of a script that is written without spaces.
UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af"
WORD = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")

FILES = (".tsv", ".csv", ".jsonl", ".json")
Pairs = Sequence[tuple[str, str]]  # question, answer


def report_answers(processor: AnswerProcessor, rows: Sequence[Row], predictions: Sequence[AnswerPrediction]) -> str:
    right = [clean_pair(row)[1] for row in rows]
    return make_report(right, predictions, unseen=processor.find_unseen(rows))


def trace_answers(processor: AnswerProcessor, rows: Sequence[Row], predictions: Sequence[AnswerPrediction]) -> Curve:
    """How many questions are answered, and how well, at thresholds of the detector in use."""
    unseen = processor.find_unseen(rows)
    pairs = [(clean_pair(row)[1], answer) for row, answer in zip(rows, predictions, strict=True)]
    inside = [pair for pair in pairs if pair[0] and pair[0] not in unseen]
    right = np.array([bool(answer.matches) and answer.matches[0].text == text for text, answer in inside], np.bool_)
    outside = np.array([answer.in_scope for text, answer in pairs if not text])
    return trace_curve(np.array([answer.in_scope for _, answer in inside]), lambda _: right, outside)


def exclude_each_other(processor: AnswerProcessor, rows: Sequence[Row]) -> bool:
    """Pairs may have several answers to a question, but it is not out of scope then."""
    answers = {clean_pair(row)[1] for row in rows}
    return len(answers) > 1 and (processor.kind == "intents" or "" in answers)


def score_simple(processor: AnswerProcessor, train: Sequence[Row], rows: Sequence[Row]) -> Baseline:
    """TF-IDF with logistic regression for intents, BM25 for pairs."""
    simple = score_tf_idf if processor.kind == "intents" else score_bm25
    return simple([clean_pair(row) for row in train], [clean_pair(row) for row in rows])


def score_bm25(train: Pairs, questions: Pairs) -> Baseline:
    """BM25 (Lucene's variant): the answers whose own text, or known question, shares the most words with a question."""
    bm25s = import_extra("bm25s", "this baseline", "baselines")
    documents = [(question, answer) for question, answer in train if answer]
    answers = dict.fromkeys(answer for _, answer in (*documents, *questions) if answer)
    documents += [(answer, answer) for answer in answers]
    words = [split_words(text) for text, _ in documents]
    numbers = {word: number for number, word in enumerate(dict.fromkeys(word for text in words for word in text))}
    retriever = bm25s.BM25()
    retriever.index(([[numbers[word] for word in text] for text in words], numbers), show_progress=False)
    predictions = []
    for question, _ in questions:
        shared = [word for word in split_words(question) if word in numbers]
        scores = retriever.get_scores(shared) if shared else np.zeros(len(documents))
        predictions.append(_make_prediction([answer for _, answer in documents], scores))
    return Baseline("BM25", score_answers([answer for _, answer in questions], predictions))


def score_tf_idf(train: Pairs, questions: Pairs) -> Baseline:
    """Logistic regression on TF-IDF; the probability of the likeliest answer is that a question is known."""
    inside = [(question, answer) for question, answer in train if answer]
    model = TfidfBaseline().fit([question for question, _ in inside], [answer for _, answer in inside])
    shares = model.probabilities([question for question, _ in questions])
    predictions = [_make_prediction(model.labels, row) for row in shares]
    right = [answer for _, answer in questions]
    return Baseline(model.name, score_answers(right, predictions, unseen={*right} - {*model.labels, ""}))


def split_words(text: str) -> list[str]:
    """Words in lower case; Chinese, Japanese and Korean characters one by one.

    >>> split_words("My card's 信用卡 #2")
    ['my', 'card', 's', '信', '用', '卡', '2']
    """
    return WORD.findall(text.lower())


def _make_prediction(answers: Sequence[str], scores: np.ndarray) -> AnswerPrediction:
    """The first different answers by descending score."""
    best: dict[str, float] = {}
    for number in np.argsort(-scores, kind="stable"):
        best.setdefault(answers[number], float(scores[number]))
        if len(best) == RANKED_ANSWERS:
            break
    matches = tuple(Match(number, text, score) for number, (text, score) in enumerate(best.items()))
    return AnswerPrediction(matches[0].text, matches=matches, in_scope=matches[0].score)


def add_pairs(answerer: QuestionAnswerer, folder: Path, arguments: Sequence[str], as_json: bool) -> list[str]:
    """Makes questions with their answers known; of pairs new answers also by their own text."""
    pairs, processor = read_pairs(arguments), answerer.processor
    with hold_lock(folder):
        index = open_index(folder)
        present = {(entry.question, entry.answer) for entry in index.entries}
        fresh = [pair for pair in dict.fromkeys(pairs) if pair not in present]
        ids = index.assign_ids([answer for _, answer in fresh])
        entries = [Entry(number, answer, question, True) for number, (question, answer) in zip(ids, fresh, strict=True)]
        names = {entry.id: entry.answer for entry in entries}
        counts = Counter(ids)
        if processor.kind == "pairs":
            entries += [
                Entry(number, text, None, True) for number, text in names.items() if number not in index.answers
            ]
        if entries:
            vectors = processor.encode_entries(answerer.model, [entry.text for entry in entries]).numpy()
            replace_index(folder, index.extend(entries, vectors))
    lines = [
        f"answer {number}{'' if number in index.answers else ' (new)'}: "
        f"{format_count(count, 'question')} added: {names[number]}"
        for number, count in counts.items()
    ]
    repeated = len(pairs) - len(fresh)
    return lines + ([f"{format_count(repeated, 'question')} known already"] if repeated else [])


def remove_answers(answerer: QuestionAnswerer, folder: Path, arguments: Sequence[str], as_json: bool) -> list[str]:
    if not arguments:
        raise ConfigError("remove needs the ids of answers; clearhead answers MODEL list shows them")
    with hold_lock(folder):
        index, ids = open_index(folder), list(dict.fromkeys(map(_parse_id, arguments)))
        replace_index(folder, index.remove(ids))
    return [f"removed answer {number}: {index.answers[number]}" for number in ids]


def list_answers(answerer: QuestionAnswerer, folder: Path, arguments: Sequence[str], as_json: bool) -> list[str]:
    """A line for each answer (id, number of questions, text); of the ids in `arguments`, a line for each question."""
    index, ids = open_index(folder), list(map(_parse_id, arguments))
    index.refuse_unknown(ids)
    questions: dict[int, list[str]] = {number: [] for number in sorted(ids or index.answers)}
    for entry in index.entries:
        if entry.id in questions and entry.question is not None:
            questions[entry.id].append(entry.question)
    if as_json:
        return [
            json.dumps({"id": number, "text": index.answers[number], "questions": asked}, ensure_ascii=False)
            for number, asked in questions.items()
        ]
    if ids:
        return [f"{number}\t{_one_line(text)}" for number, asked in questions.items() for text in asked]
    return [f"{number}\t{len(asked)}\t{_one_line(index.answers[number])}" for number, asked in questions.items()]


def set_reject(answerer: QuestionAnswerer, folder: Path, arguments: Sequence[str], as_json: bool) -> list[str]:
    """Stores the share of answerable questions that may be refused, until another one is stored."""
    try:
        [share] = map(float, arguments)
    except ValueError:
        raise ConfigError("reject needs one number, the share of answerable questions, such as 0.1") from None
    validate(AnswerOptions, {"reject": share})
    answerer.find_finder().select_calibration(share)  # there must be one
    with hold_lock(folder):
        replace_index(folder, replace(open_index(folder), reject=share))
    return [f"from now on {share:g} of the answerable questions may be refused"]


ACTIONS = {
    "add": Action(
        'add "QUESTION" "ANSWER", or add FILE with both: makes an answer known, or another question for it.', add_pairs
    ),
    "remove": Action("remove ID …: forgets answers with all of their questions.", remove_answers),
    "list": Action("list [ID …]: all answers, or all questions of some, with their ids.", list_answers),
    "reject": Action(
        "reject SHARE: answerable questions that may be refused, unless predict says --reject.", set_reject
    ),
}


def read_pairs(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """The questions and answers that `add` was given, each with some text that is not too long."""
    if len(arguments) == 1 and unpacked_name(Path(arguments[0])).endswith(FILES):
        rows = [(f"{row.where}: ", *row.values) for row in AnswerProcessor.read(arguments[0])]
    elif len(arguments) == 2:
        rows = [("", *arguments)]
    else:
        raise ConfigError("add needs a question and its answer, or one file with both (.tsv, .csv or .jsonl)")
    for where, question, answer in rows:
        for name, text in (("question", question), ("answer", answer)):
            if not text.strip():
                raise DataError(f"{where}the {name} is empty; nothing was added")
            if re.search("[\ud800-\udfff]", text):  # as Python makes of an argument that is no UTF-8
                raise DataError(f"{where}the {name} {text!r:.60} is not UTF-8; nothing was added")
            if len(text) > MAX_CHARACTERS:
                problem = f"the {name} has {len(text):,} characters, more than {MAX_CHARACTERS:,}"
                raise DataError(f"{where}{problem}; shorten it; nothing was added")
    return [(question.strip(), answer.strip()) for _, question, answer in rows]


def _parse_id(text: str) -> int:
    number = parse_whole_number(text)
    if number is None:
        raise ConfigError(f"the id of an answer is a number, not {text!r:.60}; clearhead answers MODEL list shows all")
    return number


def _one_line(text: str) -> str:
    return " ".join(text.split())


TASK = Task(
    name="answers",
    recipe=AnswersRecipe,
    processor=AnswerProcessor,
    objective=AnswerObjective,
    answerer=QuestionAnswerer,
    tracer=QuestionTracer,
    metrics=("accuracy", "recall_at_5", "mrr"),
    report=report_answers,
    curve=trace_answers,
    baseline=score_simple,
    contradict=exclude_each_other,
    actions=ACTIONS,
)
