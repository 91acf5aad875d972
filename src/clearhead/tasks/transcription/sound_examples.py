"""Recordings with their texts as tensors: batches by frames, at a random speed in training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from clearhead.audio import LogMelSettings, RaggedSounds, perturb_speed
from clearhead.tasks.losses import UNCOUNTED
from clearhead.tasks.processor import Examples
from clearhead.text.batches import Batch, Ragged

if TYPE_CHECKING:
    from clearhead.text import Row


class SpokenTexts(NamedTuple):
    """A batch: samples of sound, the decoder's input tokens, and the tokens that it should predict."""

    sound: Tensor
    lengths: Tensor  # in samples
    target: Tensor
    labels: Tensor


class SoundExamples(Examples[SpokenTexts]):
    """Recordings and their tokens; with several `speeds`, each recording of a batch gets one of them at random."""

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

    def to(self, device: torch.device) -> SoundExamples:
        self.sounds.to(device), self.target.to(device)
        return self

    def collate(self, batch: Batch) -> SpokenTexts:
        rows = torch.from_numpy(batch.examples).to(self.target.flat.device, non_blocking=True)
        sound, lengths = self.sounds.pad(rows, self.log_mel.samples(batch.sizes[0]))
        if self.speeds != (1.0,):  # drawn from the generator that the trainer seeds at every step
            sound, lengths = perturb_speed(sound, lengths, self.speeds, torch.default_generator)
        target, _ = self.target.pad(rows, batch.sizes[1] + 1, UNCOUNTED)
        read, written = target[:, :-1], target[:, 1:]
        return SpokenTexts(sound, lengths, read.masked_fill(read == UNCOUNTED, self.pad), written.contiguous())

    def fingerprint(self) -> str:
        return f"{self.sounds.fingerprint()} {self.target.fingerprint()}"
