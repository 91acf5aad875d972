"""Scores of ranked answers and of the refusal to answer, and the tables of `evaluate --report`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

import numpy as np

from clearhead.tasks.answerer import Scores
from clearhead.tasks.answers.answer_settings import AnswerPrediction
from clearhead.tasks.answers.out_of_scope import area_under_curve

DIGITS = 4
WORST = 30  # answers in a report


def score_answers(
    right: Sequence[str], predictions: Sequence[AnswerPrediction], *, unseen: Collection[str] = ()
) -> Scores:
    """Accuracy, recall at 5 and mean reciprocal rank (of the first ten) over the questions that have an answer.

    They are of the best answers, whether or not the model would rather have said "I don't know". With out-of-scope
    questions (whose right answer is empty): AUROC of the detector in use, and the shares of answerable questions
    that were refused and of the others that were answered. Questions whose answers are `unseen`, which the model cannot
    give, are wrong in the former and left out of the latter: to refuse them is neither right nor wrong.
    """
    inside = [(text, one) for text, one in zip(right, predictions, strict=True) if text]
    outside = [one for text, one in zip(right, predictions, strict=True) if not text]
    ranks = np.array([_rank(text, one) for text, one in inside]) if inside else np.array([np.inf])
    scores: Scores = {
        "accuracy": round(float((ranks == 1).mean()), DIGITS),
        "recall_at_5": round(float((ranks <= 5).mean()), DIGITS),
        "mrr": round(float((1 / ranks).mean()), DIGITS),
    }
    inside = [(text, one) for text, one in inside if text not in unseen]
    if outside and inside:
        known, unknown = (np.array([one.in_scope for one in some]) for some in ([one for _, one in inside], outside))
        scores["auroc"] = round(area_under_curve(known, unknown), DIGITS)
    if not all("mean" in one.evidence for one in predictions):  # nothing has a threshold before it is calibrated
        return scores
    if inside:
        scores["false_rejection_rate"] = round(float(np.mean([not one.known for _, one in inside])), DIGITS)
    if outside:
        scores["false_acceptance_rate"] = round(float(np.mean([one.known for one in outside])), DIGITS)
    return scores


def _rank(text: str, prediction: AnswerPrediction) -> float:
    texts = [match.text for match in prediction.matches]
    return float(texts.index(text) + 1) if text in texts else np.inf


def make_report(right: Sequence[str], predictions: Sequence[AnswerPrediction], *, unseen: Collection[str] = ()) -> str:
    """A table of the answers that are found worst, and the AUROC of every detector."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])  # questions, hits, answered, refused
    for text, one in zip(right, predictions, strict=True):
        guess = one.matches[0].text if one.matches else ""
        if text:
            counts[text][0] += 1
            counts[text][1] += guess == text
            counts[text][3] += not one.known
            counts[guess][2] += 1
    rows = [(_f1(*values[:3]), text, values) for text, values in counts.items() if text]
    rows.sort(key=lambda row: (row[0], row[1]))
    lines = [f"{'precision':>9}  {'recall':>6}  {'f1':>6}  {'refused':>7}  {'questions':>9}  answer"]
    for f1, text, (questions, hits, answered, refused) in rows[:WORST]:
        precision, recall = hits / max(answered, 1), hits / max(questions, 1)
        shown = " ".join(text.split())
        shown = shown if len(shown) <= 60 else shown[:59] + "…"
        lines.append(f"{precision:9.4f}  {recall:6.4f}  {f1:6.4f}  {refused:7}  {questions:9}  {shown}")
    if len(rows) > WORST:
        lines.append(f"… and {len(rows) - WORST} answers that are found better")
    judged = [(text, one) for text, one in zip(right, predictions, strict=True) if text not in unseen]
    return "\n".join([*lines, *_detector_lines([text for text, _ in judged], [one for _, one in judged])])


def _f1(questions: int, hits: int, answered: int) -> float:
    return 2 * hits / max(questions + answered, 1)


def _detector_lines(right: Sequence[str], predictions: Sequence[AnswerPrediction]) -> list[str]:
    inside = np.array([bool(text) for text in right])
    if inside.all() or not inside.any() or not predictions[0].evidence:
        return []
    lines = ["", f"{'AUROC':>9}  detector of out-of-scope questions"]
    for name in predictions[0].evidence:
        scores = np.array([one.evidence[name] for one in predictions])
        lines.append(f"{area_under_curve(scores[inside], scores[~inside]):9.4f}  {name}")
    return lines
