"""Generation: the texts of one request, which an encoder-decoder writes token by token, from any kind of input.

An input is split into parts that the model can take. The search writes each part, and writes it again if the output
loops. Then the texts of the parts are joined.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from clearhead.decode import Hypothesis, Writer
from clearhead.model import EncoderDecoder
from clearhead.tasks.answerer import InputT, Prediction, ScoringAnswerer, StreamingAnswerer
from clearhead.tasks.media import PictureInput, SoundInput
from clearhead.tasks.processor import BatchT, Processor, RecipeT
from clearhead.tasks.segmentation import has_loop, join_texts
from clearhead.tasks.sequence_to_sequence.search import Decode, PartNumber, Search, SearchOptions
from clearhead.tasks.settings import Section
from clearhead.tasks.trace import ContinuableTracer, TaskTracer, Trace
from clearhead.text import Tokenizer
from clearhead.text.batches import token_batches

PartT = TypeVar("PartT")
BROKEN = re.compile("\ufffd+")  # bytes that are no character
CUT, WITHOUT_REPEATS = "cut", "without repeats"  # how a part was written again


@dataclass(frozen=True)
class GeneratedText(Prediction):
    """A generated text, its `score` (mean log-probability per token), and alternatives from the same search."""

    score: float | None = None
    alternatives: Sequence[tuple[str, float]] = ()

    def to_json(self) -> dict[str, Any]:
        others = [{"output": text, "score": _finite(score)} for text, score in self.alternatives]
        shown = {"output": self.text, "score": _finite(self.score), "alternatives": others}
        return {**shown, "notes": list(self.notes)}

    def ranking(self) -> list[tuple[str, float | None]]:
        return [(self.text, self.score), *self.alternatives]


@dataclass(frozen=True)
class WrittenPart(Generic[PartT]):
    """The hypotheses for one part of an input, best first; `retry` describes the second try if the first looped."""

    hypotheses: list[Hypothesis]
    part: PartT
    retry: str | None = None


class GeneratingProcessor(Processor[RecipeT, BatchT]):
    """Base class of the stored parts of tasks whose model writes texts: translation, summaries, captions, speech."""

    predicts_tokens = True
    stacks = ("encoder", "decoder")
    target: Tokenizer  # of what is written
    stored_kind: ClassVar[type[Section]] = Decode
    stored: Any  # the defaults of decoding, and what else the task stores

    @property
    def decode(self) -> Decode:
        """The defaults of decoding."""
        decode: Decode = self.stored
        return decode

    def configure(self, recipe: Any) -> None:
        """The recipe's settings of decoding; where they say nothing (None), what the training data said stays."""
        self.store(**{key: value for key, value in recipe.decode if value is not None})

    def save(self, folder: Path) -> None:
        self.target.save(folder)


GeneratingT = TypeVar("GeneratingT", bound=GeneratingProcessor[Any, Any])


