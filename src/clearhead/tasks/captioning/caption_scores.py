"""Scores of captions: BLEU, chrF and exact matches."""

from __future__ import annotations

from collections.abc import Sequence

from clearhead.tasks.answerer import Scores
from clearhead.tasks.metrics import translation_scores
from clearhead.tasks.segmentation import measure_han_share

CHINESE = 0.3  # the share of Chinese characters from which on captions are Chinese


def score_captions(outputs: Sequence[str], references: Sequence[str]) -> Scores:
    """BLEU, chrF and exact matches, all from 0 to 100.

    >>> scores = score_captions(["a red circle", "a cat"], ["a red circle", "a dog"])
    >>> scores["exact"], scores["chrf"] > 50
    (50.0, True)
    """
    chinese = measure_han_share(references) > CHINESE
    scores = translation_scores(outputs, references, tokenize="zh" if chinese else "13a")
    right = sum(output.strip() == text.strip() for output, text in zip(outputs, references, strict=True))
    return {**scores, "exact": round(100 * right / len(references), 2)}
