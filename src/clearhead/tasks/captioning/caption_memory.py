"""CaptionMemory: the training captions, found by features of their pictures."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.errors import CheckpointError

FILE = "neighbours.npz"
PER_CAPTION = 8  # pictures that are looked at for each wanted caption, since several may have the same
Features = Mapping[str, Float[Tensor, "pictures _"]]  # of the same pictures, by kind: "encoder", "gradients"


class CaptionMemory(NamedTuple):
    """Features of each training picture, and its caption.

    >>> known = {"encoder": torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])}
    >>> CaptionMemory(known, ["cat", "cat", "dog"]).find([{"encoder": torch.tensor([[0.9, 0.3]])}], 2)
    [['cat', 'dog']]
    """

    features: Features
    captions: list[str]

    def find(self, asked: Sequence[Features], count: int) -> list[list[str]]:
        """The captions of the most similar pictures, each once, the nearest first; at most `count`.

        The similarity is the mean of the correlations of all kinds of features. Where the pictures are given in
        several ways, as they are and mirrored, the larger one counts.
        """
        similar = torch.stack([self._compare(one) for one in asked]).amax(0)
        order = similar.topk(min(len(self.captions), PER_CAPTION * count), dim=1).indices
        return [list(dict.fromkeys(self.captions[place] for place in row))[:count] for row in order.tolist()]

    def _compare(self, asked: Features) -> Float[Tensor, "pictures known"]:
        found = []
        for kind, known in self.features.items():
            mean = known.mean(0)  # what all pictures have in common says nothing
            own, other = (torch.nn.functional.normalize(one - mean, dim=1) for one in (asked[kind], known))
            found.append(own @ other.T)
        return torch.stack(found).mean(0)

    def save(self, folder: Path) -> None:
        arrays: Any = {kind: features.numpy() for kind, features in self.features.items()}
        np.savez_compressed(folder / FILE, captions=np.array(self.captions), **arrays)

    @classmethod
    def load(cls, folder: Path, widths: Mapping[str, int]) -> CaptionMemory:
        """The memory of a model folder, whose features have these widths."""
        try:
            with np.load(folder / FILE, allow_pickle=False) as archive:
                arrays = {"encoder" if name == "features" else name: archive[name] for name in archive.files}
                captions = arrays.pop("captions").tolist()
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise CheckpointError(
                f"{folder / FILE}, which decode.neighbours needs, cannot be read ({error}); copy the folder again"
            ) from None
        found = {kind: f"{one.dtype} {one.shape}" for kind, one in arrays.items()}
        wanted = {kind: f"float32 ({len(captions)}, {width})" for kind, width in widths.items()}
        if found != wanted:
            raise CheckpointError(f"{folder / FILE} has features {found}, wanted {wanted}; copy the folder again")
        return cls({kind: torch.from_numpy(one) for kind, one in arrays.items()}, captions)
