"""Captioned pictures as tensors on the training device, changed at random each time a batch is made."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from clearhead.images import Preprocessing
from clearhead.tasks.captioning.caption_settings import PictureChanges
from clearhead.tasks.losses import UNCOUNTED
from clearhead.tasks.processor import Examples
from clearhead.text.batches import Batch, Ragged
from clearhead.text.corpora import Row


class Captions(NamedTuple):
    """A batch: normalised pictures, the decoder's input tokens, and the tokens that it should predict."""

    pictures: Float[Tensor, "batch 3 height width"]
    target: Int[Tensor, "batch tokens"]
    labels: Int[Tensor, "batch tokens"]


class CaptionExamples(Examples[Captions]):
    """Pictures, decoded once and kept as bytes, with their captions as tokens.

    With an `augmentation`, `collate` changes pictures by PyTorch's random numbers, which a run seeds before each step.
    It hides a share of the words that the decoder reads, so that it depends more on the picture.
    """

    def __init__(
        self,
        pictures: UInt8[Tensor, "examples 3 height width"],
        targets: list[list[int]],
        rows: Sequence[Row],
        *,
        patches: int,
        pad: int,
        preprocessing: Preprocessing,
        augmentation: PictureChanges | None = None,
    ) -> None:
        self.pictures, self.target, self.rows, self.pad = pictures, Ragged(targets), rows, pad
        self.preprocessing, self.augmentation = preprocessing, augmentation
        self.counts = self.target.lengths.numpy() - 1  # every word but the start is predicted
        self.lengths = np.stack([np.full(len(rows), patches), self.counts], axis=1)

    def to(self, device: torch.device) -> CaptionExamples:
        self.pictures = self.pictures.to(device)
        self.target.to(device)
        return self

    def collate(self, batch: Batch) -> Captions:
        rows = torch.from_numpy(batch.examples).to(self.pictures.device, non_blocking=True)
        pictures = self.pictures[rows].float() / 255
        if self.augmentation is not None:
            pictures = self.augmentation(pictures, torch.default_generator, self.preprocessing.background)
        target, _ = self.target.pad(rows, batch.sizes[1] + 1, UNCOUNTED)
        read, written = target[:, :-1], target[:, 1:]
        read = read.masked_fill(read == UNCOUNTED, self.pad)
        if self.augmentation is not None and self.augmentation.words:
            hidden = torch.rand(read.shape) < self.augmentation.words  # on the CPU, as the augmentation draws
            hidden[:, 0] = False  # the start
            read = read.masked_fill(hidden.to(read.device, non_blocking=True), self.pad)
        return Captions(self.preprocessing.normalise(pictures), read, written.contiguous())

    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.pictures.cpu().numpy().tobytes()).hexdigest()
        return f"{digest} {self.target.fingerprint()}"
