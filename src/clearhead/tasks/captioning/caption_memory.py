"""CaptionMemory: the training captions, weighed by how similar their pictures are to another one.

The weights are those of kernel ridge regression: whatever numbers the training captions had, their sum with these
weights would be the prediction. A caption counts less if its picture is like others that count already.
"""

from __future__ import annotations

import functools
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from clearhead.errors import CheckpointError
from clearhead.tasks.captioning.recombination import Recombination

FILE = "neighbours.npz"
Features = Mapping[str, Float[Tensor, "pictures _"]]  # of the same pictures, by kind
SHARES = {"encoder": 0.5, "shapes": 0.3, "fine shapes": 0.3, "colours": 0.2, "layout": 0.2}  # of kinds in the kernel
SHARPNESS = 4.0  # of the kernel exp(SHARPNESS · (correlation − 1))
RIDGE = 0.15
MOST = 2000  # pictures that are weighed, the nearest


@dataclass(frozen=True)
class CaptionMemory:
    """Features of each training picture, and its caption.

    >>> known = {"encoder": torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])}
    >>> [weights] = CaptionMemory(known, ["cat", "cat", "dog"]).weigh([{"encoder": torch.tensor([[0.9, 0.3]])}])
    >>> list(weights), weights["cat"] > weights["dog"]
    (['cat', 'dog'], True)
    """

    features: Features
    captions: list[str]

    def weigh(self, asked: Sequence[Features]) -> list[dict[str, float]]:
        """The weight of each caption for each picture, the nearest first; weights can be negative.

        Where the pictures are given in several ways, as they are and mirrored, the more similar one counts.
        """
        found, near = list[dict[str, float]](), self._compare([self._centre(one) for one in asked])
        for row in near:
            similar, order = row.topk(min(len(self.captions), MOST))
            among = self._compare([{kind: known[order] for kind, known in self._centred.items()}], order)
            weights = torch.linalg.solve(among + RIDGE * torch.eye(len(order)), similar)
            own = dict.fromkeys((self.captions[place] for place in order.tolist()), 0.0)
            for place, weight in zip(order.tolist(), weights.tolist(), strict=True):
                own[self.captions[place]] += weight
            found.append(own)
        return found

    @functools.cached_property
    def recombination(self) -> Recombination:
        return Recombination(self.captions)

    @functools.cached_property
    def _centred(self) -> Features:
        return self._centre(self.features)

    def _centre(self, features: Features) -> Features:
        """Features without what all pictures have in common, with length one: their products are correlations."""
        return {kind: normalize(features[kind] - known.mean(0), dim=1) for kind, known in self.features.items()}

    def _compare(self, asked: Sequence[Features], some: Tensor | None = None) -> Float[Tensor, "pictures known"]:
        """The kernel between pictures that are given in several ways and the known ones, or some of them."""
        total, kernel = 0.0, torch.zeros(())
        for kind, known in self._centred.items():
            others = known if some is None else known[some]
            alike = torch.stack([one[kind] @ others.T for one in asked]).amax(0)
            kernel = kernel + SHARES[kind] * torch.exp(SHARPNESS * (alike - 1))
            total += SHARES[kind]
        return kernel / total

    def save(self, folder: Path) -> None:
        arrays: Any = {kind: features.half().numpy() for kind, features in self.features.items()}
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
        found = {kind: one.shape for kind, one in arrays.items()}
        wanted = {kind: (len(captions), width) for kind, width in widths.items()}
        if found != wanted:
            raise CheckpointError(f"{folder / FILE} has features {found}, wanted {wanted}; copy the folder again")
        return cls({kind: torch.from_numpy(one).float() for kind, one in arrays.items()}, captions)
