"""The declaration of the task tagging, with its tables and its baseline."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clearhead.tasks.answerer import Baseline
from clearhead.tasks.metrics import count_confusions
from clearhead.tasks.tagging.schemes import OUTSIDE, Span, read_tags
from clearhead.tasks.tagging.sentences import Sentence
from clearhead.tasks.tagging.tagging_answerer import TaggedText, TaggingAnswerer, TaggingTracer, count_tables
from clearhead.tasks.tagging.tagging_objective import TaggingObjective
from clearhead.tasks.tagging.tagging_processor import TaggingProcessor, TaggingRecipe
from clearhead.tasks.task import Task
from clearhead.text.report import describe_flaws

if TYPE_CHECKING:
    from clearhead.text import Row


def report_entities(processor: TaggingProcessor, rows: Sequence[Row], predictions: Sequence[TaggedText]) -> str:
    """The table of tags, word by word and with "O", the table of entities, and what was wrong in the data."""
    sentences = [processor.inputs.of_row(row) for row in rows]
    tables = count_tables(sentences, [answer.spans for answer in predictions])
    flaws = describe_flaws((row, processor.check_row(row).flaws) for row in rows)
    return "\n".join([tables.format(), *([""] if flaws else []), *flaws])


def count_word_confusions(
    processor: TaggingProcessor, rows: Sequence[Row], predictions: Sequence[TaggedText]
) -> tuple[list[str], NDArray[np.int64]]:
    """How often a word in an entity of one label was given another; "O" is outside of all."""
    sentences = [processor.inputs.of_row(row) for row in rows]
    wanted = list(chain(*(_word_labels(sentence.entities, len(sentence.words)) for sentence in sentences)))
    spans = zip(predictions, sentences, strict=True)
    predicted = list(chain(*(_word_labels(answer.spans, len(sentence.words)) for answer, sentence in spans)))
    return count_confusions(wanted, predicted, [*sorted({*wanted, *predicted} - {OUTSIDE}), OUTSIDE])


def _word_labels(spans: Iterable[Span], words: int) -> list[str]:
    labels = [OUTSIDE] * words
    for begin, end, label in spans:
        labels[begin:end] = [label] * (end - begin)
    return labels


def score_frequent_tags(processor: TaggingProcessor, train: Sequence[Row], rows: Sequence[Row]) -> Baseline:
    sentences = [processor.inputs.of_row(row) for row in rows]
    predicted = tag_by_frequency(map(processor.inputs.of_row, train), sentences)
    return Baseline("the most frequent tag of each word", count_tables(sentences, predicted).scores())


def tag_by_frequency(train: Iterable[Sentence], sentences: Iterable[Sentence]) -> list[list[Span]]:
    """Entities by the tag that each word has most often in the training data; O for words that are not there."""
    seen: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for sentence in train:
        for word, tag in zip(sentence.word_texts(), sentence.tags("iob2"), strict=True):
            seen[word][tag] += 1
    likeliest = {word: min(tags, key=lambda tag: (-tags[tag], tag)) for word, tags in seen.items()}
    return [read_tags([likeliest.get(word, OUTSIDE) for word in sentence.word_texts()]) for sentence in sentences]


TASK = Task(
    name="tagging",
    recipe=TaggingRecipe,
    processor=TaggingProcessor,
    objective=TaggingObjective,
    answerer=TaggingAnswerer,
    tracer=TaggingTracer,
    metrics=("entity_f1", "entity_precision", "entity_recall", "token_accuracy", "token_macro_f1"),
    report=report_entities,
    confusion=count_word_confusions,
    baseline=score_frequent_tags,
)
