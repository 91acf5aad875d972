"""TextToText: a text in, a text out, with one tokenizer for both or one for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from clearhead.attention import Mask
from clearhead.decode import Hypothesis, Writer
from clearhead.errors import CheckpointError, ConfigError, DataError
from clearhead.model import EncoderDecoder, ModelConfig, PointerGenerator
from clearhead.model.pointer_generator import pointer_loss
from clearhead.tasks.base import Examples
from clearhead.tasks.losses import UNCOUNTED, token_loss
from clearhead.tasks.segmentation import cut_repeats, has_loop
from clearhead.tasks.sequence_to_sequence.generation import SequenceToSequence
from clearhead.tasks.sequence_to_sequence.search import Decode, Search, SearchOptions
from clearhead.tasks.settings import Data, Section, TaskRecipe, Text, validate
from clearhead.tasks.trace import Trace
from clearhead.text.batches import Batch, Ragged

if TYPE_CHECKING:
    from clearhead.tasks.pretrained import Pretrained
    from clearhead.text import Report, Row, Tokenizer

TextToTextT = TypeVar("TextToTextT", bound="TextToText")
EMPTY = "with an empty side"


class PairData(Data):
    """`[data]` of pairs: which of them are used."""

    ratio: float = Field(6.0, ge=0)  # how many times longer a side of more than 10 tokens may be than the other; 0: any


class PairText(Text):
    """`[text]` of pairs: one tokenizer, or one for each side."""

    shared: bool = True  # one tokenizer for both sides, or one for each
    source_vocabulary: int | None = Field(None, ge=300)  # of the source's own tokenizer; None: as vocabulary


class Loss(Section):
    """`[loss]`: what is added to the plain cross-entropy."""

    label_smoothing: float = Field(0.1, ge=0, lt=1)


class TextToTextRecipe(TaskRecipe):
    data: PairData
    text: PairText = PairText()
    loss: Loss = Loss()
    decode: Decode = Decode()


class Pairs(NamedTuple):
    """A batch: source tokens with the end token, the decoder's input tokens, and the tokens that it should predict."""

    source: Tensor
    lengths: Tensor
    target: Tensor
    labels: Tensor


class PairExamples(Examples[Pairs]):
    """Sources and targets as tokens."""

    def __init__(self, sources: list[list[int]], targets: list[list[int]], rows: list[Row], pad: int) -> None:
        self.source, self.target, self.rows, self.pad = Ragged(sources), Ragged(targets), rows, pad
        self.counts = self.target.lengths.numpy() - 1  # every word but the start is predicted
        self.lengths = np.stack([self.source.lengths.numpy(), self.counts], axis=1)

    def to(self, device: torch.device) -> PairExamples:
        self.source.to(device), self.target.to(device)
        return self

    def collate(self, batch: Batch) -> Pairs:
        rows = torch.from_numpy(batch.examples).to(self.source.flat.device, non_blocking=True)
        source, lengths = self.source.pad(rows, batch.sizes[0], self.pad)
        target, _ = self.target.pad(rows, batch.sizes[1] + 1, UNCOUNTED)
        read, written = target[:, :-1], target[:, 1:]
        return Pairs(source, lengths, read.masked_fill(read == UNCOUNTED, self.pad), written.contiguous())

    def fingerprint(self) -> str:
        return f"{self.source.fingerprint()} {self.target.fingerprint()}"


