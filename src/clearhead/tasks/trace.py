"""Trace: the tokens of one forward pass over an input and its answer, which `look` repeats to watch the attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from clearhead.tasks.media import PictureInput, SoundInput
from clearhead.tasks.settings import Options

MOST_NAMED = 8  # unknown words in a note


class AnswerPart(NamedTuple):
    """A part of an answer: plain text, or an entity or label with its probability."""

    text: str
    label: str = ""  # of an entity
    score: float | None = None  # None: plain text between entities


class Trace(NamedTuple):
    """What goes into one forward pass, and what should come out.

    `reads` are token numbers: of "source" and "target", or of "tokens"; the patches of a picture and the positions of a
    sound, which is in `media`, are numbered from 0. `writes[i]` is what the model writes at the
    i-th token of the last of them, −1 if nobody knows; nothing where it does not write tokens.
    """

    reads: dict[str, list[int]]
    writes: Sequence[int] = ()
    text: str = ""  # the answer
    given: bool = False  # by the user: the model itself might have answered something else
    notes: Sequence[str] = ()
    # The text of each token as the input has it, by the keys of `reads`; the tokenizer's pieces where it is missing.
    surfaces: Mapping[str, Sequence[str]] = MappingProxyType({})
    parts: Sequence[AnswerPart] = ()  # the answer with its entities or labels marked
    media: PictureInput | SoundInput | None = None  # the input, if it is no text
    prompt: int = 0  # tokens at the beginning of the last of `reads` that are the input of a language model
    forced: int = 0  # tokens at the beginning of `writes` that somebody chose, before the model went on by itself


def note_unknown(words: Sequence[str]) -> list[str]:
    """A note for the page of `look` on parts of a text that the model reads as unknown; none if there are none.

    >>> note_unknown(["住", "😀"])
    ['read as unknown, for the vocabulary lacks them: 住, 😀']
    """
    more = ", …" if len(words) > MOST_NAMED else ""
    return [f"read as unknown, for the vocabulary lacks them: {', '.join(words[:MOST_NAMED])}{more}"] if words else []


@runtime_checkable
class Traceable(Protocol):
    """An object that can trace a model: a task whose attention `look` can show, or a HuggingFaceReader."""

    name: ClassVar[str]
    options: ClassVar[type[Options]]

    def traces(self, model: Any, given: Any, *, answer: str | None, options: Any) -> list[Trace]: ...

    def run_trace(self, model: Any, trace: Trace) -> Float[Tensor, "tokens vocabulary"] | None: ...

    def pieces(self, kind: str, numbers: Sequence[int]) -> list[str]: ...


@runtime_checkable
class Continuable(Traceable, Protocol):
    """A Traceable whose model writes tokens, and can go on from a beginning that somebody else chose."""

    def continue_trace(self, model: Any, trace: Trace, written: Sequence[int], *, options: Any) -> Trace:
        """The trace of the same input whose `writes` begin with these tokens; the model decodes what follows.

        Of a language model the tokens may lie within the prompt, which then ends before the last of them.
        """
        ...

    def written_text(self, trace: Trace) -> str:
        """The text of what a trace writes; of a language model, after its prompt."""
        ...
