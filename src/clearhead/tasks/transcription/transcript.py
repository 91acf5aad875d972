"""Transcript: the text of a recording with the times of its words; Stretch: the part of a recording that is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from clearhead.audio import SoundPiece
from clearhead.tasks.sequence_to_sequence.generation import GeneratedText
from clearhead.tasks.transcription.transcription_processor import TranscriptionProcessor
from clearhead.tasks.transcription.word_times import SpokenPart, TimedWord

UNTIMED = "the times of words are unknown where CTC disagrees with the text"


@dataclass
class Stretch:
    """A piece of a recording as frames; `log_probs` are CTC's, once it has been encoded."""

    frames: Float[Tensor, "frames mels"]
    piece: SoundPiece
    log_probs: Float[Tensor, "positions vocabulary"] | None = None

    def with_tokens(self, tokens: Sequence[int]) -> SpokenPart:
        """The tokens that were written for it, with what their times are found by."""
        assert self.log_probs is not None
        loudness = self.frames.mean(1).cpu()
        smooth = F.avg_pool1d(loudness[None], 3, 1, 1, count_include_pad=False)[0]
        return SpokenPart(list(tokens), self.log_probs, smooth, self.piece)


@dataclass(frozen=True)
class Transcript(GeneratedText):
    """A transcribed recording; `words` are computed when they are asked for."""

    parts: Sequence[SpokenPart] = field(default=(), repr=False)
    processor: TranscriptionProcessor | None = field(default=None, repr=False)

    @cached_property
    def words(self) -> list[TimedWord]:
        """The words with their times in seconds; those of a part that CTC cannot align are left out."""
        return [word for words in self._timed for word in words or ()]

    @cached_property
    def _timed(self) -> list[list[TimedWord] | None]:
        return [] if self.processor is None else [self.processor.time_words(part) for part in self.parts]

    def to_json(self) -> dict[str, Any]:
        shown = super().to_json()
        words = [{"text": word.text, "start": round(word.start, 3), "end": round(word.end, 3)} for word in self.words]
        notes = shown["notes"] + ([UNTIMED] if None in self._timed else [])
        return {**shown, "words": words, "notes": notes}
