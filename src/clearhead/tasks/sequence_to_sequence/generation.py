"""SequenceToSequence: a task whose answer an encoder-decoder generates token by token, from any kind of input.

An input is split into parts that the model can take. The search writes each part, and writes it again if the output
loops. Then the texts of the parts are joined.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from clearhead.decode import Hypothesis, Writer
from clearhead.model import EncoderDecoder
from clearhead.tasks.base import BatchT, InputT, Prediction, Task
from clearhead.tasks.segmentation import has_loop, join_texts
from clearhead.tasks.sequence_to_sequence.search import Decode, PartNumber, Search, SearchOptions
from clearhead.tasks.trace import Trace
from clearhead.text.batches import length_batches

if TYPE_CHECKING:
    from clearhead.tasks.settings import TaskRecipe
    from clearhead.text import Tokenizer

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


class SequenceToSequence(Task[EncoderDecoder, InputT, BatchT, SearchOptions], Generic[InputT, BatchT, PartT]):
    """Base class of translation, summaries, captions, transcription; subclasses define how inputs become parts."""

    options = SearchOptions
    predicts_tokens = True
    output_name: ClassVar[str]  # what its answer is called in notes: "translation"
    target: Tokenizer
    decode: Decode

    @classmethod
    def stacks(cls, recipe: TaskRecipe) -> tuple[str, ...]:
        return ("encoder", "decoder")

    def build(self) -> EncoderDecoder:
        return EncoderDecoder(self.config)

    # What a subclass says about its inputs

    @abstractmethod
    def split(self, given: InputT) -> list[PartT]:
        """The parts of an input that are written one by one; none if it is empty."""

    @abstractmethod
    def part_length(self, part: PartT) -> int:
        """How long a part is, in tokens, patches or frames: parts of similar length are written together."""

    @abstractmethod
    def writer(self, model: EncoderDecoder, parts: Sequence[PartT]) -> Writer:
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

    def make_search(self, options: SearchOptions) -> Search:
        """The settings of decoding: these options, and the model's own where they say nothing."""
        return Search.of(options, self.decode)

    def input_notes(self, given: InputT, text: str) -> list[str]:
        """What else the user should know about an answer, from comparing it with its input."""
        return []

    @abstractmethod
    def traced_part(self, trace: Trace) -> PartT:
        """The part of an input that a trace was made of."""

    # Answers

    def predict(self, model: EncoderDecoder, inputs: Sequence[InputT], options: SearchOptions) -> list[GeneratedText]:
        """Answers to all inputs: empty in, empty out."""
        search, prefix = self.make_search(options), self._encode_prefix(options.prefix)
        split = [self.split(given) for given in inputs]
        numbers = [
            PartNumber(given, part)
            for given, parts in enumerate(split, options.inputs_before)
            for part in range(len(parts))
        ]
        prefixes = [[] if number.part else prefix for number in numbers]
        written = iter(self.write(model, list(chain.from_iterable(split)), search, prefixes, numbers))
        return [
            self._join(given, [next(written) for _ in parts], search.best)
            for given, parts in zip(inputs, split, strict=True)
        ]

    def quick_options(self) -> SearchOptions:
        return SearchOptions(beams=1)

    def stream(self, model: EncoderDecoder, given: InputT, options: SearchOptions) -> Iterator[str]:
        """The answer in pieces as they are written, with one beam or by sampling; no loop is noticed."""
        search = self.make_search(options.model_copy(update={"beams": options.beams or 1}))
        prefix = self._encode_prefix(options.prefix)
        shown = ""
        for place, part in enumerate(self.split(given)):
            before, begin = shown, [] if place else prefix
            rules = {"start": self.target.start, "end": self.target.end, "prefix": begin}
            limit = search.limit(self.output_limit(part)) + len(begin)
            number = PartNumber(options.inputs_before, place)
            tokens = search.stream(self.writer(model, [part]), number, max_length=limit, **rules)
            for text in self._growing_texts(tokens):
                whole = join_texts([before, text])
                assert whole.startswith(shown), f"{self.name} has changed {shown!r} to {whole!r}, which was shown"
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

    def write(
        self,
        model: EncoderDecoder,
        parts: Sequence[PartT],
        search: Search,
        prefixes: Sequence[Sequence[int]] | None = None,
        numbers: Sequence[PartNumber] | None = None,
    ) -> list[WrittenPart[PartT]]:
        """What the model writes for every part. An output that loops is written again.

        First from a part whose repetitions are cut, where there are any; if that does not help, without repeated
        trigrams. `numbers` decide what is sampled for each part; without them all are parts of the first input.
        """
        begins = [[] for _ in parts] if prefixes is None else [list(prefix) for prefix in prefixes]
        numbers = numbers or [PartNumber(0, place) for place in range(len(parts))]
        written = self._search(model, parts, search, begins, numbers)
        found = [WrittenPart(*both) for both in zip(written, parts, strict=True)]
        for retry, again in ((CUT, search), (WITHOUT_REPEATS, search._replace(no_repeat_ngram=3))):
            looping = [place for place, one in enumerate(found) if self.has_looped(one.hypotheses[0], one.part)]
            shorter = {place: self.cut_repeats(parts[place]) for place in looping}
            chosen = {place: parts[place] if part is None else part for place, part in shorter.items()}
            if retry == CUT:
                chosen = {place: part for place, part in chosen.items() if shorter[place] is not None}
            again_begins, again_numbers = [begins[place] for place in chosen], [numbers[place] for place in chosen]
            better = self._search(model, list(chosen.values()), again, again_begins, again_numbers)
            for (place, part), hypotheses in zip(chosen.items(), better, strict=True):
                found[place] = WrittenPart(hypotheses, part, retry)
        return found

    def _search(
        self,
        model: EncoderDecoder,
        parts: Sequence[PartT],
        search: Search,
        prefixes: Sequence[list[int]],
        numbers: Sequence[PartNumber],
    ) -> list[list[Hypothesis]]:
        found: list[list[Hypothesis]] = [[] for _ in parts]
        for rows in length_batches([self.part_length(part) for part in parts], search.batch):
            rules: dict[str, Any] = {"start": self.target.start, "end": self.target.end}
            limits = [search.limit(self.output_limit(parts[row])) + len(prefixes[row]) for row in rows]
            if any(prefixes[row] for row in rows):
                rules["prefix"] = [prefixes[row] for row in rows]
            writer = self.writer(model, [parts[row] for row in rows])
            written = search.run(writer, [numbers[row] for row in rows], max_length=limits, **rules)
            for row, hypotheses in zip(rows, written, strict=True):
                found[row] = hypotheses
        return found

    def _join(self, given: InputT, found: list[WrittenPart[PartT]], best: int) -> GeneratedText:
        """One answer from those of all parts; scores are log-probabilities per token, whatever the search ranked by."""
        if not found:
            return GeneratedText("", [], None, [])
        firsts = [one.hypotheses[0] for one in found]
        texts = [self.decode_text(first) for first in firsts]
        length = sum(len(first.tokens) + 1 for first in firsts)
        score = sum(first.log_probability for first in firsts) / length
        others = [] if len(found) > 1 else found[0].hypotheses[1:best]
        ranked = [(self.decode_text(one), one.log_probability / (len(one.tokens) + 1)) for one in others]
        return GeneratedText(join_texts(texts), self._notes(given, found, texts, best), score, ranked)

    def _notes(self, given: InputT, found: list[WrittenPart[PartT]], texts: list[str], best: int) -> list[str]:
        """What the user should know about an answer."""
        name, firsts = self.output_name, [one.hypotheses[0] for one in found]
        notes = [] if len(found) == 1 else [f"the {name} was written in {len(found)} parts"]
        if len(found) > 1 and best > 1:
            notes[0] += ", so there are no alternatives to the whole"
        if any(one.retry == CUT for one in found):
            notes.append(f"the {name} looped; retried with repeated input cut to three")
        if any(one.retry == WITHOUT_REPEATS for one in found):
            notes.append(f"the {name} looped; retried without repeated trigrams")
        if any(not first.finished for first in firsts):
            notes.append(f"the {name} was cut off at its longest length")
        if "\ufffd" in "".join(texts) and "\ufffd" not in str(given):
            notes.append("the model wrote bytes that are no character, shown as \ufffd")
        if missing := sum(not text for text in texts):
            notes.append("the model wrote nothing" + (f" for {missing} of the parts" if len(found) > 1 else ""))
            return notes
        return notes + self.input_notes(given, join_texts(texts))

    # Attention

    def continue_trace(
        self, model: EncoderDecoder, trace: Trace, written: Sequence[int], *, options: SearchOptions
    ) -> Trace:
        """The trace of the same part with an answer that begins with these tokens; the search writes what follows."""
        tokens, notes = list(written), list[str]()
        if tokens[-1:] == [self.target.end]:
            tokens.pop()
        else:
            part, search = self.traced_part(trace), Search.of(options, self.decode)
            search = search._replace(longest=max(1, search.limit(self.output_limit(part)) - len(tokens)))
            found = self._search(model, [part], search, [tokens], [PartNumber(0)])[0][0]
            if self.has_looped(found, part):
                notes.append(f"the {self.output_name} looped; retried without repeated trigrams")
                found = self._search(model, [part], search._replace(no_repeat_ngram=3), [tokens], [PartNumber(0)])[0][0]
            if not found.finished:
                notes.append(f"the {self.output_name} was cut off at its longest length")
            tokens = found.tokens
        reads = {**trace.reads, "target": [self.target.start, *tokens]}
        new = trace._replace(reads=reads, writes=[*tokens, self.target.end], given=False, notes=notes, parts=())
        return new._replace(text=self.written_text(new), forced=len(written))

    def written_text(self, trace: Trace) -> str:
        return self.decode_text(Hypothesis(trace.reads["target"][1:], 0.0, 0.0, True))

    def _encode_prefix(self, prefix: str) -> list[int]:
        return self.target.encode(prefix) if prefix else []


def _finite(score: float | None) -> float | None:
    return score if score is not None and math.isfinite(score) else None
