"""What pictures look like, as numbers, without training: the shapes in them and their colours."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

CELLS = {"shapes": 8, "fine shapes": 12}  # along each side; cells overlap by half
DIRECTIONS = 8  # of lines: 0 to 180 degrees
SHADES = 4  # of each colour channel, in the histogram
LAYOUT = 6  # parts along each side, of which the mean colour is taken
WIDTHS = {kind: cells * cells * DIRECTIONS for kind, cells in CELLS.items()}
WIDTHS |= {"colours": SHADES**3, "layout": 3 * LAYOUT * LAYOUT}


def describe_appearance(
    pictures: UInt8[Tensor, "pictures 3 height width"],
) -> dict[str, Float[Tensor, "pictures _"]]:
    """Features of several kinds: shapes, coarse and fine, which colours there are, and where they are.

    >>> {kind: features.shape[1] for kind, features in describe_appearance(torch.zeros(1, 3, 24, 24).byte()).items()}
    {'shapes': 512, 'fine shapes': 1152, 'colours': 64, 'layout': 108}
    """
    light = pictures.float() / 255
    found = {kind: describe_gradients(light, cells) for kind, cells in CELLS.items()}
    return {**found, "colours": count_colours(pictures), "layout": F.adaptive_avg_pool2d(light, LAYOUT).flatten(1)}


def count_colours(pictures: UInt8[Tensor, "pictures 3 height width"]) -> Float[Tensor, "pictures colours"]:
    """The square roots of the shares of all colours but white, the usual background."""
    red, green, blue = (pictures.long() * SHADES // 256).flatten(2).unbind(1)
    colours = torch.zeros(len(pictures), SHADES**3)
    code = (red * SHADES + green) * SHADES + blue
    colours.scatter_add_(1, code, torch.ones(code.shape))
    colours[:, -1] = 0
    return F.normalize(colours, p=1, dim=1).sqrt()


def describe_gradients(
    pictures: Float[Tensor, "pictures 3 height width"], cells: int
) -> Float[Tensor, "pictures features"]:
    """How strong lines of each direction are in each cell of a picture, with length one (or 0 if it has no lines).

    These are histograms of gradients (Dalal and Triggs 2005). Of the three colours the one that changes most counts. A
    strength is shared by the two nearest directions.

    >>> upright = torch.zeros(1, 3, 16, 16)
    >>> upright[..., 8:] = 1
    >>> describe_gradients(upright, 8).view(DIRECTIONS, -1).sum(1).count_nonzero()
    tensor(1)
    """
    across = F.pad(pictures[..., 2:] - pictures[..., :-2], (1, 1))
    down = F.pad(pictures[..., 2:, :] - pictures[..., :-2, :], (0, 0, 1, 1))
    strength, colour = torch.hypot(across, down).max(1, keepdim=True)
    angle = torch.atan2(down.gather(1, colour), across.gather(1, colour)) % math.pi
    place = angle * (DIRECTIONS / math.pi)
    lower, share = place.floor().long(), place % 1
    by_direction = pictures.new_zeros(len(pictures), DIRECTIONS, *pictures.shape[2:])
    by_direction.scatter_add_(1, lower % DIRECTIONS, strength * (1 - share))
    by_direction.scatter_add_(1, (lower + 1) % DIRECTIONS, strength * share)
    halves = F.adaptive_avg_pool2d(by_direction, 2 * cells)
    overlapping = F.avg_pool2d(halves, 4, stride=2, padding=1, count_include_pad=False)
    return F.normalize(overlapping.sqrt().flatten(1), dim=1)
