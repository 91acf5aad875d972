"""The task tagging: its loss (of whole sequences by a CRF, or of single words), tables, baseline and declaration."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead.tasks.answerer import Baseline
from clearhead.tasks.losses import UNCOUNTED, masked_token_loss
from clearhead.tasks.objective import Objective
from clearhead.tasks.tagging.linear_chain import IMPOSSIBLE, Steps, log_partition, sequence_scores
from clearhead.tasks.tagging.schemes import OUTSIDE, Span, read_tags
from clearhead.tasks.tagging.sentences import Sentence
from clearhead.tasks.tagging.tagger import Tagger
from clearhead.tasks.tagging.tagging_answerer import TaggedText, TaggingAnswerer, TaggingTracer, count_tables
from clearhead.tasks.tagging.tagging_processor import TaggedWords, TaggingProcessor, TaggingRecipe
from clearhead.tasks.task import Task
from clearhead.text import Row
from clearhead.text.report import describe_flaws


class TaggingObjective(Objective[TaggingProcessor, TaggingRecipe, Tagger, TaggedWords]):
    def __init__(self, processor: TaggingProcessor, recipe: TaggingRecipe) -> None:
        super().__init__(processor, recipe)
        self._legal: Steps | None = None  # on the device of the loss: CUDA graphs record no copies to it

    def loss(self, model: Tagger, batch: TaggedWords) -> Float[Tensor, ""]:
        share = self.recipe.text.unknown if model.training else 0.0
        tokens = batch.tokens
        if share:
            hidden_pieces = draw_hidden(batch, share)
            tokens = tokens.masked_fill(hidden_pieces, self.processor.encoder.unknown_piece)
        hidden = model.encode(tokens, batch.lengths, batch.cases)
        loss = self._tag_loss(model, model.word_scores(hidden, batch.words), batch)
        if share and self.recipe.loss.masked:
            guesses = masked_token_loss(model.vocabulary, model.dropout(hidden), batch.tokens, hidden_pieces)
            loss = loss + self.recipe.loss.masked * batch.word_lengths.sum() * guesses
        return loss

    def _tag_loss(
        self, model: Tagger, scores: Float[Tensor, "batch words tags"], batch: TaggedWords
    ) -> Float[Tensor, ""]:
        learned = model.steps()
        if learned is not None:
            if self._legal is None or self._legal.first.device != scores.device:
                self._legal = Steps.legal(self.processor.decoder.legality, IMPOSSIBLE).to(scores.device)
            steps = learned + self._legal
            begins = batch.begins if self.processor.context else None
            right = sequence_scores(scores, batch.tags.clamp(min=0), batch.word_lengths, steps, begins)
            return (log_partition(scores, batch.word_lengths, steps, begins) - right).sum()
        return F.cross_entropy(
            scores.flatten(0, 1),
            batch.tags.flatten(),
            ignore_index=UNCOUNTED,
            reduction="sum",
            label_smoothing=self.recipe.loss.label_smoothing if model.training else 0.0,
        )


def draw_hidden(batch: TaggedWords, share: float) -> Bool[Tensor, "batch tokens"]:
    """Which pieces are read as unknown: a random share of all but start and end."""
    tokens = batch.tokens
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    inner = (positions > 0) & (positions < batch.lengths[:, None] - 1)
    return inner & (torch.rand(tokens.shape, device=tokens.device) < share)


def report_entities(processor: TaggingProcessor, rows: Sequence[Row], predictions: Sequence[TaggedText]) -> str:
    """The table of tags, word by word and with "O", the table of entities, and what was wrong in the data."""
    sentences = [processor.inputs.of_row(row) for row in rows]
    tables = count_tables(sentences, [answer.spans for answer in predictions])
    flaws = describe_flaws((row, processor.check_row(row).flaws) for row in rows)
    return "\n".join([tables.format(), *([""] if flaws else []), *flaws])


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
    baseline=score_frequent_tags,
)
