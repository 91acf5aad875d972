"""Tasks from text to text: their recipe, pairs as examples, tokenizers for one or both sides, loss, answers, traces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from clearhead.errors import ConfigError, DataError
from clearhead.model import EncoderDecoder, ModelConfig, PointerGenerator
from clearhead.model.pointer_generator import pointer_loss
from clearhead.tasks.losses import UNCOUNTED, token_loss
from clearhead.tasks.objective import Objective
from clearhead.tasks.pretrained import Pretrained
from clearhead.tasks.processor import Examples, RecipeT, RowCheck
from clearhead.tasks.segmentation import cut_repeats, has_loop
from clearhead.tasks.sequence_to_sequence.generation import (
    GeneratingAnswerer,
    GeneratingProcessor,
    Generation,
    GenerationTracer,
)
from clearhead.tasks.sequence_to_sequence.search import Decode
from clearhead.tasks.settings import Data, Section, TaskRecipe, Text
from clearhead.tasks.text_windows import MAX_CHARACTERS
from clearhead.tasks.trace import Trace
from clearhead.text import Report, Row, Tokenizer
from clearhead.text.batches import Batch, Ragged, pad_sequences

if TYPE_CHECKING:
    from typing import Self


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


class PairRecipe(TaskRecipe):
    data: PairData
    text: PairText = PairText()
    loss: Loss = Loss()
    decode: Decode = Decode()


class PairSettings(Decode):
    """The settings that a model folder keeps."""

    shared: bool = True  # one tokenizer for both sides


PairRecipeT = TypeVar("PairRecipeT", bound=PairRecipe)


class Pairs(NamedTuple):
    """A batch: source tokens with the end token, the decoder's input tokens, and the tokens that it should predict."""

    source: Tensor
    lengths: Tensor
    target: Tensor
    labels: Tensor


def shift_targets(targets: Ragged, rows: Tensor, size: int, pad: int) -> tuple[Tensor, Tensor]:
    """The decoder's input tokens of these rows, and the tokens that it should predict: `size` of each."""
    padded, _ = targets.pad(rows, size + 1, UNCOUNTED)
    read, written = padded[:, :-1], padded[:, 1:]
    return read.masked_fill(read == UNCOUNTED, pad), written.contiguous()


class PairExamples(Examples[Pairs]):
    """Sources and targets as tokens."""

    on_device: ClassVar[tuple[str, ...]] = ("source", "target")

    def __init__(self, sources: list[list[int]], targets: list[list[int]], rows: list[Row], pad: int) -> None:
        self.source, self.target, self.rows, self.pad = Ragged(sources), Ragged(targets), rows, pad
        self.counts = self.target.lengths.numpy() - 1  # every word but the start is predicted
        self.lengths = np.stack([self.source.lengths.numpy(), self.counts], axis=1)

    def collate(self, batch: Batch) -> Pairs:
        rows = torch.from_numpy(batch.examples).to(self.source.flat.device, non_blocking=True)
        source, lengths = self.source.pad(rows, batch.sizes[0], self.pad)
        return Pairs(source, lengths, *shift_targets(self.target, rows, batch.sizes[1], self.pad))

    def fingerprint(self) -> str:
        return f"{self.source.fingerprint()} {self.target.fingerprint()}"


class TextToTextProcessor(GeneratingProcessor[RecipeT, Pairs]):
    """Base class of the stored parts of tasks from text to text: their tokenizers, and the model."""

    def __init__(self, source: Tokenizer, target: Tokenizer, config: ModelConfig, stored: Section) -> None:
        self.source, self.target, self.config, self.stored = source, target, config, stored
        self.tokenizer = source if source is target else None

    @cached_property
    def digits(self) -> tuple[set[int], set[int]]:
        """The tokens of digits, in the source and in the target."""
        source, target = (
            {token for digit in "0123456789" for token in side.encode(digit)} for side in (self.source, self.target)
        )
        return source, target

    def build(self) -> EncoderDecoder:
        return PointerGenerator(self.config) if self.config.copying else EncoderDecoder(self.config)

    def save(self, folder: Path) -> None:
        if self.source is self.target:
            self.target.save(folder)
        else:
            self.source.save(folder, "source-tokenizer")
            self.target.save(folder, "target-tokenizer")