class TextToText(SequenceToSequence[str, Pairs, list[int]]):
    """Base class of translation and summaries: text to text, with one tokenizer for both sides or one for each."""

    columns = ("source", "target")
    recipe: ClassVar[type[TaskRecipe]] = TextToTextRecipe
    decode_section: ClassVar[type[Decode]] = Decode

    def __init__(self, source: Tokenizer, target: Tokenizer, config: ModelConfig, decode: Decode) -> None:
        self.source, self.target, self.config, self.decode = source, target, config, decode
        self.label_smoothing = 0.0
        self.token_loss, self.pointer_loss = token_loss, pointer_loss

    @property
    def settings(self) -> dict[str, Any]:
        return {**self.decode.model_dump(), "shared": self.source is self.target}

    # Data

    @classmethod
    def prepare(
        cls: type[TextToTextT], rows: Sequence[Row], recipe: TaskRecipe, start: Pretrained | None = None
    ) -> TextToTextT:
        assert isinstance(recipe, TextToTextRecipe)
        text = recipe.text
        sources, targets = [row.values[0] for row in rows], [cls.target_of(row) for row in rows]
        if text.shared:
            source = target = text.make_tokenizer(chain(sources, targets), start)
            sizes = {"vocabulary": target.size}
        elif start is not None:
            raise ConfigError("train.init_from uses one tokenizer for source and target: set text.shared = true")
        elif recipe.model.get("copying"):
            raise ConfigError("model.copying needs one tokenizer for source and target: set text.shared = true")
        else:
            source, target = text.train_tokenizer(sources, text.source_vocabulary), text.train_tokenizer(targets)
            sizes = {"vocabulary": target.size, "source_vocabulary": source.size}
        task = cls(source, target, cls.make_config(recipe, start, **sizes), recipe.decode)
        task.configure(recipe)
        task.adapt(rows)
        return task

    @classmethod
    def target_of(cls, row: Row) -> str:
        """The text that the model learns to write for this row."""
        return str(row.values[1])

    def answer_of(self, row: Row) -> str:
        return self.target_of(row)

    def input_tokenizer(self) -> Tokenizer | None:
        return self.source if self.source is self.target else None

    def adapt(self, rows: Sequence[Row]) -> None:
        """Settings that follow from the training data."""

    def configure(self, recipe: TaskRecipe) -> None:
        assert isinstance(recipe, TextToTextRecipe)
        self.decode, self.label_smoothing = recipe.decode, recipe.loss.label_smoothing

    def examples(self, rows: Iterable[Row], report: Report, recipe: TaskRecipe | None = None) -> PairExamples:
        rows = list(rows)
        limits = recipe.data if isinstance(recipe, TextToTextRecipe) else None
        sources = self.source.encode_all([row.values[0] for row in rows])
        targets = self.target.encode_all([self.target_of(row) for row in rows])
        end, kept = self.target.end, []
        for place, (row, source, target) in enumerate(zip(rows, sources, targets, strict=True)):
            if reason := _unfit(source, target, limits):
                report.drop(row, reason)
            else:
                report.keep()
                kept.append(place)
        if not kept:
            raise DataError(f"no pair is left to use: {report}")
        return PairExamples(
            [[*sources[place], self.source.end] for place in kept],
            [[self.target.start, *targets[place], end] for place in kept],
            [rows[place] for place in kept],
            self.source.pad,
        )

    def row_problem(self, row: Row) -> str | None:
        source, target = self.source.normal(row.values[0]), self.target.normal(self.target_of(row))
        whole = source.strip() and target.strip()
        return None if whole else EMPTY

    # Model

    def build(self) -> EncoderDecoder:
        return PointerGenerator(self.config) if self.config.copying else EncoderDecoder(self.config)

    def loss(self, model: EncoderDecoder, batch: Pairs) -> Float[Tensor, ""]:
        # The target needs no mask of its own: its pads come last, so causality hides them from every word.
        mask, smoothing = Mask.padding(batch.lengths), self.label_smoothing if model.training else 0.0
        if isinstance(model, PointerGenerator):
            context = model.encode(batch.source, mask)
            hidden = model.decode(batch.target, context, context_mask=mask)
            read = batch.source, batch.target
            return self.pointer_loss(model, hidden, context, *read, mask, batch.labels, smoothing)
        hidden = model(batch.source, batch.target, mask)
        return self.token_loss(model.vocabulary, hidden, batch.labels, smoothing)

    def compile_loss(self) -> None:
        self.token_loss = torch.compile(token_loss, dynamic=True)
        self.pointer_loss = torch.compile(pointer_loss, dynamic=True)

    # Answers

    def split(self, given: str) -> list[list[int]]:
        """All tokens of the input as one part."""
        tokens = self.source.encode(given)
        return [tokens] if tokens else []

    def part_length(self, part: list[int]) -> int:
        return len(part) + 1  # with its end

    def traced_part(self, trace: Trace) -> list[int]:
        return trace.reads["source"][:-1]

    def writer(self, model: EncoderDecoder, parts: Sequence[list[int]]) -> Writer:
        source = Ragged([[*part, self.source.end] for part in parts])
        lengths, device = source.lengths, model.vocabulary.words.weight.device
        padded, _ = source.pad(torch.arange(len(parts)), int(lengths.max()), self.source.pad)
        return Writer.translating(model, padded.to(device), lengths.to(device))

    def cut_repeats(self, part: list[int]) -> list[int] | None:
        """No run of tokens stands there more than three times, digits excepted."""
        shorter = cut_repeats(part, self._digits[0])
        return None if shorter == part else shorter

    def has_looped(self, hypothesis: Hypothesis, part: list[int]) -> bool:
        """1,000,000 has a reason to repeat itself, and so has what the source repeats, too."""
        if not hypothesis.finished:
            return has_loop(hypothesis.tokens)
        words = [token for token in hypothesis.tokens if token not in self._digits[1]]
        return has_loop(words) and (not has_loop(part) or len(hypothesis.tokens) > len(part) + 8)

    @cached_property
    def _digits(self) -> tuple[set[int], set[int]]:
        """The tokens of digits, in the source and in the target."""
        source, target = (
            {token for digit in "0123456789" for token in side.encode(digit)} for side in (self.source, self.target)
        )
        return source, target

    # Attention

    def traces(self, model: EncoderDecoder, given: str, *, answer: str | None, options: SearchOptions) -> list[Trace]:
        """A text with its answer, part by part; with an answer given, all of it at once."""
        if answer is not None:
            source, target = self.source.encode(given), self.target.encode(answer)
            return [self._trace(source, target, answer, given=True)] if source else []
        found = self.write(model, self.split(given), Search.of(options, self.decode))
        notes = self._join(given, found, 1).notes
        return [
            self._trace(one.part, one.hypotheses[0].tokens, self.decode_text(one.hypotheses[0]), notes=notes)
            for one in found
        ]

    def _trace(self, source: list[int], target: list[int], text: str, **known: Any) -> Trace:
        reads = {"source": [*source, self.source.end], "target": [self.target.start, *target]}
        return Trace(reads, [*target, self.target.end], text, **known)

    def run_trace(self, model: EncoderDecoder, trace: Trace) -> Float[Tensor, "tokens vocabulary"]:
        device = model.vocabulary.words.weight.device
        source, target = (torch.tensor([trace.reads[side]], device=device) for side in ("source", "target"))
        return model.token_scores(source, target)[0]

    def pieces(self, kind: str, numbers: Sequence[int]) -> list[str]:
        return (self.source if kind == "source" else self.target).pieces(numbers)

    # Model folder

    def save(self, folder: Path) -> None:
        if self.source is self.target:
            self.target.save(folder)
        else:
            self.source.save(folder, "source-tokenizer")
            self.target.save(folder, "target-tokenizer")

    @classmethod
    def load(cls: type[TextToTextT], folder: Path, config: ModelConfig, settings: dict[str, Any]) -> TextToTextT:
        from clearhead.text import Tokenizer

        values = dict(settings)
        shared = values.pop("shared", True)
        try:
            decode = validate(cls.decode_section, values)
        except ConfigError as error:
            raise CheckpointError(f"the settings of {folder} are invalid: decode.{error}") from None
        if shared:
            source = target = Tokenizer.load(folder)
        else:
            source = Tokenizer.load(folder, "source-tokenizer")
            target = Tokenizer.load(folder, "target-tokenizer")
        sizes, wanted = (source.size, target.size), (config.source_vocabulary or config.vocabulary, config.vocabulary)
        if sizes != wanted:
            raise CheckpointError(
                f"the tokenizers of {folder} have {sizes[0]} and {sizes[1]} tokens, but its model {wanted[0]} and "
                f"{wanted[1]}; copy the folder again"
            )
        return cls(source, target, config, decode)


def _unfit(source: list[int], target: list[int], limits: PairData | None) -> str | None:
    """Why a pair cannot be trained on, or None."""
    if not source or not target:
        return EMPTY
    if limits is None:
        return None
    if max(len(source), len(target)) > limits.longest:
        return f"longer than {limits.longest} tokens"
    ratio = max(len(source), len(target)) / min(len(source), len(target))
    if limits.ratio and ratio > limits.ratio and max(len(source), len(target)) > 10:
        return f"with sides that differ more than {limits.ratio:g} times in length"
    return None
