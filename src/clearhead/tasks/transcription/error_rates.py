"""Word and character error rates by jiwer: edits that turn an output into its reference, in percent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from clearhead.errors import DataError, PackageError

PUNCTUATION = re.compile(r"(?!')[^\w\s]|_")  # apostrophes belong to words


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
        "wer": _rate(words, sum(len(text.split()) for text in extra)),
        "cer": _rate(letters, sum(len(text) for text in extra)),
        "wer_signature": f"jiwer {version('jiwer')}, lower case, no punctuation",
    }


def _rate(counts: Any, inserted: int) -> float:
    edits = counts.substitutions + counts.deletions + counts.insertions + inserted
    return round(100.0 * float(edits) / float(counts.hits + counts.substitutions + counts.deletions), 2)


def import_jiwer() -> Any:
    """The package, or a PackageError that says how to install it."""
    try:
        import jiwer
    except ImportError as error:
        raise PackageError(
            "word error rates need the package jiwer, which is not installed; pip install 'clearhead[audio]'"
        ) from error
    return jiwer
