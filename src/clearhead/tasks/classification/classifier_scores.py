"""Scores of a classifier: accuracy, F1, and calibration error."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clearhead.errors import DataError
from clearhead.tasks.answerer import Scores
from clearhead.tasks.classification.calibration import expected_calibration_error, undo_temperature
from clearhead.tasks.classification.label_prediction import LabelPrediction
from clearhead.tasks.label_tables import label_table
from clearhead.tasks.metrics import label_scores


def score_answers(right: Sequence[Sequence[str]], given: Sequence[Sequence[str]], *, multi_label: bool) -> Scores:
    """Accuracy and macro F1; of several labels, an answer is accurate if all are right, and there is a micro F1.

    >>> score_answers([["a", "b"], []], [["a"], []], multi_label=True)
    {'accuracy': 0.5, 'macro_f1': 0.5, 'micro_f1': 0.6667}
    """
    if not multi_label:
        return label_scores([one[0] for one in right], [one[0] for one in given])
    if not right:
        raise DataError("there are no rows to score")
    equal = [set(one) == set(other) for one, other in zip(right, given, strict=True)]
    labels = sorted({label for row in (*right, *given) for label in row})
    table = label_table(right, given, labels)
    return {
        "accuracy": round(sum(equal) / len(equal), 4),
        "macro_f1": round(table["macro avg"].f1, 4),
        "micro_f1": round(table["micro avg"].f1, 4),
    }


def score_calibration(
    right: Sequence[Sequence[str]], predictions: Sequence[LabelPrediction], labels: Sequence[str], temperature: float
) -> Scores:
    """The expected calibration error with the fitted temperature, and without it.

    Of one label, of the probability of the answer; of several, of every label's probability that the text has it.
    """
    shares = np.array([[(one.scores or {})[label] for label in labels] for one in predictions])
    many = predictions[0].labels is not None
    before = undo_temperature(shares, temperature, multi_label=many)
    if many:
        hits = np.array([[label in row for label in labels] for row in right]).ravel()
        errors = [expected_calibration_error(one.ravel(), hits) for one in (shares, before)]
    else:
        hits = np.array([one.label == row[0] for one, row in zip(predictions, right, strict=True)])
        errors = [expected_calibration_error(one.max(1), hits) for one in (shares, before)]
    return {"calibration_error": round(errors[0], 4), "calibration_error_before": round(errors[1], 4)}
