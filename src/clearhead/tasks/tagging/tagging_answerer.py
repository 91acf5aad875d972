"""Entities of texts with their probabilities, their scores, and the forward passes that `look` repeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import torch

from clearhead.formatting import escape_control
from clearhead.tasks.answerer import Prediction, Scores, ScoringAnswerer
from clearhead.tasks.metrics import LabelCounts, count_labels
from clearhead.tasks.settings import Options
from clearhead.tasks.tagging.linear_chain import ScoredSpan
from clearhead.tasks.tagging.schemes import Span, tag_order, write_tags
from clearhead.tasks.tagging.sentences import Sentence, group_documents, mark_entities
from clearhead.tasks.tagging.tagger import Tagger, score_words
from clearhead.tasks.tagging.tagging_processor import TaggingProcessor
from clearhead.tasks.trace import AnswerPart, TaskTracer, Trace, note_unknown
from clearhead.text import Row


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

    def to_cells(self) -> dict[str, Any]:
        return {"entities": [entity._asdict() for entity in self.entities]}

    def split_parts(self, sentence: Sentence, first: int, last: int) -> list[AnswerPart]:
        """The text from one word up to another, split into its entities and the plain text between them."""
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
    def describe(cls, sentence: Sentence, spans: Sequence[ScoredSpan]) -> TaggedText:
        """What is in a sentence, by the spans of its words."""
        exact = [sentence.locate(span) for span, _ in spans]
        entities = tuple(
            Entity(*span, sentence.text[span.begin : span.end], scored.probability)
            for span, scored in zip(exact, spans, strict=True)
        )
        notes = () if sentence.words else ("the text has no words",)
        return cls(mark_entities(sentence.text, exact), notes, entities, tuple(span for span, _ in spans))


class TaggingAnswerer(ScoringAnswerer[TaggingProcessor, Tagger, Sentence, Options]):
    @torch.no_grad()
    def predict(self, inputs: Sequence[Sentence], options: Options, *, inputs_before: int = 0) -> list[TaggedText]:
        processor, model = self.processor, self.model
        windows = processor.encode(group_documents(inputs, processor.context))
        scores = score_words(model, windows, pad=processor.tokenizer.pad, most=options.batch)
        # Sentences are decoded one by one: no entity crosses the end of one.
        of_sentences = torch.cat([*scores]).split([len(sentence.words) for sentence in inputs]) if inputs else []
        decoded = processor.decoder.decode(of_sentences, model.steps())
        return [TaggedText.describe(sentence, spans) for sentence, spans in zip(inputs, decoded, strict=True)]

    def score(self, rows: Sequence[Row], predictions: Sequence[TaggedText], options: Options) -> Scores:
        sentences = [self.processor.inputs.of_row(row) for row in rows]
        return count_tables(sentences, [answer.spans for answer in predictions]).scores()


class TaggingTracer(TaskTracer[TaggingAnswerer]):
    def traces(self, sentence: Sentence, *, answer: str | None, options: Options) -> list[Trace]:
        """A text, read once; a long one once for each window. A text is a document: there is nothing around it."""
        self.refuse_answer(answer)
        processor = self.answerer.processor
        [prediction] = self.answerer.predict([sentence], options)
        [windows] = processor.encode([[sentence]])
        words = sentence.word_texts()
        surfaces, traces = processor.encoder.surfaces(words), list[Trace]()
        start, end = processor.tokenizer.pieces([processor.tokenizer.start, processor.tokenizer.end])
        for window in windows:
            begin, until, first, last = window.window
            parts = prediction.split_parts(sentence, first, last)
            traces.append(
                Trace(
                    {"tokens": window.tokens},
                    text="".join(part.text if part.score is None else f"[{part.text}]({part.label})" for part in parts),
                    notes=[*prediction.notes, *note_unknown(processor.encoder.find_unknown(words[begin:until]))],
                    surfaces={"tokens": [start, *chain(*surfaces[begin:until]), end]},
                    parts=parts,
                    features=window.cases,
                )
            )
        return traces

    def run(self, trace: Trace) -> None:
        model = self.answerer.model
        device = model.vocabulary.words.weight.device
        tokens, cases = (torch.tensor([part], device=device) for part in (trace.reads["tokens"], trace.features))
        model(tokens, cases=cases)


class Tables(NamedTuple):
    """The counts of entities by their labels, and of tags word by word.

    An entity is right if its border and its label are. The counts of tags include "O", as reports of token classifiers
    do; for entities that is far too friendly a figure.
    """

    entities: LabelCounts
    tags: LabelCounts

    def scores(self) -> Scores:
        """What `evaluate` gives, between 0 and 1."""
        entities = self.entities.table(self._labels())["micro avg"]
        tags = self.tags.table(self.tag_names())
        return {
            "entity_precision": round(entities.precision, 4),
            "entity_recall": round(entities.recall, 4),
            "entity_f1": round(entities.f1, 4),
            "token_accuracy": round(tags["micro avg"].recall, 4),
            "token_macro_f1": round(tags["macro avg"].f1, 4),
            "token_weighted_f1": round(tags["weighted avg"].f1, 4),
        }

    def format(self) -> str:
        """Both tables, with a heading each."""
        tags, entities = format_counts(self.tags, self.tag_names()), format_counts(self.entities, self._labels())
        return f"Tokens\n\n{tags}\n\nEntities\n\n{entities}"

    def tag_names(self) -> list[str]:
        """By label, B before I, and "O" last."""
        return sorted({*self.tags.wanted, *self.tags.predicted}, key=tag_order)

    def _labels(self) -> list[str]:
        return sorted({*self.entities.wanted, *self.entities.predicted})


def format_counts(counts: LabelCounts, names: Sequence[str]) -> str:
    """The table as seqeval and scikit-learn's classification_report print it, with three digits."""
    table = {escape_control(name, keep=""): scores for name, scores in counts.table(names).items()}
    width = max(map(len, table))
    headers = ("precision", "recall", "f1-score", "support")
    lines = [" " * (width + 1) + "".join(f" {header:>9}" for header in headers), ""]
    for name, (*scores, support) in table.items():
        if len(lines) == len(names) + 2:
            lines.append("")
        lines.append(f"{name:>{width}} " + "".join(f" {score:>9.3f}" for score in scores) + f" {support:>9}")
    return "\n".join(lines)


def count_entities(wanted: Sequence[Sequence[Span]], predicted: Sequence[Sequence[Span]]) -> LabelCounts:
    right = (span for spans, others in zip(wanted, predicted, strict=True) for span in {*spans} & {*others})
    return LabelCounts(*(Counter(span.label for span in spans) for spans in (right, chain(*predicted), chain(*wanted))))


def count_tables(sentences: Sequence[Sentence], predicted: Sequence[Sequence[Span]]) -> Tables:
    """From sentences and the entities (by words) that were predicted in them; tags in the scheme of the data."""
    exact, tags, wanted = list[list[Span]](), list[str](), list[str]()
    for sentence, spans in zip(sentences, predicted, strict=True):
        scheme = "iob2" if sentence.scheme == "iob1" else sentence.scheme
        exact.append([sentence.locate(span) for span in spans])
        tags += write_tags(spans, len(sentence.words), scheme)
        wanted += sentence.tags(scheme)
    entities = count_entities([sentence.exact_entities() for sentence in sentences], exact)
    return Tables(entities, count_labels([[tag] for tag in wanted], [[tag] for tag in tags]))
