"""TextGeneration: texts written for texts, their tracer, and the tokens that each part of a text becomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.decode import Hypothesis, Writer
from clearhead.tasks.segmentation import cut_repeats, has_loop
from clearhead.tasks.sequence_to_sequence.generation import GeneratingAnswerer, Generation, GenerationTracer
from clearhead.tasks.sequence_to_sequence.pairs import TextToTextProcessor
from clearhead.tasks.trace import Trace
from clearhead.text.batches import Ragged

ProcessorT = TypeVar("ProcessorT", bound=TextToTextProcessor[Any])
TextAnswererT = TypeVar("TextAnswererT", bound=GeneratingAnswerer[Any, str])


class TextGeneration(Generation[ProcessorT, str, list[int]]):
    """Base class: a part is a list of tokens, without the end."""

    def split(self, text: str) -> list[list[int]]:
        """All tokens of the input as one part."""
        tokens = self.processor.source.encode(text)
        return [tokens] if tokens else []

    def part_length(self, part: list[int]) -> int:
        return len(part) + 1  # with its end

    def make_writer(self, parts: Sequence[list[int]]) -> Writer:
        tokenizer = self.processor.source
        source = Ragged([[*part, tokenizer.end] for part in parts])
        lengths, device = source.lengths, self.model.vocabulary.words.weight.device
        padded, _ = source.pad(torch.arange(len(parts)), int(lengths.max()), tokenizer.pad)
        return Writer.translating(self.model, padded.to(device), lengths.to(device))

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


class TextTracer(GenerationTracer[TextAnswererT, str, list[int]]):
    def whole_parts(self, text: str) -> list[list[int]]:
        tokens = self.answerer.processor.source.encode(text)
        return [tokens] if tokens else []

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
