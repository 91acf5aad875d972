"""The stored part of classification: tokenizer, labels, calibration; rows become texts with label numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from clearhead.errors import CheckpointError, DataError
from clearhead.model import Classifier, ModelConfig
from clearhead.tasks.classification.classifier_examples import LabelledTexts, TextExamples, mark_segments
from clearhead.tasks.classification.classifier_settings import ClassificationRecipe
from clearhead.tasks.classification.label_column import LabelColumn
from clearhead.tasks.inputs import TextInputs
from clearhead.tasks.losses import UNCOUNTED
from clearhead.tasks.processor import Columns, Files, Processor
from clearhead.tasks.text_windows import EncodedInput, encode_inputs, text_windows, window_size
from clearhead.text.report import Flaw

if TYPE_CHECKING:
    from clearhead.tasks.pretrained import Pretrained
    from clearhead.text import Report, Row, Tokenizer

PAIRS = ("text", "other", "label")
UNSEEN = Flaw(
    "row with a label that is not in the training data, counted as wrong",
    "rows with a label that is not in the training data, counted as wrong",
)
Input = str | tuple[str, str]


class PairInputs(TextInputs):
    """Inputs that are pairs of texts."""

    def check(self, given: Any, place: str = "the input") -> tuple[str, str]:
        """Two texts, or one with a tab between."""
        parts = given.split("\t") if isinstance(given, str) else given
        fits = isinstance(parts, (list, tuple)) and len(parts) == 2 and all(isinstance(part, str) for part in parts)
        if not fits:
            raise DataError(f"{place} must be two texts with a tab between, got {given!r:.60}")
        return parts[0], parts[1]

    def of_row(self, row: Row) -> tuple[str, str]:
        return row.values[0], row.values[1]


class ClassifierProcessor(Processor[ClassificationRecipe, LabelledTexts]):
    columns: tuple[str, ...] = ("text", "label")
    metric = "accuracy"
    added_tokens = 2
    tokenizer: Tokenizer
    default_shape = "tiny"
    placeholder_sizes: ClassVar = {"vocabulary": 1, "labels": {"count": 1}}

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
        self.inputs = PairInputs() if pairs else TextInputs()
        self.metric = "macro_f1" if self.column.multi_label else "accuracy"
        self.temperature = 1.0  # that the model's scores were divided by
        self.thresholds = [0.5] * len(self.labels)
        self.longest = 0  # tokens of a text in training; 0: not known

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
    def read(cls, source: Files, columns: Columns = None, documents: str | None = None) -> Iterator[Row]:
        """Rows of text and label, or of text, other and label where `columns` (or the files) name an `other`."""
        from clearhead.text import read

        named = source if isinstance(source, Mapping) else columns or ()
        return read(source, PAIRS if "other" in named else cls.columns, columns, labels=("label",))

    @classmethod
    def prepare(
        cls, rows: Sequence[Row], recipe: ClassificationRecipe, start: Pretrained | None = None
    ) -> ClassifierProcessor:
        data, pairs = recipe.data, bool(rows) and len(rows[0].values) == len(PAIRS)
        names = () if data.label_names is None else tuple(data.label_names)
        column = LabelColumn(data.multi_label, data.label_separator, names)
        counts = column.collect(rows)
        if start is not None and set(start.labels) == set(counts):  # its output head is taken, too
            counts = {label: counts[label] for label in start.labels}
        tokenizer = recipe.text.make_tokenizer((text for row in rows for text in row.values[:-1]), start)
        sizes: dict[str, Any] = {"vocabulary": tokenizer.size, "labels": {"count": len(counts)}}
        if pairs and start is None:
            sizes["segments"] = 2
        config = cls.make_config(recipe, start, **sizes)
        return cls(tokenizer, list(counts), config, column=column, pairs=pairs, counts=[*counts.values(), len(rows)])

    def configure(self, recipe: ClassificationRecipe) -> None:
        self.longest = recipe.data.longest

    def examples(self, rows: Iterable[Row], report: Report, recipe: ClassificationRecipe | None = None) -> TextExamples:
        rows, limit = list(rows), self.window
        longest = None if recipe is None else recipe.data.longest
        texts: list[list[int]] = []
        answers: list[Any] = []
        used: list[Row] = []
        for row, (parts, cut) in zip(rows, self.encode([self.inputs.of_row(row) for row in rows]), strict=True):
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
                answers.append(self.label_numbers(row))
                used.append(row)
        found = TextExamples(texts, answers, used, self.tokenizer.pad)
        if not found.counts.any():
            raise DataError(f"no text with a known label is left to use: {report}")
        return found

    def answer_of(self, row: Row) -> str:
        return ", ".join(self.column.parse(row.values[-1]))

    def row_problem(self, row: Row) -> str | None:
        *texts, written = row.values
        labels = self.column.parse(written)
        if not labels and not self.column.multi_label:
            return "without a label"
        return None if all(map(self._has_text, texts)) else "without a text"

    def contradict(self, rows: Sequence[Row]) -> bool:
        return len({frozenset(self.column.parse(row.values[-1])) for row in rows}) > 1

    def find_flaws(self, row: Row) -> dict[Flaw, int]:
        return {UNSEEN: 1} if self.unseen_labels([row]) else {}

    def unseen_labels(self, rows: Sequence[Row]) -> list[str]:
        """The labels of these rows that are not in the training data."""
        found = {label for row in rows for label in self.column.parse(row.values[-1])}
        return sorted(found - set(self.labels))

    def _has_text(self, text: str) -> bool:
        return any(map(str.isalnum, text)) or bool(self.tokenizer.normal(text).strip())

    def label_numbers(self, row: Row) -> int | list[float]:
        """The index of the label, or a multi-hot row; labels that training never saw have no loss."""
        labels = self.column.parse(row.values[-1])
        if not self.column.multi_label:
            return self.labels.index(labels[0]) if labels[0] in self.labels else UNCOUNTED
        return [float(label in labels) for label in self.labels]

    def encode(self, inputs: Sequence[Input]) -> list[EncodedInput]:
        """The tokens of each text, or of both texts of each pair."""
        return encode_inputs(self.tokenizer, [list_texts(given) for given in inputs], self.window)

    @property
    def window(self) -> int:
        """The most tokens that the model reads at once, start and ends included."""
        return window_size(self.config, self.longest + (3 if self.pairs else 2))

    def mark_segments(self, tokens: Tensor) -> Tensor | None:
        """Which text of a pair each token belongs to, for models that read that."""
        return mark_segments(tokens, self.tokenizer.end) if self.pairs and self.config.segments else None

    # Model

    def build(self) -> Classifier:
        return Classifier(self.config)

    # Model folder

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder)

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> ClassifierProcessor:
        from clearhead.text import Tokenizer

        labels, tokenizer = settings.get("labels"), Tokenizer.load(folder)
        if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
            raise CheckpointError(f"the settings of {folder} have no list of labels: {labels!r:.60}")
        if (len(labels), tokenizer.size) != (config.label_count, config.vocabulary):
            raise CheckpointError(
                f"{folder} has {len(labels)} labels and {tokenizer.size} tokens, but its model "
                f"{config.label_count} and {config.vocabulary}; copy the folder again"
            )
        names = tuple(settings.get("label_names", ()))
        column = LabelColumn(settings.get("multi_label", False), settings.get("label_separator", ","), names)
        counts = settings.get("label_counts", ())
        processor = cls(tokenizer, labels, config, column=column, pairs=settings.get("pairs", False), counts=counts)
        processor.longest = int(settings.get("longest", 0))
        processor.temperature = float(settings.get("temperature", 1.0))
        processor.thresholds = list(settings.get("thresholds", processor.thresholds))
        return processor


def list_texts(given: Input) -> tuple[str, ...]:
    """The texts of an input: one, or both of a pair."""
    return given if isinstance(given, tuple) else (given,)
