"""Metrics: BLEU, chrF, ROUGE, word and character error rates, tables of labels and confusion matrices."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clearhead.errors import DataError, import_extra
from clearhead.formatting import escape_control
from clearhead.text.chinese import is_mostly_chinese

ROUGE_KINDS = ("rouge1", "rouge2", "rougeL")
Scores1d = NDArray[np.float64]
NOTHING: Scores1d = np.zeros(0)
# For each point a threshold, the share of rows that are answered, and the share of these that is right.
Curve = Sequence[Mapping[str, float]]
PUNCTUATION = re.compile(r"(?!')[^\w\s]|_")  # apostrophes belong to words


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


def trace_curve(
    confidence: Scores1d, judge: Callable[[float], NDArray[np.bool_]], outside: Scores1d = NOTHING
) -> Curve:
    """The shares of rows answered, and of these right, at thresholds from which on 100 %, 90 % … 10 % are answered.

    `judge` says of each row whether its answer at a threshold is right. `outside` is the confidence of out-of-scope
    rows. Where rows are equally confident, more of them are answered.

    >>> right = np.array([True, True, True, False])
    >>> points = trace_curve(np.array([0.9, 0.9, 0.8, 0.5]), lambda threshold: right)
    >>> [list(point.values()) for point in points]
    [[0.5, 1.0, 0.75], [0.8, 0.75, 1.0], [0.9, 0.5, 1.0]]
    """
    counts = [-(-len(confidence) * tenths // 10) for tenths in range(10, 0, -1)]
    points = list[dict[str, float]]()
    for threshold in np.unique(np.sort(confidence)[len(confidence) - np.array(counts)] if len(confidence) else []):
        answered = confidence >= threshold
        shares = {"answered": answered.mean(), "right": judge(float(threshold))[answered].mean()}
        if len(outside):
            shares["out_of_scope_answered"] = (outside >= threshold).mean()
        points.append(
            {"threshold": float(threshold), **{name: round(float(value), 4) for name, value in shares.items()}}
        )
    return points


def format_curve(curve: Curve) -> str:
    """The points as a table."""
    lines = ["  ".join(f"{name:>9}" for name in curve[0])]
    return "\n".join(
        lines + ["  ".join(f"{value:{max(9, len(name))}.4f}" for name, value in row.items()) for row in curve]
    )


class CharacterTokenizer:
    """Every character but white space is a token: rouge-score's own tokenizer keeps Latin letters and digits only."""

    def tokenize(self, text: str) -> list[str]:
        return [character for character in text.lower() if not character.isspace()]


def rouge_scores(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float | str]:
    """The mean F1 of ROUGE-1, ROUGE-2 and ROUGE-L over all outputs, 0 to 100, with a signature that says how.

    Each output has one or more references; for each kind of ROUGE the one with the largest F1 counts.
    Words are compared by their stems (Porter's), as `RougeScorer(kinds, use_stemmer=True)` does. Where the
    references are Chinese, characters are compared.

    >>> scores = rouge_scores(["the cat sat on the mat"], [["the cats sat", "a dog"]])
    >>> scores["rouge1"], scores["rouge2"], scores["rouge_signature"]
    (66.67, 57.14, 'rouge-score 0.1.2|stemmed words|best of 2 references')
    >>> rouge_scores(["我爱北京"], [["我爱上海"]])["rouge1"]
    50.0
    """
    if not outputs:
        raise DataError("there are no rows to score")
    rouge_scorer = import_extra("rouge_score.rouge_scorer", "ROUGE", "train", package="rouge-score")
    chinese = is_mostly_chinese([text for texts in references for text in texts])
    scorer = rouge_scorer.RougeScorer(
        list(ROUGE_KINDS), use_stemmer=True, tokenizer=CharacterTokenizer() if chinese else None
    )
    totals = dict.fromkeys(ROUGE_KINDS, 0.0)
    for output, texts in zip(outputs, references, strict=True):
        scores = scorer.score_multi(list(texts), output)
        for kind in ROUGE_KINDS:
            totals[kind] += scores[kind].fmeasure
    counts = sorted({len(texts) for texts in references})
    many = f"best of {'–'.join(map(str, sorted({counts[0], counts[-1]})))} references"
    signature = f"rouge-score {version('rouge-score')}|{'characters' if chinese else 'stemmed words'}"
    return {
        **{kind: round(100 * total / len(outputs), 2) for kind, total in totals.items()},
        "rouge_signature": signature if counts[-1] == 1 else f"{signature}|{many}",
    }


def normalise_text(text: str) -> str:
    """A text as it is compared: lower case, without punctuation, one space between words.

    >>> normalise_text("Don't  go, Tom!")
    "don't go tom"
    """
    return " ".join(PUNCTUATION.sub(" ", text.lower()).split())


def error_rates(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float | str]:
    """WER and CER of all texts together, in percent; smaller is better, and above 100 is possible.

    >>> error_rates(["one too three"], ["One two three."])["wer"]
    33.33
    """
    if not references:
        raise DataError("there are no rows to score")
    jiwer = import_jiwer()
    pairs = [(normalise_text(text), normalise_text(wanted)) for text, wanted in zip(outputs, references, strict=True)]
    # jiwer refuses references without words, such as "…"; what is said for them counts as inserted words.
    extra = [text for text, reference in pairs if not reference]
    texts = [text for text, reference in pairs if reference]
    wanted = [reference for _, reference in pairs if reference]
    if not wanted:
        raise DataError("no reference has a word in it, so there is nothing to score")
    words, letters = jiwer.process_words(wanted, texts), jiwer.process_characters(wanted, texts)
    return {
        "wer": _error_rate(words, sum(len(text.split()) for text in extra)),
        "cer": _error_rate(letters, sum(len(text) for text in extra)),
        "wer_signature": f"jiwer {version('jiwer')}, lower case, no punctuation",
    }


def _error_rate(counts: Any, inserted: int) -> float:
    edits = counts.substitutions + counts.deletions + counts.insertions + inserted
    return round(100.0 * float(edits) / float(counts.hits + counts.substitutions + counts.deletions), 2)


def import_jiwer() -> Any:
    return import_extra("jiwer", "word error rates", "audio")
