"""The task answers: finds the best known answer to a question, and says "I don't know" where there is none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clearhead.errors import import_extra
from clearhead.tasks.answerer import Baseline
from clearhead.tasks.answers.answer_objective import AnswerObjective
from clearhead.tasks.answers.answer_processor import AnswerProcessor, clean_pair
from clearhead.tasks.answers.answer_settings import RANKED_ANSWERS, AnswerPrediction, AnswersRecipe, Match
from clearhead.tasks.answers.index_actions import ACTIONS
from clearhead.tasks.answers.question_answerer import QuestionAnswerer, QuestionTracer, make_report, score_answers
from clearhead.tasks.baselines import TfidfBaseline
from clearhead.tasks.metrics import count_confusions
from clearhead.tasks.task import Task

if TYPE_CHECKING:
    from clearhead.text import Row

# A word, or one character of a script that is written without spaces.
UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af"
WORD = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")

Pairs = Sequence[tuple[str, str]]  # question, answer


def report_answers(processor: AnswerProcessor, rows: Sequence[Row], predictions: Sequence[AnswerPrediction]) -> str:
    right = [clean_pair(row)[1] for row in rows]
    return make_report(right, predictions, unseen=processor.find_unseen(rows))


def count_answer_confusions(
    processor: AnswerProcessor, rows: Sequence[Row], predictions: Sequence[AnswerPrediction]
) -> tuple[list[str], NDArray[np.int64]]:
    """How often questions of one answer were given another, of the questions that have an answer."""
    pairs = [(clean_pair(row)[1], answer.matches) for row, answer in zip(rows, predictions, strict=True)]
    answered = [(right, matches[0].text) for right, matches in pairs if right and matches]
    labels = sorted({text for pair in answered for text in pair})
    return count_confusions([right for right, _ in answered], [guess for _, guess in answered], labels)


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


TASK = Task(
    name="answers",
    recipe=AnswersRecipe,
    processor=AnswerProcessor,
    objective=AnswerObjective,
    answerer=QuestionAnswerer,
    tracer=QuestionTracer,
    metrics=("accuracy", "recall_at_5", "mrr"),
    report=report_answers,
    confusion=count_answer_confusions,
    baseline=score_simple,
    contradict=exclude_each_other,
    actions=ACTIONS,
)
