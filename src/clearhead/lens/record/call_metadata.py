"""CallMetadata: what is known of a forward pass besides its attention: input, answer, probabilities, ablations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

TokenChance = tuple[str, float]  # a token with its probability
MarkedPart = tuple[str, str, float | None]  # text, label of an entity, probability; None for plain text


@dataclass
class AnswerChange:
    """The answer of a model that was changed, such as by a head switched off, beside the one before."""

    text: str | None = None
    before_text: str | None = None
    loss: list[float | None] = field(default_factory=list)  # before the change, and after it
    next: list[list[TokenChance] | None] = field(default_factory=list)
    sampled: bool = False  # whether tokens are drawn at random, so that texts also differ by chance


@dataclass
class CallMetadata:
    """What is known of a forward pass besides its attention. None is unknown, and not written to a file."""

    interrupted: str | None = None  # the exception that ended the pass before it was complete
    media: dict[str, Any] | None = None  # the picture or sound that was the input, as JSON; `input` is its name then
    model: str | None = None
    task: str | None = None
    input: str | None = None
    text: str | None = None  # the answer
    given: bool | None = None  # whether the answer was given, instead of written by the model
    notes: list[str] | None = None
    prompt: int | None = None  # tokens before the answer of a language model
    forced: int | None = None  # tokens at the beginning of the answer that somebody chose
    parts: list[MarkedPart] | None = None  # the answer with its entities or labels marked
    choices: list[list[int]] | None = None  # for each position the numbers of the most probable tokens
    next: list[list[TokenChance] | None] | None = None  # these tokens; None where they are not known
    written: list[int] | None = None  # the tokens of the answer
    writes: list[str] | None = None  # their texts
    chances: list[float | None] | None = None  # the probability of each token of the answer
    ranks: list[int | None] | None = None  # how many tokens are more probable than it
    loss: float | None = None
    surfaces: dict[str, list[str]] | None = None  # tokens as the input has them, where that differs from `labels`
    effects: dict[str, list[float]] | None = None  # the change of the loss without each head, by attention
    without: dict[str, dict[str, AnswerChange]] | None = None  # the answer without a head, by attention and head
