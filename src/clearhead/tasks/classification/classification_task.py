"""The declaration of the task classification, with its tables and its baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clearhead.errors import ConfigError
from clearhead.tasks.answerer import Baseline
from clearhead.tasks.baselines import TfidfBaseline
from clearhead.tasks.classification.classifier_answerer import (
    ClassifierAnswerer,
    ClassifierTracer,
    LabelPrediction,
    score_answers,
)
from clearhead.tasks.classification.classifier_objective import ClassifierObjective
from clearhead.tasks.classification.classifier_processor import ClassificationRecipe, ClassifierProcessor
from clearhead.tasks.metrics import count_confusions, count_labels, format_label_table
from clearhead.tasks.task import Task

if TYPE_CHECKING:
    from clearhead.text import Row


def report_labels(processor: ClassifierProcessor, rows: Sequence[Row], predictions: Sequence[LabelPrediction]) -> str:
    """The table of precision, recall and F1 of each label."""
    labels = [*processor.labels, *processor.unseen_labels(rows)]
    wanted = [processor.column.parse(row.values[-1]) for row in rows]
    counts = count_labels(wanted, [prediction.answers for prediction in predictions])
    return format_label_table(counts.table(labels), labels)


def count_label_confusions(
    processor: ClassifierProcessor, rows: Sequence[Row], predictions: Sequence[LabelPrediction]
) -> tuple[list[str], NDArray[np.int64]]:
    if processor.column.multi_label:
        raise ConfigError("texts with several labels have no confusion matrix; --report has a table of the labels")
    wanted = [processor.column.parse(row.values[-1])[0] for row in rows]
    labels = [*processor.labels, *processor.unseen_labels(rows)]
    return count_confusions(wanted, [prediction.label for prediction in predictions], labels)


def score_tf_idf(processor: ClassifierProcessor, train: Sequence[Row], rows: Sequence[Row]) -> Baseline:
    """TF-IDF with logistic regression; the texts of a pair are joined."""
    column, multi_label = processor.column, processor.column.multi_label
    texts, labels = list[str](), list[Any]()
    for row in train:
        written = column.parse(row.values[-1])
        if written or multi_label:
            texts.append(" ".join(row.values[:-1]))
            labels.append(written if multi_label else written[0])
    simple = TfidfBaseline(multi_label=multi_label).fit(texts, labels)
    answers = simple.predict([" ".join(row.values[:-1]) for row in rows])
    answered = answers if multi_label else [[answer] for answer in answers]
    wanted = [column.parse(row.values[-1]) for row in rows]
    return Baseline(simple.name, score_answers(wanted, answered, multi_label=multi_label))


def have_different_labels(processor: ClassifierProcessor, rows: Sequence[Row]) -> bool:
    return len({frozenset(processor.column.parse(row.values[-1])) for row in rows}) > 1


TASK = Task(
    name="classification",
    recipe=ClassificationRecipe,
    processor=ClassifierProcessor,
    objective=ClassifierObjective,
    answerer=ClassifierAnswerer,
    tracer=ClassifierTracer,
    metrics=("accuracy", "macro_f1"),
    report=report_labels,
    confusion=count_label_confusions,
    baseline=score_tf_idf,
    contradict=have_different_labels,
)
