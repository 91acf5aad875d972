"""Augmentation: small random changes of training pictures, a batch at a time, on the pictures' device."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

GREY = (0.299, 0.587, 0.114)  # shares of red, green and blue in brightness (BT.601)
DRAWS = 16  # random numbers of each picture, whatever is switched on: more than the changes need today


class Augmentation(BaseModel):
    """Random changes, different for each picture of a batch; 0 switches one off. Hue stays: captions say red and blue.

    Each picture takes the same count of random numbers from `generator`. So the same state of it makes the same changes
    on every device.

    >>> pictures = torch.rand(2, 3, 8, 8)
    >>> first, second = (Augmentation()(pictures, torch.Generator().manual_seed(1)) for _ in range(2))
    >>> torch.equal(first, second), torch.equal(first, pictures)
    (True, False)
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    shift: float = Field(0.1, ge=0, le=1)  # of the side
    zoom: float = Field(0.1, ge=0, le=0.9)  # 0.1: from 0.9 to 1.1 times
    rotation: float = Field(10.0, ge=0, le=180)  # degrees to both sides
    flip: bool = False  # every second picture is mirrored; captions may say left and right
    brightness: float = Field(0.2, ge=0, le=1)  # a factor from 1 − x to 1 + x
    contrast: float = Field(0.2, ge=0, le=1)
    saturation: float = Field(0.2, ge=0, le=1)

    @torch.no_grad()
    def __call__(
        self,
        pictures: Float[Tensor, "batch 3 height width"],
        generator: torch.Generator,
    ) -> Float[Tensor, "batch 3 height width"]:
        """Changed copies of pictures with values from 0 to 1, before they are normalised.

        What comes in from outside the picture is white.
        """
        # float64 on the generator's device, so that the numbers do not depend on where the pictures are
        drawn = torch.rand(len(pictures), DRAWS, generator=generator, device=generator.device, dtype=torch.float64)
        drawn = drawn.to(pictures.device, pictures.dtype, non_blocking=True)
        amounts = 2 * drawn - 1  # from −1 to 1
        if self.flip:
            mirrored = amounts[:, 0] < 0
            pictures = torch.where(mirrored[:, None, None, None], pictures.flip(-1), pictures)
        if self.shift or self.zoom or self.rotation:
            pictures = self._move(pictures, amounts[:, 1:5])
        if self.brightness or self.contrast or self.saturation:
            pictures = self._jitter(pictures, amounts[:, 5:8])
        return pictures

    def _move(self, pictures: Tensor, amounts: Tensor) -> Tensor:
        """Shifts, scales and rotates about the middle, in one bilinear interpolation."""
        height, width = pictures.shape[2:]
        angle = amounts[:, 0] * math.radians(self.rotation)
        scale = 1 / (1 + amounts[:, 1] * self.zoom)  # from positions in the result to positions in the picture
        cos, sin = angle.cos() * scale, angle.sin() * scale
        across, down = 2 * self.shift * amounts[:, 2], 2 * self.shift * amounts[:, 3]  # sides run from −1 to 1
        # The angle is one of pixels: where sides differ, positions from −1 to 1 are not square.
        rows = [cos, -sin * (height / width), across, sin * (width / height), cos, down]
        transform = torch.stack(rows, dim=1).view(-1, 2, 3)
        grid = F.affine_grid(transform, list(pictures.shape), align_corners=False)
        # grid_sample fills with zeros, which stand for white here
        moved: Tensor = F.grid_sample(pictures - 1, grid, padding_mode="zeros", align_corners=False) + 1
        return moved.clamp_(0, 1)

    def _jitter(self, pictures: Tensor, amounts: Tensor) -> Tensor:
        strengths = amounts.new_tensor([self.brightness, self.contrast, self.saturation])
        brightness, contrast, saturation = (1 + amounts * strengths)[:, :, None, None, None].unbind(1)
        pictures = (pictures * brightness).clamp(0, 1)
        mean = _to_grey(pictures).mean((2, 3), keepdim=True)
        pictures = (mean + (pictures - mean) * contrast).clamp(0, 1)
        grey = _to_grey(pictures)
        return (grey + (pictures - grey) * saturation).clamp(0, 1)


def _to_grey(pictures: Tensor) -> Tensor:
    shares = pictures.new_tensor(GREY)[:, None, None]
    return (pictures * shares).sum(1, keepdim=True)
