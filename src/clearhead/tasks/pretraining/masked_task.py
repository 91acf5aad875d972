"""Pre-training of an encoder as a masked language model: some words are hidden, and the model predicts them."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.attention import Mask
from clearhead.model import Encoder, ModelConfig
from clearhead.model.output_heads import mean_pool
from clearhead.tasks.answerer import Answerer, Evaluation, ModelT, OptionsT, Prediction, ProcessorT, Scores
from clearhead.tasks.language_model.language_processor import DocumentProcessor
from clearhead.tasks.losses import check_finite, token_loss
from clearhead.tasks.objective import Objective
from clearhead.tasks.pretrained import Pretrained
from clearhead.tasks.pretraining.mask_filling import MASK, FilledText, check_length, encode_masked, fill_masks
from clearhead.tasks.pretraining.masked_examples import (
    EMPTY,
    MaskedExamples,
    MaskedTexts,
    NeighbouringExamples,
    NeighbouringTexts,
    WindowExamples,
    make_text_windows,
)
from clearhead.tasks.pretraining.pretraining_settings import HidingSettings, PretrainingRecipe
from clearhead.tasks.processor import BatchT, Examples, RowCheck
from clearhead.tasks.settings import RankedOptions
from clearhead.tasks.task import Task
from clearhead.tasks.text_windows import window_size
from clearhead.tasks.trace import TaskTracer, Trace
from clearhead.text import Report, Row, Tokenizer
from clearhead.text.batches import Batch, BatchPlan

if TYPE_CHECKING:
    from typing import Self


SAMPLES = 3  # texts that are filled at each evaluation, to be shown
BATCH_TOKENS = 8192  # of a batch that is scored, pads included
LARGEST_LOSS = 700.0  # whose perplexity is a float


class HidingProcessor(DocumentProcessor[PretrainingRecipe, BatchT]):
    """Base class of the stored parts of the objectives that hide words."""

    default_shape = "tiny"
    predicts_tokens = True
    stored_kind: ClassVar[type[HidingSettings]] = HidingSettings
    stored: HidingSettings
    tokenizer: Tokenizer
    window_examples: ClassVar[type[WindowExamples[Any]]]  # BatchT

    @classmethod
    def prepare(cls, rows: Sequence[Row], recipe: PretrainingRecipe, start: Pretrained | None = None) -> Self:
        texts = (row.values[0] for row in rows)
        tokenizer = recipe.text.train_tokenizer(texts, mask=True) if start is None else start.tokenizer
        config = cls.make_config(recipe, start, vocabulary=tokenizer.size)
        stored = cls.stored_kind(
            objective=recipe.objective,
            longest=recipe.data.longest,
            documents=recipe.data.documents,
            masking=recipe.masking,
        )
        return cls(tokenizer, config, stored)

    def examples(
        self, rows: Iterable[Row], report: Report, recipe: PretrainingRecipe | None = None
    ) -> WindowExamples[BatchT]:
        windows, used = make_text_windows(rows, self.tokenizer, self.stored.longest, report)
        seed = 0 if recipe is None else recipe.seed
        return self.window_examples(windows, used, self.tokenizer, self.stored.masking, seed)

    def check_row(self, row: Row) -> RowCheck:
        return RowCheck(None if self.tokenizer.normal(row.values[0]).strip() else EMPTY)

    @property
    def mask(self) -> int:
        """The token that stands for what is hidden: padding where the tokenizer has no mask token."""
        return self.tokenizer.pad if self.tokenizer.mask is None else self.tokenizer.mask


class MaskedProcessor(HidingProcessor[MaskedTexts]):
    """`objective = "masked"`: an encoder with a head over the vocabulary, which other tasks leave out."""

    added_tokens = 2
    window_examples = MaskedExamples

    def examples(
        self, rows: Iterable[Row], report: Report, recipe: PretrainingRecipe | None = None
    ) -> WindowExamples[MaskedTexts]:
        if recipe is None or not recipe.contrast.weight:
            return super().examples(rows, report, recipe)
        longest = self.stored.longest
        windows, used = make_text_windows(rows, self.tokenizer, longest, report, sentences=True)
        return NeighbouringExamples(windows, used, self.tokenizer, self.stored.masking, recipe.seed)

    @classmethod
    def make_config(cls, recipe: PretrainingRecipe, start: Pretrained | None = None, **sizes: Any) -> ModelConfig:
        """As of other tasks; the head over the vocabulary has a layer and a bias of its own, as BERT's has."""
        config = super().make_config(recipe, start, **sizes)
        head = {key: True for key in ("logits_bias", "logits_transform") if key not in recipe.model}
        return config.change(**head) if start is None else config

    @property
    def window(self) -> int:
        """The most tokens that the model reads at once, start and end included."""
        return window_size(self.config, self.stored.longest + self.added_tokens)

    def build(self) -> Encoder:
        return Encoder(self.config)


