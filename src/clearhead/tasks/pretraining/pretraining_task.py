"""Pre-training on texts alone: the declaration, and the objectives "denoise" and "next" beside masked_task.py.

An encoder-decoder restores texts with masked spans and shuffled sentences. The noise is that of BART (Lewis et al.
2020), with spans of whole words, drawn anew for each epoch, on the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NoReturn

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from clearhead.errors import ConfigError
from clearhead.model import EncoderDecoder, ModelConfig
from clearhead.tasks.answerer import AnyAnswerer, Evaluation
from clearhead.tasks.language_model.language_processor import LanguageProcessor
from clearhead.tasks.language_model.language_task import TASK as LANGUAGE_MODEL
from clearhead.tasks.pretraining.document_windows import (
    BEGINS,
    INSIDE,
    SPECIAL,
    TextWindow,
    find_sentences,
    make_text_windows,
)
from clearhead.tasks.pretraining.mask_filling import encode_masked
from clearhead.tasks.pretraining.masked_examples import make_generator
from clearhead.tasks.pretraining.masked_task import MASKED, SAMPLES, HidingProcessor, measure_loss
from clearhead.tasks.pretraining.pretraining_settings import (
    DenoisingSettings,
    Masking,
    NextTokenSettings,
    PretrainingRecipe,
)
from clearhead.tasks.processor import Examples
from clearhead.tasks.segmentation import chunk_tokens
from clearhead.tasks.sequence_to_sequence.generation import GeneratedText, GeneratingAnswerer
from clearhead.tasks.sequence_to_sequence.search import Decode, SearchOptions
from clearhead.tasks.sequence_to_sequence.text_to_text import (
    PairExamples,
    Pairs,
    TextGeneration,
    TextToTextObjective,
    TextToTextProcessor,
    TextTracer,
    pair_loss,
)
from clearhead.tasks.task import Task
from clearhead.text import Report, Row, Tokenizer
from clearhead.text.batches import Ragged

LAST = 0.9  # the sort key of a row's end token; those of sentences are below 0.5


def choose_spans(
    roles: Int[Tensor, " tokens"], share: float, span: float, generator: torch.Generator
) -> Bool[Tensor, " tokens"]:
    """Chooses random spans of whole words: about this share of all words, in spans of `span` words on average.

    Every row ends with a token of the role SPECIAL, which is never chosen and ends the spans before it.
    """
    words = (roles != INSIDE).cumsum(0) - 1  # of each token
    firsts = roles[roles != INSIDE]
    number, ordinary = torch.arange(len(firsts), device=roles.device), firsts == BEGINS
    chance = torch.rand(2, len(firsts), generator=generator, device=roles.device, dtype=torch.float64)
    begins = (chance[0] < -math.log(1 - share) / span) & ordinary
    # Lengths are geometric: a span goes on after each word with the probability 1 − 1/span.
    lengths = 1 + (chance[1].log() / math.log(1 - 1 / span)).floor() if span > 1 else torch.ones_like(chance[1])
    row_end = torch.where(ordinary, len(firsts), number).flip(0).cummin(0).values.flip(0)
    ends = torch.where(begins, (number + lengths).long().minimum(row_end), 0)
    return ((ends.cummax(0).values > number) & ordinary)[words]


class DenoisingExamples(PairExamples):
    """Windows of documents as targets; `draw` makes a noisy source of each."""

    def __init__(
        self, windows: Sequence[TextWindow], rows: list[Row], tokenizer: Tokenizer, masking: Masking, seed: int
    ) -> None:
        start, end = tokenizer.start, tokenizer.end
        self.texts = Ragged([[*window.tokens, end] for window in windows])
        self.roles = Ragged([[*window.roles, SPECIAL] for window in windows])
        self.sentences = Ragged([[*flags, 1] for flags in find_sentences(windows, tokenizer)])
        self.target = Ragged([[start, *window.tokens, end] for window in windows])
        self.rows, self.origins = rows, [window.row for window in windows]
        self.pad, self.masking, self.seed, self.epoch = tokenizer.pad, masking, seed, 0
        self.mask = tokenizer.pad if tokenizer.mask is None else tokenizer.mask
        self.counts = self.target.lengths.numpy() - 1  # every word but the start is predicted
        self.lengths = np.stack([self.texts.lengths.numpy(), self.counts], axis=1)
        self.draw(0)

    def draw(self, epoch: int) -> None:
        """Makes the noisy sources of all texts, which depend on the seed and the epoch alone.

        Each span of chosen words becomes one mask token; then the sentences of each text are shuffled.
        """
        tokens, roles, lengths = self.texts.flat[:-1], self.roles.flat[:-1], self.texts.lengths
        generator = make_generator(tokens.device, self.seed, epoch)
        row = torch.arange(len(lengths), device=tokens.device).repeat_interleave(lengths)
        masked = choose_spans(roles, self.masking.share, self.masking.span, generator)
        first = masked.clone()  # tokens of the spans
        first[1:] &= ~masked[:-1]
        stays = ~masked | first
        source, row = tokens.masked_fill(first, self.mask)[stays], row[stays]
        if self.masking.shuffle:
            sentence = self.sentences.flat[:-1].cumsum(0) - 1
            count = int(sentence[-1]) + 1
            keys = torch.rand(count, generator=generator, device=tokens.device, dtype=torch.float64) / 2
            key = torch.where(roles == SPECIAL, LAST, keys[sentence])
            source = source[(row + key[stays]).sort(stable=True).indices]
        left = torch.zeros_like(lengths).index_add_(0, row, torch.ones_like(row))
        self.source, self.epoch = Ragged.from_flat(source, left), epoch

    def to(self, device: torch.device) -> DenoisingExamples:
        for part in (self.texts, self.roles, self.sentences, self.target, self.source):
            part.to(device)
        return self

    def where(self, example: int) -> str:
        return self.rows[self.origins[example]].where

    def fingerprint(self) -> str:
        return f"{self.texts.fingerprint()} {self.roles.fingerprint()}"

    def state(self) -> dict[str, Tensor]:
        return {"epoch": torch.tensor(self.epoch)}

    def restore(self, state: dict[str, Tensor]) -> None:
        self.draw(int(state["epoch"]))


class DenoisingProcessor(HidingProcessor[Pairs], TextToTextProcessor[PretrainingRecipe]):
    """`objective = "denoise"`: one tokenizer for the noisy text and the restored one."""

    stored_kind = DenoisingSettings
    stored: DenoisingSettings

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig, stored: DenoisingSettings) -> None:
        super().__init__(tokenizer, config, stored)
        self.source = self.target = tokenizer

    def configure(self, recipe: PretrainingRecipe) -> None:
        self.store(**recipe.decode.model_dump(include=set(Decode.model_fields)))

    def examples(
        self, rows: Iterable[Row], report: Report, recipe: PretrainingRecipe | None = None
    ) -> DenoisingExamples:
        windows, used = make_text_windows(rows, self.source, self.stored.longest, report)
        return DenoisingExamples(windows, used, self.source, self.stored.masking, 0 if recipe is None else recipe.seed)


class DenoisingGeneration(TextGeneration[DenoisingProcessor]):
    output_name = "restored text"

    def split(self, text: str) -> list[list[int]]:
        """The tokens of a text with its masks, in windows of at most `longest`."""
        processor = self.processor
        return chunk_tokens(encode_masked(processor.source, text, processor.mask), processor.stored.longest)

    def output_limit(self, part: list[int]) -> int:
        return 2 * len(part) + 20  # a mask may stand for several words


class DenoisingAnswerer(GeneratingAnswerer[DenoisingProcessor, str]):
    generation = DenoisingGeneration

    def score(self, rows: Sequence[Row], predictions: Sequence[GeneratedText], options: SearchOptions) -> NoReturn:
        raise ConfigError("a denoising model is scored by its loss, not by predictions; call evaluate")

    def evaluate(self, rows: Sequence[Row], options: SearchOptions) -> Evaluation:
        """Loss and perplexity of the original texts, given the same noise at every call; the first texts restored."""
        examples, scores = measure_loss(self.processor, self.model, pair_loss, rows)
        return Evaluation(scores, examples.rows, self.restore_texts(examples))

    @torch.no_grad()
    def restore_texts(self, examples: Examples[Pairs]) -> list[GeneratedText]:
        """What the model writes for the noisy sources of the first rows."""
        assert isinstance(examples, DenoisingExamples)
        firsts = [examples.origins.index(row) for row in range(min(SAMPLES, len(examples.rows)))]
        request = self.begin(SearchOptions(beams=1))
        written = request.write([_source_tokens(examples, first) for first in firsts])
        return [GeneratedText(request.decode_text(part.hypotheses[0])) for part in written]


def _source_tokens(examples: DenoisingExamples, number: int) -> list[int]:
    """The noisy source of an example, without its end."""
    begin, length = int(examples.source.starts[number]), int(examples.source.lengths[number])
    tokens: list[int] = examples.source.flat[begin : begin + length - 1].tolist()
    return tokens


class DenoisingObjective(TextToTextObjective[DenoisingProcessor, PretrainingRecipe]):
    def refresh(self, model: EncoderDecoder, examples: Examples[Pairs], epoch: int) -> None:
        assert isinstance(examples, DenoisingExamples)
        examples.draw(epoch)

    def evaluate(self, answerer: AnyAnswerer, rows: Sequence[Row]) -> Evaluation:
        """A few texts are restored, and nothing is scored: the trainer computes the loss itself."""
        assert isinstance(answerer, DenoisingAnswerer)
        examples = self.processor.examples(rows[:SAMPLES], Report())
        return Evaluation({}, examples.rows, answerer.restore_texts(examples))


class DenoisingTracer(TextTracer[DenoisingAnswerer]):
    def whole_parts(self, text: str) -> list[list[int]]:
        """All tokens of a text with its masks, for an answer that somebody gives."""
        processor = self.answerer.processor
        tokens = encode_masked(processor.source, text, processor.mask)
        return [tokens] if tokens else []


DENOISING = Task(
    name="pretraining",
    recipe=PretrainingRecipe,
    processor=DenoisingProcessor,
    objective=DenoisingObjective,
    answerer=DenoisingAnswerer,
    tracer=DenoisingTracer,
    metrics=(),
)


class NextTokenProcessor(LanguageProcessor):
    """`objective = "next"`: all as of the task language-model."""

    stored_kind = NextTokenSettings


NEXT = replace(LANGUAGE_MODEL, name="pretraining", recipe=PretrainingRecipe, processor=NextTokenProcessor)

TASK = replace(MASKED, variants={"masked": MASKED, "denoise": DENOISING, "next": NEXT})
