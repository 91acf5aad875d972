"""Lead baseline: the beginning of a text as its summary, which a trained model should beat."""

from __future__ import annotations

from collections.abc import Sequence

from clearhead.tasks.segmentation import SEAMS, join_texts

SENTENCES, LINES = 1, 3  # that are taken from a text, and from a dialogue


def have_lines(texts: Sequence[str]) -> bool:
    """Whether most of these texts have at least three lines, as a dialogue has."""
    return 2 * sum(len(_list_lines(text)) >= LINES for text in texts) > len(texts)


def take_lead(text: str, *, by_lines: bool) -> str:
    """The first sentence of a text, or the first three lines of a dialogue.

    >>> take_lead("It rains. We stay.", by_lines=False), take_lead("A: Hi\\nB: Hi\\nA: So?\\nB: Bye", by_lines=True)
    ('It rains.', 'A: Hi B: Hi A: So?')
    """
    if by_lines:
        return join_texts(_list_lines(text)[:LINES])
    sentences = [piece.strip() for piece in SEAMS[0].split(text) if piece.strip()]
    return join_texts(sentences[:SENTENCES])


def describe_lead(by_lines: bool) -> str:
    return f"lead-{LINES} (the first {LINES} lines)" if by_lines else f"lead-{SENTENCES} (the first sentence)"


def _list_lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
