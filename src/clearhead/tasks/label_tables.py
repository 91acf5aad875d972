"""Tables of labels: precision, recall, F1 and support of each, with averages, and the confusion matrix."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clearhead.formatting import escape_control


class LabelScores(NamedTuple):
    """Precision, recall, F1 and support of one label, or their average over all labels."""

    precision: float
    recall: float
    f1: float
    support: int  # rows that have the label


def label_table(
    right: Sequence[Sequence[str]], given: Sequence[Sequence[str]], labels: Sequence[str]
) -> dict[str, LabelScores]:
    """Scores of each label, and their micro, macro and weighted averages, as scikit-learn's classification_report.

    `right` and `given` are the labels of each row, one or several. What is divided by zero is 0.

    >>> table = label_table([["a"], ["a"], ["b"]], [["a"], ["b"], ["b"]], ["a", "b"])
    >>> [round(value, 2) for value in table["macro avg"]]
    [0.75, 0.75, 0.67, 3]
    """
    support = Counter(label for row in right for label in row)
    answered = Counter(label for row in given for label in row)
    hits = Counter(label for row, answer in zip(right, given, strict=True) for label in row if label in answer)
    table = {label: _label_scores(hits[label], answered[label], support[label]) for label in labels}
    rows, total = list(table.values()), sum(support[label] for label in labels)
    micro = _label_scores(sum(hits[label] for label in labels), sum(answered[label] for label in labels), total)
    macro, weighted = _average(rows, [1] * len(rows)), _average(rows, [row.support for row in rows])
    return {**table, "micro avg": micro, "macro avg": macro, "weighted avg": weighted}


def format_label_table(table: dict[str, LabelScores], labels: Sequence[str]) -> str:
    """The table as text, with an empty line between labels and averages.

    >>> print(format_label_table(label_table([["好"], ["\\n"]], [["好"], ["好"]], ["好", "\\n"]), ["好", "\\n"]))
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


def count_confusions(right: Sequence[str], given: Sequence[str], labels: Sequence[str]) -> NDArray[np.int64]:
    """How often a row of the one label (rows) was given the other (columns).

    >>> count_confusions(["a", "a", "b"], ["a", "b", "b"], ["a", "b"]).tolist()
    [[1, 1], [0, 1]]
    """
    numbers = {label: number for number, label in enumerate(labels)}
    counts = np.zeros((len(labels), len(labels)), dtype=np.int64)
    for label, answer in zip(right, given, strict=True):
        counts[numbers[label], numbers[answer]] += 1
    return counts


def _label_scores(hits: int, answered: int, support: int) -> LabelScores:
    precision, recall = hits / max(answered, 1), hits / max(support, 1)
    return LabelScores(precision, recall, 2 * hits / max(answered + support, 1), support)


def _average(rows: Sequence[LabelScores], weights: Sequence[int]) -> LabelScores:
    total = max(sum(weights), 1)
    precision, recall, f1 = (
        sum(row[place] * weight for row, weight in zip(rows, weights, strict=True)) / total for place in range(3)
    )
    return LabelScores(precision, recall, f1, sum(row.support for row in rows))


def _columns(text: str) -> int:
    """The width of a text in a terminal, where a Chinese character takes two columns."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
