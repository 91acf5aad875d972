"""Baselines of answers: BM25 over the known questions and answers, TF-IDF with logistic regression for intents."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from clearhead.errors import PackageError
from clearhead.tasks.answerer import Baseline
from clearhead.tasks.answers.answer_scores import score_answers
from clearhead.tasks.answers.answer_settings import RANKED, AnswerPrediction, Match
from clearhead.tasks.baselines import TfidfBaseline

# A word, or one character of a script that is written without spaces.
UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af"
WORD = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")

Pairs = Sequence[tuple[str, str]]  # question, answer


def split_words(text: str) -> list[str]:
    """Words in lower case; Chinese, Japanese and Korean characters one by one.

    >>> split_words("My card's 信用卡 #2")
    ['my', 'card', 's', '信', '用', '卡', '2']
    """
    return WORD.findall(text.lower())


def score_bm25(known: Pairs, questions: Pairs) -> Baseline:
    """BM25 (Lucene's variant): the answers whose own text, or known question, shares the most words with a question."""
    try:
        import bm25s
    except ImportError:
        raise PackageError(
            "this baseline needs the package bm25s, which is not installed; pip install 'clearhead[baselines]'"
        ) from None
    documents = [(question, answer) for question, answer in known if answer]
    seen = {answer for _, answer in documents}
    documents += [(answer, answer) for answer in dict.fromkeys([*seen, *(one for _, one in questions)]) if answer]
    words = [split_words(text) for text, _ in documents]
    numbers = {word: number for number, word in enumerate(dict.fromkeys(word for some in words for word in some))}
    retriever = bm25s.BM25()
    retriever.index(
        (
            [[numbers[word] for word in some] for some in words],
            numbers,
        ),
        show_progress=False,
    )
    predictions = []
    for question, _ in questions:
        shared = [word for word in split_words(question) if word in numbers]
        scores = retriever.get_scores(shared) if shared else np.zeros(len(documents))
        predictions.append(_make_prediction([answer for _, answer in documents], scores))
    return Baseline("BM25", score_answers([answer for _, answer in questions], predictions))


def score_tf_idf(known: Pairs, questions: Pairs) -> Baseline:
    """Logistic regression on TF-IDF; a question is known as far as its likeliest answer is likely."""
    inside = [(question, answer) for question, answer in known if answer]
    model = TfidfBaseline().fit([question for question, _ in inside], [answer for _, answer in inside])
    shares = model.probabilities([question for question, _ in questions])
    predictions = [_make_prediction(model.labels, row) for row in shares]
    right = [answer for _, answer in questions]
    return Baseline(model.name, score_answers(right, predictions, unseen={*right} - {*model.labels, ""}))


def _make_prediction(answers: Sequence[str], scores: np.ndarray) -> AnswerPrediction:
    """The first different answers by descending score."""
    found: dict[str, float] = {}
    for place in np.argsort(-scores, kind="stable"):
        found.setdefault(answers[place], float(scores[place]))
        if len(found) == RANKED:
            break
    matches = tuple(Match(number, text, score) for number, (text, score) in enumerate(found.items()))
    return AnswerPrediction(matches[0].text, matches=matches, in_scope=matches[0].score)