class Generation(ABC, Generic[GeneratingT, InputT, PartT]):
    """Base class: how the inputs of one request are split, written and joined, with the options of the request."""

    output_name: ClassVar[str]  # what an answer is called in notes: "translation"

    def __init__(self, processor: GeneratingT, model: EncoderDecoder, options: Any) -> None:
        self.processor, self.model, self.target = processor, model, processor.target
        self.search = Search.of(options, processor.decode)  # the model's own settings where the options say nothing
        self.prefix = self.target.encode(options.prefix) if options.prefix else []  # that every answer begins with

    @abstractmethod
    def whole(self, source: InputT) -> list[PartT]:
        """The input as one part however long it is; none if it is empty."""

    def split(self, source: InputT) -> list[PartT]:
        """The parts of an input that are written one by one; none if it is empty."""
        return self.whole(source)

    @abstractmethod
    def part_length(self, part: PartT) -> int:
        """How long a part is, in tokens, patches or frames: parts of similar length are written together."""

    @abstractmethod
    def make_writer(self, parts: Sequence[PartT]) -> Writer:
        """A writer with a row for each part."""

    def output_limit(self, part: PartT) -> int:
        """The most tokens that may be written for a part, the end included."""
        return 2 * self.part_length(part) + 10

    def cut_repeats(self, part: PartT) -> PartT | None:
        """A part with its own repetitions cut, for a second try; None if there is nothing to cut."""
        return None

    def has_looped(self, hypothesis: Hypothesis, part: PartT) -> bool:
        """Whether an output repeats itself although the input does not."""
        return has_loop(hypothesis.tokens)

    def decode_text(self, hypothesis: Hypothesis) -> str:
        """The text of a hypothesis; bytes that are no character become one �."""
        return BROKEN.sub("\ufffd", self.target.decode(hypothesis.tokens))

    def stable_text(self, text: str) -> str:
        """The part of an unfinished text that further tokens cannot change (not the first bytes of a character)."""
        return text.removesuffix("\ufffd")

    def input_notes(self, source: InputT, answer: str) -> list[str]:
        """What else the user should know about an answer, from comparing it with its input."""
        return []

    def write(
        self,
        parts: Sequence[PartT],
        prefixes: Sequence[Sequence[int]] | None = None,
        numbers: Sequence[PartNumber] | None = None,
    ) -> list[WrittenPart[PartT]]:
        """What the model writes for every part. An output that loops is written again.

        First from a part whose repetitions are cut, where there are any; if that does not help, without repeated
        trigrams. `numbers` decide what is sampled for each part; without them all are parts of the first input.
        """
        begins = [[] for _ in parts] if prefixes is None else [list(prefix) for prefix in prefixes]
        numbers = numbers or [PartNumber(0, number) for number in range(len(parts))]
        hypotheses = self.search_parts(parts, self.search, begins, numbers)
        written = [WrittenPart(*pair) for pair in zip(hypotheses, parts, strict=True)]
        for retry, search in ((CUT, self.search), (WITHOUT_REPEATS, self.search._replace(no_repeat_ngram=3))):
            again = dict[int, PartT]()
            for row, (part, answer) in enumerate(zip(parts, written, strict=True)):
                if self.has_looped(answer.hypotheses[0], answer.part):
                    shorter = self.cut_repeats(part)
                    if shorter is not None or retry == WITHOUT_REPEATS:
                        again[row] = part if shorter is None else shorter
            of_rows = [begins[row] for row in again], [numbers[row] for row in again]
            hypotheses = self.search_parts(list(again.values()), search, *of_rows)
            for (row, part), better in zip(again.items(), hypotheses, strict=True):
                written[row] = WrittenPart(better, part, retry)
        return written

    def search_parts(
        self, parts: Sequence[PartT], search: Search, prefixes: Sequence[list[int]], numbers: Sequence[PartNumber]
    ) -> list[list[Hypothesis]]:
        """The hypotheses for every part, best first, each beginning with its prefix."""
        hypotheses: list[list[Hypothesis]] = [[] for _ in parts]
        for rows in token_batches([self.part_length(part) for part in parts], None, search.batch):
            rules: dict[str, Any] = {"start": self.target.start, "end": self.target.end}
            limits = [search.limit(self.output_limit(parts[row])) + len(prefixes[row]) for row in rows]
            if any(prefixes[row] for row in rows):
                rules["prefix"] = [prefixes[row] for row in rows]
            writer = self.make_writer([parts[row] for row in rows])
            written = search.run(writer, [numbers[row] for row in rows], max_length=limits, **rules)
            for row, best in zip(rows, written, strict=True):
                hypotheses[row] = best
        return hypotheses

    def stream(self, source: InputT, prefix: Sequence[int], number: int) -> Iterator[str]:
        """The answer in pieces as they are written, with one beam or by sampling; no loop is noticed."""
        shown = ""
        for part_number, part in enumerate(self.split(source)):
            before, begin = shown, [] if part_number else prefix
            rules = {"start": self.target.start, "end": self.target.end, "prefix": begin}
            limit = self.search.limit(self.output_limit(part)) + len(begin)
            writer = self.make_writer([part])
            tokens = self.search.stream(writer, PartNumber(number, part_number), max_length=limit, **rules)
            for text in self._growing_texts(tokens):
                whole = join_texts([before, text])
                assert whole.startswith(shown), f"{shown!r} was shown and has become {whole!r}"
                if whole != shown:
                    yield whole[len(shown) :]
                    shown = whole

    def _growing_texts(self, tokens: Iterator[int]) -> Iterator[str]:
        """Yields the stable text after each token, and at the end the whole text."""
        written, text = list[int](), ""
        for token in tokens:
            written.append(token)
            text = self.decode_text(Hypothesis(written, 0.0, 0.0, True))
            yield self.stable_text(text)
        yield text

    def join(self, source: InputT, written: list[WrittenPart[PartT]]) -> GeneratedText:
        """One answer from those of all parts; scores are log-probabilities per token, whatever the search ranked by."""
        if not written:
            return GeneratedText("", [], None, [])
        firsts = [part.hypotheses[0] for part in written]
        texts = [self.decode_text(first) for first in firsts]
        length = sum(len(first.tokens) + 1 for first in firsts)
        score = sum(first.log_probability for first in firsts) / length
        others = [] if len(written) > 1 else written[0].hypotheses[1 : self.search.best]
        ranked = [(self.decode_text(other), other.log_probability / (len(other.tokens) + 1)) for other in others]
        return GeneratedText(join_texts(texts), self._make_notes(source, written, texts), score, ranked)

    def _make_notes(self, source: InputT, written: list[WrittenPart[PartT]], texts: list[str]) -> list[str]:
        name, retries = self.output_name, {part.retry for part in written}
        notes = [] if len(written) == 1 else [f"the {name} was written in {len(written)} parts"]
        if len(written) > 1 and self.search.best > 1:
            notes[0] += ", so there are no alternatives to the whole"
        if CUT in retries:
            notes.append(f"the {name} looped; retried with repeated input cut to three")
        if WITHOUT_REPEATS in retries:
            notes.append(f"the {name} looped; retried without repeated trigrams")
        if any(not part.hypotheses[0].finished for part in written):
            notes.append(f"the {name} was cut off at its longest length")
        if "\ufffd" in "".join(texts) and "\ufffd" not in str(source):
            notes.append("the model wrote bytes that are no character, shown as \ufffd")
        if missing := sum(not text for text in texts):
            notes.append("the model wrote nothing" + (f" for {missing} of the parts" if len(written) > 1 else ""))
            return notes
        return notes + self.input_notes(source, join_texts(texts))