def masked_loss(model: Encoder, batch: MaskedTexts) -> Float[Tensor, ""]:
    """The cross-entropy of the masked tokens, summed."""
    return token_loss(model.vocabulary, _predict_hidden(model, batch), batch.labels, 0.0)


def _predict_hidden(model: Encoder, batch: MaskedTexts) -> Tensor:
    """The hidden states at the places of a batch that are to be predicted."""
    return gather_places(model(batch.tokens, mask=Mask.padding(batch.lengths, queries=True)), batch.places)


def gather_places(hidden: Tensor, places: Tensor) -> Tensor:
    return hidden.gather(1, places[:, :, None].expand(-1, -1, hidden.shape[2]))


class HidingAnswerer(Answerer[ProcessorT, ModelT, str, OptionsT]):
    """Base class of answerers that are scored by the loss of hidden words, not by predictions."""

    @abstractmethod
    def measure_loss(self, batch: Any) -> Tensor:
        """The loss of the hidden words in a batch, summed."""

    @abstractmethod
    def restore_texts(self, examples: Any, firsts: Sequence[int]) -> Sequence[Prediction]:
        """What the model finds in the place of the hidden words of these examples."""

    @torch.no_grad()
    def evaluate(self, rows: Sequence[Row], options: OptionsT) -> Evaluation:
        """Loss and perplexity of hidden words, the same ones at every call; and the first texts, restored."""
        report = Report()
        examples, first = self._restore_first(rows, report)
        plan = BatchPlan(examples.lengths, tokens=BATCH_TOKENS, seed=0)
        total = sum(float(self.measure_loss(examples.collate(batch))) for batch in plan.epoch(0))
        mean = total / int(examples.counts.sum())
        check_finite(torch.tensor(mean))
        scores: Scores = {"loss": round(mean, 4), "perplexity": round(math.exp(min(mean, LARGEST_LOSS)), 2)}
        return Evaluation({**scores, "note": str(report)} if report.dropped else scores, examples.rows, first)

    @torch.no_grad()
    def evaluate_quickly(self, rows: Sequence[Row], options: OptionsT) -> Evaluation:
        examples, first = self._restore_first(rows[:SAMPLES], Report())
        return Evaluation({}, examples.rows, first)

    def _restore_first(self, rows: Sequence[Row], report: Report) -> tuple[Any, Sequence[Prediction]]:
        """The examples of these rows, and what the model finds in the first of them."""
        examples: Any = self.processor.examples(rows, report).to(next(self.model.parameters()).device)
        firsts = [examples.origins.index(row) for row in range(min(SAMPLES, len(examples.rows)))]
        return examples, self.restore_texts(examples, firsts)


class MaskedAnswerer(HidingAnswerer[MaskedProcessor, Encoder, RankedOptions]):
    options = RankedOptions

    def measure_loss(self, batch: MaskedTexts) -> Tensor:
        return masked_loss(self.model, batch)

    def predict(self, inputs: Sequence[str], options: RankedOptions, *, inputs_before: int = 0) -> list[FilledText]:
        """Texts with every <mask> filled; one mask stands for one piece."""
        processor = self.processor
        settings = {"limit": processor.window, "best": options.best, "most": options.batch}
        return fill_masks(self.model, processor.tokenizer, inputs, processor.mask, **settings)

    def restore_texts(self, examples: WindowExamples[MaskedTexts], firsts: Sequence[int]) -> list[FilledText]:
        """These texts, each with the likeliest token at every place that was to be predicted."""
        batch = examples.collate(Batch(np.array(firsts), (int(examples.lengths[firsts].max()),)))
        hidden = _predict_hidden(self.model, batch)
        tokens, best = batch.tokens.clone(), self.model.logits(hidden).argmax(-1)
        counted = batch.labels >= 0
        tokens[counted.nonzero()[:, 0], batch.places[counted]] = best[counted]
        rows = zip(tokens.tolist(), batch.lengths.tolist(), strict=True)
        return [FilledText(self.processor.tokenizer.decode(row[:length])) for row, length in rows]


