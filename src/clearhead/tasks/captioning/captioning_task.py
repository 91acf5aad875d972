"""Captioning: captions written for pictures, their scores and loss, a baseline, and the declaration of the task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.decode import Writer
from clearhead.errors import ConfigError
from clearhead.model import PictureToText
from clearhead.tasks.answerer import Baseline, Scores
from clearhead.tasks.captioning.caption_processor import CaptionProcessor, CaptionRecipe, Captions
from clearhead.tasks.file_inputs import LoadedInput
from clearhead.tasks.media import PictureInput
from clearhead.tasks.metrics import translation_scores
from clearhead.tasks.objective import Objective
from clearhead.tasks.sequence_to_sequence.generation import (
    GeneratedText,
    Generation,
    GenerationTracer,
    ScoringGenerator,
)
from clearhead.tasks.sequence_to_sequence.search import SearchOptions
from clearhead.tasks.task import Task
from clearhead.tasks.trace import Trace
from clearhead.text import Row
from clearhead.text.chinese import is_mostly_chinese

PICTURES_AT_ONCE = 256  # that the baseline compares with all training pictures in one product


class CaptionGeneration(Generation[CaptionProcessor, Any, LoadedInput]):
    """A picture is one part: its bytes (3, height, width)."""

    output_name = "caption"
    model: PictureToText

    def whole(self, source: Any) -> list[LoadedInput]:
        return [self.processor.inputs.load_input(source)]

    def part_length(self, part: LoadedInput) -> int:
        return self.processor.patches

    def output_limit(self, part: LoadedInput) -> int:
        return 1 + (self.processor.stored.longest or 64)

    def make_writer(self, parts: Sequence[LoadedInput]) -> Writer:
        device = self.model.vocabulary.words.weight.device
        pictures = torch.stack([part.content for part in parts])
        with torch.inference_mode():
            vectors = self.model.patches(self.processor.normalise(pictures, device))
        return Writer.translating(self.model, vectors, [self.processor.patches] * len(parts))


class CaptionAnswerer(ScoringGenerator[CaptionProcessor, Any]):
    generation = CaptionGeneration

    def score(self, rows: Sequence[Row], predictions: Sequence[GeneratedText], options: SearchOptions) -> Scores:
        return score_captions([caption.text for caption in predictions], [str(row.values[1]) for row in rows])


def score_captions(outputs: Sequence[str], references: Sequence[str]) -> Scores:
    """BLEU, chrF and the share of captions that are exactly right, all from 0 to 100.

    >>> score_captions(["a red circle", "a cat"], ["a red circle", "a dog"])["exact"]
    50.0
    """
    scores = translation_scores(outputs, references, tokenize="zh" if is_mostly_chinese(references) else "13a")
    right = sum(output.strip() == text.strip() for output, text in zip(outputs, references, strict=True))
    return {**scores, "exact": round(100 * right / len(references), 2)}


class CaptionTracer(GenerationTracer[CaptionAnswerer, Any, LoadedInput]):
    def trace_source(self, part: LoadedInput) -> tuple[list[int], PictureInput]:
        processor = self.answerer.processor
        pixels = part.content.permute(1, 2, 0).contiguous().numpy()
        media = PictureInput(pixels, processor.grid.rows, processor.grid.columns, part.name)
        return list(range(processor.patches)), media

    def traced_part(self, trace: Trace) -> LoadedInput:
        if not isinstance(trace.media, PictureInput):
            raise ConfigError("the forward pass of a caption cannot be repeated without its picture")
        return LoadedInput(trace.media.name, torch.from_numpy(trace.media.pixels.copy()).permute(2, 0, 1))

    def run(self, trace: Trace) -> Float[Tensor, "tokens vocabulary"]:
        model = self.answerer.model
        device = model.vocabulary.words.weight.device
        pictures = self.answerer.processor.normalise(self.traced_part(trace).content[None], device)
        return model.logits(model(pictures, torch.tensor([trace.reads["target"]], device=device)))[0]

    def pieces(self, kind: str, numbers: Sequence[int]) -> list[str]:
        if kind != "source":
            return super().pieces(kind, numbers)
        columns = self.answerer.processor.grid.columns
        return [f"r{number // columns} c{number % columns}" for number in numbers]


class CaptionObjective(Objective[CaptionProcessor, CaptionRecipe, PictureToText, Captions]):
    def loss(self, model: PictureToText, batch: Captions) -> Float[Tensor, ""]:
        hidden = model.decode(batch.target, model.encode_pictures(batch.pictures))
        smoothing = self.recipe.loss.label_smoothing if model.training else 0.0
        return self.token_loss(model.vocabulary, hidden, batch.labels, smoothing)


def score_nearest(processor: CaptionProcessor, train: Sequence[Row], rows: Sequence[Row]) -> Baseline:
    """The caption of the training picture with the most similar pixels."""
    trained = [row for row in processor.inputs.load_rows(train) if not processor.check_row(row).problem]
    asked = processor.inputs.load_rows(rows)
    pixels = (torch.stack([row.values[0].content for row in part]).flatten(1).float() for part in (trained, asked))
    captions = [str(trained[nearest].values[1]) for nearest in find_nearest(*pixels).tolist()]
    scores = score_captions(captions, [str(row.values[1]) for row in asked])
    return Baseline("nearest neighbour by pixels", scores)


def find_nearest(
    trained: Float[Tensor, "trained features"], asked: Float[Tensor, "asked features"]
) -> Int[Tensor, " asked"]:
    """The row of `trained` with the smallest Euclidean distance to each row of `asked`; of equals the first.

    >>> find_nearest(torch.tensor([[0.0, 1.0], [5.0, 5.0]]), torch.tensor([[4.0, 4.0], [0.0, 0.0]]))
    tensor([1, 0])
    """
    squares = trained.square().sum(1)
    return torch.cat([(squares - 2 * part @ trained.T).argmin(1) for part in asked.split(PICTURES_AT_ONCE)])


TASK = Task(
    name="captioning",
    recipe=CaptionRecipe,
    processor=CaptionProcessor,
    objective=CaptionObjective,
    answerer=CaptionAnswerer,
    tracer=CaptionTracer,
    metrics=("bleu", "chrf", "exact"),
    input_kind="picture",
    baseline=score_nearest,
)
