"""The declaration of the task transcription, with its loss: that of the decoder and that of CTC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from clearhead.attention import Mask
from clearhead.model import SpeechModel
from clearhead.tasks.losses import UNCOUNTED, token_loss
from clearhead.tasks.objective import Objective
from clearhead.tasks.task import Task
from clearhead.tasks.transcription.sound_examples import SpokenTexts
from clearhead.tasks.transcription.sound_frames import compute_frames
from clearhead.tasks.transcription.transcription_generation import TranscriptionAnswerer, TranscriptionTracer
from clearhead.tasks.transcription.transcription_processor import TranscriptionProcessor
from clearhead.tasks.transcription.transcription_settings import LONGEST_PIECE_SECONDS, TranscriptionRecipe

if TYPE_CHECKING:
    from clearhead.text import Row

PIECE_MARGIN = 1.2  # how many times the longest training recording a piece may last


class TranscriptionObjective(Objective[TranscriptionProcessor, TranscriptionRecipe, SpeechModel, SpokenTexts]):
    @classmethod
    def fit(cls, rows: int, *, gpu: bool) -> dict[str, dict[str, Any]]:
        chosen = super().fit(rows, gpu=gpu)
        return {**chosen, "train": {**chosen.get("train", {}), "batch_tokens": 40_000 if gpu else 8192}}

    def loss(self, model: SpeechModel, batch: SpokenTexts) -> Float[Tensor, ""]:
        settings = self.recipe.loss
        augmentation = self.recipe.augmentation if model.training else None
        frames, lengths = compute_frames(batch.sound, batch.lengths, self.processor.log_mel, augmentation)
        context, positions = model.encode_sound(frames, lengths)
        spoken = F.ctc_loss(
            model.ctc_log_probs(context).transpose(0, 1),
            batch.labels.clamp(min=0),
            positions,
            (batch.labels != UNCOUNTED).sum(1) - 1,  # without the end
            blank=self.processor.blank,
            reduction="sum",
            zero_infinity=True,
        )
        if settings.ctc == 1:
            return spoken
        hidden = model.decode(batch.target, context, context_mask=Mask.padding(positions))
        smoothing = settings.label_smoothing if model.training else 0.0
        written = token_loss(model.vocabulary, hidden, batch.labels, smoothing)
        return settings.ctc * spoken + (1 - settings.ctc) * written

    @property
    def quick_options(self) -> Mapping[str, Any]:
        return {"beams": 1, "ctc_weight": 1.0 if self.recipe.loss.ctc else 0.0}

    def calibrate(self, model: SpeechModel, train: Sequence[Row], dev: Sequence[Row]) -> str | None:
        """Limits pieces to about the longest training recording, unless the recipe sets `decode.piece_seconds`."""
        processor = self.processor
        if processor.decode.piece_seconds is None:
            longest = max(len(row.values[0].content) for row in train) / processor.log_mel.rate
            seconds = round(min(max(1.0, PIECE_MARGIN * longest), LONGEST_PIECE_SECONDS), 2)
            processor.decode = processor.decode.model_copy(update={"piece_seconds": seconds})
        return None


TASK = Task(
    name="transcription",
    recipe=TranscriptionRecipe,
    processor=TranscriptionProcessor,
    objective=TranscriptionObjective,
    answerer=TranscriptionAnswerer,
    tracer=TranscriptionTracer,
    metrics=("wer", "cer"),
    minimised=("wer", "cer"),
    input_kind="sound",
)