def contrast_loss(
    vectors: Float[Tensor, "batch width"],
    others: Float[Tensor, "batch width"],
    numbers: Int[Tensor, " batch"],
    other_numbers: Int[Tensor, " batch"],
    temperature: float,
) -> Float[Tensor, ""]:
    """InfoNCE in both directions, summed: of the sentences of a batch each should find the one beside it.

    A sentence is no candidate for another with the same neighbour, or for itself.
    """
    scores = F.normalize(vectors.float(), dim=-1) @ F.normalize(others.float(), dim=-1).T / temperature
    same = (other_numbers[:, None] == other_numbers) | (numbers[:, None] == other_numbers)
    # finfo.min, not -inf: no gradient becomes NaN
    scores = scores.masked_fill(same.fill_diagonal_(False), torch.finfo(scores.dtype).min)
    diagonal = torch.arange(len(scores), device=scores.device)
    return (
        F.cross_entropy(scores, diagonal, reduction="sum") + F.cross_entropy(scores.T, diagonal, reduction="sum")
    ) / 2


class MaskedObjective(Objective[MaskedProcessor, PretrainingRecipe, Encoder, Any]):
    def __init__(self, processor: MaskedProcessor, recipe: PretrainingRecipe) -> None:
        super().__init__(processor, recipe)
        self.contrast = recipe.contrast
        self.splits_batches = not recipe.contrast.weight  # other sentences come from the same batch

    def loss(self, model: Encoder, batch: MaskedTexts | NeighbouringTexts) -> Float[Tensor, ""]:
        """The masked loss; in training with `[contrast]` that of neighbours, too."""
        if not isinstance(batch, NeighbouringTexts):
            return masked_loss(model, batch)
        if not model.training:
            return masked_loss(model, MaskedTexts(*batch[:4]))
        # One pass over both sides: what watches a model, and DDP, want one.
        sides, count = (batch.tokens, batch.other_tokens), len(batch.tokens)
        size, pad = max(side.shape[1] for side in sides), self.processor.tokenizer.pad
        tokens = torch.cat([F.pad(side, (0, size - side.shape[1]), value=pad) for side in sides])
        lengths = torch.cat([batch.lengths, batch.other_lengths])
        hidden = model(tokens, mask=Mask.padding(lengths, queries=True))
        vectors, numbers = mean_pool(hidden, lengths), (batch.numbers, batch.other_numbers)
        contrast = contrast_loss(vectors[:count], vectors[count:], *numbers, self.contrast.temperature)
        guesses = token_loss(model.vocabulary, gather_places(hidden[:count], batch.places), batch.labels, 0.0)
        return guesses + self.contrast.weight * contrast

    def refresh(self, model: Encoder, examples: Examples[MaskedTexts], epoch: int) -> None:
        """Masks other words for every epoch; before the first, sets the output bias to how frequent tokens are.

        Without that the first hundreds of steps learn nothing but frequencies. A bias that was trained stays.
        """
        super().refresh(model, examples, epoch)
        bias = model.vocabulary.bias
        assert isinstance(examples, MaskedExamples)
        if epoch == 0 and bias is not None and not bool(bias.any()):
            with torch.no_grad():
                bias.copy_(examples.log_frequencies(len(bias)))


class MaskedTracer(TaskTracer[MaskedAnswerer]):
    def traces(self, text: str, *, answer: str | None, options: RankedOptions) -> list[Trace]:
        """A text with its masks as they are, and what the model predicts there."""
        self.refuse_answer(answer)
        processor, tokenizer = self.answerer.processor, self.answerer.processor.tokenizer
        [filled] = self.answerer.predict([text], options)
        tokens = [tokenizer.start, *encode_masked(tokenizer, text, processor.mask), tokenizer.end]
        check_length(len(tokens), processor.window)
        fillings = [f"{MASK} is {best[0].text.strip()} ({best[0].score:.2f})" for best in filled.candidates]
        return [Trace({"tokens": tokens}, text=filled.text, notes=[*filled.notes, *fillings])]

    def run(self, trace: Trace) -> None:
        model = self.answerer.model
        model(torch.tensor([trace.reads["tokens"]], device=model.vocabulary.words.weight.device))


MASKED = Task(
    name="pretraining",
    recipe=PretrainingRecipe,
    processor=MaskedProcessor,
    objective=MaskedObjective,
    answerer=MaskedAnswerer,
    tracer=MaskedTracer,
    metrics=(),
)
