"""Pre-training on texts alone: the declaration, and the objectives "denoise" and "next" beside masked_task.py.

An encoder-decoder restores texts with masked spans and shuffled sentences. The noise is that of BART (Lewis et al.
2020), with spans of whole words, drawn anew for each epoch, on the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from clearhead.model import EncoderDecoder, ModelConfig
from clearhead.tasks.language_model.language_processor import LanguageProcessor
from clearhead.tasks.language_model.language_task import TASK as LANGUAGE_MODEL
from clearhead.tasks.pretraining.mask_filling import encode_masked
from clearhead.tasks.pretraining.masked_examples import (
    BEGINS,
    INSIDE,
    SPECIAL,
    TextWindow,
    WindowExamples,
    find_sentences,
    make_generator,
)
from clearhead.tasks.pretraining.masked_task import MASKED, HidingAnswerer, HidingProcessor
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
    check_characters,
    pair_loss,
)
from clearhead.tasks.task import Task
from clearhead.text import Row, Tokenizer
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


class DenoisingExamples(WindowExamples[Pairs], PairExamples):
    """Windows of documents as targets; `draw` makes a noisy source of each."""

    on_device = ("texts", "roles", "sentences", "target", "source")

    def __init__(
        self, windows: Sequence[TextWindow], rows: list[Row], tokenizer: Tokenizer, masking: Masking, seed: int
    ) -> None:
        super().__init__(windows, rows, tokenizer, masking, seed)
        self.sentences = Ragged([[*flags, 1] for flags in find_sentences(windows, tokenizer)])
        self.target = Ragged([[tokenizer.start, *window.tokens, tokenizer.end] for window in windows])
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


class DenoisingProcessor(HidingProcessor[Pairs], TextToTextProcessor[PretrainingRecipe]):
    """`objective = "denoise"`: one tokenizer for the noisy text and the restored one."""

    stored_kind = DenoisingSettings
    window_examples = DenoisingExamples
    stored: DenoisingSettings

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig, stored: DenoisingSettings) -> None:
        TextToTextProcessor.__init__(self, tokenizer, tokenizer, config, stored)
        self.documents = stored.documents

    def configure(self, recipe: PretrainingRecipe) -> None:
        self.store(decode=Decode(**recipe.decode.model_dump(include=set(Decode.model_fields))))

    @property
    def decode(self) -> Decode:
        return self.stored.decode


class DenoisingGeneration(TextGeneration[DenoisingProcessor]):
    output_name = "restored text"

    def whole(self, text: str) -> list[list[int]]:
        tokens = encode_masked(self.processor.source, text, self.processor.mask)
        return [tokens] if tokens else []

    def split(self, text: str) -> list[list[int]]:
        """The tokens of a text with its masks, in windows of at most `longest`. A very long text is refused."""
        check_characters(text)
        return [window for tokens in self.whole(text) for window in chunk_tokens(tokens, self.processor.stored.longest)]

    def output_limit(self, part: list[int]) -> int:
        return 2 * len(part) + 20  # a mask may stand for several words


class DenoisingAnswerer(
    HidingAnswerer[DenoisingProcessor, EncoderDecoder, SearchOptions], GeneratingAnswerer[DenoisingProcessor, str]
):
    """What is scored are the original texts, given the same noise at every call."""

    generation = DenoisingGeneration

    def measure_loss(self, batch: Pairs) -> Tensor:
        return pair_loss(self.model, batch)

    @torch.no_grad()
    def restore_texts(self, examples: Examples[Pairs], firsts: Sequence[int]) -> list[GeneratedText]:
        """What the model writes for the noisy sources of these examples."""
        assert isinstance(examples, DenoisingExamples)
        request = self.begin(SearchOptions(beams=1))
        written = request.write([_source_tokens(examples, first) for first in firsts])
        return [GeneratedText(request.decode_text(part.hypotheses[0])) for part in written]


def _source_tokens(examples: DenoisingExamples, number: int) -> list[int]:
    """The noisy source of an example, without its end."""
    begin, length = int(examples.source.starts[number]), int(examples.source.lengths[number])
    tokens: list[int] = examples.source.flat[begin : begin + length - 1].tolist()
    return tokens


DENOISING = Task(
    name="pretraining",
    recipe=PretrainingRecipe,
    processor=DenoisingProcessor,
    objective=TextToTextObjective,
    answerer=DenoisingAnswerer,
    tracer=TextTracer,
    metrics=(),
)


class NextTokenProcessor(LanguageProcessor):
    """`objective = "next"`: all as of the task language-model."""

    stored_kind = NextTokenSettings


NEXT = replace(LANGUAGE_MODEL, name="pretraining", recipe=PretrainingRecipe, processor=NextTokenProcessor)

TASK = replace(MASKED, variants={"masked": MASKED, "denoise": DENOISING, "next": NEXT})
