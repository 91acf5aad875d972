"""Trace: the tokens of one forward pass over an input and its answer. Tracer: makes traces, and runs them again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from jaxtyping import Float
from torch import Tensor, nn

from clearhead.errors import DataError
from clearhead.tasks.answerer import AnyAnswerer
from clearhead.tasks.media import PictureInput, SoundInput
from clearhead.tasks.processor import TextInputs
from clearhead.tasks.settings import Options

if TYPE_CHECKING:
    from typing import Self

AnswererT = TypeVar("AnswererT", bound=AnyAnswerer)
MOST_NAMED = 8  # unknown words in a note


class AnswerPart(NamedTuple):
    """A part of an answer: plain text, or an entity or label with its probability."""

    text: str
    label: str = ""  # of an entity
    score: float | None = None  # None: plain text between entities


class Trace(NamedTuple):
    """What goes into one forward pass, and what should come out.

    `reads` are token numbers: of "source" and "target", or of "tokens"; the patches of a picture and the positions of a
    sound, which is in `media`, are numbered from 0. `writes[i]` is what the model writes at the i-th token of the last
    of them, −1 if that is not known. It is empty for models that write no tokens.
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
    features: Sequence[int] = ()  # of each token, where the model reads such a number beside it


def note_unknown(words: Sequence[str]) -> list[str]:
    """A note for the page of `look` on parts of a text that the model reads as unknown; none if there are none.

    >>> note_unknown(["住", "😀"])
    ['read as unknown, for the vocabulary lacks them: 住, 😀']
    """
    more = ", …" if len(words) > MOST_NAMED else ""
    return [f"read as unknown, for the vocabulary lacks them: {', '.join(words[:MOST_NAMED])}{more}"] if words else []


class Tracer(ABC):
    """Base class of tracers: the forward passes of one input, which `look` repeats to watch the attention."""

    name: str  # of the task
    model: nn.Module
    options: type[Options]
    inputs: TextInputs = TextInputs()
    context: int | None = None  # the most tokens that are read at once while a text is written, if there is a limit

    @abstractmethod
    def with_model(self, model: Any) -> Self:
        """This tracer with another model of the same kind, such as other module objects over the same weights."""

    @abstractmethod
    def traces(self, request: Any, *, answer: str | None, options: Any) -> list[Trace]:
        """The tokens of an input and its answer, one trace for each forward pass."""

    @abstractmethod
    def run(self, trace: Trace) -> Float[Tensor, "tokens vocabulary"] | None:
        """Runs the forward pass of a trace; logits (tokens, vocabulary) where a token is predicted, if any is."""

    @abstractmethod
    def pieces(self, kind: str, numbers: Sequence[int]) -> list[str]:
        """Tokens of a trace as they can be shown."""


class ContinuableTracer(Tracer):
    """Base class of tracers of models that write tokens and can go on from a beginning that somebody else chose."""

    @abstractmethod
    def continue_trace(self, trace: Trace, written: Sequence[int], *, options: Any) -> Trace:
        """The trace of the same input whose `writes` begin with these tokens; the model decodes what follows.

        Of a language model the tokens may lie within the prompt, which then ends before the last of them.
        """

    @abstractmethod
    def written_text(self, trace: Trace) -> str:
        """The text of what a trace writes; of a language model, after its prompt."""

    def samples(self, options: Any) -> bool:
        """Whether tokens are drawn at random, so that a small change can lead to quite another text."""
        return False


class TaskTracer(Tracer, Generic[AnswererT]):
    """Base class of the tracers of our tasks, which answer an input before they trace it."""

    def __init__(self, name: str, answerer: AnswererT) -> None:
        self.name, self.answerer, self.model = name, answerer, answerer.model
        self.options, self.inputs = answerer.options, answerer.processor.inputs

    def with_model(self, model: Any) -> Self:
        return type(self)(self.name, type(self.answerer)(self.answerer.processor, model))

    def pieces(self, kind: str, numbers: Sequence[int]) -> list[str]:
        tokenizer = self.answerer.processor.tokenizer
        return [] if tokenizer is None else tokenizer.pieces(numbers)

    def refuse_answer(self, answer: str | None) -> None:
        """Refuses an answer given by the user, where the model reads the input alone."""
        if answer is not None:
            raise DataError(f"the task {self.name} cannot use --answer; omit it")
