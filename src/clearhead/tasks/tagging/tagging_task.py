"""The declaration of the task tagging, with its tables and its baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clearhead.tasks.answerer import Baseline
from clearhead.tasks.tagging.entity_tables import count_tables
from clearhead.tasks.tagging.evaluation import count_confusions, tag_by_frequency
from clearhead.tasks.tagging.tagged_text import TaggedText
from clearhead.tasks.tagging.tagging_answerer import TaggingAnswerer, TaggingTracer
from clearhead.tasks.tagging.tagging_objective import TaggingObjective
from clearhead.tasks.tagging.tagging_processor import TaggingProcessor
from clearhead.tasks.tagging.tagging_settings import TaggingRecipe
from clearhead.tasks.task import Task
from clearhead.text.report import describe_flaws

if TYPE_CHECKING:
    from clearhead.text import Row


def report_entities(processor: TaggingProcessor, rows: Sequence[Row], predictions: Sequence[TaggedText]) -> str:
    """The table of tags, word by word and with "O", the table of entities, and what was wrong in the data."""
    sentences = [processor.inputs.of_row(row) for row in rows]
    tables = count_tables(sentences, [answer.spans for answer in predictions])
    flaws = describe_flaws(rows, processor.find_flaws)
    return "\n".join([tables.format(), *([""] if flaws else []), *flaws])


def count_word_confusions(
    processor: TaggingProcessor, rows: Sequence[Row], predictions: Sequence[TaggedText]
) -> tuple[list[str], NDArray[np.int64]]:
    sentences = [processor.inputs.of_row(row) for row in rows]
    return count_confusions(sentences, [answer.spans for answer in predictions])


def score_frequent_tags(processor: TaggingProcessor, train: Sequence[Row], rows: Sequence[Row]) -> Baseline:
    sentences = [processor.inputs.of_row(row) for row in rows]
    predicted = tag_by_frequency(map(processor.inputs.of_row, train), sentences)
    return Baseline("the most frequent tag of each word", count_tables(sentences, predicted).scores())


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
