"""Scores of texts against references, by the libraries that the field trusts."""

from __future__ import annotations

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
        raise DataError("there is not one line to score")
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    bleu, chrf = BLEU(tokenize=tokenize, lowercase=lowercase), CHRF(lowercase=lowercase)
    return {
        "bleu": round(bleu.corpus_score(list(outputs), [list(references)]).score, 2),
        "chrf": round(chrf.corpus_score(list(outputs), [list(references)]).score, 2),
        "bleu_signature": str(bleu.get_signature()),
        "chrf_signature": str(chrf.get_signature()),
    }
