"""Classification: predicts the label of a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from clearhead.attention import Mask
from clearhead.errors import CheckpointError, DataError
from clearhead.model import Classifier, ModelConfig
from clearhead.tasks.base import Examples, Prediction, Scores, Task
from clearhead.tasks.metrics import label_scores
from clearhead.tasks.settings import Data, Options, Section, TaskRecipe, Text, option
from clearhead.tasks.trace import Trace
from clearhead.text.batches import Batch, Ragged, length_batches

if TYPE_CHECKING:
    from clearhead.tasks.pretrained import Pretrained
    from clearhead.text import Report, Row, Tokenizer


class ClassificationData(Data):
    longest: int = Field(256, ge=1)


class ClassificationLoss(Section):
    label_smoothing: float = Field(0.0, ge=0, lt=1)


class ClassificationRecipe(TaskRecipe):
    data: ClassificationData
    text: Text = Text()
    loss: ClassificationLoss = ClassificationLoss()


class LabelOptions(Options):
    best: int = option(1, "How many answers to give for each input.", only=("predict",), ge=1)

    @property
    def ranked(self) -> bool:
        return self.best > 1


@dataclass(frozen=True)
class LabelPrediction(Prediction):
    """The likeliest label as `text` and `label`, its probability, and those of all labels, likeliest first."""

    score: float = 0.0
    scores: dict[str, float] | None = None
    best: int = 1  # how many labels were asked for

    @property
    def label(self) -> str:
        return self.text

    def to_json(self) -> dict[str, Any]:
        return {"label": self.label, "score": self.score, "scores": self.scores, "notes": list(self.notes)}

    def ranking(self) -> list[tuple[str, float | None]]:
        scores: dict[str, float | None] = {**(self.scores or {self.text: self.score})}
        return list(scores.items())[: self.best]


class LabelledTexts(NamedTuple):
    """A batch: texts as tokens, and the number of each one's label."""

    tokens: Tensor
    lengths: Tensor
    labels: Tensor


class TextExamples(Examples[LabelledTexts]):
    """Texts as tokens, with a label each."""

    def __init__(self, texts: list[list[int]], labels: list[int], rows: list[Row], pad: int) -> None:
        self.texts, self.labels, self.rows, self.pad = Ragged(texts), torch.tensor(labels), rows, pad
        self.lengths = self.texts.lengths.numpy()[:, None]
        self.counts = np.ones(len(labels), dtype=np.int64)

    def to(self, device: torch.device) -> TextExamples:
        self.texts.to(device)
        self.labels = self.labels.to(device)
        return self

    def collate(self, batch: Batch) -> LabelledTexts:
        rows = torch.from_numpy(batch.examples).to(self.labels.device, non_blocking=True)
        return LabelledTexts(*self.texts.pad(rows, batch.sizes[0], self.pad), self.labels[rows])

    def fingerprint(self) -> str:
        return f"{self.texts.fingerprint()} {Ragged([self.labels.tolist()]).fingerprint()}"


