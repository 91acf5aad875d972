"""ROUGE of summaries by the package rouge-score; of Chinese texts by characters."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from clearhead.errors import DataError, PackageError
from clearhead.tasks.segmentation import are_chinese

KINDS = ("rouge1", "rouge2", "rougeL")


class CharacterTokenizer:
    """Every character but white space is a token: rouge-score's own tokenizer keeps Latin letters and digits only."""

    def tokenize(self, text: str) -> list[str]:
        return [character for character in text.lower() if not character.isspace()]


def rouge_scores(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float | str]:
    """The mean F1 of ROUGE-1, ROUGE-2 and ROUGE-L over all outputs, 0 to 100, with a signature that says how.

    Each output has one or more references, of which the one with the largest F1 counts, for each kind of ROUGE.
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
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ModuleNotFoundError as error:
        raise PackageError(f"ROUGE needs the package {error.name}; pip install 'clearhead[train]'") from None
    chinese = are_chinese([text for texts in references for text in texts])
    scorer = RougeScorer(list(KINDS), use_stemmer=True, tokenizer=CharacterTokenizer() if chinese else None)
    totals = dict.fromkeys(KINDS, 0.0)
    for output, texts in zip(outputs, references, strict=True):
        scores = scorer.score_multi(list(texts), output)
        for kind in KINDS:
            totals[kind] += scores[kind].fmeasure
    counts = sorted({len(texts) for texts in references})
    many = f"best of {'–'.join(map(str, sorted({counts[0], counts[-1]})))} references"
    signature = f"rouge-score {version('rouge-score')}|{'characters' if chinese else 'stemmed words'}"
    return {
        **{kind: round(100 * total / len(outputs), 2) for kind, total in totals.items()},
        "rouge_signature": signature if counts[-1] == 1 else f"{signature}|{many}",
    }
