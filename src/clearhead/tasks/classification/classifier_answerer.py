"""Labels of texts with their probabilities, their scores, and the forward passes that `look` repeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clearhead.decode.prepacked_linear import decoding_view
from clearhead.errors import DataError
from clearhead.model import Classifier
from clearhead.tasks.answerer import Prediction, Scores, ScoringAnswerer
from clearhead.tasks.classification.calibration import expected_calibration_error, undo_temperature
from clearhead.tasks.classification.classifier_processor import ClassifierProcessor, Input, join_pair, list_texts
from clearhead.tasks.losses import check_finite
from clearhead.tasks.metrics import count_labels
from clearhead.tasks.settings import RankedOptions, option
from clearhead.tasks.text_windows import (
    EncodedInput,
    cut_text,
    mask_padding,
    padded_batches,
    surface_windows,
    text_windows,
)
from clearhead.tasks.trace import AnswerPart, TaskTracer, Trace
from clearhead.text import Row

CPU_BATCH_TOKENS = 1024  # pads included: what a CPU's cache holds is computed fastest
GPU_BATCH_TOKENS = 32_768  # on other devices, where a batch should be large
Compute = Callable[[ClassifierProcessor, Classifier, Tensor, Tensor], Tensor]


class ClassifierOptions(RankedOptions):
    threshold: float | None = option(
        None, "Probability from which on a label is given, or is sure.", only=("predict", "evaluate"), ge=0, le=1
    )


@dataclass(frozen=True)
class LabelPrediction(Prediction):
    """The likeliest label as `text` and `label`, its probability, and those of all labels, likeliest first.

    Where a text may have several labels, `labels` are those above their thresholds, likeliest first, perhaps none;
    `text` is all of them with commas between. Of one label, `sure` says whether it has the probability that was asked
    for.
    """

    score: float = 0.0
    scores: dict[str, float] | None = None
    best: int = 1  # how many labels were asked for
    labels: tuple[str, ...] | None = None  # None: each text has one label
    sure: bool | None = None  # None: no probability was asked for, or there may be several labels
    separator: str = ","  # of several labels in the training data

    @property
    def label(self) -> str:
        return self.text

    @property
    def answers(self) -> tuple[str, ...]:
        """The labels, or the only one."""
        return (self.text,) if self.labels is None else self.labels

    def labels_from(self, threshold: float) -> set[str]:
        """The labels that there would be with this threshold; the only one whatever it is."""
        if self.labels is None:
            return {self.label}
        return {label for label, score in (self.scores or {}).items() if score >= threshold}

    def to_json(self) -> dict[str, Any]:
        answer = {"label": self.label, "score": self.score} if self.labels is None else {"labels": list(self.labels)}
        return {**answer, **self._to_sure(), "scores": self.scores, "notes": list(self.notes)}

    def to_cells(self) -> dict[str, Any]:
        if self.labels is None:
            return {"label": self.label, "score": self.score, **self._to_sure()}
        return {"labels": self.separator.join(self.labels)}

    def _to_sure(self) -> dict[str, bool]:
        return {} if self.sure is None else {"sure": self.sure}

    def describe(self) -> str:
        """One line with the answer and its probabilities, for the page of `look`.

        >>> LabelPrediction("good", score=0.9, scores={"good": 0.9, "bad": 0.1}).describe()
        'the label is good (0.90)'
        """
        labels = [f"{part.text} ({part.score:.2f})" for part in self.parts()[::2]]
        if self.labels is None:
            return f"the label is {labels[0]}"
        return f"the labels are {', '.join(labels)}" if labels else "it has none of the labels"

    def parts(self) -> list[AnswerPart]:
        """The labels with their probabilities and spaces between, for the page of `look`."""
        scores = self.scores or {}
        parts = [AnswerPart(label, "", scores.get(label, self.score)) for label in self.answers]
        return [piece for part in parts for piece in (AnswerPart(" "), part)][1:]

    def ranking(self) -> list[tuple[str, float | None]]:
        scores: dict[str, float | None] = {**(self.scores or {self.text: self.score})}
        return list(scores.items())[: self.best]


class ClassifierAnswerer(ScoringAnswerer[ClassifierProcessor, Classifier, Input, ClassifierOptions]):
    options = ClassifierOptions

    def predict(
        self, inputs: Sequence[Input], options: ClassifierOptions, *, inputs_before: int = 0
    ) -> list[LabelPrediction]:
        checked = [self.processor.inputs.check(text) for text in inputs]
        logits, notes = self.compute_logits(checked, options.batch)
        shares = logits.sigmoid() if self.processor.column.multi_label else logits.softmax(-1)
        return [self._make_prediction(*pair, options) for pair in zip(shares.tolist(), notes, strict=True)]

    def compute_logits(self, inputs: Sequence[Input], most: int) -> tuple[Tensor, list[list[str]]]:
        """Scores (inputs, labels) on the CPU, the mean over windows of long inputs; and notes on each input.

        At most `most` windows are computed together.
        """
        logits, notes = self._average_windows(inputs, most, score_labels, len(self.processor.labels))
        check_finite(logits)
        if self.processor.ngram_head is not None:
            logits += self.processor.ngram_head.scores([cut_text(join_pair(text))[0] for text in inputs])
        return logits, notes

    def compute_vectors(self, inputs: Sequence[Input], most: int) -> Tensor:
        """The vectors (inputs, width) that the scores are of, the mean over windows of long inputs."""
        return self._average_windows(inputs, most, pool_texts, self.processor.config.width)[0].float()

    @torch.no_grad()
    def _average_windows(
        self, inputs: Sequence[Input], most: int, compute: Compute, width: int
    ) -> tuple[Tensor, list[list[str]]]:
        """What `compute` gives of the windows of each input, on the CPU, and notes on each input."""
        processor, model = self.processor, self.model
        tokenizer, texts = processor.tokenizer, processor.encode(inputs)
        windows = [text_windows(text.parts, processor.window, tokenizer.start, tokenizer.end) for text in texts]
        flat = [window for group in windows for window in group]
        weight = model.vocabulary.words.weight
        if not weight.requires_grad:  # in training they would have to be packed again after every step
            model = decoding_view(model)
        rows = torch.empty(len(flat), width, dtype=model.to_labels.weight.dtype)
        budget = CPU_BATCH_TOKENS if weight.is_cpu else GPU_BATCH_TOKENS
        for numbers, tokens, lengths in padded_batches(flat, tokenizer.pad, weight.device, tokens=budget, most=most):
            rows[numbers] = compute(processor, model, tokens, lengths).cpu().to(rows.dtype)
        if len(flat) > len(texts):
            rows = torch.stack([part.mean(0) for part in rows.split([len(group) for group in windows])])
        return rows, [self._make_notes(*pair) for pair in zip(texts, windows, strict=True)]

    def _make_notes(self, text: EncodedInput, windows: list[list[int]]) -> list[str]:
        empty = ["the text is empty"] if not any(text.parts) else []
        limit = f"the {self.processor.window:,} tokens that the model reads at once"
        many = f"the text is longer than {limit}: the mean over {len(windows)} windows"
        return [*empty, *text.notes, *([many] if len(windows) > 1 else [])]

    def _make_prediction(
        self, shares: list[float], notes: Sequence[str], options: ClassifierOptions
    ) -> LabelPrediction:
        processor, labels, threshold = self.processor, self.processor.labels, options.threshold
        order = sorted(range(len(labels)), key=lambda number: -shares[number])
        scores = {labels[number]: shares[number] for number in order}
        label, score = labels[order[0]], shares[order[0]]
        if not processor.column.multi_label:
            sure = None if threshold is None else score >= threshold
            unsure = [f"unsure: the probability {score:.4f} is below {threshold:g}"] if sure is False else []
            return LabelPrediction(label, [*notes, *unsure], score, scores, options.best, sure=sure)
        limits = processor.stored.thresholds if threshold is None else [threshold] * len(labels)
        likely = tuple(labels[number] for number in order if shares[number] >= limits[number])
        separator = processor.column.separator
        return LabelPrediction(", ".join(likely), notes, score, scores, options.best, likely, separator=separator)

    def score(self, rows: Sequence[Row], predictions: Sequence[LabelPrediction], options: ClassifierOptions) -> Scores:
        column = self.processor.column
        wanted = [column.parse(row.values[-1]) for row in rows]
        answers = [prediction.answers for prediction in predictions]
        scores = score_answers(wanted, answers, multi_label=column.multi_label)
        if all(prediction.scores for prediction in predictions):
            scores |= self._score_calibration(wanted, predictions)
        if options.threshold is None or column.multi_label:
            return scores
        right = [
            prediction.label == row[0] for prediction, row in zip(predictions, wanted, strict=True) if prediction.sure
        ]
        scores["answered"] = round(len(right) / len(predictions), 4)
        return scores | ({"accuracy_of_answered": round(sum(right) / len(right), 4)} if right else {})

    def _score_calibration(self, wanted: Sequence[Sequence[str]], predictions: Sequence[LabelPrediction]) -> Scores:
        """The expected calibration error with the fitted temperature, and without it.

        Of one label, of the probability of the answer; of several, of every label's probability that the text has it.
        """
        labels, multi_label = self.processor.labels, self.processor.column.multi_label
        shares = np.array([[(prediction.scores or {})[label] for label in labels] for prediction in predictions])
        before = undo_temperature(shares, self.processor.stored.temperature, multi_label=multi_label)
        if multi_label:
            right = np.array([[label in row for label in labels] for row in wanted]).ravel()
            errors = [expected_calibration_error(part.ravel(), right) for part in (shares, before)]
        else:
            right = np.array([answer.label == row[0] for answer, row in zip(predictions, wanted, strict=True)])
            errors = [expected_calibration_error(part.max(1), right) for part in (shares, before)]
        return {"calibration_error": round(errors[0], 4), "calibration_error_before": round(errors[1], 4)}


class ClassifierTracer(TaskTracer[ClassifierAnswerer]):
    def traces(self, request: Input, *, answer: str | None, options: ClassifierOptions) -> list[Trace]:
        """A text, read once, or once for each window of a long one."""
        self.refuse_answer(answer)
        checked, processor = self.inputs.check(request), self.answerer.processor
        [prediction] = self.answerer.predict([checked], options)
        notes = [prediction.describe(), *prediction.notes]
        texts = [cut_text(text)[0] for text in list_texts(checked)]
        return [
            Trace({"tokens": tokens}, (), prediction.text, False, notes, {"tokens": surfaces}, prediction.parts())
            for tokens, surfaces in surface_windows(processor.tokenizer, texts, processor.window)
        ]

    def run(self, trace: Trace) -> None:
        model = self.answerer.model
        tokens = torch.tensor([trace.reads["tokens"]], device=model.vocabulary.words.weight.device)
        model(tokens, segments=self.answerer.processor.mark_segments(tokens))


def score_labels(processor: ClassifierProcessor, model: Classifier, tokens: Tensor, lengths: Tensor) -> Tensor:
    """The scores (texts, labels) of a batch of padded texts."""
    return model.label_scores(_read_texts(processor, model, tokens, lengths), lengths, tokens)


def pool_texts(processor: ClassifierProcessor, model: Classifier, tokens: Tensor, lengths: Tensor) -> Tensor:
    """The vectors (texts, width) of a batch of padded texts."""
    return model.pool(_read_texts(processor, model, tokens, lengths), lengths)


def _read_texts(processor: ClassifierProcessor, model: Classifier, tokens: Tensor, lengths: Tensor) -> Tensor:
    first = tokens.new_zeros(len(tokens), 1) if model.pooler is not None else None  # all that the pooler reads
    segments, mask = processor.mark_segments(tokens), mask_padding(tokens, lengths)
    hidden: Tensor = model(tokens, segments=segments, mask=mask, places=first)
    return hidden


def score_answers(wanted: Sequence[Sequence[str]], answers: Sequence[Sequence[str]], *, multi_label: bool) -> Scores:
    """Accuracy and macro F1; of several labels, an answer is accurate if all are right, and there is a micro F1.

    >>> score_answers([["a", "b"], []], [["a"], []], multi_label=True)
    {'accuracy': 0.5, 'macro_f1': 0.5, 'micro_f1': 0.6667}
    >>> score_answers([["a"], ["a"], ["b"], ["c"]], [["a"], ["b"], ["b"], ["b"]], multi_label=False)
    {'accuracy': 0.5, 'macro_f1': 0.3889}
    """
    if not wanted:
        raise DataError("there are no rows to score")
    equal = [set(labels) == set(answer) for labels, answer in zip(wanted, answers, strict=True)]
    table = count_labels(wanted, answers).table(sorted({label for row in (*wanted, *answers) for label in row}))
    scores: Scores = {
        "accuracy": round(sum(equal) / len(equal), 4),
        "macro_f1": round(table["macro avg"].f1, 4),
    }
    return {**scores, "micro_f1": round(table["micro avg"].f1, 4)} if multi_label else scores
