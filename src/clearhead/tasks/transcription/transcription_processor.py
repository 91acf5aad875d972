"""The stored part of transcription: tokenizer, spectrogram, settings of decoding; rows become sounds and tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clearhead.audio import LogMelSettings
from clearhead.errors import CheckpointError, ConfigError, DataError
from clearhead.model import ModelConfig, SpeechModel
from clearhead.model.speech_model import count_positions
from clearhead.tasks.processor import Columns, Files
from clearhead.tasks.sequence_to_sequence.generation import GeneratingProcessor
from clearhead.tasks.settings import validate
from clearhead.tasks.transcription.error_rates import import_jiwer
from clearhead.tasks.transcription.sound_examples import SoundExamples, SpokenTexts
from clearhead.tasks.transcription.sound_inputs import SoundInputs
from clearhead.tasks.transcription.transcription_settings import TranscriptionDecode, TranscriptionRecipe
from clearhead.tasks.transcription.word_times import FrameTimes, SpokenPart, TimedWord, time_words
from clearhead.text.corpora import Row

if TYPE_CHECKING:
    from clearhead.tasks.pretrained import Pretrained
    from clearhead.text import Report, Tokenizer

TOO_FAST = "with more text than the sound has room for"


class TranscriptionProcessor(GeneratingProcessor[TranscriptionRecipe, SpokenTexts]):
    """Rows of (audio, text), where audio is the path of a WAV or FLAC file, or (samples, rate)."""

    columns = ("audio", "text")
    metric = "wer"
    inputs: SoundInputs
    decode: TranscriptionDecode

    def __init__(
        self, target: Tokenizer, config: ModelConfig, log_mel: LogMelSettings, decode: TranscriptionDecode
    ) -> None:
        self.target, self.config, self.log_mel, self.decode = target, config, log_mel, decode
        self.inputs = SoundInputs(log_mel)

    # Data

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
        log_mel = LogMelSettings(**recipe.sound.model_dump())
        target = recipe.text.train_tokenizer(str(row.values[1]) for row in rows)
        config = cls.make_config(recipe, None, vocabulary=target.size)
        return cls(target, config, log_mel, recipe.decode)

    def configure(self, recipe: TranscriptionRecipe) -> None:
        self.decode = recipe.decode

    def examples(self, rows: Iterable[Row], report: Report, recipe: TranscriptionRecipe | None = None) -> SoundExamples:
        used, sounds, targets = list[Row](), list[Tensor](), list[list[int]]()
        for row in self.inputs.keep_readable(rows, report):
            samples, tokens = torch.from_numpy(row.values[0].content), self.target.encode(str(row.values[1]))
            if reason := find_misfit(len(samples), tokens, self, recipe):
                report.drop(row, reason)
                continue
            report.keep()
            used.append(row)
            sounds.append(samples)
            targets.append([self.target.start, *tokens, self.target.end])
        if not used:
            raise DataError(f"no recording is left to use: {report}")
        speeds = (1.0,) if recipe is None else recipe.augmentation.speeds
        return SoundExamples(sounds, targets, used, self.log_mel, self.target.pad, speeds)

    def row_problem(self, row: Row) -> str | None:
        return self.inputs.find_problem(row)

    # Model

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

    # Times

    @property
    def frame_times(self) -> FrameTimes:
        """When frames are, and positions of the encoder: a frame stands for one hop, amid its window."""
        hop = self.log_mel.hop_samples / self.log_mel.rate
        first = self.log_mel.frame_seconds(0) - hop / 2 - self.decode.padding_seconds
        return FrameTimes(first, hop, self.stride)

    def time_words(self, part: SpokenPart) -> list[TimedWord] | None:
        """The words of a part with their times; None if CTC cannot align them."""
        return time_words(part, self.target.decode, self.frame_times, self.blank)

    # Model folder

    @property
    def settings(self) -> dict[str, Any]:
        return {**self.decode.model_dump(), "sound": self.log_mel.model_dump()}

    def save(self, folder: Path) -> None:
        self.target.save(folder)

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> TranscriptionProcessor:
        from clearhead.text import Tokenizer

        values = dict(settings)
        try:
            log_mel = validate(LogMelSettings, values.pop("sound", {}), "sound")
            decode = validate(TranscriptionDecode, values)
        except ConfigError as error:
            raise CheckpointError(f"the settings of {folder} are invalid: {error}") from None
        target = Tokenizer.load(folder)
        bands = None if config.sound is None else config.sound.bands
        if target.size != config.vocabulary or log_mel.mels != bands:
            raise CheckpointError(
                f"{folder} has {target.size} tokens and {log_mel.mels} bands, but its model {config.vocabulary} and "
                f"{bands}; copy the folder again"
            )
        return cls(target, config, log_mel, decode)


def find_misfit(
    samples: int, tokens: list[int], processor: TranscriptionProcessor, recipe: TranscriptionRecipe | None
) -> str | None:
    """Why a recording of this number of samples cannot be learned from, or None."""
    log_mel = processor.log_mel
    if not log_mel.frames(samples):
        return f"shorter than one window of {log_mel.window:g} s"
    if recipe is not None and len(tokens) > recipe.data.longest:
        return f"longer than {recipe.data.longest} tokens"
    if recipe is not None and samples / log_mel.rate > recipe.data.longest_seconds:
        return f"longer than {recipe.data.longest_seconds:g} s"
    fastest = 1.0 if recipe is None else max(recipe.augmentation.speeds)
    repeats = sum(token == following for token, following in pairwise(tokens))
    positions = count_positions(log_mel.frames(int(samples / fastest)), processor.stride)
    return TOO_FAST if len(tokens) + repeats > positions else None
