"""Word and character error rates by jiwer: edits that turn an output into its reference, in percent."""

from __future__ import annotations

import re
from collections.abc import Sequence
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
    said, wanted = [normalise_text(text) for text in outputs], [normalise_text(text) for text in references]
    # jiwer refuses references without words, such as "…"; what is said for them counts as inserted words.
    extra = [one for one, reference in zip(said, wanted, strict=True) if not reference]
    pairs = [(one, reference) for one, reference in zip(said, wanted, strict=True) if reference]
    if not pairs:
        raise DataError("no reference has a word in it, so there is nothing to score")
    words = jiwer.process_words([reference for _, reference in pairs], [one for one, _ in pairs])
    letters = jiwer.process_characters([reference for _, reference in pairs], [one for one, _ in pairs])
    return {
        "wer": _rate(words, sum(len(text.split()) for text in extra)),
        "cer": _rate(letters, sum(len(text) for text in extra)),
        "wer_signature": f"jiwer {_version()}, lower case, no punctuation",
    }


def _rate(found: Any, inserted: int) -> float:
    edits = found.substitutions + found.deletions + found.insertions + inserted
    return round(100.0 * float(edits) / float(found.hits + found.substitutions + found.deletions), 2)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("jiwer")
    except PackageNotFoundError:
        return "of unknown version"


def import_jiwer() -> Any:
    """The package, or a PackageError that says how to install it."""
    try:
        import jiwer
    except ImportError as error:
        raise PackageError(
            "word error rates need the package jiwer, which is not installed; pip install 'clearhead[audio]'"
        ) from error
    return jiwer
