"""Sections of a classification recipe, and the stored part: tokenizer, labels, calibration; rows become examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from jaxtyping import Int
from pydantic import Field, PositiveFloat, model_validator
from torch import Tensor

from clearhead.errors import DataError
from clearhead.formatting import parse_whole_number
from clearhead.model import Classifier, ModelConfig
from clearhead.tasks.classification.linear_head import NgramHead
from clearhead.tasks.losses import UNCOUNTED
from clearhead.tasks.pretrained import Pretrained
from clearhead.tasks.processor import (
    Columns,
    Files,
    LabelledTexts,
    PairInputs,
    Processor,
    RowCheck,
    TextExamples,
    TextInputs,
)
from clearhead.tasks.settings import FILES, Data, Section, Source, TaskRecipe, one_message
from clearhead.tasks.text_windows import EncodedInput, encode_inputs, text_windows, window_size
from clearhead.text import Report, Row, Tokenizer, read
from clearhead.text.report import Flaw

PAIRS = ("text", "other", "label")
UNSEEN = Flaw(
    "row with a label that is not in the training data, counted as wrong",
    "rows with a label that is not in the training data, counted as wrong",
)
LINEAR_ROWS = 2000  # up to which a linear head is the default
Input = str | tuple[str, str]


class ClassificationData(Data):
    """`[data]`: texts or pairs of texts, with a label or several labels each."""

    longest: int = Field(256, ge=1)
    multi_label: bool = False  # each text has any number of labels
    label_separator: str = Field(",", min_length=1)  # between them
    # Texts without labels, one a line or in the text columns of a table: a linear head may learn from them.
    unlabelled: Annotated[Source | list[Source] | None, one_message(FILES)] = None
    # What numbers in the label column mean, from 0: names, or a file with a name on each line.
    label_names: str | list[str] | None = None

    @property
    def unlabelled_source(self) -> Source | list[Source] | None:
        return self.unlabelled

    def resolve(self, find: Callable[[str], Path]) -> ClassificationData:
        """With the names of labels read from their file."""
        if not isinstance(self.label_names, str):
            return self
        path = find(self.label_names)
        try:
            names = [line.strip() for line in path.read_text(encoding="utf-8-sig").rstrip().split("\n")]
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise DataError(f"data.label_names: {path} cannot be read: {reason}") from None
        if "" in names:
            raise DataError(f"{path}:{names.index('') + 1}: empty line; every line must have the name of a label")
        return self.model_copy(update={"label_names": names})


class ClassificationLoss(Section):
    """`[loss]`: regularisation against overfitting on small data, and weights of labels."""

    label_smoothing: float = Field(0.0, ge=0, lt=1)
    token_dropout: float = Field(0.0, ge=0, lt=1)  # share of tokens that are hidden in training, others each time
    # Hidden tokens are also predicted, as in masked language models; weight of that loss.
    masked: float = Field(0.0, ge=0)
    # "balanced": each label weighs as much as any other, however rare; or { label = weight }.
    class_weights: Annotated[
        Literal["balanced"] | dict[str, PositiveFloat] | None,
        one_message('"balanced" or { label = weight }, with weights greater than 0'),
    ] = None


class HeadSection(Section):
    """`[head]`: what the scores of labels are computed from, and how their weights are found."""

    # trained: by gradients, from the encoder's vector; linear: logistic regression over the vector and the text's
    # n-grams, as cross-validation chooses, with the encoder as it is; auto: linear for up to 2,000 single texts if the
    # run starts from trained weights and sets no steps.
    kind: Literal["auto", "trained", "linear"] = "auto"


class ClassificationRecipe(TaskRecipe):
    data: ClassificationData
    head: HeadSection = HeadSection()
    loss: ClassificationLoss = ClassificationLoss()

    def has_linear_head(self, processor: ClassifierProcessor, rows: int) -> bool:
        """Whether scores are found by logistic regression, and not by gradients."""
        trainer: Any = getattr(self, "train", None)  # its section
        if self.head.kind != "auto" or trainer is None:
            return self.head.kind == "linear"
        few = rows <= LINEAR_ROWS and not processor.pairs and not processor.stored.multi_label
        return few and trainer.start_name is not None and not trainer.lora_rank and not self._wants_steps()

    def _wants_steps(self) -> bool:
        trainer: Any = getattr(self, "train", None)
        return trainer is not None and bool({"steps", "minutes"} & trainer.model_fields_set) and trainer.steps > 0

    def needs_steps(self, processor: Any, rows: int) -> bool:
        return not self.has_linear_head(processor, rows)

    @model_validator(mode="after")
    def _check_linear(self) -> ClassificationRecipe:
        # Vectors that were trained on the same rows would look better in cross-validation than they are.
        if self.head.kind == "linear" and self._wants_steps():
            raise ValueError(
                'head.kind = "linear" leaves the encoder as it is: leave train.steps and train.minutes out'
            )
        return self

    @model_validator(mode="after")
    def _check_masked(self) -> ClassificationRecipe:
        if self.loss.masked and not self.loss.token_dropout:
            raise ValueError(
                "loss.masked predicts hidden tokens, and loss.token_dropout = 0 hides none; set it to 0.15"
            )
        return self


class ClassifierSettings(Section):
    """The settings that a model folder keeps."""

    labels: list[str]
    pairs: bool = False  # of texts
    multi_label: bool = False
    label_separator: str = ","
    label_names: list[str] = Field([])
    label_counts: list[int] = Field([])  # training rows with each label, and of all
    longest: int = 0  # tokens of a text in training; 0: not known
    temperature: float = 1.0  # that the model's scores were divided by
    thresholds: list[float]  # of each label, where a text may have several


@dataclass(frozen=True)
class LabelColumn:
    """How the label column is parsed: one label, or several with a separator; as names, or as indices into `names`.

    >>> LabelColumn(multi_label=True, names=("anger", "fear", "joy")).parse("2, 0")
    ('joy', 'anger')
    >>> LabelColumn().parse("a,b"), LabelColumn(multi_label=True).parse("")
    (('a,b',), ())
    """

    multi_label: bool = False
    separator: str = ","
    names: tuple[str, ...] = ()

    def parse(self, written: str) -> tuple[str, ...]:
        """The labels of one row, each once; none where nothing is written."""
        parts = written.split(self.separator) if self.multi_label else [written]
        stripped = (part.strip() for part in parts)
        return tuple(dict.fromkeys(self._name(part) for part in stripped if part))

    def collect(self, rows: Sequence[Row]) -> dict[str, int]:
        """The labels that occur and how often, in the order of `names`, or else sorted."""
        counts = Counter[str]()
        for row in rows:
            labels = self.parse(row.values[-1])
            if self.names and (unknown := [label for label in labels if label not in self.names]):
                raise DataError(
                    f"{row.where}: the label {unknown[0]!r} is not one of the {len(self.names)} in data.label_names, "
                    f"nor an index into it (0 to {len(self.names) - 1})"
                )
            counts.update(labels)
        # One label of many is something to tell apart if there are texts without it.
        if len(counts) < 2 and not (self.multi_label and counts and max(counts.values()) < len(rows)):
            file = f"{rows[0].file}: " if rows else ""
            raise DataError(f"{file}at least two different labels are needed; found {', '.join(counts) or 'none'}")
        return {label: counts[label] for label in (self.names or sorted(counts)) if label in counts}

    def _name(self, part: str) -> str:
        number = parse_whole_number(part)
        if part in self.names or number is None or number >= len(self.names):
            return part
        return self.names[number]


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
        self.ngram_head: NgramHead | None = None  # adds to the scores of the model

    @classmethod
    def read(cls, source: Files, columns: Columns = None, documents: str | None = None) -> Iterator[Row]:
        """Rows of text and label, or of text, other and label where `columns` (or the files) name an `other`."""
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
        texts, answers, used = list[list[int]](), list[Any](), list[Row]()
        too_long = f"longer than the {self.window:,} tokens that the model reads at once"
        for row, (parts, cut) in zip(rows, self.encode([self.inputs.of_row(row) for row in rows]), strict=True):
            windows = text_windows(parts, self.window, self.tokenizer.start, self.tokenizer.end)
            problem, flaws = self.check_row(row)
            if recipe is not None and problem is None:
                unseen = "with a label that is not in the training data" if flaws else None
                excess = recipe.data.find_excess(recipe.data.longest + 1 if cut else sum(map(len, parts)))
                problem = unseen or excess or (too_long if len(windows) > 1 else None)
            if report.admit(row, problem, flaws):
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

    def check_row(self, row: Row) -> RowCheck:
        *texts, written = row.values
        if not self.column.parse(written) and not self.column.multi_label:
            return RowCheck("without a label")
        if not all(any(map(str.isalnum, text)) or self.tokenizer.normal(text).strip() for text in texts):
            return RowCheck("without a text")
        return RowCheck(flaws={UNSEEN: 1} if self.unseen_labels([row]) else {})

    def unseen_labels(self, rows: Sequence[Row]) -> list[str]:
        """The labels of these rows that are not in the training data."""
        return sorted({label for row in rows for label in self.column.parse(row.values[-1])} - set(self.labels))

    def label_numbers(self, row: Row) -> int | list[float]:
        """The index of the label, or a multi-hot row; labels that training never saw have no loss."""
        labels = self.column.parse(row.values[-1])
        if not self.column.multi_label:
            return self.labels.index(labels[0]) if labels[0] in self.labels else UNCOUNTED
        return [float(label in labels) for label in self.labels]

    def save(self, folder: Path) -> None:
        super().save(folder)
        if self.ngram_head is not None:
            self.ngram_head.save(folder)

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> ClassifierProcessor:
        processor = super().load(folder, config, settings)
        processor.ngram_head = NgramHead.load(folder, len(processor.labels))
        return processor

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


def join_pair(texts: Input) -> str:
    return "\n".join(list_texts(texts))


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
