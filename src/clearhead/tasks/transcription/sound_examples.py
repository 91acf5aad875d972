"""Recordings: inputs from files, from memory or from a program, and with their texts as examples for training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from clearhead.audio import LogMelSettings, perturb_speed, read_sound, resample, write_sound
from clearhead.audio.made_words import make_utterances
from clearhead.audio.sound_files import RATES, check_samples
from clearhead.errors import DataError
from clearhead.tasks.file_inputs import FileInputs
from clearhead.tasks.processor import Examples
from clearhead.tasks.sequence_to_sequence.text_to_text import shift_targets
from clearhead.text.batches import Batch, Ragged
from clearhead.text.corpora import Row

LARGEST_STEP = 32767  # of a 16-bit integer


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


class RaggedSounds(Ragged):
    """Sounds of different lengths, kept as 16-bit integers to need half the memory of floats.

    Integers are in units of each sound's own peak / 32767: a sample is off by at most half a unit, 96 dB below the
    peak, however quiet the recording is.

    >>> sounds = RaggedSounds([torch.tensor([0.5, -1.0]), torch.tensor([0.25, 0.0, 0.25])])
    >>> sounds.pad(torch.tensor([1, 0]), size=4)[1]
    tensor([3, 2])
    """

    content = ("flat", "lengths", "units")

    def __init__(self, sounds: Sequence[Float[Tensor, " _"]]) -> None:
        self.lengths = torch.tensor([len(sound) for sound in sounds], dtype=torch.long)
        self.starts = self.lengths.cumsum(0) - self.lengths
        peaks = [float(sound.abs().max()) if len(sound) else 0.0 for sound in sounds]
        self.units = torch.tensor(peaks, dtype=torch.float32) / LARGEST_STEP
        # One more element: padding indexes it where there are no sounds.
        self.flat = torch.zeros(int(self.lengths.sum()) + 1, dtype=torch.int16)
        for sound, begin, unit in zip(sounds, self.starts.tolist(), self.units.tolist(), strict=True):
            if unit > 0:
                steps = (sound / unit).round().clamp(-LARGEST_STEP, LARGEST_STEP)
                self.flat[begin : begin + len(sound)] = steps.short()

    def frame_counts(self, settings: LogMelSettings) -> NDArray[np.int64]:
        """The number of log-mel frames of every sound: the lengths that a batch plan with a budget of frames takes."""
        return np.array([settings.frames(length) for length in self.lengths.tolist()], dtype=np.int64)

    def pad(  # type: ignore[override]  # sounds are padded with zeros
        self, rows: Int[Tensor, " rows"], size: int
    ) -> tuple[Float[Tensor, "rows size"], Int[Tensor, " rows"]]:
        """These sounds in float32, padded with zeros to `size` samples, and their lengths.

        Longer ones are cut to `size`. A plan by frames cuts only what belongs to no frame: there `size` is
        `settings.samples(frames)` of the longest.
        """
        lengths, places = self.lengths[rows].clamp_max(size), torch.arange(size, device=rows.device)
        inside = places < lengths[:, None]
        samples = self.flat[torch.where(inside, self.starts[rows][:, None] + places, 0)]
        return torch.where(inside, samples * self.units[rows][:, None], 0.0), lengths


class SpokenTexts(NamedTuple):
    """A batch: samples of sound, the decoder's input tokens, and the tokens that it should predict."""

    sound: Tensor
    lengths: Tensor  # in samples
    target: Tensor
    labels: Tensor


class SoundExamples(Examples[SpokenTexts]):
    """Recordings and their tokens; with several `speeds`, each recording of a batch gets one of them at random."""

    on_device = ("sounds", "target")

    def __init__(
        self,
        sounds: Sequence[Tensor],
        targets: list[list[int]],
        rows: list[Row],
        log_mel: LogMelSettings,
        pad: int,
        speeds: Sequence[float] = (1.0,),
    ) -> None:
        self.sounds, self.target, self.rows, self.pad = RaggedSounds(sounds), Ragged(targets), rows, pad
        self.log_mel, self.speeds = log_mel, tuple(speeds)
        self.counts = self.target.lengths.numpy() - 1  # every token but the start is predicted
        self.lengths = np.stack([self.sounds.frame_counts(log_mel), self.counts], axis=1)

    def collate(self, batch: Batch) -> SpokenTexts:
        rows = torch.from_numpy(batch.examples).to(self.target.flat.device, non_blocking=True)
        sound, lengths = self.sounds.pad(rows, self.log_mel.samples(batch.sizes[0]))
        if self.speeds != (1.0,):  # drawn from the generator that the trainer seeds at every step
            sound, lengths = perturb_speed(sound, lengths, self.speeds, torch.default_generator)
        return SpokenTexts(sound, lengths, *shift_targets(self.target, rows, batch.sizes[1], self.pad))

    def fingerprint(self) -> str:
        return f"{self.sounds.fingerprint()} {self.target.fingerprint()}"
