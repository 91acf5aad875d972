"""The task answers: finds the best known answer to a question, and says "I don't know" where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clearhead.tasks.answerer import Baseline
from clearhead.tasks.answers.answer_objective import AnswerObjective
from clearhead.tasks.answers.answer_processor import AnswerProcessor, clean_pair
from clearhead.tasks.answers.answer_scores import make_report
from clearhead.tasks.answers.answer_settings import AnswerPrediction, AnswersRecipe
from clearhead.tasks.answers.index_actions import ACTIONS
from clearhead.tasks.answers.question_answerer import QuestionAnswerer, QuestionTracer
from clearhead.tasks.label_tables import count_confusions
from clearhead.tasks.task import Action, Task

if TYPE_CHECKING:
    from clearhead.text import Row


def report_answers(processor: AnswerProcessor, rows: Sequence[Row], predictions: Sequence[AnswerPrediction]) -> str:
    right = [clean_pair(row)[1] for row in rows]
    return make_report(right, predictions, unseen=processor.find_unseen(rows))


def count_answer_confusions(
    processor: AnswerProcessor, rows: Sequence[Row], predictions: Sequence[AnswerPrediction]
) -> tuple[list[str], NDArray[np.int64]]:
    """How often questions of one answer were given another, of the questions that have an answer."""
    pairs = [(clean_pair(row)[1], one.matches) for row, one in zip(rows, predictions, strict=True)]
    answered = [(right, matches[0].text) for right, matches in pairs if right and matches]
    labels = sorted({text for pair in answered for text in pair})
    return labels, count_confusions([right for right, _ in answered], [given for _, given in answered], labels)


def score_simple(processor: AnswerProcessor, train: Sequence[Row], rows: Sequence[Row]) -> Baseline:
    """TF-IDF with logistic regression for intents, BM25 for pairs."""
    from clearhead.tasks.answers.retrieval_baselines import score_bm25, score_tf_idf

    simple = score_tf_idf if processor.kind == "intents" else score_bm25
    return simple([clean_pair(row) for row in train], [clean_pair(row) for row in rows])


def run_index_action(
    action: str, answerer: QuestionAnswerer, folder: Path, arguments: Sequence[str], as_json: bool
) -> list[str]:
    return answerer.act(action, folder, arguments, as_json)


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
    actions={name: Action(about, partial(run_index_action, name)) for name, about in ACTIONS.items()},
)
