"""The task of tagging: sentences with entities in, entities with probabilities out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from clearhead.errors import CheckpointError, DataError
from clearhead.model import ModelConfig
from clearhead.tasks.base import SMALL, Baseline, Scores, Task
from clearhead.tasks.losses import UNCOUNTED, masked_token_loss
from clearhead.tasks.settings import Options, TaskRecipe
from clearhead.tasks.tagging.entity_decoding import Decoder
from clearhead.tasks.tagging.entity_tables import Tables, count_tables
from clearhead.tasks.tagging.evaluation import count_confusions, find_flaws, tag_by_frequency
from clearhead.tasks.tagging.linear_chain import IMPOSSIBLE, Steps, log_partition, sequence_scores
from clearhead.tasks.tagging.schemes import OUTSIDE, list_tags, write_tags
from clearhead.tasks.tagging.sentences import Sentence, mark_entities, read_sentence
from clearhead.tasks.tagging.tagged_files import read_tagged
from clearhead.tasks.tagging.tagged_text import TaggedText
from clearhead.tasks.tagging.tagger import Tagger, score_words
from clearhead.tasks.tagging.tagging_examples import (
    TaggedExamples,
    TaggedWords,
    WindowTokens,
    WordEncoder,
    choose_window,
    make_windows,
)
from clearhead.tasks.tagging.tagging_settings import TaggingRecipe, check_settings
from clearhead.tasks.trace import Trace, note_unknown
from clearhead.text.report import Flaw, describe_flaws

if TYPE_CHECKING:
    from clearhead.tasks.pretrained import Pretrained
    from clearhead.text import Report, Row, Tokenizer

MOST_LABELS = 500  # BIOES has four tags for each, and a CRF a score for each pair of tags


class TaggingTrace(Trace):
    """A trace with the additional inputs of a tagger."""

    window: WindowTokens


class Tagging(Task[Tagger, Any, TaggedWords, Options]):
    """Finds named entities; every word of a text gets a tag, and tags give entities."""

    name = "tagging"
    recipe = TaggingRecipe
    columns = ("text", "entities")
    metrics = ("entity_f1", "entity_precision", "entity_recall", "token_accuracy", "token_macro_f1")
    metric = "entity_f1"
    added_tokens = 2
    default_shape = "tiny"

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig, settings: Mapping[str, Any]) -> None:
        self.tokenizer, self.config, self._settings = tokenizer, config, dict(settings)
        self.labels: list[str] = settings["labels"]  # the tags that the model has scores for
        self.types = sorted({tag[2:] for tag in self.labels if tag != OUTSIDE})
        self.window, self.characters, self.scheme = settings["window"], settings["characters"], settings["scheme"]
        self.decoder = Decoder(self.labels, settings["tags"])
        unknown = bool(settings["unknown"])
        longest = max(1, self.window // 4)
        self.encoder = WordEncoder(tokenizer, longest=longest, unknown=unknown)
        self.label_smoothing = self.unknown = self.masked = 0.0
        self._legal: Steps | None = None  # on the device of the loss: CUDA graphs record no copies to it

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self._settings)

    # Data

    @classmethod
    def read(
        cls,
        source: str | Path | Mapping[str, str | Path],
        columns: Sequence[str] | Mapping[str, str] | None = None,
    ) -> Iterator[Row]:
        if isinstance(source, Mapping):
            raise DataError(
                "tagging reads one file with words and tags, or with texts and entities, not one file per column"
            )
        return read_tagged(source, columns)

    @classmethod
    def prepare(cls, rows: Sequence[Row], recipe: TaskRecipe, start: Pretrained | None = None) -> Tagging:
        assert isinstance(recipe, TaggingRecipe)
        sentences = [Sentence.from_row(row, scheme=recipe.data.scheme) for row in rows]
        types = sorted({span.label for sentence in sentences for span in sentence.entities})
        if not types:
            raise DataError(f"there is nothing to learn: no word of {len(rows):,} sentences is in an entity")
        if len(types) > MOST_LABELS:
            raise DataError(
                f"{rows[0].file}: {len(types):,} different labels ({', '.join(types[:3])}, …), and tagging takes at "
                f"most {MOST_LABELS}: it scores every pair of tags; is the right column read as the tag?"
            )
        given = [sentence for sentence in sentences if sentence.characters is None]
        single = bool(given) and all(end - begin == 1 for sentence in given for begin, end in sentence.words)
        words = [word for sentence in sentences for word in sentence.word_texts()]
        tokenizer = recipe.text.make_tokenizer(words, start)
        labels = list_tags(types, recipe.loss.tags)
        if start is not None and sorted(start.labels) == sorted(labels):
            labels = list(start.labels)  # in their order, so that the output head can be taken over, too
        config = cls.make_config(recipe, start, vocabulary=tokenizer.size, labels=len(labels))
        settings = {
            "labels": labels,
            "tags": recipe.loss.tags,
            "crf": recipe.loss.crf,
            "letter_case": recipe.text.letter_case,
            "convolutions": recipe.text.convolutions,
            "unknown": recipe.text.unknown,
            "characters": single,
            "scheme": recipe.data.scheme,
            "window": choose_window(recipe.data.longest, config, tokenizer, sentences),
        }
        return cls(tokenizer, config, settings)

    def configure(self, recipe: TaskRecipe) -> None:
        assert isinstance(recipe, TaggingRecipe)
        self.label_smoothing, self.unknown = recipe.loss.label_smoothing, recipe.text.unknown
        self.masked = recipe.loss.masked

    def examples(self, rows: Iterable[Row], report: Report, recipe: TaskRecipe | None = None) -> TaggedExamples:
        kept: list[Row] = []
        sentences: list[Sentence] = []
        for row in rows:
            if problem := self.row_problem(row):
                report.drop(row, problem)
                continue
            report.keep()
            kept.append(row)
            sentences.append(self.input_of(row))
            for flaw, count in self.find_flaws(row).items():
                report.add_flaw(row, flaw, count)
        if not kept:
            raise DataError(f"no sentence is left to use: {report}")
        numbers = self.decoder.numbers
        windows, tags, origins = list[WindowTokens](), list[list[int]](), list[int]()
        for origin, (sentence, made) in enumerate(zip(sentences, self._windows(sentences), strict=True)):
            # A label that training never saw cannot be learned; it counts as wrong where entities are scored.
            known = [span for span in sentence.entities if span.label in self.types]
            own = [numbers[tag] for tag in write_tags(known, len(sentence.words), self.decoder.scheme)]
            windows += made
            tags += [own[one.window.first : one.window.last] for one in made]
            origins += [origin] * len(made)
        return TaggedExamples(windows, tags, self.tokenizer.pad).of(kept, origins)

    def row_problem(self, row: Row) -> str | None:
        return None if self.input_of(row).words else "without a word"

    def find_flaws(self, row: Row) -> dict[Flaw, int]:
        return find_flaws(self.input_of(row), self.types)

    def input_of(self, row: Row) -> Sentence:
        return read_sentence(row, self.scheme, self.characters)

    def answer_of(self, row: Row) -> str:
        sentence = self.input_of(row)
        return mark_entities(sentence.text, sentence.exact_entities())

    def check_input(self, given: Any, place: str = "the input") -> Sentence:
        text = super().check_input(given, place)
        return Sentence.from_text(text, characters=self.characters)

    def _windows(self, sentences: Sequence[Sentence]) -> list[list[WindowTokens]]:
        """The windows of each sentence; all their words are encoded in one call."""
        encoded = iter(self.encoder.encode([word for sentence in sentences for word in sentence.word_texts()]))
        ends = self.tokenizer.start, self.tokenizer.end
        made = []
        for sentence in sentences:
            words = list(islice(encoded, len(sentence.words)))
            made.append(make_windows(words, size=self.window, ends=ends))
        return made

    # Model

    def build(self) -> Tagger:
        crf, cases, convolutions = (self._settings[key] for key in ("crf", "letter_case", "convolutions"))
        return Tagger(self.config, crf=crf, cases=cases, convolutions=convolutions)

    @classmethod
    def fit(cls, rows: int, *, gpu: bool) -> dict[str, dict[str, Any]]:
        chosen = super().fit(rows, gpu=gpu)
        if "train" not in chosen:  # a large model on a GPU
            return chosen
        model = {**chosen["model"], "positions": "rotary", "scale_embeddings": False, "dropout": 0.3}
        steps = 1000 if rows < SMALL else 4000
        train = {
            "learning_rate": 2e-3,
            "warmup": 100,
            "schedule": "linear",
            "steps": steps,
            "evaluate_every": steps // 10,
        }
        return {"model": model, "train": {**chosen["train"], **train}}

    def loss(self, model: Tagger, batch: TaggedWords) -> Float[Tensor, ""]:
        tokens, hiding = batch.tokens, model.training and self.unknown > 0
        if hiding:
            hidden_pieces = self._draw_hidden(batch)
            tokens = tokens.masked_fill(hidden_pieces, self.encoder.unknown_piece)
        hidden = model.encode(tokens, batch.lengths, batch.cases)
        loss = self._tag_loss(model, model.word_scores(hidden, batch.words), batch)
        if hiding and self.masked:
            guesses = masked_token_loss(model.vocabulary, model.dropout(hidden), batch.tokens, hidden_pieces)
            loss = loss + self.masked * batch.word_lengths.sum() * guesses
        return loss

    def _tag_loss(self, model: Tagger, scores: Tensor, batch: TaggedWords) -> Tensor:
        learned = model.steps()
        if learned is not None:
            if self._legal is None or self._legal.first.device != scores.device:
                self._legal = Steps.legal(self.decoder.legality, IMPOSSIBLE).to(scores.device)
            steps = learned + self._legal
            right = sequence_scores(scores, batch.tags.clamp(min=0), batch.word_lengths, steps)
            return (log_partition(scores, batch.word_lengths, steps) - right).sum()
        smoothing = self.label_smoothing if model.training else 0.0
        return F.cross_entropy(
            scores.flatten(0, 1),
            batch.tags.flatten(),
            ignore_index=UNCOUNTED,
            reduction="sum",
            label_smoothing=smoothing,
        )

    def _draw_hidden(self, batch: TaggedWords) -> Tensor:
        """Which pieces are read as unknown: a random share of all but start and end."""
        tokens = batch.tokens
        places = torch.arange(tokens.shape[1], device=tokens.device)
        inner = (places > 0) & (places < batch.lengths[:, None] - 1)
        return inner & (torch.rand(tokens.shape, device=tokens.device) < self.unknown)

    # Answers

    @torch.no_grad()
    def predict(self, model: Tagger, inputs: Sequence[Any], options: Options) -> list[TaggedText]:
        sentences = [one if isinstance(one, Sentence) else self.check_input(one) for one in inputs]
        scores = score_words(model, self._windows(sentences), pad=self.tokenizer.pad, most=options.batch)
        decoded = self.decoder.decode(scores, model.steps())
        return [TaggedText.describe(sentence, found) for sentence, found in zip(sentences, decoded, strict=True)]

    def score(self, rows: Sequence[Row], predictions: Sequence[TaggedText], options: Options) -> Scores:
        return self._count(rows, predictions).scores()

    def report(self, rows: Sequence[Row], predictions: Sequence[TaggedText]) -> str:
        """The table of tags, word by word and with "O", the table of entities, and what was wrong in the data."""
        flaws = describe_flaws(rows, self.find_flaws)
        return "\n".join([self._count(rows, predictions).format(), *([""] if flaws else []), *flaws])

    def confusion(self, rows: Sequence[Row], predictions: Sequence[TaggedText]) -> tuple[list[str], NDArray[np.int64]]:
        return count_confusions([self.input_of(row) for row in rows], [one.spans for one in predictions])

    def baseline(self, train: Sequence[Row], rows: Sequence[Row]) -> Baseline:
        sentences = [self.input_of(row) for row in rows]
        found = tag_by_frequency(map(self.input_of, train), sentences)
        return Baseline("the most frequent tag of each word", count_tables(sentences, found).scores())

    def _count(self, rows: Sequence[Row], predictions: Sequence[TaggedText]) -> Tables:
        return count_tables([self.input_of(row) for row in rows], [one.spans for one in predictions])

    # Attention

    def traces(self, model: Tagger, given: Any, *, answer: str | None, options: Options) -> list[Trace]:
        """A text, read once; a long one once for each window."""
        if answer is not None:
            raise DataError("the task tagging cannot use --answer; omit it")
        sentence = given if isinstance(given, Sentence) else self.check_input(given)
        [prediction] = self.predict(model, [sentence], options)
        [windows] = self._windows([sentence])
        words = sentence.word_texts()
        surfaces, made = self.encoder.surfaces(words), list[Trace]()
        [start, end] = self.tokenizer.pieces([self.tokenizer.start, self.tokenizer.end])
        for one in windows:
            begin, until, first, last = one.window
            inside = [piece for word in surfaces[begin:until] for piece in word]
            trace = TaggingTrace(
                {"tokens": one.tokens},
                text=prediction.mark_words(sentence, first, last),
                notes=[*prediction.notes, *note_unknown(self.encoder.find_unknown(words[begin:until]))],
                surfaces={"tokens": [start, *inside, end]},
                parts=prediction.split_parts(sentence, first, last),
            )
            trace.window = one
            made.append(trace)
        return made

    def run_trace(self, model: Tagger, trace: Trace) -> None:
        assert isinstance(trace, TaggingTrace)
        device, window = model.vocabulary.words.weight.device, trace.window
        tokens, cases = (torch.tensor([part], device=device) for part in (window.tokens, window.cases))
        model(tokens, cases=cases)

    def pieces(self, kind: str, numbers: Sequence[int]) -> list[str]:
        return self.tokenizer.pieces(numbers)

    # Model folder

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder)

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> Tagging:
        from clearhead.text import Tokenizer

        tokenizer = Tokenizer.load(folder)
        check_settings(folder, settings)
        tags = len(settings["labels"])
        if (tags, tokenizer.size) != (config.labels, config.vocabulary):
            raise CheckpointError(
                f"{folder} has {tags} tags and {tokenizer.size} tokens, but its model {config.labels} and "
                f"{config.vocabulary}; copy the folder again"
            )
        return cls(tokenizer, config, settings)
