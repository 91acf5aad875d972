"""The task classification: its loss, the calibration of its probabilities, its tables, baseline and declaration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from numpy.typing import NDArray
from torch import Tensor

from clearhead.attention import Mask
from clearhead.errors import ConfigError
from clearhead.formatting import suggest_name
from clearhead.model import Classifier
from clearhead.tasks.answerer import Baseline
from clearhead.tasks.baselines import TfidfBaseline
from clearhead.tasks.classification.calibration import choose_thresholds, fit_temperature
from clearhead.tasks.classification.classifier_answerer import (
    ClassifierAnswerer,
    ClassifierOptions,
    ClassifierTracer,
    LabelPrediction,
    score_answers,
    score_labels,
)
from clearhead.tasks.classification.classifier_processor import ClassificationRecipe, ClassifierProcessor, join_pair
from clearhead.tasks.classification.linear_head import MOST_UNLABELLED, Texts, fit_linear_head
from clearhead.tasks.losses import UNCOUNTED, masked_token_loss
from clearhead.tasks.metrics import Curve, count_confusions, count_labels, format_label_table, trace_curve
from clearhead.tasks.objective import Objective
from clearhead.tasks.processor import LabelledTexts
from clearhead.tasks.task import Task
from clearhead.text import Row


class ClassifierObjective(Objective[ClassifierProcessor, ClassificationRecipe, Classifier, LabelledTexts]):
    def __init__(self, processor: ClassifierProcessor, recipe: ClassificationRecipe) -> None:
        super().__init__(processor, recipe)
        self.settings, self.multi_label = recipe.loss, processor.column.multi_label
        self.weights: Tensor | None = None  # of the labels in the loss
        if recipe.loss.class_weights is not None:
            wanted = recipe.loss.class_weights
            weights = weigh_labels(
                processor.labels, processor.stored.label_counts, wanted, multi_label=self.multi_label
            )
            self.weights = torch.tensor(weights)

    def loss(self, model: Classifier, batch: LabelledTexts) -> Float[Tensor, ""]:
        if not model.training:
            scores = score_labels(self.processor, model, batch.tokens, batch.lengths)
            return label_loss(scores, batch.labels, multi_label=self.multi_label)
        settings, tokenizer, tokens = self.settings, self.processor.tokenizer, batch.tokens
        if settings.token_dropout:
            mask = tokenizer.pad if tokenizer.mask is None else tokenizer.mask
            exempt = (tokenizer.pad, tokenizer.start, tokenizer.end)
            tokens = hide_tokens(tokens, settings.token_dropout, mask, exempt)
        segments = self.processor.mark_segments(tokens)
        hidden: Tensor = model(tokens, segments=segments, mask=Mask.padding(batch.lengths, queries=True))
        scores = model.label_scores(hidden, batch.lengths, tokens)
        weights = None if self.weights is None else self.weights.to(scores)
        smoothing = settings.label_smoothing
        loss = label_loss(scores, batch.labels, multi_label=self.multi_label, smoothing=smoothing, weights=weights)
        if settings.masked:
            places = tokens != batch.tokens
            guesses = masked_token_loss(model.vocabulary, model.dropout(hidden), batch.tokens, places)
            loss = loss + settings.masked * len(tokens) * guesses
        return loss

    @torch.no_grad()
    def calibrate(
        self, model: Classifier, train: Sequence[Row], dev: Sequence[Row], unlabelled: Sequence[Row] = ()
    ) -> str | None:
        """Fits a linear head where there is one, the temperature by which scores are divided, and thresholds.

        Those of a linear head by cross-validation on train, others on dev.
        """
        processor = self.processor
        if self.recipe.has_linear_head(processor, len(train)):
            return self._fit_linear_head(model, train, unlabelled)
        rows = [row for row in dev if not any(processor.check_row(row))]
        if not rows:
            return None
        inputs = [processor.inputs.of_row(row) for row in rows]
        logits, _ = ClassifierAnswerer(processor, model).compute_logits(inputs, ClassifierOptions().batch)
        right = np.array([processor.label_numbers(row) for row in rows], dtype=np.int64)
        temperature = fit_temperature(logits.double().numpy(), right)
        processor.store(temperature=temperature)
        model.divide_scores(temperature)
        if self.multi_label:
            shares = (logits.double() / temperature).sigmoid().numpy()
            processor.store(thresholds=choose_thresholds(shares, right))
        return None

    def _fit_linear_head(self, model: Classifier, train: Sequence[Row], unlabelled: Sequence[Row]) -> str:
        """Replaces the output layer, and adds scores of n-grams; a line about what was chosen."""
        processor, answerer = self.processor, ClassifierAnswerer(self.processor, model)
        chance = np.random.default_rng(self.recipe.seed)
        sample = [unlabelled[row] for row in sorted(chance.permutation(len(unlabelled))[:MOST_UNLABELLED])]
        inputs = [[processor.inputs.of_row(row) for row in rows] for rows in (train, sample)]
        labelled, others = (
            Texts(list(map(join_pair, texts)), answerer.compute_vectors(texts, ClassifierOptions().batch))
            for texts in inputs
        )
        head = fit_linear_head(
            labelled,
            torch.tensor([processor.label_numbers(row) for row in train]),
            others,
            labels=len(processor.labels),
            multi_label=self.multi_label,
            seed=self.recipe.seed,
        )
        vectors, ngrams = head.weights
        model.to_labels.weight.copy_(vectors.weight.T)
        model.to_labels.bias.copy_(vectors.bias)
        model.divide_scores(head.temperature)
        if ngrams is not None:
            processor.ngram_head = ngrams._replace(weight=ngrams.weight / head.temperature)
        processor.store(temperature=head.temperature)
        processor.chosen_settings = {**processor.chosen_settings, "head.kind": f"linear ({head.chosen})"}
        return f"the scores come from {head.describe()}"


def hide_tokens(
    tokens: Int[Tensor, "texts tokens"], share: float, hidden: int, exempt: Sequence[int]
) -> Int[Tensor, "texts tokens"]:
    """A random share of the tokens becomes `hidden`, except those that are `exempt`, such as start and end."""
    drawn = torch.rand(tokens.shape, device=tokens.device) < share
    for token in exempt:
        drawn &= tokens != token
    return tokens.masked_fill(drawn, hidden)


def weigh_labels(
    labels: Sequence[str], counts: Sequence[int], wanted: str | Mapping[str, float], *, multi_label: bool
) -> list[float]:
    """A weight for each label: as `wanted` (1 for the others), or, for "balanced", inversely to how often it occurs.

    `counts` are the training rows with each label, and last of all rows.

    >>> weigh_labels(["a", "b"], [3, 1, 4], "balanced", multi_label=False)
    [0.6666666666666666, 2.0]
    """
    if isinstance(wanted, Mapping):
        if unknown := [label for label in wanted if label not in labels]:
            hint = suggest_name(unknown[0], labels)
            raise ConfigError(f"loss.class_weights: no label is called {unknown[0]!r}; {hint}")
        return [float(wanted.get(label, 1.0)) for label in labels]
    *each, total = counts
    if multi_label:  # of its presence, against its absence
        return [(total - count) / count for count in each]
    return [sum(each) / (len(each) * count) for count in each]


def label_loss(
    scores: Float[Tensor, "texts labels"],
    labels: Shaped[Tensor, "texts ..."],
    *,
    multi_label: bool,
    smoothing: float = 0.0,
    weights: Float[Tensor, " labels"] | None = None,
) -> Float[Tensor, ""]:
    """The summed cross entropy; `labels` are indices (UNCOUNTED: no loss), or a multi-hot matrix (texts, labels)."""
    if not multi_label:
        return F.cross_entropy(
            scores, labels, weights, ignore_index=UNCOUNTED, reduction="sum", label_smoothing=smoothing
        )
    aims = labels.to(scores) * (1 - smoothing) + smoothing / 2
    return F.binary_cross_entropy_with_logits(scores, aims, pos_weight=weights, reduction="sum")


def report_labels(processor: ClassifierProcessor, rows: Sequence[Row], predictions: Sequence[LabelPrediction]) -> str:
    """The table of precision, recall and F1 of each label."""
    labels = [*processor.labels, *processor.unseen_labels(rows)]
    wanted = [processor.column.parse(row.values[-1]) for row in rows]
    counts = count_labels(wanted, [prediction.answers for prediction in predictions])
    return format_label_table(counts.table(labels), labels)


def trace_labels(processor: ClassifierProcessor, rows: Sequence[Row], predictions: Sequence[LabelPrediction]) -> Curve:
    """How many texts are answered, and how well, at thresholds of the probability: `--threshold`.

    Of several labels a text is answered if it gets any, and right if all are.
    """
    pairs = [
        (set(processor.column.parse(row.values[-1])), answer) for row, answer in zip(rows, predictions, strict=True)
    ]

    def judge(threshold: float) -> NDArray[np.bool_]:
        return np.array([labels == answer.labels_from(threshold) for labels, answer in pairs])

    return trace_curve(np.array([prediction.score for prediction in predictions]), judge)


def count_label_confusions(
    processor: ClassifierProcessor, rows: Sequence[Row], predictions: Sequence[LabelPrediction]
) -> tuple[list[str], NDArray[np.int64]]:
    if processor.column.multi_label:
        raise ConfigError("texts with several labels have no confusion matrix; --report has a table of the labels")
    wanted = [processor.column.parse(row.values[-1])[0] for row in rows]
    labels = [*processor.labels, *processor.unseen_labels(rows)]
    return count_confusions(wanted, [prediction.label for prediction in predictions], labels)


def score_tf_idf(processor: ClassifierProcessor, train: Sequence[Row], rows: Sequence[Row]) -> Baseline:
    """TF-IDF with logistic regression; the texts of a pair are joined."""
    column, multi_label = processor.column, processor.column.multi_label
    texts, labels = list[str](), list[Any]()
    for row in train:
        written = column.parse(row.values[-1])
        if written or multi_label:
            texts.append(" ".join(row.values[:-1]))
            labels.append(written if multi_label else written[0])
    simple = TfidfBaseline(multi_label=multi_label).fit(texts, labels)
    answers = simple.predict([" ".join(row.values[:-1]) for row in rows])
    answered = answers if multi_label else [[answer] for answer in answers]
    wanted = [column.parse(row.values[-1]) for row in rows]
    return Baseline(simple.name, score_answers(wanted, answered, multi_label=multi_label))


def have_different_labels(processor: ClassifierProcessor, rows: Sequence[Row]) -> bool:
    return len({frozenset(processor.column.parse(row.values[-1])) for row in rows}) > 1


TASK = Task(
    name="classification",
    recipe=ClassificationRecipe,
    processor=ClassifierProcessor,
    objective=ClassifierObjective,
    answerer=ClassifierAnswerer,
    tracer=ClassifierTracer,
    metrics=("accuracy", "macro_f1"),
    report=report_labels,
    curve=trace_labels,
    confusion=count_label_confusions,
    baseline=score_tf_idf,
    contradict=have_different_labels,
)
