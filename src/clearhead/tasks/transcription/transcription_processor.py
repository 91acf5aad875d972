"""The stored part of transcription: its recipe, tokenizer and spectrogram; rows become sounds and tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from clearhead.audio import LogMelSettings, SpecAugment
from clearhead.audio.sound_augmentation import check_speeds
from clearhead.errors import ConfigError
from clearhead.model import ModelConfig, SpeechModel
from clearhead.model.speech_model import count_positions
from clearhead.tasks.metrics import import_jiwer
from clearhead.tasks.pretrained import Pretrained
from clearhead.tasks.processor import Columns, Files, RowCheck
from clearhead.tasks.sequence_to_sequence.generation import GeneratingProcessor
from clearhead.tasks.sequence_to_sequence.search import Decode, SearchOptions
from clearhead.tasks.settings import Data, Section, TaskRecipe, Text, option
from clearhead.tasks.transcription.sound_examples import SoundExamples, SoundInputs, SpokenTexts
from clearhead.tasks.transcription.word_times import FrameTimes, SpokenPart, TimedWord, time_words
from clearhead.text import Report, Row, Tokenizer

TOO_FAST = "with more text than the sound has room for"
LONGEST_PIECE_SECONDS = 20.0  # the longest piece of a recording that is transcribed at once


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


class TranscriptionSettings(TranscriptionDecode):
    """The settings that a model folder keeps."""

    sound: LogMelSettings = LogMelSettings()


class TranscriptionOptions(SearchOptions):
    ctc_weight: float | None = option(
        None, "Weight of CTC in the score: 0 the decoder alone, 1 CTC alone (default: the model's).", ge=0, le=1
    )


class TranscriptionProcessor(GeneratingProcessor[TranscriptionRecipe, SpokenTexts]):
    """Rows of (audio, text), where audio is the path of a WAV or FLAC file, or (samples, rate)."""

    columns = ("audio", "text")
    metric = "wer"
    inputs: SoundInputs
    stored_kind = TranscriptionSettings
    stored: TranscriptionSettings

    def __init__(self, target: Tokenizer, config: ModelConfig, stored: TranscriptionSettings) -> None:
        self.target, self.config, self.stored, self.log_mel = target, config, stored, stored.sound
        self.inputs = SoundInputs(self.log_mel)

    @classmethod
    def read(cls, source: Files, columns: Columns = None, documents: str | None = None) -> Iterator[Row]:
        return SoundInputs.read(source, cls.columns, columns)

    @classmethod
    def prepare(
        cls, rows: Sequence[Row], recipe: TranscriptionRecipe, start: Pretrained | None = None
    ) -> TranscriptionProcessor:
        if start is not None:
            raise ConfigError("transcription cannot start from the weights of another model; leave train.init_from out")
        import_jiwer()  # which the scores need: better refused now than after the last step
        stored = TranscriptionSettings(**recipe.decode.model_dump(), sound=LogMelSettings(**recipe.sound.model_dump()))
        target = recipe.text.train_tokenizer(str(row.values[1]) for row in rows)
        config = cls.make_config(recipe, None, vocabulary=target.size)
        return cls(target, config, stored)

    def examples(self, rows: Iterable[Row], report: Report, recipe: TranscriptionRecipe | None = None) -> SoundExamples:
        used, sounds, targets = list[Row](), list[Tensor](), list[list[int]]()
        for row in self.inputs.keep_readable(rows, report):
            samples, tokens = torch.from_numpy(row.values[0].content), self.target.encode(str(row.values[1]))
            if report.admit(row, find_misfit(len(samples), tokens, self, recipe)):
                used.append(row)
                sounds.append(samples)
                targets.append([self.target.start, *tokens, self.target.end])
        report.refuse_empty("recording")
        speeds = (1.0,) if recipe is None else recipe.augmentation.speeds
        return SoundExamples(sounds, targets, used, self.log_mel, self.target.pad, speeds)

    def check_row(self, row: Row) -> RowCheck:
        return RowCheck(self.inputs.find_problem(row))

    @classmethod
    def make_config(cls, recipe: TranscriptionRecipe, start: Pretrained | None = None, **sizes: Any) -> ModelConfig:
        """The model of a recipe with the mel bands of its [sound]."""
        return super().make_config(recipe, start, **sizes, sound={"bands": recipe.sound.mels})

    def build(self) -> SpeechModel:
        return SpeechModel(self.config)

    @property
    def stride(self) -> int:
        """Frames to one position of the encoder."""
        assert self.config.sound is not None, "make_config and load give it"
        return self.config.sound.stride

    @property
    def blank(self) -> int:
        """CTC's label for no token: the padding token, which no text has."""
        return self.target.pad

    @property
    def frame_times(self) -> FrameTimes:
        """When frames are, and positions of the encoder: a frame stands for one hop, amid its window."""
        hop = self.log_mel.hop_samples / self.log_mel.rate
        first = self.log_mel.frame_seconds(0) - hop / 2 - self.stored.padding_seconds
        return FrameTimes(first, hop, self.stride)

    def time_words(self, part: SpokenPart) -> list[TimedWord] | None:
        """The words of a part with their times; None if CTC cannot align them."""
        return time_words(part, self.target.decode, self.frame_times, self.blank)


def find_misfit(
    samples: int, tokens: list[int], processor: TranscriptionProcessor, recipe: TranscriptionRecipe | None
) -> str | None:
    """Why a recording of this number of samples cannot be learned from, or None."""
    log_mel = processor.log_mel
    if not log_mel.frames(samples):
        return f"shorter than one window of {log_mel.window:g} s"
    if recipe is not None and (excess := recipe.data.find_excess(len(tokens))):
        return excess
    if recipe is not None and samples / log_mel.rate > recipe.data.longest_seconds:
        return f"longer than {recipe.data.longest_seconds:g} s"
    fastest = 1.0 if recipe is None else max(recipe.augmentation.speeds)
    repeats = sum(token == following for token, following in pairwise(tokens))
    positions = count_positions(log_mel.frames(int(samples / fastest)), processor.stride)
    return TOO_FAST if len(tokens) + repeats > positions else None
