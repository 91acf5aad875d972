"""Augmentation: small random changes of training pictures, a batch at a time, on the pictures' device."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from clearhead.errors import ConfigError
from clearhead.images.picture_files import WHITE

# At most so much of each; a zoom or a contrast of 1 and more could leave nothing of a picture.
LIMITS = {
    "shift": 1.0,
    "zoom": 0.9,
    "rotation": 180.0,
    "stretch": 0.9,
    "shear": 1.0,
    **dict.fromkeys(("brightness", "contrast", "saturation", "erase", "mix"), 1.0),
}
GREY = (0.299, 0.587, 0.114)  # shares of red, green and blue in brightness (BT.601)
DRAWS = 16  # random numbers of each picture, whatever is switched on


@dataclass(frozen=True)
class Augmentation:
    """Random moves, flips, colour jitter, erased rectangles and mixtures; each picture of a batch gets its own.

    `shift` is a share of the side, `zoom` of the size (0.1: from 0.9 to 1.1 times; what is enlarged is cropped),
    `rotation` degrees to both sides; `stretch` changes width against height (0.1: by up to 1.1 and 1 / 1.1), `shear`
    slants by a share of the side; `brightness`, `contrast` and `saturation` are factors from 1 − x to 1 + x. `erase`
    covers a rectangle with the background, each side of it up to this share of the picture's (Zhong 2020). `mix` adds a
    share of another picture of the batch: with 1 it is mixup (Zhang 2018), where one caption is drawn by the shares.
    0 switches a change off. `flip` mirrors every second picture on average: off by default, because captions say left
    and right. Hue stays as it is, because they say red and blue.

    All random numbers come from the `generator`, sixteen for each picture: with the same state of it the same changes
    are made, on every device. Except for `mix` they do not depend on the other pictures of the batch.

    >>> pictures = torch.rand(2, 3, 8, 8)
    >>> first, second = (Augmentation()(pictures, torch.Generator().manual_seed(1)) for _ in range(2))
    >>> torch.equal(first, second), torch.equal(first, pictures)
    (True, False)
    """

    shift: float = 0.1
    zoom: float = 0.1
    rotation: float = 10.0
    flip: bool = False
    brightness: float = 0.2
    contrast: float = 0.2
    saturation: float = 0.2
    stretch: float = 0.0
    shear: float = 0.0
    erase: float = 0.0
    mix: float = 0.0

    def __post_init__(self) -> None:
        for name, limit in LIMITS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= limit:
                raise ConfigError(f"{name} must be a number from 0 to {limit:g}, got {value!r}")
        if not isinstance(self.flip, bool):
            raise ConfigError(f"flip must be True or False, got {self.flip!r}")

    @torch.no_grad()
    def __call__(
        self,
        pictures: Float[Tensor, "batch 3 height width"],
        generator: torch.Generator,
        background: tuple[float, float, float] = WHITE,
    ) -> Float[Tensor, "batch 3 height width"]:
        """Changed copies of pictures with values from 0 to 1, before they are normalised.

        What comes in from outside the picture has the colour of the `background`.
        """
        # float64 on the generator's device, so that the numbers do not depend on where the pictures are
        drawn = torch.rand(len(pictures), DRAWS, generator=generator, device=generator.device, dtype=torch.float64)
        drawn = drawn.to(pictures.device, pictures.dtype, non_blocking=True)
        amounts = 2 * drawn - 1  # from −1 to 1
        if self.flip:
            mirrored = amounts[:, 0] < 0
            pictures = torch.where(mirrored[:, None, None, None], pictures.flip(-1), pictures)
        if self.shift or self.zoom or self.rotation or self.stretch or self.shear:
            pictures = self._move(pictures, amounts[:, [1, 2, 3, 4, 8, 9]], background)
        if self.brightness or self.contrast or self.saturation:
            pictures = self._jitter(pictures, amounts[:, 5:8])
        if self.erase:
            pictures = self._erase(pictures, drawn[:, 10:14], background)
        if self.mix:
            # The caption stays that of the larger share more often: a share of 1 − √u leaves it unbiased at mix = 1
            share = self.mix * (1 - drawn[:, 14].sqrt())[:, None, None, None]
            pictures = torch.lerp(pictures, pictures[drawn[:, 15].argsort()], share)
        return pictures

    def _move(self, pictures: Tensor, amounts: Tensor, background: tuple[float, float, float]) -> Tensor:
        """Shifts, scales, rotates and slants about the middle, in one bilinear interpolation."""
        height, width = pictures.shape[2:]
        angle = amounts[:, 0] * math.radians(self.rotation)
        scale = 1 / (1 + amounts[:, 1] * self.zoom)  # from places in the result to places in the picture
        wide = (1 + self.stretch) ** amounts[:, 4]
        slant = self.shear * amounts[:, 5]
        cos, sin = angle.cos() * scale, angle.sin() * scale
        across, down = 2 * self.shift * amounts[:, 2], 2 * self.shift * amounts[:, 3]  # sides run from −1 to 1
        # The angle is one of pixels: where sides differ, places from −1 to 1 are not square.
        rows = [wide * cos, wide * (slant * cos - sin) * (height / width), across]
        rows += [sin / wide * (width / height), (cos + slant * sin) / wide, down]
        transform = torch.stack(rows, dim=1).view(-1, 2, 3)
        grid = F.affine_grid(transform, list(pictures.shape), align_corners=False)
        colour = pictures.new_tensor(background)[:, None, None]
        # grid_sample fills with zeros, which stand for the background here
        moved: Tensor = F.grid_sample(pictures - colour, grid, padding_mode="zeros", align_corners=False) + colour
        return moved.clamp_(0, 1)

    def _erase(self, pictures: Tensor, draws: Tensor, background: tuple[float, float, float]) -> Tensor:
        """Covers one rectangle of each picture; sizes and places are uniform."""
        inside = []
        for side, size in ((2, 0), (3, 1)):
            places = (torch.arange(pictures.shape[side], device=pictures.device) + 0.5) / pictures.shape[side]
            length = self.erase * draws[:, size]
            begin = draws[:, 2 + size] * (1 - length)
            inside.append((places >= begin[:, None]) & (places < (begin + length)[:, None]))
        covered = (inside[0][:, :, None] & inside[1][:, None])[:, None]
        return torch.where(covered, pictures.new_tensor(background)[:, None, None], pictures)

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
