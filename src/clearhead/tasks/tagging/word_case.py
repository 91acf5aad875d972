"""The case of a word (lower, capitalised, upper, …) as an extra feature for tokenizers that lower-case their input."""

from __future__ import annotations

CASES = ("other", "lower", "capitalised", "upper", "initial", "mixed", "digits", "with digits")


def word_case(word: str) -> int:
    """The number of the case in CASES.

    >>> [CASES[word_case(word)] for word in ("the", "Rome", "EU", "J", "iPhone", "1996", "F16", "，")]
    ['lower', 'capitalised', 'upper', 'initial', 'mixed', 'digits', 'with digits', 'other']
    """
    if any(mark.isdigit() for mark in word):
        return CASES.index("with digits" if any(mark.isalpha() for mark in word) else "digits")
    letters = [mark for mark in word if mark.isupper() or mark.islower()]
    if not letters:
        return CASES.index("other")
    upper = [mark.isupper() for mark in letters]
    if not any(upper):
        return CASES.index("lower")
    if all(upper):
        return CASES.index("upper" if len(upper) > 1 else "initial")
    return CASES.index("capitalised" if upper[0] and not any(upper[1:]) else "mixed")
