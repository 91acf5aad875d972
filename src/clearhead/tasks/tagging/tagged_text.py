"""TaggedText: the entities that a model finds in a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from clearhead.tasks.answerer import Prediction
from clearhead.tasks.tagging.entity_decoding import ScoredSpan
from clearhead.tasks.tagging.schemes import Span
from clearhead.tasks.tagging.sentences import Sentence, mark_entities
from clearhead.tasks.trace import AnswerPart


class Entity(NamedTuple):
    """An entity of a text: its characters from `start` to `end`, its label and its probability."""

    start: int
    end: int
    label: str
    text: str
    score: float


@dataclass(frozen=True)
class TaggedText(Prediction):
    """The entities of a text, in their order; `text` is the input with them in brackets."""

    entities: tuple[Entity, ...] = ()
    spans: tuple[Span, ...] = ()  # the same by words

    def to_json(self) -> dict[str, Any]:
        return {"entities": [entity._asdict() for entity in self.entities], "notes": list(self.notes)}

    def mark_words(self, sentence: Sentence, first: int, last: int) -> str:
        """The part of the text from one word up to another, with its entities in brackets."""
        parts = self.split_parts(sentence, first, last)
        return "".join(part.text if part.score is None else f"[{part.text}]({part.label})" for part in parts)

    def split_parts(self, sentence: Sentence, first: int, last: int) -> list[AnswerPart]:
        """The same part of the text, split into its entities and the plain text between them."""
        if first == last:
            return []
        text, done = sentence.text, 0 if first == 0 else sentence.words[first][0]
        end = len(text) if last == len(sentence.words) else sentence.words[last][0]
        parts = list[AnswerPart]()
        for entity in self.entities:
            if entity.start < end and entity.end > done:
                begin, until = max(entity.start, done), min(entity.end, end)
                parts += [AnswerPart(text[done:begin]), AnswerPart(text[begin:until], entity.label, entity.score)]
                done = until
        parts.append(AnswerPart(text[done:end]))
        return [part for part in parts if part.text]

    @classmethod
    def describe(cls, sentence: Sentence, found: Sequence[ScoredSpan]) -> TaggedText:
        """What was found in a sentence."""
        exact = [sentence.locate(span) for span, _ in found]
        entities = tuple(
            Entity(*span, sentence.text[span.begin : span.end], one.probability)
            for span, one in zip(exact, found, strict=True)
        )
        notes = () if sentence.words else ("the text has no words",)
        return cls(mark_entities(sentence.text, exact), notes, entities, tuple(span for span, _ in found))
