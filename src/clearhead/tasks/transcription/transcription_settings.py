"""What users may set for transcription: the sections of its recipe, and the options of `predict` and `evaluate`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from clearhead.audio import LogMelSettings, SpecAugment
from clearhead.audio.sound_augmentation import check_speeds
from clearhead.tasks.sequence_to_sequence.search import Decode, SearchOptions
from clearhead.tasks.settings import Data, Section, TaskRecipe, Text, option

LONGEST_PIECE_SECONDS = 20.0  # of a recording that is transcribed at once


class SoundData(Data):
    """`[data]` of transcription: which recordings are used."""

    longest: int = Field(400, ge=1)  # tokens of a text; longer rows are dropped from training
    longest_seconds: float = Field(30.0, gt=0)  # of a recording; longer ones are dropped from training


class SoundText(Text):
    """`[text]` of transcription."""

    tokenizer: Literal["bpe", "unigram", "character"] = "character"
    lowercase: bool = True


class Sound(Section, LogMelSettings):
    """`[sound]`: how sound becomes frames."""


class Augmentation(Section, SpecAugment):
    """`[augmentation]`: random changes of recordings in training."""

    # One is drawn for each recording: 1.1 is a tenth faster, and higher.
    speeds: list[float] = Field([0.9, 1.0, 1.1], min_length=1)
    noise: float = Field(0.0, ge=0)  # white noise of up to this share of the recording's own loudness

    @field_validator("speeds")
    @classmethod
    def _check_speeds(cls, speeds: list[float]) -> list[float]:
        check_speeds(speeds)
        return speeds


class JointLoss(Section):
    """`[loss]` of transcription: that of the decoder and that of CTC, weighted."""

    label_smoothing: float = Field(0.1, ge=0, lt=1)  # of the decoder's tokens
    ctc: float = Field(0.3, ge=0, le=1)  # the weight of CTC; 1 minus this is that of the decoder


class TranscriptionDecode(Decode):
    """`[decode]` of transcription: how the decoder and CTC are combined, and how long recordings are cut."""

    ctc_weight: float = Field(0.4, ge=0, le=1)  # of CTC in the score; 0: the decoder alone, 1: CTC alone
    # Faint noise before and after each recording, for one that is cut so close that it has no pause to compare with.
    padding_seconds: float = Field(0.0, ge=0, le=1)
    # Longer recordings are cut at silence, and the texts are joined. None: 1.2 times the longest one in training, at
    # most 20: of much longer ones a model writes nonsense.
    piece_seconds: float | None = Field(None, ge=1)


class TranscriptionRecipe(TaskRecipe):
    data: SoundData
    text: SoundText = SoundText()
    sound: Sound = Sound()
    augmentation: Augmentation = Augmentation()
    loss: JointLoss = JointLoss()
    decode: TranscriptionDecode = TranscriptionDecode()


class TranscriptionOptions(SearchOptions):
    ctc_weight: float | None = option(
        None, "Weight of CTC in the score: 0 the decoder alone, 1 CTC alone (default: the model's).", ge=0, le=1
    )