class PairProcessor(TextToTextProcessor[PairRecipeT]):
    """Base class of the stored parts of translation and summaries."""

    columns = ("source", "target")
    stored_kind: ClassVar[type[PairSettings]]
    stored: PairSettings

    @classmethod
    def prepare(cls, rows: Sequence[Row], recipe: PairRecipeT, start: Pretrained | None = None) -> Self:
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
        stored = cls.stored_kind(**recipe.decode.model_dump(), shared=text.shared)
        processor = cls(source, target, cls.make_config(recipe, start, **sizes), stored)
        processor.adapt(rows, recipe)
        return processor

    @classmethod
    def target_of(cls, row: Row) -> str:
        """The text that the model learns to write for this row."""
        return str(row.values[1])

    def answer_of(self, row: Row) -> str:
        return self.target_of(row)

    def adapt(self, rows: Sequence[Row], recipe: PairRecipeT) -> None:
        """Settings of decoding that follow from the training data."""

    def examples(self, rows: Iterable[Row], report: Report, recipe: PairRecipeT | None = None) -> PairExamples:
        rows = list(rows)
        limits = None if recipe is None else recipe.data
        sources = self.source.encode_all([row.values[0] for row in rows])
        targets = self.target.encode_all([self.target_of(row) for row in rows])
        triples = zip(rows, sources, targets, strict=True)
        used = [triple for triple in triples if report.admit(triple[0], _find_misfit(*triple[1:], limits))]
        report.refuse_empty("pair")
        return PairExamples(
            [[*source, self.source.end] for _, source, _ in used],
            [[self.target.start, *target, self.target.end] for *_, target in used],
            [row for row, *_ in used],
            self.source.pad,
        )

    def check_row(self, row: Row) -> RowCheck:
        source, target = self.source.normal(row.values[0]), self.target.normal(self.target_of(row))
        return RowCheck(None if source.strip() and target.strip() else EMPTY)

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> Self:
        stored = cls.read_settings(folder, settings)
        if stored.shared:
            source = target = Tokenizer.load(folder)
        else:
            source = Tokenizer.load(folder, "source-tokenizer")
            target = Tokenizer.load(folder, "target-tokenizer")
        return cls(source, target, config, stored)


def _find_misfit(source: list[int], target: list[int], limits: PairData | None) -> str | None:
    """Why a pair cannot be trained on, or None."""
    if not source or not target:
        return EMPTY
    if limits is None:
        return None
    shorter, longer = sorted((len(source), len(target)))
    if excess := limits.find_excess(longer):
        return excess
    if limits.ratio and longer / shorter > limits.ratio and longer > 10:
        return f"with sides that differ more than {limits.ratio:g} times in length"
    return None


TextToTextT = TypeVar("TextToTextT", bound=TextToTextProcessor[Any])
TextAnswererT = TypeVar("TextAnswererT", bound=GeneratingAnswerer[Any, str])


def pair_loss(
    model: EncoderDecoder,
    batch: Pairs,
    smoothing: float = 0.0,
    token_loss: Callable[..., Tensor] = token_loss,
    pointer_loss: Callable[..., Tensor] = pointer_loss,
) -> Float[Tensor, ""]:
    """The cross-entropy of the target's words, summed; the losses may be compiled ones."""
    # The target needs no mask of its own: its pads come last, so causality hides them from every word.
    mask = Mask.padding(batch.lengths)
    if isinstance(model, PointerGenerator):
        context = model.encode(batch.source, mask)
        hidden = model.decode(batch.target, context, context_mask=mask)
        return pointer_loss(model, hidden, context, batch.source, batch.target, mask, batch.labels, smoothing)
    return token_loss(model.vocabulary, model(batch.source, batch.target, mask), batch.labels, smoothing)


