"""The stored part of classification: tokenizer, labels, calibration; rows become texts with label numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from jaxtyping import Int
from torch import Tensor

from clearhead.errors import DataError
from clearhead.model import Classifier, ModelConfig
from clearhead.tasks.classification.classifier_settings import ClassificationRecipe, ClassifierSettings, LabelColumn
from clearhead.tasks.inputs import TextInputs
from clearhead.tasks.losses import UNCOUNTED
from clearhead.tasks.processor import Columns, Files, LabelledTexts, Processor, TextExamples
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

    def check(self, value: Any, name: str = "the input") -> tuple[str, str]:
        """Two texts, or one with a tab between."""
        parts = value.split("\t") if isinstance(value, str) else value
        fits = isinstance(parts, (list, tuple)) and len(parts) == 2 and all(isinstance(part, str) for part in parts)
        if not fits:
            raise DataError(f"{name} must be two texts with a tab between, got {value!r:.60}")
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

    stored_kind = ClassifierSettings
    stored: ClassifierSettings

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig, stored: ClassifierSettings) -> None:
        super().__init__(tokenizer, config, stored)
        self.labels, self.pairs = stored.labels, stored.pairs
        self.column = LabelColumn(stored.multi_label, stored.label_separator, tuple(stored.label_names))
        self.columns = PAIRS if stored.pairs else type(self).columns
        self.inputs = PairInputs() if stored.pairs else TextInputs()
        self.metric = "macro_f1" if stored.multi_label else "accuracy"

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
        column = LabelColumn(data.multi_label, data.label_separator, tuple(data.label_names or ()))
        counts = column.collect(rows)
        if start is not None and set(start.labels) == set(counts):  # its output head is taken, too
            counts = {label: counts[label] for label in start.labels}
        tokenizer = recipe.text.make_tokenizer((text for row in rows for text in row.values[:-1]), start)
        sizes: dict[str, Any] = {"vocabulary": tokenizer.size, "labels": {"count": len(counts)}}
        if pairs and start is None:
            sizes["segments"] = 2
        stored = ClassifierSettings(
            labels=list(counts),
            pairs=pairs,
            multi_label=column.multi_label,
            label_separator=column.separator,
            label_names=list(column.names),
            label_counts=[*counts.values(), len(rows)],
            thresholds=[0.5] * len(counts),
        )
        return cls(tokenizer, cls.make_config(recipe, start, **sizes), stored)

    def configure(self, recipe: ClassificationRecipe) -> None:
        self.store(longest=recipe.data.longest)

    def examples(self, rows: Iterable[Row], report: Report, recipe: ClassificationRecipe | None = None) -> TextExamples:
        rows = list(rows)
        longest = None if recipe is None else recipe.data.longest
        texts, answers, used = list[list[int]](), list[Any](), list["Row"]()
        too_long = f"longer than the {self.window:,} tokens that the model reads at once"
        for row, (parts, cut) in zip(rows, self.encode([self.inputs.of_row(row) for row in rows]), strict=True):
            windows = text_windows(parts, self.window, self.tokenizer.start, self.tokenizer.end)
            flaws = self.find_flaws(row)
            if problem := self.row_problem(row):
                report.drop(row, problem)
            elif flaws and recipe is not None:
                report.drop(row, "with a label that is not in the training data")
            elif longest is not None and (cut or sum(map(len, parts)) > longest):
                report.drop(row, f"longer than {longest} tokens")
            elif longest is not None and len(windows) > 1:
                report.drop(row, too_long)
            else:
                report.keep()
                for flaw, count in flaws.items():
                    report.add_flaw(row, flaw, count)
                if len(windows) > 1:
                    report.remark(f"{too_long} (the loss is of the first ones)")
                texts.append(windows[0])
                answers.append(self.label_numbers(row))
                used.append(row)
        examples = TextExamples(texts, answers, used, self.tokenizer.pad)
        if not examples.counts.any():
            raise DataError(f"no text with a known label is left to use: {report}")
        return examples

    def answer_of(self, row: Row) -> str:
        return ", ".join(self.column.parse(row.values[-1]))

    def row_problem(self, row: Row) -> str | None:
        *texts, written = row.values
        if not self.column.parse(written) and not self.column.multi_label:
            return "without a label"
        return None if all(map(self._has_text, texts)) else "without a text"

    def contradict(self, rows: Sequence[Row]) -> bool:
        return len({frozenset(self.column.parse(row.values[-1])) for row in rows}) > 1

    def find_flaws(self, row: Row) -> dict[Flaw, int]:
        return {UNSEEN: 1} if self.unseen_labels([row]) else {}

    def unseen_labels(self, rows: Sequence[Row]) -> list[str]:
        """The labels of these rows that are not in the training data."""
        return sorted({label for row in rows for label in self.column.parse(row.values[-1])} - set(self.labels))

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
        return encode_inputs(self.tokenizer, [list_texts(text) for text in inputs], self.window)

    @property
    def window(self) -> int:
        """The most tokens that the model reads at once, start and ends included."""
        return window_size(self.config, self.stored.longest + (3 if self.pairs else 2))

    def mark_segments(self, tokens: Tensor) -> Tensor | None:
        """Which text of a pair each token belongs to, for models that read that."""
        return mark_segments(tokens, self.tokenizer.end) if self.pairs and self.config.segments else None

    def build(self) -> Classifier:
        return Classifier(self.config)


def list_texts(texts: Input) -> tuple[str, ...]:
    """The texts of an input: one, or both of a pair."""
    return texts if isinstance(texts, tuple) else (texts,)


def mark_segments(tokens: Int[Tensor, "texts tokens"], end: int) -> Int[Tensor, "texts tokens"]:
    """0 up to the first end and 1 after it, as BERT marks the texts of a pair.

    >>> import torch
    >>> mark_segments(torch.tensor([[1, 7, 2, 8, 9, 2]]), 2)
    tensor([[0, 0, 0, 1, 1, 1]])
    """
    ends = (tokens == end).long()
    return (ends.cumsum(1) - ends).clamp(max=1)
