"""Trace: the tokens of one forward pass over an input and its answer, which `look` repeats to watch the attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float
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


@runtime_checkable
class Traceable(Protocol):
    """What can trace a model: every task that shows its attention, and the reader of Hugging Face's folders."""

    name: ClassVar[str]
    options: ClassVar[type[Options]]

    def traces(self, model: Any, given: Any, *, answer: str | None, options: Any) -> list[Trace]: ...

    def run_trace(self, model: Any, trace: Trace) -> Float[Tensor, "tokens vocabulary"] | None: ...

    def pieces(self, kind: str, numbers: Sequence[int]) -> list[str]: ...