class TextToTextObjective(Objective[TextToTextT, RecipeT, EncoderDecoder, Pairs]):
    label_smoothing: float = 0.0

    def __init__(self, processor: TextToTextT, recipe: RecipeT) -> None:
        super().__init__(processor, recipe)
        self.pointer_loss: Callable[..., Tensor] = pointer_loss

    def loss(self, model: EncoderDecoder, batch: Pairs) -> Float[Tensor, ""]:
        smoothing = self.label_smoothing if model.training else 0.0
        return pair_loss(model, batch, smoothing, self.token_loss, self.pointer_loss)

    def compile_loss(self) -> None:
        super().compile_loss()
        self.pointer_loss = torch.compile(pointer_loss, dynamic=True)

    @property
    def quick_options(self) -> Mapping[str, Any]:
        return {"beams": 1}


class PairObjective(TextToTextObjective[TextToTextT, PairRecipeT]):
    """The objective of translation and summaries, whose recipes have a `[loss]`."""

    def __init__(self, processor: TextToTextT, recipe: PairRecipeT) -> None:
        super().__init__(processor, recipe)
        self.label_smoothing = recipe.loss.label_smoothing


class TextGeneration(Generation[TextToTextT, str, list[int]]):
    """Base class: a part is a list of tokens, without the end."""

    def whole(self, text: str) -> list[list[int]]:
        tokens = self.processor.source.encode(text)
        return [tokens] if tokens else []

    def part_length(self, part: list[int]) -> int:
        return len(part) + 1  # with its end

    def make_writer(self, parts: Sequence[list[int]]) -> Writer:
        tokenizer = self.processor.source
        source, device = [[*part, tokenizer.end] for part in parts], self.model.vocabulary.words.weight.device
        return Writer.translating(self.model, *pad_sequences(source, tokenizer.pad, device))

    def cut_repeats(self, part: list[int]) -> list[int] | None:
        """No run of tokens stands there more than three times, digits excepted."""
        shorter = cut_repeats(part, self.processor.digits[0])
        return None if shorter == part else shorter

    def has_looped(self, hypothesis: Hypothesis, part: list[int]) -> bool:
        """1,000,000 has a reason to repeat itself, and so has what the source repeats, too."""
        if not hypothesis.finished:
            return has_loop(hypothesis.tokens)
        words = [token for token in hypothesis.tokens if token not in self.processor.digits[1]]
        return has_loop(words) and (not has_loop(part) or len(hypothesis.tokens) > len(part) + 8)


def check_characters(text: str) -> None:
    """Refuses a text that is split into so many parts that writing them all takes minutes."""
    if len(text) > MAX_CHARACTERS:
        problem = f"has {len(text):,} characters, more than {MAX_CHARACTERS:,}"
        raise DataError(f"the text {text[:40]!r}… {problem}; give it as several texts")


class TextTracer(GenerationTracer[TextAnswererT, str, list[int]]):
    def trace_source(self, part: list[int]) -> tuple[list[int], None]:
        return [*part, self.answerer.processor.source.end], None

    def traced_part(self, trace: Trace) -> list[int]:
        return trace.reads["source"][:-1]

    def run(self, trace: Trace) -> Float[Tensor, "tokens vocabulary"]:
        model = self.answerer.model
        device = model.vocabulary.words.weight.device
        source, target = (torch.tensor([trace.reads[side]], device=device) for side in ("source", "target"))
        return model.token_scores(source, target)[0]

    def pieces(self, kind: str, numbers: Sequence[int]) -> list[str]:
        processor = self.answerer.processor
        texts: list[str] = (processor.source if kind == "source" else processor.target).pieces(numbers)
        return texts