class Classification(Task[Classifier, str, LabelledTexts, LabelOptions]):
    name = "classification"
    recipe = ClassificationRecipe
    options = LabelOptions
    columns = ("text", "label")
    metrics = ("accuracy", "macro_f1")
    metric = "accuracy"
    added_tokens = 2
    default_shape = "tiny"

    def __init__(self, tokenizer: Tokenizer, labels: Sequence[str], config: ModelConfig) -> None:
        self.tokenizer, self.labels, self.config = tokenizer, list(labels), config
        self.label_smoothing = 0.0

    @property
    def settings(self) -> dict[str, Any]:
        return {"labels": self.labels}

    # Data

    @classmethod
    def prepare(cls, rows: Sequence[Row], recipe: TaskRecipe, start: Pretrained | None = None) -> Classification:
        assert isinstance(recipe, ClassificationRecipe)
        labels = Counter(label for _, label in (row.values for row in rows) if label)
        if len(labels) < 2:
            raise DataError(f"there is nothing to tell apart: the labels are {', '.join(labels) or 'all empty'}")
        tokenizer = recipe.text.make_tokenizer((row.values[0] for row in rows), start)
        config = cls.make_config(recipe, start, vocabulary=tokenizer.size, labels=len(labels))
        return cls(tokenizer, sorted(labels), config)

    def configure(self, recipe: TaskRecipe) -> None:
        assert isinstance(recipe, ClassificationRecipe)
        self.label_smoothing = recipe.loss.label_smoothing

    def examples(self, rows: Iterable[Row], report: Report, recipe: TaskRecipe | None = None) -> TextExamples:
        rows = list(rows)
        longest = recipe.data.longest if isinstance(recipe, ClassificationRecipe) else None
        numbers = {label: number for number, label in enumerate(self.labels)}
        kept: list[tuple[list[int], int, Row]] = []
        for row, tokens in zip(rows, self.tokenizer.encode_all([row.values[0] for row in rows]), strict=True):
            label = row.values[1]
            if problem := self.row_problem(row):
                report.drop(row, problem)
            elif longest is not None and len(tokens) > longest:
                report.drop(row, f"longer than {longest} tokens")
            else:
                report.keep()
                kept.append((self._enclose(tokens), numbers[label], row))
        if not kept:
            raise DataError(f"no text is left to use\n{report}")
        texts, labels, used = zip(*kept, strict=True)
        return TextExamples(list(texts), list(labels), list(used), self.tokenizer.pad)

    def row_problem(self, row: Row) -> str | None:
        text, label = row.values
        if not label:
            return "without a label"
        if label not in self.labels:
            return "with a label that is not in the training data"
        return None if self.tokenizer.normal(text).strip() else "without a text"

    def _enclose(self, tokens: list[int]) -> list[int]:
        """With start and end, so that even an empty text has something to look at."""
        return [self.tokenizer.start, *tokens, self.tokenizer.end]

    # Model

    def build(self) -> Classifier:
        return Classifier(self.config)

    def loss(self, model: Classifier, batch: LabelledTexts) -> Tensor:
        scores = self._label_scores(model, batch.tokens, batch.lengths)
        smoothing = self.label_smoothing if model.training else 0.0
        return F.cross_entropy(scores, batch.labels, reduction="sum", label_smoothing=smoothing)

    def _label_scores(self, model: Classifier, tokens: Tensor, lengths: Tensor) -> Tensor:
        return model.label_scores(model(tokens, mask=Mask.padding(lengths, queries=True)), lengths)

    # Answers

    @torch.no_grad()
    def predict(self, model: Classifier, inputs: Sequence[str], options: LabelOptions) -> list[LabelPrediction]:
        texts = [self._enclose(tokens) for tokens in self.tokenizer.encode_all(inputs)]
        device = model.vocabulary.words.weight.device
        found: dict[int, LabelPrediction] = {}
        for places in length_batches(list(map(len, texts)), options.batch):
            ragged = Ragged([texts[place] for place in places])
            tokens, lengths = ragged.pad(torch.arange(len(places)), int(ragged.lengths.max()), self.tokenizer.pad)
            scores = self._label_scores(model, tokens.to(device), lengths.to(device))
            for place, row in zip(places, scores.softmax(-1).tolist(), strict=True):
                notes = () if len(texts[place]) > self.added_tokens else ("the text is empty",)
                found[place] = self._prediction(row, options.best, notes)
        return [found[place] for place in range(len(texts))]

    def _prediction(self, probabilities: list[float], best: int, notes: Sequence[str]) -> LabelPrediction:
        order = sorted(range(len(self.labels)), key=lambda number: -probabilities[number])
        scores = {self.labels[number]: probabilities[number] for number in order}
        return LabelPrediction(self.labels[order[0]], notes, probabilities[order[0]], scores, best)

    def score(self, rows: Sequence[Row], predictions: Sequence[LabelPrediction], options: LabelOptions) -> Scores:
        return label_scores([row.values[1] for row in rows], [prediction.label for prediction in predictions])

    # Attention

    def traces(self, model: Classifier, given: str, *, answer: str | None, options: LabelOptions) -> list[Trace]:
        """A text, read once."""
        if answer is not None:
            raise DataError("classification reads no answer: leave --answer away")
        [prediction] = self.predict(model, [given], options)
        return [Trace({"tokens": self._enclose(self.tokenizer.encode(given))}, text=prediction.text)]

    def run_trace(self, model: Classifier, trace: Trace) -> None:
        tokens = torch.tensor([trace.reads["tokens"]], device=model.vocabulary.words.weight.device)
        model(tokens)

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
                f"{folder} has {len(labels)} labels and {tokenizer.size} tokens, its model {config.labels} and "
                f"{config.vocabulary}"
            )
        return cls(tokenizer, labels, config)
