"""The task classification: data, loss, answers, scores, and what `look` shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from clearhead.attention import Mask
from clearhead.decode.prepacked_linear import decoding_view
from clearhead.errors import CheckpointError, ConfigError, DataError
from clearhead.model import Classifier, ModelConfig
from clearhead.tasks.base import Baseline, Scores, Task
from clearhead.tasks.baselines import TfidfBaseline
from clearhead.tasks.classification.calibration import choose_thresholds, fit_temperature
from clearhead.tasks.classification.classifier_examples import (
    LabelledTexts,
    TextExamples,
    hide_tokens,
    mark_segments,
)
from clearhead.tasks.classification.classifier_scores import score_answers, score_calibration
from clearhead.tasks.classification.classifier_settings import ClassificationRecipe, LabelOptions
from clearhead.tasks.classification.label_column import LabelColumn
from clearhead.tasks.classification.label_losses import label_loss, scores_divergence, weigh_labels
from clearhead.tasks.classification.label_prediction import LabelPrediction
from clearhead.tasks.finite_scores import check_finite
from clearhead.tasks.label_tables import count_confusions, format_label_table, label_table
from clearhead.tasks.losses import UNCOUNTED, masked_token_loss
from clearhead.tasks.text_windows import (
    EncodedInput,
    cut_text,
    encode_inputs,
    mask_padding,
    surface_windows,
    text_windows,
    window_size,
)
from clearhead.tasks.trace import Trace
from clearhead.text.batches import Ragged, token_batches
from clearhead.text.report import Flaw

if TYPE_CHECKING:
    from clearhead.tasks.pretrained import Pretrained
    from clearhead.tasks.settings import TaskRecipe
    from clearhead.text import Report, Row, Tokenizer

PAIRS = ("text", "other", "label")
TOKENS = 1024  # of a batch in prediction, pads included: what a CPU's cache holds is computed fastest
GPU_TOKENS = 32_768  # on other devices, where a batch should be large
UNSEEN = Flaw(
    "row with a label that is not in the training data, counted as wrong",
    "rows with a label that is not in the training data, counted as wrong",
)
Input = str | tuple[str, str]


class Classification(Task[Classifier, Input, LabelledTexts, LabelOptions]):
    name = "classification"
    recipe = ClassificationRecipe
    options = LabelOptions
    columns: tuple[str, ...] = ("text", "label")
    metrics = ("accuracy", "macro_f1")
    metric = "accuracy"
    added_tokens = 2
    default_shape = "tiny"

    def __init__(
        self,
        tokenizer: Tokenizer,
        labels: Sequence[str],
        config: ModelConfig,
        *,
        column: LabelColumn | None = None,
        pairs: bool = False,
        counts: Sequence[int] = (),
    ) -> None:
        self.tokenizer, self.labels, self.config = tokenizer, list(labels), config
        self.column, self.pairs = column or LabelColumn(), pairs
        self.counts = list(counts)  # training rows with each label, and of all
        self.columns = PAIRS if pairs else type(self).columns
        self.metric = "macro_f1" if self.column.multi_label else "accuracy"
        self.temperature = 1.0  # that the model's scores were divided by
        self.thresholds = [0.5] * len(self.labels)
        self.longest = 0  # tokens of a text in training; 0: not known
        self.label_smoothing = self.token_dropout = self.masked = self.r_drop = 0.0
        self.weights: Tensor | None = None  # of the labels in the loss

    @property
    def settings(self) -> dict[str, Any]:
        column = self.column
        return {
            "labels": self.labels,
            "pairs": self.pairs,
            "multi_label": column.multi_label,
            "label_separator": column.separator,
            "label_names": list(column.names),
            "label_counts": self.counts,
            "longest": self.longest,
            "temperature": self.temperature,
            "thresholds": self.thresholds,
        }

    # Data

    @classmethod
    def read(
        cls,
        source: str | Path | Mapping[str, str | Path],
        columns: Sequence[str] | Mapping[str, str] | None = None,
    ) -> Iterator[Row]:
        """Rows of text and label, or of text, other and label where `columns` (or the files) name an `other`."""
        from clearhead.text import read

        named = source if isinstance(source, Mapping) else columns or ()
        return read(source, PAIRS if "other" in named else cls.columns, columns, labels=("label",))

    @classmethod
    def prepare(cls, rows: Sequence[Row], recipe: TaskRecipe, start: Pretrained | None = None) -> Classification:
        assert isinstance(recipe, ClassificationRecipe)
        data, pairs = recipe.data, bool(rows) and len(rows[0].values) == len(PAIRS)
        names = () if data.label_names is None else tuple(data.label_names)
        column = LabelColumn(data.multi_label, data.label_separator, names)
        counts = column.collect(rows)
        if start is not None and set(start.labels) == set(counts):  # its output head is taken, too
            counts = {label: counts[label] for label in start.labels}
        tokenizer = recipe.text.make_tokenizer((text for row in rows for text in row.values[:-1]), start)
        sizes = {"vocabulary": tokenizer.size, "labels": len(counts)}
        if pairs and start is None:
            sizes["segments"] = 2
        config = cls.make_config(recipe, start, **sizes)
        return cls(tokenizer, list(counts), config, column=column, pairs=pairs, counts=[*counts.values(), len(rows)])

    def configure(self, recipe: TaskRecipe) -> None:
        assert isinstance(recipe, ClassificationRecipe)
        loss, self.longest = recipe.loss, recipe.data.longest
        self.label_smoothing, self.token_dropout, self.r_drop = loss.label_smoothing, loss.token_dropout, loss.r_drop
        self.masked = loss.masked
        if loss.class_weights is None:
            self.weights = None
        else:
            weights = weigh_labels(self.labels, self.counts, loss.class_weights, multi_label=self.column.multi_label)
            self.weights = torch.tensor(weights)

    def examples(self, rows: Iterable[Row], report: Report, recipe: TaskRecipe | None = None) -> TextExamples:
        rows, limit = list(rows), self._limit()
        longest = recipe.data.longest if isinstance(recipe, ClassificationRecipe) else None
        texts: list[list[int]] = []
        answers: list[Any] = []
        used: list[Row] = []
        for row, (parts, cut) in zip(rows, self._encode([self.input_of(row) for row in rows]), strict=True):
            windows = text_windows(parts, limit, self.tokenizer.start, self.tokenizer.end)
            flaws = self.find_flaws(row)
            if problem := self.row_problem(row):
                report.drop(row, problem)
            elif flaws and recipe is not None:
                report.drop(row, "with a label that is not in the training data")
            elif longest is not None and (cut or sum(map(len, parts)) > longest):
                report.drop(row, f"longer than {longest} tokens")
            elif longest is not None and len(windows) > 1:
                report.drop(row, f"longer than the {limit:,} tokens that the model reads at once")
            else:
                report.keep()
                for flaw, count in flaws.items():
                    report.add_flaw(row, flaw, count)
                if len(windows) > 1:
                    what = f"longer than the {limit:,} tokens that the model reads at once"
                    report.remark(f"{what} (the loss is of the first ones)")
                texts.append(windows[0])
                answers.append(self._label_numbers(row))
                used.append(row)
        found = TextExamples(texts, answers, used, self.tokenizer.pad)
        if not found.counts.any():
            raise DataError(f"no text with a known label is left to use: {report}")
        return found

    def input_of(self, row: Row) -> Input:
        return (row.values[0], row.values[1]) if self.pairs else row.values[0]

    def answer_of(self, row: Row) -> str:
        return ", ".join(self.column.parse(row.values[-1]))

    def check_input(self, given: Any, place: str = "the input") -> Input:
        """A text; of a pair, two texts, or one with a tab between."""
        if not self.pairs:
            return super().check_input(given, place)
        parts = given.split("\t") if isinstance(given, str) else given
        fits = isinstance(parts, (list, tuple)) and len(parts) == 2 and all(isinstance(part, str) for part in parts)
        if not fits:
            raise DataError(f"{place} must be two texts with a tab between, got {given!r:.60}")
        return parts[0], parts[1]

    def row_problem(self, row: Row) -> str | None:
        *texts, written = row.values
        labels = self.column.parse(written)
        if not labels and not self.column.multi_label:
            return "without a label"
        return None if all(map(self._has_text, texts)) else "without a text"

    def contradict(self, rows: Sequence[Row]) -> bool:
        return len({frozenset(self.column.parse(row.values[-1])) for row in rows}) > 1

    def find_flaws(self, row: Row) -> dict[Flaw, int]:
        return {UNSEEN: 1} if self._unseen([row]) else {}

    def _unseen(self, rows: Sequence[Row]) -> list[str]:
        """The labels of these rows that are not in the training data."""
        found = {label for row in rows for label in self.column.parse(row.values[-1])}
        return sorted(found - set(self.labels))

    def _has_text(self, text: str) -> bool:
        return any(map(str.isalnum, text)) or bool(self.tokenizer.normal(text).strip())

    def _label_numbers(self, row: Row) -> int | list[float]:
        """The index of the label, or a multi-hot row; labels that training never saw have no loss."""
        labels = self.column.parse(row.values[-1])
        if not self.column.multi_label:
            return self.labels.index(labels[0]) if labels[0] in self.labels else UNCOUNTED
        return [float(label in labels) for label in self.labels]

    def _encode(self, inputs: Sequence[Input]) -> list[EncodedInput]:
        return encode_inputs(self.tokenizer, [_list_texts(given) for given in inputs], self._limit())

    def _limit(self) -> int:
        """The most tokens that the model reads at once, start and ends included."""
        return window_size(self.config, self.longest + (3 if self.pairs else 2))

    # Model

    def build(self) -> Classifier:
        return Classifier(self.config)

    def loss(self, model: Classifier, batch: LabelledTexts) -> Float[Tensor, ""]:
        if not model.training:
            scores = self._label_scores(model, batch.tokens, batch.lengths)
            return label_loss(scores, batch.labels, multi_label=self.column.multi_label)
        scores, loss = self._training_pass(model, batch)
        if not self.r_drop:
            return loss
        again, other = self._training_pass(model, batch)
        return (loss + other) / 2 + self.r_drop * scores_divergence(scores, again, multi_label=self.column.multi_label)

    def _training_pass(self, model: Classifier, batch: LabelledTexts) -> tuple[Tensor, Tensor]:
        """Scores of the labels, with some tokens hidden, and their loss, with that of the hidden tokens."""
        tokens = batch.tokens
        if self.token_dropout:
            kept = (self.tokenizer.start, self.tokenizer.end)
            mask = self.tokenizer.pad if self.tokenizer.mask is None else self.tokenizer.mask
            tokens = hide_tokens(tokens, self.token_dropout, mask, kept)
        hidden = self._hidden_states(model, tokens, batch.lengths)
        scores = model.label_scores(hidden, batch.lengths, tokens)
        weights = None if self.weights is None else self.weights.to(scores)
        many, smoothing = self.column.multi_label, self.label_smoothing
        loss = label_loss(scores, batch.labels, multi_label=many, smoothing=smoothing, weights=weights)
        if self.masked:
            places = tokens != batch.tokens
            guesses = masked_token_loss(model.vocabulary, model.dropout(hidden), batch.tokens, places)
            loss = loss + self.masked * len(tokens) * guesses
        return scores, loss

    def _label_scores(self, model: Classifier, tokens: Tensor, lengths: Tensor) -> Tensor:
        first = tokens.new_zeros(len(tokens), 1) if model.pooler is not None else None  # all that the pooler reads
        hidden = model(tokens, segments=self._segments(tokens), mask=mask_padding(tokens, lengths), places=first)
        return model.label_scores(hidden, lengths, tokens)

    def _hidden_states(self, model: Classifier, tokens: Tensor, lengths: Tensor) -> Tensor:
        hidden: Tensor = model(tokens, segments=self._segments(tokens), mask=Mask.padding(lengths, queries=True))
        return hidden

    def _segments(self, tokens: Tensor) -> Tensor | None:
        return mark_segments(tokens, self.tokenizer.end) if self.pairs and self.config.segments else None

    @torch.no_grad()
    def calibrate(self, model: Classifier, train: Sequence[Row], dev: Sequence[Row]) -> str | None:
        """Fits the temperature on dev, by which the model's scores are divided, and thresholds of several labels."""
        rows = [row for row in dev if not self.row_problem(row) and not self.find_flaws(row)]
        if not rows:
            return None
        logits, _ = self._logits(model, [self.input_of(row) for row in rows], LabelOptions())
        right = np.array([self._label_numbers(row) for row in rows], dtype=np.int64)
        self.temperature = fit_temperature(logits.double().numpy(), right)
        model.divide_scores(self.temperature)
        if self.column.multi_label:
            self.thresholds = choose_thresholds((logits.double() / self.temperature).sigmoid().numpy(), right)
        return None

    # Answers

    @torch.no_grad()
    def predict(self, model: Classifier, inputs: Sequence[Input], options: LabelOptions) -> list[LabelPrediction]:
        inputs = [self.check_input(one) for one in inputs]
        logits, notes = self._logits(model, inputs, options)
        shares = logits.sigmoid() if self.column.multi_label else logits.softmax(-1)
        return [self._prediction(row, options.best, note) for row, note in zip(shares.tolist(), notes, strict=True)]

    def _logits(
        self, model: Classifier, inputs: Sequence[Input], options: LabelOptions
    ) -> tuple[Tensor, list[list[str]]]:
        """Scores (inputs, labels) of all inputs, on the CPU, the mean over windows of long ones; and notes on each."""
        texts = self._encode(inputs)
        marks = (self.tokenizer.start, self.tokenizer.end)
        windows = [text_windows(one.parts, self._limit(), *marks) for one in texts]
        flat = [window for group in windows for window in group]
        weight = model.vocabulary.words.weight
        device, tokens_at_once = weight.device, TOKENS if weight.is_cpu else GPU_TOKENS
        if not weight.requires_grad:  # in training they would have to be packed again after every step
            model = decoding_view(model)
        found = torch.empty(len(flat), len(self.labels), dtype=model.to_labels.weight.dtype)
        for places in token_batches(list(map(len, flat)), tokens_at_once, options.batch):
            ragged = Ragged([flat[place] for place in places])
            tokens, lengths = ragged.pad(torch.arange(len(places)), int(ragged.lengths.max()), self.tokenizer.pad)
            found[places] = self._label_scores(model, tokens.to(device), lengths.to(device)).cpu().to(found.dtype)
        check_finite(found)
        if len(flat) > len(texts):
            found = torch.stack([part.mean(0) for part in found.split([len(group) for group in windows])])
        return found, [self._notes(*pair) for pair in zip(texts, windows, strict=True)]

    def _notes(self, text: EncodedInput, windows: list[list[int]]) -> list[str]:
        empty = ["the text is empty"] if not any(text.parts) else []
        limit = f"the {self._limit():,} tokens that the model reads at once"
        many = f"the text is longer than {limit}: the mean over {len(windows)} windows"
        return [*empty, *text.notes, *([many] if len(windows) > 1 else [])]

    def _prediction(self, shares: list[float], best: int, notes: Sequence[str]) -> LabelPrediction:
        order = sorted(range(len(self.labels)), key=lambda number: -shares[number])
        scores = {self.labels[number]: shares[number] for number in order}
        if not self.column.multi_label:
            return LabelPrediction(self.labels[order[0]], notes, shares[order[0]], scores, best)
        chosen = tuple(self.labels[number] for number in order if shares[number] >= self.thresholds[number])
        return LabelPrediction(", ".join(chosen), notes, shares[order[0]], scores, best, chosen)

    def score(self, rows: Sequence[Row], predictions: Sequence[LabelPrediction], options: LabelOptions) -> Scores:
        right = [self.column.parse(row.values[-1]) for row in rows]
        scores = score_answers(right, [one.answers for one in predictions], multi_label=self.column.multi_label)
        if all(one.scores for one in predictions):
            scores |= score_calibration(right, predictions, self.labels, self.temperature)
        return scores

    def report(self, rows: Sequence[Row], predictions: Sequence[LabelPrediction]) -> str:
        right = [self.column.parse(row.values[-1]) for row in rows]
        labels = [*self.labels, *self._unseen(rows)]
        return format_label_table(label_table(right, [one.answers for one in predictions], labels), labels)

    def confusion(
        self, rows: Sequence[Row], predictions: Sequence[LabelPrediction]
    ) -> tuple[list[str], NDArray[np.int64]]:
        if self.column.multi_label:
            raise ConfigError("texts with several labels have no confusion matrix; --report has a table of the labels")
        right = [self.column.parse(row.values[-1])[0] for row in rows]
        labels = [*self.labels, *self._unseen(rows)]
        return labels, count_confusions(right, [one.label for one in predictions], labels)

    def baseline(self, train: Sequence[Row], rows: Sequence[Row]) -> Baseline:
        """TF-IDF with logistic regression; the texts of a pair are joined."""
        many = self.column.multi_label
        texts, labels = list[str](), list[Any]()
        for row in train:
            found = self.column.parse(row.values[-1])
            if found or many:
                texts.append(" ".join(row.values[:-1]))
                labels.append(found if many else found[0])
        simple = TfidfBaseline(multi_label=many).fit(texts, labels)
        answers = simple.predict([" ".join(row.values[:-1]) for row in rows])
        right = [self.column.parse(row.values[-1]) for row in rows]
        given = answers if many else [[answer] for answer in answers]
        return Baseline(simple.name, score_answers(right, given, multi_label=many))

    # Attention

    def traces(self, model: Classifier, given: Input, *, answer: str | None, options: LabelOptions) -> list[Trace]:
        """A text, read once, or once for each window of a long one."""
        if answer is not None:
            raise DataError("the task classification cannot use --answer; omit it")
        checked = self.check_input(given)
        [prediction] = self.predict(model, [checked], options)
        notes = [prediction.describe(), *prediction.notes]
        texts = [cut_text(text)[0] for text in _list_texts(checked)]
        return [
            Trace({"tokens": tokens}, (), prediction.text, False, notes, {"tokens": surfaces}, prediction.parts())
            for tokens, surfaces in surface_windows(self.tokenizer, texts, self._limit())
        ]

    def run_trace(self, model: Classifier, trace: Trace) -> None:
        tokens = torch.tensor([trace.reads["tokens"]], device=model.vocabulary.words.weight.device)
        model(tokens, segments=self._segments(tokens))

    def pieces(self, kind: str, numbers: Sequence[int]) -> list[str]:
        return self.tokenizer.pieces(numbers)

    # Model folder

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder)

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> Classification:
        from clearhead.text import Tokenizer

        labels, tokenizer = settings.get("labels"), Tokenizer.load(folder)
        if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
            raise CheckpointError(f"the settings of {folder} have no list of labels: {labels!r:.60}")
        if (len(labels), tokenizer.size) != (config.labels, config.vocabulary):
            raise CheckpointError(
                f"{folder} has {len(labels)} labels and {tokenizer.size} tokens, but its model {config.labels} and "
                f"{config.vocabulary}; copy the folder again"
            )
        names = tuple(settings.get("label_names", ()))
        column = LabelColumn(settings.get("multi_label", False), settings.get("label_separator", ","), names)
        counts = settings.get("label_counts", ())
        task = cls(tokenizer, labels, config, column=column, pairs=settings.get("pairs", False), counts=counts)
        task.longest = int(settings.get("longest", 0))
        task.temperature = float(settings.get("temperature", 1.0))
        task.thresholds = list(settings.get("thresholds", task.thresholds))
        return task


def _list_texts(given: Input) -> tuple[str, ...]:
    return given if isinstance(given, tuple) else (given,)
