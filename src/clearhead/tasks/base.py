"""Task: turns raw data into batches, batches into a loss, and a model's output into answers.

Everything particular to a task is in its subclass: its recipe, columns, model, options, predictions, metrics. Trainer,
model folder, predictor and command line know only what is declared here. CONTRIBUTING.md shows how to add one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from clearhead.errors import ConfigError, DataError
from clearhead.formatting import suggest_name
from clearhead.model import ModelConfig
from clearhead.tasks.settings import Data, Options, TaskRecipe, option_names, refuse_unknown, validate
from clearhead.tasks.trace import Trace

if TYPE_CHECKING:
    from clearhead.tasks.pretrained import Pretrained
    from clearhead.text import Report, Row, Tokenizer
    from clearhead.text.batches import Batch
    from clearhead.text.report import Flaw

ModelT = TypeVar("ModelT", bound=nn.Module)
InputT = TypeVar("InputT")
BatchT = TypeVar("BatchT", bound=tuple[Tensor, ...])
OptionsT = TypeVar("OptionsT", bound=Options)
Scores = dict[str, float | str]
SMALL, LARGE = 5_000, 50_000  # rows up to which a model of width 128 is enough, and from which on 512 pays


@dataclass(frozen=True)
class Prediction:
    """One answer. `text` is what the command line prints; a task adds fields, and says in `to_json` what they are."""

    text: str
    notes: Sequence[str] = ()  # what the user should know about it

    def to_json(self) -> dict[str, Any]:
        """The object that `predict --json` prints, beside the input."""
        return {"output": self.text, "notes": list(self.notes)}

    def ranking(self) -> list[tuple[str, float | None]]:
        """This answer and its alternatives with their scores, best first."""
        return [(self.text, None)]


class Examples(ABC, Generic[BatchT]):
    """A data set as tensors, from which batches are collated.

    `lengths` is (examples, sides), what batches are planned by; `counts` says how many predictions of an example the
    loss is a sum over, so that every process knows a window's total without asking the others.
    """

    lengths: NDArray[np.int64]
    counts: NDArray[np.int64]
    rows: Sequence[Row]  # that the examples were made of

    def __len__(self) -> int:
        return len(self.lengths)

    @abstractmethod
    def collate(self, batch: Batch) -> BatchT:
        """The tensors of one batch as a NamedTuple of tensors, on the device that `to` named.

        Nothing but tensors: CUDA graphs copy a batch field by field, and tell batches apart by their shapes.
        """

    @abstractmethod
    def to(self, device: torch.device) -> Examples[BatchT]:
        """Moves the data to the device of the batches."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of the examples and their order."""

    def state(self) -> dict[str, Tensor]:
        """What `Task.refresh` changes during training; checkpoints store it."""
        return {}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Takes over what `state` gave."""

    def where(self, example: int) -> str:
        """The file and line that an example came from."""
        return self.rows[example].where


class Evaluation(NamedTuple):
    """Scores, and the rows and predictions that they were computed from."""

    scores: Scores
    rows: Sequence[Row]
    predictions: Sequence[Prediction]


class Baseline(NamedTuple):
    """The scores of a simple method on the same rows, such as TF-IDF with logistic regression."""

    name: str
    scores: Scores


class Task(ABC, Generic[ModelT, InputT, BatchT, OptionsT]):
    """Base class of tasks, generic in the types of its model, input, batch and options."""

    name: ClassVar[str]
    recipe: ClassVar[type[TaskRecipe]]  # with the task's own sections
    options: ClassVar[type[Options]] = Options  # of predict, evaluate and look: OptionsT
    input_kind: ClassVar[Literal["text", "picture", "sound"]] = "text"  # inputs of the other kinds are files
    columns: tuple[str, ...]  # of its data; a task may have others for some data, such as pairs of texts
    metrics: ClassVar[tuple[str, ...]]  # what it is scored by, beside the loss
    minimised: ClassVar[tuple[str, ...]] = ()  # those of them of which a smaller one is better, such as error rates
    metric: str  # the one of them that the best model is chosen by
    added_tokens: ClassVar[int] = 1  # that a text has beside its own: its end, or its start and end
    default_shape: ClassVar[str] = "classic"  # of a recipe whose [model] has no shape
    predicts_tokens: ClassVar[bool] = False  # whether its model has scores over the vocabulary
    # Whether the loss of a batch is the sum of the losses of its parts. If not (negatives from the same batch),
    # processes take whole batches instead of sharing each.
    splits_batches: ClassVar[bool] = True
    baseline_learns: ClassVar[bool] = True  # whether `baseline` needs the training rows
    # What else its models can do: `clearhead NAME MODEL ACTION …`, and a line about each action.
    actions: ClassVar[Mapping[str, str]] = MappingProxyType({})
    # Whether all batches of a run have (nearly) the same shape: then they are compiled for it, not for any.
    fixed_shapes: ClassVar[bool] = False
    # Whether its answers are texts with line breaks, which a terminal shows while they are written.
    writes_lines: ClassVar[bool] = False
    config: ModelConfig

    @property
    def settings(self) -> dict[str, Any]:
        """Other values that the task needs after loading, as JSON."""
        return {}

    # Data

    @classmethod
    def read(
        cls,
        source: str | Path | Mapping[str, str | Path],
        columns: Sequence[str] | Mapping[str, str] | None = None,
    ) -> Iterator[Row]:
        """The rows of a file, values in the order of the task's columns; `clearhead.text.read` explains `columns`."""
        from clearhead.text import read

        return read(source, cls.columns, columns)

    @classmethod
    def read_source(cls, source: str | Path | Mapping[str, str | Path], data: Data) -> Iterator[Row]:
        """The rows of one of the files that a recipe's `[data]` names."""
        return cls.read(source, data.columns)

    def read_rows(
        self,
        source: str | Path | Mapping[str, str | Path],
        columns: Sequence[str] | Mapping[str, str] | None = None,
    ) -> Iterator[Row]:
        """The rows of a file that is to be scored, read as the training data were."""
        return self.read(source, columns)

    def shares_columns(self, source: str | Path) -> bool:
        """Whether the columns of the training files hold for this file, too, where none are given."""
        return True

    @classmethod
    def split_off(cls, rows: list[Row], share: float, seed: int) -> tuple[list[Row], list[Row]]:
        """Splits a random share of the rows (at least one) off for dev; the same split for the same seed."""
        count = max(1, round(share * len(rows)))
        chosen = set(np.random.default_rng([seed, len(rows)]).permutation(len(rows))[:count].tolist())
        kept = [row for place, row in enumerate(rows) if place not in chosen]
        return kept, [row for place, row in enumerate(rows) if place in chosen]

    @classmethod
    @abstractmethod
    def prepare(
        cls, rows: Sequence[Row], recipe: TaskRecipe, start: Pretrained | None = None
    ) -> Task[ModelT, InputT, BatchT, OptionsT]:
        """From training data: tokenizers trained, labels collected, sizes of the model known.

        With trained weights to `start` from, their tokenizer and the sizes of their model are taken over.
        """

    def configure(self, recipe: TaskRecipe) -> None:
        """Takes over what a recipe sets and training does not learn, such as loss and decoding; at every start."""

    def chosen_settings(self) -> dict[str, str]:
        """What the data chose where the recipe says "auto", by the key in the recipe; run, metrics and card say it.

        `calibrate` may add to it.
        """
        return {}

    @abstractmethod
    def examples(self, rows: Iterable[Row], report: Report, recipe: TaskRecipe | None = None) -> Examples[BatchT]:
        """Rows as numbers; those that cannot be used are dropped, and the report says why.

        With a recipe they are for training, and its limits hold.
        """

    def input_of(self, row: Row) -> InputT:
        """The input for `predict` in this row."""
        return cast(InputT, row.values[0])

    def load_rows(self, rows: Iterable[Row]) -> list[Row]:
        """The rows with the content of their inputs in memory, where these are files."""
        return list(rows)

    def input_key(self, row: Row) -> str:
        """A text that two rows share if they have the same input."""
        return str(self.input_of(row)).strip()

    def show_input(self, row: Row) -> str:
        """The input of a row as it is shown beside a prediction; of a file its path."""
        return self.describe_input(self.input_of(row))

    def describe_input(self, given: InputT) -> str:
        """An input as a text: itself, or the name of a file."""
        return str(given)

    def answer_of(self, row: Row) -> str:
        """The right answer, to be shown beside a prediction."""
        return str(row.values[-1])

    def check_input(self, given: Any, place: str = "the input") -> InputT:
        """An input of `predict`, if it is of the right kind; here a text."""
        if not isinstance(given, str):
            raise DataError(f"{place} must be a text, got {given!r:.60}")
        return cast(InputT, given)

    def is_single(self, inputs: Any) -> bool:
        """Whether `predict` was given one input, not several."""
        return isinstance(inputs, (str, Path))

    # Model

    @abstractmethod
    def build(self) -> ModelT:
        """A new model with random weights and the task's output head.

        This is the only place where one is made: trainer, model folder and memory check call it.
        """

    @classmethod
    def stacks(cls, recipe: TaskRecipe) -> tuple[str, ...]:
        """The stacks of layers that the model of such a recipe has: "encoder", "decoder" or both, in this order."""
        return ("encoder",)

    def input_tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the inputs, for another model that starts from these weights; None if there is none."""
        return getattr(self, "tokenizer", None)

    @classmethod
    def make_config(cls, recipe: TaskRecipe, start: Pretrained | None = None, **sizes: int) -> ModelConfig:
        """The model that a recipe's [model] describes, with the sizes that the data decide.

        With trained weights to `start` from, their model with the recipe's changes, such as another dropout.
        """
        changes = dict(recipe.model)
        if start is not None:
            stacks = cls.stacks(recipe)
            config = start.adapt_config(stacks, predicts_tokens=cls.predicts_tokens)
            if stacks == ("decoder",) == start.stacks:
                # Some checkpoints have scores for more tokens than their tokenizer: they stay, so that logits do.
                sizes["vocabulary"] = max(sizes["vocabulary"], config.vocabulary)
            return config.change(**{**sizes, **changes})
        return ModelConfig.named(str(changes.pop("shape", cls.default_shape)), **{**sizes, **changes})

    @classmethod
    def fit(cls, rows: int, *, gpu: bool) -> dict[str, dict[str, Any]]:
        """What suits a recipe that has no [model] section: settings for so many rows, on a GPU or a CPU."""
        if gpu and rows >= LARGE:
            return {"model": {"shape": "classic", "norm_first": True}}
        size = {} if rows < SMALL else {"width": 256, "layers": 3, "feedforward": 1024}
        model = {"shape": "tiny", **size, "dropout": 0.1 if rows >= LARGE else 0.2}
        train = {"learning_rate": 1e-3, "warmup": 400, "evaluate_every": 500}
        return {"model": model, "train": train if gpu else {**train, "batch_tokens": 2048}}

    @abstractmethod
    def loss(self, model: ModelT, batch: BatchT) -> Float[Tensor, ""]:
        """The sum of the losses of all predictions in a batch, as one number.

        Smoothing and the like only while `model.training`: dev is judged by the plain loss.
        """

    def compile_loss(self) -> None:
        """Compiles the parts of the loss outside the layers, where that is faster."""

    def refresh(self, model: ModelT, examples: Examples[BatchT], epoch: int) -> None:
        """Changes the training examples at the beginning of an epoch, such as negatives mined with these weights.

        The model is in evaluation mode. What changes must be in the examples' `state`, so that runs resume exactly.
        """

    def calibrate(self, model: ModelT, train: Sequence[Row], dev: Sequence[Row]) -> str | None:
        """Fits what training does not learn (temperatures, thresholds, an index) with the finished weights.

        Called once, before the finished model is scored and saved. `dev` may be empty. Returns what the user should
        know about it, if anything.
        """
        return None

    def carry_over(self, model: ModelT, folder: Path) -> str | None:
        """Takes over what `act` changed in the model folder that a resumed run replaces; a message if it did.

        Called after the finished model was scored, before it is saved.
        """
        return None

    # Answers

    @abstractmethod
    def predict(self, model: ModelT, inputs: Sequence[InputT], options: OptionsT) -> Sequence[Prediction]:
        """An answer for every input, in their order."""

    @abstractmethod
    def score(self, rows: Sequence[Row], predictions: Sequence[Any], options: OptionsT) -> Scores:
        """How good predictions are for these rows, and the signatures of how that was computed."""

    def stream_notes(self, given: InputT) -> list[str]:
        """What the user should know about an input before its answer is streamed, such as that it is cut."""
        return []

    def row_problem(self, row: Row) -> str | None:
        """Why a row can neither be learned from nor scored, such as "without a label"; None if it can."""
        return None

    def contradict(self, rows: Sequence[Row]) -> bool:
        """Whether rows with the same input have answers that exclude each other; False where there may be several."""
        return False

    def find_flaws(self, row: Row) -> Mapping[Flaw, int]:
        """What is wrong in a row that is scored all the same, and how often; `evaluate` says it in a note."""
        return {}

    @torch.no_grad()
    def evaluate(self, model: ModelT, rows: Sequence[Row], options: OptionsT) -> Evaluation:
        """Scores of a model's answers; a `note` says which rows were left out, and what is wrong in others."""
        from clearhead.text import Report, Row
        from clearhead.text.report import describe_flaws

        report, usable = Report(), list[Row]()
        rows = self.load_rows(rows)
        for row in rows:
            if problem := self.row_problem(row):
                report.drop(row, problem)
            else:
                report.keep()
                usable.append(row)
        if rows and not usable:
            raise DataError(f"no row is left to score: {report}")
        predictions = self.predict(model, [self.input_of(row) for row in usable], options)
        scores = self.score(usable, predictions, options)
        missing = {*self.metrics, self.metric} - scores.keys()
        assert not missing, f"score of {self.name} gives {', '.join(scores)}; metrics promises {', '.join(missing)}"
        notes = [*([str(report)] if report.dropped else []), *describe_flaws(usable, self.find_flaws)]
        return Evaluation({**scores, "note": "; ".join(notes)} if notes else scores, usable, predictions)

    def report(self, rows: Sequence[Row], predictions: Sequence[Any]) -> str:
        """The tables that `evaluate --report` prints below the scores."""
        raise ConfigError(f"{self.name} has no tables to report")

    def confusion(self, rows: Sequence[Row], predictions: Sequence[Any]) -> tuple[list[str], NDArray[np.int64]]:
        """Labels, and how often a row of the one (rows) was given the other (columns), for `evaluate --figure`."""
        raise ConfigError(f"{self.name} has no confusion matrix to draw")

    def baseline(self, train: Sequence[Row], rows: Sequence[Row]) -> Baseline:
        """What a simple method scores on `rows` that learns from the same training rows, for `evaluate --baseline`."""
        raise ConfigError(f"{self.name} has no baseline to compare with")

    def baselines(self, model: ModelT, train: Sequence[Row], rows: Sequence[Row]) -> list[Baseline]:
        """Simple methods that `evaluate --baseline` scores, the one to beat first; some use the model's features."""
        return [self.baseline(train, rows)]

    def quick_options(self) -> OptionsT:
        """Options for the evaluations during training, where speed matters more than the last tenth of a score."""
        return self.read_options("evaluate", {})

    @classmethod
    def option_kinds(cls) -> Sequence[type[Options]]:
        """The classes of options that models of this task may have, for the help of the command line."""
        return (cls.options,)

    @classmethod
    def read_options(cls, command: str, values: Mapping[str, Any]) -> OptionsT:
        """Options by name, checked; those that a command does not have are refused, and the nearest is suggested."""
        refuse_unknown(command, values, option_names(cls.options, command))
        return cast(OptionsT, validate(cls.options, values, command))

    def stream(self, model: ModelT, given: InputT, options: OptionsT) -> Iterator[str]:
        """Yields the answer in pieces, each as soon as it is generated."""
        raise ConfigError(f"{self.name} produces its whole answer at once and cannot stream it")

    @classmethod
    def check_action(cls, action: str) -> None:
        """Refuses an action that is none of `actions`."""
        if action not in cls.actions:
            hint = suggest_name(action, cls.actions) if cls.actions else "it has none"
            raise ConfigError(f"{cls.name} has no action {action!r}; {hint}")

    def act(
        self, action: str, model: ModelT, folder: Path, arguments: Sequence[str], *, as_json: bool = False
    ) -> list[str]:
        """Runs one of `actions` with the model in this folder; returns the lines to print."""
        raise NotImplementedError(f"{self.name} has actions, but no method `act`")

    # Attention

    def traces(self, model: ModelT, given: InputT, *, answer: str | None, options: OptionsT) -> list[Trace]:
        """The tokens of an input and its answer, one trace for each forward pass."""
        raise self._untraceable()

    def run_trace(self, model: ModelT, trace: Trace) -> Float[Tensor, "tokens vocabulary"] | None:
        """Runs the forward pass of a trace; logits (tokens, vocabulary) where a token is predicted, if any is."""
        raise self._untraceable()

    def pieces(self, kind: str, numbers: Sequence[int]) -> list[str]:
        """Tokens of a trace as they can be shown."""
        raise self._untraceable()

    def _untraceable(self) -> ConfigError:
        return ConfigError(f"{self.name} does not trace its forward passes, so there is nothing to look at")

    # Model folder

    def write_samples(self, folder: Path, rows: Sequence[Row]) -> list[Path]:
        """Writes a few inputs to try a finished model with, if inputs are files; the paths of the inputs."""
        return []

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Writes the tokenizers and whatever else turns raw input into tensors."""

    @classmethod
    @abstractmethod
    def load(
        cls, folder: Path, config: ModelConfig, settings: dict[str, Any]
    ) -> Task[ModelT, InputT, BatchT, OptionsT]:
        """The inverse of `save`."""


AnyTask = Task[Any, Any, Any, Any]
