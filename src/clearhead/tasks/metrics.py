"""Metrics: scores of predictions against references, tables of labels and confusion matrices."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clearhead.errors import DataError
from clearhead.formatting import escape_control


def translation_scores(
    outputs: Sequence[str], references: Sequence[str], *, tokenize: str = "13a", lowercase: bool = False
) -> dict[str, float | str]:
    """BLEU and chrF of a whole corpus by sacrebleu, with the signatures that say how.

    >>> scores = translation_scores(["The cat sat on the mat."], ["The cat sat on the mat."])
    >>> scores["bleu"], scores["bleu_signature"].split("|version")[0]
    (100.0, 'nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp')
    """
    if not outputs:
        raise DataError("there are no rows to score")
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    bleu, chrf = BLEU(tokenize=tokenize, lowercase=lowercase), CHRF(lowercase=lowercase)
    return {
        "bleu": round(bleu.corpus_score(list(outputs), [list(references)]).score, 2),
        "chrf": round(chrf.corpus_score(list(outputs), [list(references)]).score, 2),
        "bleu_signature": str(bleu.get_signature()),
        "chrf_signature": str(chrf.get_signature()),
    }


class LabelScores(NamedTuple):
    """Precision, recall, F1 and support of one label, or their average over all labels."""

    precision: float
    recall: float
    f1: float
    support: int  # how often the label was wanted


class LabelCounts(NamedTuple):
    """How often each label was right, was predicted and was wanted."""

    right: Counter[str]
    predicted: Counter[str]
    wanted: Counter[str]

    def table(self, labels: Sequence[str]) -> dict[str, LabelScores]:
        """Scores of each label, and their micro, macro and weighted averages, as scikit-learn's classification_report.

        What is divided by zero is 0.

        >>> table = count_labels([["a"], ["a"], ["b"]], [["a"], ["b"], ["b"]]).table(["a", "b"])
        >>> [round(value, 2) for value in table["macro avg"]]
        [0.75, 0.75, 0.67, 3]
        """
        table = {label: self._score([label]) for label in labels}
        rows = list(table.values())
        macro, weighted = _average(rows, [1] * len(rows)), _average(rows, [row.support for row in rows])
        return {**table, "micro avg": self._score(labels), "macro avg": macro, "weighted avg": weighted}

    def _score(self, labels: Sequence[str]) -> LabelScores:
        hits, predicted, support = (sum(counts[label] for label in labels) for counts in self)
        precision, recall = hits / max(predicted, 1), hits / max(support, 1)
        return LabelScores(precision, recall, 2 * hits / max(predicted + support, 1), support)


def _average(rows: Sequence[LabelScores], weights: Sequence[int]) -> LabelScores:
    total = max(sum(weights), 1)
    precision, recall, f1 = (
        sum(row[column] * weight for row, weight in zip(rows, weights, strict=True)) / total for column in range(3)
    )
    return LabelScores(precision, recall, f1, sum(row.support for row in rows))


def count_labels(wanted: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> LabelCounts:
    """Counts over rows that have one label or several."""
    hits = (label for row, answer in zip(wanted, predicted, strict=True) for label in row if label in answer)
    return LabelCounts(Counter(hits), Counter(chain(*predicted)), Counter(chain(*wanted)))


def format_label_table(table: dict[str, LabelScores], labels: Sequence[str]) -> str:
    """The table as text, with an empty line between labels and averages.

    >>> labels = ["好", "\\n"]
    >>> print(format_label_table(count_labels([["好"], ["\\n"]], [["好"], ["好"]]).table(labels), labels))
                  precision  recall      f1  support
    好               0.5000  1.0000  0.6667        1
    \\n               0.0000  0.0000  0.0000        1
    <BLANKLINE>
    micro avg        0.5000  0.5000  0.5000        2
    macro avg        0.2500  0.5000  0.3333        2
    weighted avg     0.2500  0.5000  0.3333        2
    """
    shown = [escape_control(name, keep="") for name in table]
    width = max(map(_columns, shown))
    lines = [f"{' ' * width}  precision  recall      f1  support"]
    for name, row in zip(shown, table.values(), strict=True):
        if len(lines) == len(labels) + 1:
            lines.append("")
        padded = name + " " * (width - _columns(name))
        lines.append(f"{padded}  {row.precision:9.4f}  {row.recall:.4f}  {row.f1:.4f}  {row.support:7d}")
    return "\n".join(lines)


def _columns(text: str) -> int:
    """The width of a text in a terminal, where a Chinese character takes two columns."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def count_confusions(
    wanted: Sequence[str], predicted: Sequence[str], labels: Sequence[str]
) -> tuple[list[str], NDArray[np.int64]]:
    """The labels, and how often a row of the one label (rows) was given the other (columns).

    >>> count_confusions(["a", "a", "b"], ["a", "b", "b"], ["a", "b"])[1].tolist()
    [[1, 1], [0, 1]]
    """
    pairs = Counter(zip(wanted, predicted, strict=True))
    return list(labels), np.array([[pairs[row, column] for column in labels] for row in labels], dtype=np.int64)


def label_scores(labels: Sequence[str], answers: Sequence[str]) -> dict[str, float | str]:
    """Accuracy, and the unweighted mean of the F1 of all labels that occur, right or answered; from 0 to 1.

    >>> label_scores(["a", "a", "b", "c"], ["a", "b", "b", "b"])
    {'accuracy': 0.5, 'macro_f1': 0.3889}
    """
    if not labels:
        raise DataError("there are no rows to score")
    pairs = Counter(zip(labels, answers, strict=True))
    wanted, predicted = Counter(labels), Counter(answers)
    # F1 = 2·hits / (wanted + predicted), which needs no precision or recall of labels that never come
    f1 = [2 * pairs[label, label] / (wanted[label] + predicted[label]) for label in wanted | predicted]
    right = sum(pairs[label, label] for label in wanted)
    return {"accuracy": round(right / len(labels), 4), "macro_f1": round(sum(f1) / len(f1), 4)}
