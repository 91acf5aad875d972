"""Tables of precision, recall and F1, of tags word by word and of whole entities, as seqeval prints them.

An entity is right if its border and its label are. The table of tags counts every tag, "O" included, as reports of
token classifiers do; for entities that is far too friendly a figure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from clearhead.formatting import escape_control
from clearhead.tasks.tagging.schemes import Span, tag_order, write_tags
from clearhead.tasks.tagging.sentences import Sentence

DIGITS = 3
HEADERS = ("precision", "recall", "f1-score", "support")


class Line(NamedTuple):
    """A row of a table."""

    precision: float
    recall: float
    f1: float
    support: int


@dataclass
class Counts:
    """How often each name (a tag or a label) was right, was predicted and was wanted."""

    right: Counter[str] = field(default_factory=Counter)
    predicted: Counter[str] = field(default_factory=Counter)
    wanted: Counter[str] = field(default_factory=Counter)
    of_tags: bool = False

    def names(self) -> list[str]:
        """What was wanted or predicted; tags by label, B before I, and "O" last."""
        names = {*self.wanted, *self.predicted}
        return sorted(names, key=tag_order) if self.of_tags else sorted(names)

    def line(self, name: str) -> Line:
        return _line(self.right[name], self.predicted[name], self.wanted[name])

    def micro(self) -> Line:
        """All occurrences count alike."""
        return _line(self.right.total(), self.predicted.total(), self.wanted.total())

    def macro(self) -> Line:
        """The mean over the names."""
        return self._mean(dict.fromkeys(self.names(), 1))

    def weighted(self) -> Line:
        """The mean over the names, each as often as it was wanted."""
        return self._mean({name: self.wanted[name] for name in self.names()})

    def _mean(self, weights: dict[str, int]) -> Line:
        total = sum(weights.values()) or 1
        lines = [(self.line(name), weight / total) for name, weight in weights.items()]
        precision, recall, f1 = (sum(line[column] * weight for line, weight in lines) for column in range(3))
        return Line(precision, recall, f1, self.wanted.total())

    def format(self) -> str:
        """The table as scikit-learn's classification_report prints it, with three digits."""
        rows = {escape_control(name, keep=""): self.line(name) for name in self.names()}
        averages = {"micro avg": self.micro(), "macro avg": self.macro(), "weighted avg": self.weighted()}
        width = max(map(len, [*rows, *averages]))
        lines = ["".join([" " * (width + 1), *(f" {header:>9}" for header in HEADERS)]), ""]
        lines += [_format_line(name, line, width) for name, line in rows.items()]
        lines += ["", *(_format_line(name, line, width) for name, line in averages.items())]
        return "\n".join(lines)


def count_tags(wanted: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Counts:
    """Counts of tags, word by word."""
    counts = Counts(of_tags=True)
    for one, other in zip(wanted, predicted, strict=True):
        counts.wanted.update(one)
        counts.predicted.update(other)
        counts.right.update(tag for tag, found in zip(one, other, strict=True) if tag == found)
    return counts


def count_entities(wanted: Sequence[Sequence[Span]], predicted: Sequence[Sequence[Span]]) -> Counts:
    """Counts of entities by their labels."""
    counts = Counts()
    for one, other in zip(wanted, predicted, strict=True):
        counts.wanted.update(span.label for span in one)
        counts.predicted.update(span.label for span in other)
        counts.right.update(span.label for span in set(one) & set(other))
    return counts


class Tables(NamedTuple):
    """The counts of entities and of tags."""

    entities: Counts
    tags: Counts

    def scores(self) -> dict[str, float | str]:
        """What `evaluate` gives, between 0 and 1."""
        entities, tags = self.entities.micro(), self.tags
        return {
            "entity_precision": round(entities.precision, 4),
            "entity_recall": round(entities.recall, 4),
            "entity_f1": round(entities.f1, 4),
            "token_accuracy": round(tags.micro().recall, 4),
            "token_macro_f1": round(tags.macro().f1, 4),
            "token_weighted_f1": round(tags.weighted().f1, 4),
        }

    def format(self) -> str:
        """Both tables, with a heading each."""
        return f"Tokens\n\n{self.tags.format()}\n\nEntities\n\n{self.entities.format()}"


def count_tables(sentences: Sequence[Sentence], predicted: Sequence[Sequence[Span]]) -> Tables:
    """From sentences and the entities (by words) that were predicted in them; tags in the scheme of the data."""
    exact, found, wanted = list[list[Span]](), list[list[str]](), list[list[str]]()
    for sentence, spans in zip(sentences, predicted, strict=True):
        scheme = "iob2" if sentence.scheme == "iob1" else sentence.scheme
        exact.append([sentence.locate(span) for span in spans])
        found.append(write_tags(spans, len(sentence.words), scheme))
        wanted.append(sentence.tags(scheme))
    entities = count_entities([sentence.exact_entities() for sentence in sentences], exact)
    return Tables(entities, count_tags(wanted, found))


def _line(right: int, predicted: int, wanted: int) -> Line:
    precision, recall = right / predicted if predicted else 0.0, right / wanted if wanted else 0.0
    return Line(precision, recall, 2 * right / (predicted + wanted) if predicted + wanted else 0.0, wanted)


def _format_line(name: str, line: Line, width: int) -> str:
    return f"{name:>{width}} " + "".join(f" {value:>9.{DIGITS}f}" for value in line[:3]) + f" {line.support:>9}"
