"""Preprocessing: the size, background and normalisation of the pictures that a model takes, stored with the model."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from clearhead.errors import CheckpointError, ConfigError
from clearhead.formatting import suggest_name
from clearhead.images.picture_files import WHITE, read_picture
from clearhead.storage import check_format, read_json, write_json

FORMAT = 1  # of the file that `save` writes
LARGEST_SIDE = 8192
RESIZE_MODES = ("pad", "crop", "stretch")
SIDES = ("height", "width")
COLOURS = ("background", "mean", "std")
Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Preprocessing:
    """How pictures of any size become those that a model takes, and the settings of it.

    `resize` keeps all of a picture and fills what is left with the background (`pad`), keeps its middle (`crop`), or
    changes its proportions (`stretch`). Colours are red, green, blue from 0 to 1. Normalisation, (value − mean) / std
    of each channel, is a step of its own, so that augmentation comes before it.

    >>> import torch
    >>> settings = Preprocessing(height=4, width=4, background=(0.0, 0.0, 0.0))
    >>> settings.resize_picture(torch.ones(3, 2, 4))[0]
    tensor([[0., 0., 0., 0.],
            [1., 1., 1., 1.],
            [1., 1., 1., 1.],
            [0., 0., 0., 0.]])
    >>> settings.normalise(torch.ones(1, 3, 4, 4)).unique()
    tensor([1.])
    """

    height: int = 64
    width: int = 64
    resize: str = "pad"
    background: Colour = WHITE
    mean: Colour = (0.5, 0.5, 0.5)
    std: Colour = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        values = asdict(self)
        _check_settings(values)
        for name in COLOURS:
            object.__setattr__(self, name, tuple(float(channel) for channel in values[name]))

    def read(self, path: str | Path) -> Float[Tensor, "3 height width"]:
        """A picture file at the model's size, from 0 to 1, not yet normalised; DataError if it cannot be read."""
        return self.resize_picture(read_picture(path, background=self.background))

    def resize_picture(self, picture: Float[Tensor, "3 _ _"]) -> Float[Tensor, "3 height width"]:
        """A picture of any size at the model's size: bilinear, and smoothed before it gets smaller."""
        height, width = picture.shape[1:]
        if self.resize == "stretch":
            return _interpolate(picture, self.height, self.width)
        ratios = self.height / height, self.width / width
        if self.resize == "crop":
            return self._cut_middle(picture, max(ratios))
        # 1 pixel at least, however thin the picture is
        inner = (max(1, round(side * min(ratios))) for side in (height, width))
        return self._pad(_interpolate(picture, *inner))

    def normalise(self, pictures: Float[Tensor, "*batch 3 rows columns"]) -> Float[Tensor, "*batch 3 rows columns"]:
        """(value − mean) / std of each channel, on the device of the pictures."""
        mean, std = (pictures.new_tensor(channels)[:, None, None] for channels in (self.mean, self.std))
        return (pictures - mean) / std

    def restore(self, pictures: Float[Tensor, "*batch 3 rows columns"]) -> Float[Tensor, "*batch 3 rows columns"]:
        """The opposite of `normalise`: values from 0 to 1 again, to show what a model was given."""
        mean, std = (pictures.new_tensor(channels)[:, None, None] for channels in (self.mean, self.std))
        return pictures * std + mean

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Preprocessing:
        """From plain values, such as a JSON file's; an unknown name is refused, and the nearest one suggested."""
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise ConfigError(f"Preprocessing has no {name!r}; {suggest_name(name, known)}")
        _check_settings(values)
        colours: dict[str, Any] = {
            name: tuple(float(channel) for channel in values[name]) for name in COLOURS if name in values
        }
        return cls(**{**values, **colours})

    def save(self, path: str | Path) -> None:
        """Writes the settings as JSON with a format number. Not atomic: for use inside atomic_folder."""
        write_json(Path(path), {"format": FORMAT, **self.to_dict()})

    @classmethod
    def load(cls, path: str | Path) -> Preprocessing:
        """The settings in a file that `save` wrote; CheckpointError if it is damaged or lacks a setting."""
        values = read_json(Path(path))
        check_format(path, values.pop("format", None), FORMAT)
        # A default that changes in a later version must not change what an old model is given.
        if missing := [field.name for field in fields(cls) if field.name not in values]:
            raise CheckpointError(f"{path} lacks {', '.join(missing)}")
        try:
            return cls.from_dict(values)
        except ConfigError as error:
            raise CheckpointError(f"{path}: {error}") from None

    def _pad(self, picture: Tensor) -> Tensor:
        height, width = picture.shape[1:]
        top, left = (self.height - height) // 2, (self.width - width) // 2
        canvas = picture.new_tensor(self.background)[:, None, None].repeat(1, self.height, self.width)
        canvas[:, top : top + height, left : left + width] = picture
        return canvas

    def _cut_middle(self, picture: Tensor, ratio: float) -> Tensor:
        """Cuts before resizing: of a very long picture only what is kept is resized."""
        height, width = picture.shape[1:]
        rows = min(height, max(1, round(self.height / ratio)))
        columns = min(width, max(1, round(self.width / ratio)))
        top, left = (height - rows) // 2, (width - columns) // 2
        return _interpolate(picture[:, top : top + rows, left : left + columns], self.height, self.width)


def _check_settings(values: dict[str, Any]) -> None:
    """Raises ConfigError for the first of these settings that is invalid."""
    for name in SIDES:
        value = values.get(name, 1)
        if type(value) is not int or not 1 <= value <= LARGEST_SIDE:
            raise ConfigError(f"{name} must be a whole number from 1 to {LARGEST_SIDE:,}, got {value!r}")
    if values.get("resize", "pad") not in RESIZE_MODES:
        raise ConfigError(f"resize must be one of {', '.join(RESIZE_MODES)}, got {values['resize']!r}")
    for name in COLOURS:
        if name in values and not _is_colour(values[name]):
            raise ConfigError(f"{name} must be three numbers (red, green, blue), got {values[name]!r}")
    if not all(0 <= channel <= 1 for channel in values.get("background", ())):
        raise ConfigError(f"background must have values from 0 to 1, got {values['background']}")
    if not all(channel > 0 for channel in values.get("std", ())):
        raise ConfigError(f"std divides: its values must be greater than 0, got {values['std']}")


def _is_colour(value: object) -> bool:
    return (
        isinstance(value, (tuple, list))
        and len(value) == 3
        and all(isinstance(channel, (int, float)) and not isinstance(channel, bool) for channel in value)
        and all(math.isfinite(channel) for channel in value)
    )


def _interpolate(picture: Tensor, height: int, width: int) -> Tensor:
    if picture.shape[1:] == (height, width):
        return picture
    resized = F.interpolate(picture[None], (height, width), mode="bilinear", antialias=True, align_corners=False)
    return resized[0].clamp_(0, 1)  # weights sum to one only up to rounding