class GeneratingAnswerer(StreamingAnswerer[GeneratingT, EncoderDecoder, InputT, SearchOptions]):
    """Base class of answerers that write texts; `generation` says how, for one kind of input."""

    options = SearchOptions
    generation: ClassVar[type[Generation[Any, Any, Any]]]

    def begin(self, options: SearchOptions) -> Generation[GeneratingT, InputT, Any]:
        """The generation of one request with these options."""
        return self.generation(self.processor, self.model, options)

    def predict(
        self, inputs: Sequence[InputT], options: SearchOptions, *, inputs_before: int = 0
    ) -> Sequence[GeneratedText]:
        """Answers to all inputs: empty in, empty out."""
        request = self.begin(options)
        split = [request.split(source) for source in inputs]
        numbers = [
            PartNumber(number, part) for number, parts in enumerate(split, inputs_before) for part in range(len(parts))
        ]
        prefixes = [[] if number.part else request.prefix for number in numbers]
        written = iter(request.write(list(chain.from_iterable(split)), prefixes, numbers))
        both = zip(inputs, split, strict=True)
        return [request.join(source, [next(written) for _ in parts]) for source, parts in both]

    def stream(self, source: InputT, options: SearchOptions, *, inputs_before: int = 0) -> Iterator[str]:
        request = self.begin(options.model_copy(update={"beams": options.beams or 1}))
        return request.stream(source, request.prefix, inputs_before)


AnswererT = TypeVar("AnswererT", bound=GeneratingAnswerer[Any, Any])


class GenerationTracer(TaskTracer[AnswererT], ContinuableTracer, Generic[AnswererT, InputT, PartT]):
    """Base class of the tracers of models that write texts, which can go on from another beginning."""

    @abstractmethod
    def trace_source(self, part: PartT) -> tuple[list[int], PictureInput | SoundInput | None]:
        """What the encoder reads of a part, as numbers, and the picture or sound behind them."""

    @abstractmethod
    def traced_part(self, trace: Trace) -> PartT:
        """The part of an input that a trace was made of."""

    def traces(self, source: InputT, *, answer: str | None, options: Any) -> list[Trace]:
        """An input with its answer, part by part; with an answer given, all of it at once."""
        request = self.answerer.begin(options)
        if answer is not None:
            target = request.target.encode(answer)
            return [self._make_trace(part, target, answer, given=True) for part in request.whole(source)]
        written = request.write(request.split(source))
        notes = request.join(source, written).notes
        best = [(part.part, part.hypotheses[0]) for part in written]
        return [self._make_trace(part, first.tokens, request.decode_text(first), notes=notes) for part, first in best]

    def _make_trace(self, part: PartT, target: list[int], text: str, **fields: Any) -> Trace:
        """The trace of a part and its answer, which is given in tokens without start and end."""
        tokenizer = self.answerer.processor.target
        source, media = self.trace_source(part)
        reads = {"source": source, "target": [tokenizer.start, *target]}
        return Trace(reads, [*target, tokenizer.end], text, media=media, **fields)

    def continue_trace(self, trace: Trace, written: Sequence[int], *, options: SearchOptions) -> Trace:
        """The trace of the same part with an answer that begins with these tokens; the search writes what follows."""
        request, target = self.answerer.begin(options), self.answerer.processor.target
        tokens, notes = list(written), list[str]()
        if tokens[-1:] == [target.end]:
            tokens.pop()
        else:
            part, search, number = self.traced_part(trace), request.search, [PartNumber(0)]
            search = search._replace(longest=max(1, search.limit(request.output_limit(part)) - len(tokens)))
            best = request.search_parts([part], search, [tokens], number)[0][0]
            if request.has_looped(best, part):
                notes.append(f"the {request.output_name} looped; retried without repeated trigrams")
                best = request.search_parts([part], search._replace(no_repeat_ngram=3), [tokens], number)[0][0]
            if not best.finished:
                notes.append(f"the {request.output_name} was cut off at its longest length")
            tokens = best.tokens
        reads = {**trace.reads, "target": [target.start, *tokens]}
        new = trace._replace(reads=reads, writes=[*tokens, target.end], given=False, notes=notes, parts=())
        return new._replace(text=self.written_text(new), forced=len(written))

    def written_text(self, trace: Trace) -> str:
        request = self.answerer.begin(self.answerer.options())
        return request.decode_text(Hypothesis(trace.reads["target"][1:], 0.0, 0.0, True))

    def samples(self, options: SearchOptions) -> bool:
        return bool(options.temperature)


def _finite(score: float | None) -> float | None:
    return score if score is not None and math.isfinite(score) else None


class ScoringGenerator(
    GeneratingAnswerer[GeneratingT, InputT], ScoringAnswerer[GeneratingT, EncoderDecoder, InputT, SearchOptions]
):
    """Base class of answerers that write texts which are compared with the right ones."""
