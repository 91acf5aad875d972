"""Metrics: scores of predictions against references."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from clearhead.errors import DataError


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


def label_scores(labels: Sequence[str], answers: Sequence[str]) -> dict[str, float | str]:
    """Accuracy, and the unweighted mean of the F1 of all labels that occur, right or answered; from 0 to 1.

    >>> label_scores(["a", "a", "b", "c"], ["a", "b", "b", "b"])
    {'accuracy': 0.5, 'macro_f1': 0.3889}
    """
    if not labels:
        raise DataError("there are no rows to score")
    pairs = Counter(zip(labels, answers, strict=True))
    gold, given = Counter(labels), Counter(answers)
    # F1 = 2·hits / (gold + given), which needs no precision or recall of labels that never come
    f1 = [2 * pairs[label, label] / (gold[label] + given[label]) for label in gold | given]
    right = sum(pairs[label, label] for label in gold)
    return {"accuracy": round(right / len(labels), 4), "macro_f1": round(sum(f1) / len(f1), 4)}
