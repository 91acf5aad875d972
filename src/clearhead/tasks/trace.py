"""Trace: the tokens of one forward pass over an input and its answer, which `look` repeats to watch the attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TypedDict, runtime_checkable

from torch import Tensor

from clearhead.tasks.settings import Options


class Trace(NamedTuple):
    """What goes into one forward pass, and what should come out.

    `reads` are token numbers: of "source" and "target", or of "tokens". `writes[i]` is what the model writes at the
    i-th token of the last of them, −1 if nobody knows; nothing where it does not write tokens.
    """

    reads: dict[str, list[int]]
    writes: Sequence[int] = ()
    text: str = ""  # the answer
    given: bool = False  # by the user: the model itself might have answered something else
    notes: Sequence[str] = ()


NextTokens = list[list[tuple[str, float]] | None]  # at each place, tokens and their probabilities; None if not known


class Ablation(TypedDict, total=False):
    """What the model answers while some heads are switched off."""

    text: str | None  # None if the user gave the answer, which then stays the same
    before_text: str | None
    loss: list[float | None]  # of the answer that was given with all heads: before, and without these heads
    next: NextTokens


class CallDetails(TypedDict, total=False):
    """What a record keeps of a forward pass besides the attention, as JSON in `Forward.about`.

    The predictor writes it, record files store it, and the explorer shows it. Keys may be missing.
    """

    model: str  # the model's name
    task: str
    input: str  # the text that the model was given
    text: str  # its answer
    given: bool  # whether the user gave the answer
    notes: list[str]  # what the user should know about the answer
    written: list[int]  # the token that is written at each place, −1 if not known
    writes: list[str]  # the same as texts
    next: NextTokens  # the most probable tokens at each place
    loss: float | None  # mean of −ln p of the tokens written
    effects: dict[str, list[float]] | None  # by attention: how much the loss grows without each head
    without: dict[str, dict[str, Ablation]]  # by attention and head: the answer without that head


@runtime_checkable
class Traceable(Protocol):
    """What can trace a model: every task that shows its attention, and the reader of Hugging Face's folders."""

    name: ClassVar[str]
    options: ClassVar[type[Options]]

    def traces(self, model: Any, given: Any, *, answer: str | None, options: Any) -> list[Trace]: ...

    def run_trace(self, model: Any, trace: Trace) -> Tensor | None: ...

    def pieces(self, kind: str, numbers: Sequence[int]) -> list[str]: ...
