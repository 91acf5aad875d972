"""Reading: a text as a model reads it in one forward pass, and what it writes there, so that one can look at it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from torch import Tensor


class Reading(NamedTuple):
    """What goes into one forward pass, and what should come out.

    `reads` are token numbers: of "source" and "target", or of "tokens". `writes[i]` is what the model writes at the
    i-th token of the last of them, −1 if nobody knows; nothing where it does not write tokens.
    """

    reads: dict[str, list[int]]
    writes: Sequence[int] = ()
    text: str = ""  # the answer
    given: bool = False  # by the user: the model itself might have written something else
    notes: Sequence[str] = ()


@runtime_checkable
class Reads(Protocol):
    """What knows how a model reads a text: every task, and what stands in for one."""

    name: ClassVar[str]

    def readings(self, model: Any, text: str, *, answer: str | None = None) -> list[Reading]: ...

    def read_through(self, model: Any, reading: Reading) -> Tensor | None: ...

    def pieces(self, kind: str, numbers: Sequence[int]) -> list[str]: ...
