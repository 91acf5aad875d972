"""CaptionMemory: the training captions, found by the encoder's features of their pictures."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.errors import CheckpointError

FILE = "neighbours.npz"
PER_CAPTION = 8  # pictures that are looked at for each wanted caption, since several may have the same


class CaptionMemory(NamedTuple):
    """Features of length one and the caption of each training picture.

    >>> memory = CaptionMemory(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), ["cat", "cat", "dog"])
    >>> memory.find(torch.tensor([[0.6, 0.8]]), 2)
    [['cat', 'dog']]
    """

    features: Float[Tensor, "pictures width"]
    captions: list[str]

    def find(self, asked: Float[Tensor, "asked width"], count: int) -> list[list[str]]:
        """The captions of the most similar pictures, each once, the nearest first; at most `count`."""
        most = min(len(self.captions), PER_CAPTION * count)
        order = (asked @ self.features.T).topk(most, dim=1).indices
        return [list(dict.fromkeys(self.captions[place] for place in row))[:count] for row in order.tolist()]

    def save(self, folder: Path) -> None:
        np.savez_compressed(folder / FILE, features=self.features.numpy(), captions=np.array(self.captions))

    @classmethod
    def load(cls, folder: Path, width: int) -> CaptionMemory:
        try:
            with np.load(folder / FILE, allow_pickle=False) as archive:
                features, captions = archive["features"], archive["captions"].tolist()
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise CheckpointError(
                f"{folder / FILE}, which decode.neighbours needs, cannot be read ({error}); copy the folder again"
            ) from None
        if features.dtype != np.float32 or features.shape != (len(captions), width):
            raise CheckpointError(
                f"{folder / FILE} has features {features.dtype} {features.shape}, wanted float32 "
                f"({len(captions)}, {width}); copy the folder again"
            )
        return cls(torch.from_numpy(features), captions)
