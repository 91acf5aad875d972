"""GenerationTracer: traces of encoder-decoders that write texts, which can go on from another beginning."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from clearhead.decode import Hypothesis
from clearhead.tasks.sequence_to_sequence.generation import GeneratingAnswerer
from clearhead.tasks.sequence_to_sequence.search import PartNumber, SearchOptions
from clearhead.tasks.trace import ContinuableTracer, TaskTracer, Trace

AnswererT = TypeVar("AnswererT", bound=GeneratingAnswerer[Any, Any])


class GenerationTracer(TaskTracer[AnswererT], ContinuableTracer, Generic[AnswererT]):
    """Base class of the tracers of models that write texts."""

    @abstractmethod
    def traced_part(self, trace: Trace) -> Any:
        """The part of an input that a trace was made of."""

    def continue_trace(self, trace: Trace, written: Sequence[int], *, options: SearchOptions) -> Trace:
        """The trace of the same part with an answer that begins with these tokens; the search writes what follows."""
        request, target = self.answerer.begin(options), self.answerer.processor.target
        tokens, notes = list(written), list[str]()
        if tokens[-1:] == [target.end]:
            tokens.pop()
        else:
            part, search, number = self.traced_part(trace), request.search, [PartNumber(0)]
            search = search._replace(longest=max(1, search.limit(request.output_limit(part)) - len(tokens)))
            found = request.search_parts([part], search, [tokens], number)[0][0]
            if request.has_looped(found, part):
                notes.append(f"the {request.output_name} looped; retried without repeated trigrams")
                found = request.search_parts([part], search._replace(no_repeat_ngram=3), [tokens], number)[0][0]
            if not found.finished:
                notes.append(f"the {request.output_name} was cut off at its longest length")
            tokens = found.tokens
        reads = {**trace.reads, "target": [target.start, *tokens]}
        new = trace._replace(reads=reads, writes=[*tokens, target.end], given=False, notes=notes, parts=())
        return new._replace(text=self.written_text(new), forced=len(written))

    def written_text(self, trace: Trace) -> str:
        request = self.answerer.begin(self.answerer.options())
        return request.decode_text(Hypothesis(trace.reads["target"][1:], 0.0, 0.0, True))

    def samples(self, options: SearchOptions) -> bool:
        return bool(options.temperature)
