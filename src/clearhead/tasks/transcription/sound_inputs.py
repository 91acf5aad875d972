"""SoundInputs: mono sounds from WAV and FLAC files, from memory, or from a program that makes words."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from clearhead.audio import LogMelSettings, read_sound, resample, write_sound
from clearhead.audio.made_words import make_utterances
from clearhead.audio.sound_files import RATES, check_samples
from clearhead.errors import DataError
from clearhead.tasks.file_inputs import FileInputs, LoadedInput
from clearhead.text.corpora import Row


class SoundInputs(FileInputs):
    """Sounds as float32 samples, at the rate of the spectrograms."""

    kind = "sound"
    suffixes = (".wav", ".flac")
    generators = MappingProxyType({"words": make_utterances})

    def __init__(self, log_mel: LogMelSettings) -> None:
        self.log_mel = log_mel

    def load_file(self, path: Path) -> Any:
        return read_sound(path, self.log_mel.rate, shortest=self.log_mel.window).numpy()

    def load_value(self, value: Any) -> Any:
        """Mono samples with their rate, such as (array, 16000): floats from −1 to 1, or 16-bit integers."""
        if not isinstance(value, tuple) or len(value) != 2:
            raise DataError(f"a sound in memory is (samples, rate), got {value!r:.60}")
        try:
            samples, rate = torch.as_tensor(value[0]), int(value[1])
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"a sound in memory is (samples, rate): {error}") from None
        if samples.ndim != 1 or rate not in RATES:
            raise DataError(
                f"samples must be one channel with a rate from {RATES[0]} to {RATES[-1]} Hz, got shape "
                f"{tuple(samples.shape)}, {rate} Hz"
            )
        if not samples.is_floating_point() and samples.dtype != torch.int16:
            raise DataError(f"samples must be floats from -1 to 1 or 16-bit integers, got {samples.dtype}")
        samples = samples / 32768 if samples.dtype == torch.int16 else samples.float()
        if len(samples) < self.log_mel.window * rate:
            raise DataError(f"there is no sound in {len(samples)} samples, less than one window of the spectrogram")
        check_samples("the sound", samples)
        if bool((samples == samples[0]).all()):
            raise DataError(f"there is no sound in {len(samples)} samples: all are the same")
        return resample(samples, rate, self.log_mel.rate).contiguous().numpy()

    def save_file(self, content: Any, path: Path) -> None:
        write_sound(path, torch.from_numpy(content), self.log_mel.rate)

    def identify(self, row: Row) -> str:
        """The length and every 16th sample of a recording, which no other one shares."""
        given = row.values[0]
        if not isinstance(given, LoadedInput):
            return super().identify(row)
        digest = hashlib.sha256(np.ascontiguousarray(given.content[::16]).tobytes())
        return f"{len(given.content)} {digest.hexdigest()}"
