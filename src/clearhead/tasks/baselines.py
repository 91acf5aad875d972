"""TF-IDF with logistic regression by scikit-learn: the simple method that a text model should beat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clearhead.errors import DataError, import_extra
from clearhead.text.chinese import is_mostly_chinese

WORDS, CHARACTERS = (1, 2), (1, 3)  # lengths of the n-grams
MANY_TEXTS = 2000  # above which n-grams of characters must occur twice


class TfidfBaseline:
    """TF-IDF features of word 1–2-grams (characters 1–3 where text has no spaces) with logistic regression.

    Each label is a text; with `multi_label` each is a list of texts, and there is one regression for each label, with
    balanced classes. Term frequencies are sublinear, 1 + ln(count); characters are regularised less (C = 10), and of
    many texts those n-grams count that occur in two.

    >>> model = TfidfBaseline().fit(["good film", "good story", "bad film", "bad story"], ["yes", "yes", "no", "no"])
    >>> model.predict(["a good one", "so bad"])
    ['yes', 'no']
    """

    def __init__(self, *, multi_label: bool = False) -> None:
        self.multi_label = multi_label
        self.characters = False
        self.labels: list[str] = []
        self._pipeline: Any = None

    @property
    def name(self) -> str:
        grams = "characters, 1–3-grams" if self.characters else "words, 1–2-grams"
        return f"TF-IDF ({grams}) with logistic regression"

    def fit(self, texts: Sequence[str], labels: Sequence[str] | Sequence[Sequence[str]]) -> TfidfBaseline:
        import_extra("sklearn.linear_model", "a baseline", "baselines", package="scikit-learn")
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.multiclass import OneVsRestClassifier
        from sklearn.pipeline import make_pipeline

        self.characters = is_mostly_chinese(texts)
        if self.characters:
            rarest = 2 if len(texts) > MANY_TEXTS else 1
            features = TfidfVectorizer(analyzer="char", ngram_range=CHARACTERS, sublinear_tf=True, min_df=rarest)
        else:
            features = TfidfVectorizer(ngram_range=WORDS, sublinear_tf=True)
        self.labels = sorted({name for label in labels for name in ([label] if isinstance(label, str) else label)})
        balance = "balanced" if self.multi_label else None
        logistic: Any = LogisticRegression(C=10.0 if self.characters else 1.0, class_weight=balance, max_iter=1000)
        answers: Any = list(labels)
        if self.multi_label:
            logistic = OneVsRestClassifier(logistic)
            answers = np.array([[name in label for name in self.labels] for label in labels], dtype=np.int64)
        self._pipeline = make_pipeline(features, logistic)
        try:
            self._pipeline.fit(list(texts), answers)
        except ValueError as error:
            raise DataError(f"the baseline cannot learn from these texts: {error}") from None
        return self

    def predict(self, texts: Sequence[str]) -> list[Any]:
        """The label of each text; with `multi_label` the list of its labels, which may be empty."""
        answers = self._pipeline.predict(list(texts))
        if not self.multi_label:
            return [str(label) for label in answers]
        return [[name for name, is_on in zip(self.labels, row, strict=True) if is_on] for row in answers]

    def probabilities(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """(texts, labels), in the order of `labels`."""
        shares: NDArray[np.float64] = self._pipeline.predict_proba(list(texts))
        return shares
