"""Histograms of gradients: the shapes in a picture as numbers, without training (Dalal and Triggs 2005)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

CELLS = 8  # along each side; cells overlap by half
DIRECTIONS = 8  # of lines: 0 to 180 degrees
FEATURES = CELLS * CELLS * DIRECTIONS


def describe_gradients(pictures: Float[Tensor, "pictures 3 height width"]) -> Float[Tensor, "pictures features"]:
    """How strong lines of each direction are in each part of a picture, with length one (or 0 if it has no lines).

    Of the three colours the one that changes most counts. A strength is shared by the two nearest directions.

    >>> upright = torch.zeros(1, 3, 16, 16)
    >>> upright[..., 8:] = 1
    >>> describe_gradients(upright).view(DIRECTIONS, -1).sum(1).count_nonzero()
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
    halves = F.adaptive_avg_pool2d(by_direction, 2 * CELLS)
    cells = F.avg_pool2d(halves, 4, stride=2, padding=1, count_include_pad=False)
    return F.normalize(cells.sqrt().flatten(1), dim=1)
