"""Captions written for pictures, their scores, and the forward passes that `look` repeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from clearhead.decode import Writer
from clearhead.errors import ConfigError
from clearhead.model import PictureToText
from clearhead.tasks.answerer import Scores
from clearhead.tasks.captioning.caption_processor import CaptionProcessor
from clearhead.tasks.captioning.caption_scores import score_captions
from clearhead.tasks.media import PictureInput
from clearhead.tasks.sequence_to_sequence.generation import GeneratedText, GeneratingAnswerer, Generation
from clearhead.tasks.sequence_to_sequence.generation_tracer import GenerationTracer
from clearhead.tasks.sequence_to_sequence.search import SearchOptions
from clearhead.tasks.trace import Trace

if TYPE_CHECKING:
    from clearhead.text import Row


class CaptionGeneration(Generation[CaptionProcessor, Any, Tensor]):
    """A picture is one part: its bytes (3, height, width)."""

    output_name = "caption"
    model: PictureToText

    def split(self, given: Any) -> list[Tensor]:
        return [self.processor.inputs.load_input(given).content]

    def part_length(self, part: Tensor) -> int:
        return self.processor.patches

    def output_limit(self, part: Tensor) -> int:
        return 1 + (self.processor.decode.longest or 64)

    def make_writer(self, parts: Sequence[Tensor]) -> Writer:
        device = self.model.vocabulary.words.weight.device
        with torch.inference_mode():
            vectors = self.model.patches(self.processor.normalise(torch.stack(list(parts)), device))
        return Writer.translating(self.model, vectors, [self.processor.patches] * len(parts))


class CaptionAnswerer(GeneratingAnswerer[CaptionProcessor, Any]):
    generation = CaptionGeneration

    def score(self, rows: Sequence[Row], predictions: Sequence[GeneratedText], options: SearchOptions) -> Scores:
        """BLEU, chrF and the share of captions that are exactly right."""
        return score_captions([caption.text for caption in predictions], [str(row.values[1]) for row in rows])


class CaptionTracer(GenerationTracer[CaptionAnswerer]):
    def traces(self, given: Any, *, answer: str | None, options: SearchOptions) -> list[Trace]:
        """A picture with its caption: the model's own, or the `answer`."""
        processor = self.answerer.processor
        picture = processor.inputs.load_input(given)
        if answer is not None:
            target = processor.target.encode(answer)
            return [self._make_trace(picture.name, picture.content, target, answer, given=True)]
        request = self.answerer.begin(options)
        written = request.write([picture.content])
        caption, notes = written[0].hypotheses[0], request.join(picture, written).notes
        text = request.decode_text(caption)
        return [self._make_trace(picture.name, picture.content, caption.tokens, text, notes=notes)]

    def _make_trace(
        self, name: str, picture: UInt8[Tensor, "3 height width"], target: list[int], text: str, **fields: Any
    ) -> Trace:
        processor = self.answerer.processor
        start, end = processor.target.start, processor.target.end
        pixels = picture.permute(1, 2, 0).contiguous().numpy()
        media = PictureInput(pixels, processor.grid.rows, processor.grid.columns, name)
        reads = {"source": list(range(processor.patches)), "target": [start, *target]}
        return Trace(reads, [*target, end], text, media=media, **fields)

    def traced_part(self, trace: Trace) -> UInt8[Tensor, "3 height width"]:
        if not isinstance(trace.media, PictureInput):
            raise ConfigError("the forward pass of a caption cannot be repeated without its picture")
        return torch.from_numpy(trace.media.pixels.copy()).permute(2, 0, 1)

    def run(self, trace: Trace) -> Float[Tensor, "tokens vocabulary"]:
        model = self.answerer.model
        device = model.vocabulary.words.weight.device
        target = torch.tensor([trace.reads["target"]], device=device)
        hidden = model(self.answerer.processor.normalise(self.traced_part(trace)[None], device), target)
        return model.logits(hidden)[0]

    def pieces(self, kind: str, numbers: Sequence[int]) -> list[str]:
        if kind != "source":
            return super().pieces(kind, numbers)
        columns = self.answerer.processor.grid.columns
        return [f"r{number // columns} c{number % columns}" for number in numbers]
