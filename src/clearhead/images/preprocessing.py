"""Preprocessing: the size and normalisation of the pictures that a model takes, stored with the model."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from clearhead.images.picture_files import read_picture

LARGEST_SIDE = 8192  # pixels


class Preprocessing(BaseModel):
    """How pictures of any size become those that a model takes; stored in the model folder.

    >>> import torch
    >>> Preprocessing(height=4, width=4).resize_picture(torch.zeros(3, 2, 4))[0]
    tensor([[1., 1., 1., 1.],
            [0., 0., 0., 0.],
            [0., 0., 0., 0.],
            [1., 1., 1., 1.]])
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    height: int = Field(64, ge=1, le=LARGEST_SIDE)  # pixels
    width: int = Field(64, ge=1, le=LARGEST_SIDE)
    resize: Literal["pad", "crop"] = "pad"  # of other proportions: "pad" fills with white, "crop" keeps the middle

    def read(self, path: str | Path) -> Float[Tensor, "3 height width"]:
        """A picture file at the model's size, from 0 to 1, not yet normalised; DataError if it cannot be read."""
        return self.resize_picture(read_picture(path))

    def resize_picture(self, picture: Float[Tensor, "3 _ _"]) -> Float[Tensor, "3 height width"]:
        """A picture of any size at the model's size: bilinear, and smoothed before it gets smaller."""
        height, width = picture.shape[1:]
        ratios = self.height / height, self.width / width
        if self.resize == "crop":
            return self._cut_middle(picture, max(ratios))
        # 1 pixel at least, however thin the picture is
        inner = (max(1, round(side * min(ratios))) for side in (height, width))
        return self._pad(_interpolate(picture, *inner))

    def _pad(self, picture: Tensor) -> Tensor:
        height, width = picture.shape[1:]
        top, left = (self.height - height) // 2, (self.width - width) // 2
        canvas = picture.new_ones(3, self.height, self.width)
        canvas[:, top : top + height, left : left + width] = picture
        return canvas

    def _cut_middle(self, picture: Tensor, ratio: float) -> Tensor:
        """Cuts before resizing: of a very long picture only what is kept is resized."""
        height, width = picture.shape[1:]
        rows = min(height, max(1, round(self.height / ratio)))
        columns = min(width, max(1, round(self.width / ratio)))
        top, left = (height - rows) // 2, (width - columns) // 2
        return _interpolate(picture[:, top : top + rows, left : left + columns], self.height, self.width)


def normalise(pictures: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Values from 0 to 1 as a model takes them, from −1 to 1: a step of its own, for augmentation comes before it."""
    return (pictures - 0.5) / 0.5


def _interpolate(picture: Tensor, height: int, width: int) -> Tensor:
    if picture.shape[1:] == (height, width):
        return picture
    resized = F.interpolate(picture[None], (height, width), mode="bilinear", antialias=True, align_corners=False)
    return resized[0].clamp_(0, 1)  # weights sum to one only up to rounding
