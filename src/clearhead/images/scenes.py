"""Scenes: small pictures of coloured shapes with captions, made by a program, to learn and to test with.

A caption names the shapes from the top left to the bottom right, each with where it is to the next one: "a red circle
left of a blue square".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

SIZE = 64  # pixels of a side
LARGEST_SHARE = 0.1  # of the picture's area that a shape may cover
COLOURS = {
    "red": (214, 39, 40),
    "green": (44, 140, 44),
    "blue": (31, 90, 200),
    "yellow": (240, 200, 20),
}
KINDS = ("circle", "square", "triangle")
PARTS = {"train": 0, "dev": 1, "test": 2}
FINE = 4  # samples along a pixel's side: edges are smooth


class Shape(NamedTuple):
    """One shape of a scene; its middle and half its size are in pixels."""

    colour: str
    kind: str
    x: float
    y: float
    radius: float

    @property
    def text(self) -> str:
        return f"a {self.colour} {self.kind}"


class Scene(NamedTuple):
    """A picture, its caption, and the shapes in the order in which the caption names them."""

    pixels: UInt8[np.ndarray, "height width 3"]
    text: str
    shapes: tuple[Shape, ...]


def make_pairs(part: str, count: int, size: int = SIZE) -> Iterator[Scene]:
    """Scenes of two large shapes beside or above each other, of few colours and kinds: soon learned.

    >>> next(make_pairs("train", 1)).text
    'a blue triangle above a yellow square'
    """
    for number in range(count):
        chance = np.random.default_rng([PARTS[part], number, size])
        looks = chance.permutation(len(COLOURS) * len(KINDS))[:2]
        radius = (LARGEST_SHARE**0.5) * size / 2 * chance.uniform(0.9, 0.98, 2)
        half, edge = size / 2, radius + 1
        along = chance.uniform(edge, half - edge) + np.array([0, half])  # one in each half
        across = half + chance.uniform(-4, 4) + chance.uniform(-3, 3, 2)
        x, y = (along, across) if chance.integers(2) else (across, along)
        names = [(list(COLOURS)[look % len(COLOURS)], KINDS[look // len(COLOURS)]) for look in looks]
        rows = zip(names, x.tolist(), y.tolist(), radius.tolist(), strict=True)
        shapes = tuple(Shape(colour, kind, *geometry) for (colour, kind), *geometry in rows)
        yield Scene(draw_shapes(shapes, size), describe_shapes(shapes), shapes)


def describe_shapes(shapes: tuple[Shape, ...]) -> str:
    """The caption of shapes in this order.

    >>> describe_shapes((Shape("red", "circle", 9, 9, 5), Shape("blue", "square", 12, 30, 5)))
    'a red circle above a blue square'
    """
    words = [shapes[0].text]
    for shape, following in pairwise(shapes):
        words += ["left of" if following.x - shape.x > following.y - shape.y else "above", following.text]
    return " ".join(words)


def draw_shapes(shapes: tuple[Shape, ...], size: int = SIZE) -> UInt8[np.ndarray, "height width 3"]:
    """A white square picture with these shapes."""
    canvas = np.full((size, size, 3), 255.0)
    for shape in shapes:
        box, share = _find_coverage(shape, size)
        canvas[box] += share[:, :, None] * (np.array(COLOURS[shape.colour]) - canvas[box])
    return canvas.round().astype(np.uint8)


def _find_coverage(shape: Shape, size: int) -> tuple[tuple[slice, slice], np.ndarray]:
    """The box around a shape (rows, columns), and the share of each pixel in it that the shape covers, 0 to 1."""
    sides = [
        slice(max(0, math.floor(middle - shape.radius)), min(size, math.ceil(middle + shape.radius)))
        for middle in (shape.y, shape.x)
    ]
    rows, columns = ((np.arange(side.start * FINE, side.stop * FINE) + 0.5) / FINE for side in sides)
    across, down = (columns - shape.x) / shape.radius, (rows[:, None] - shape.y) / shape.radius  # −1 to 1 inside
    if shape.kind == "circle":
        inside = across**2 + down**2 <= 1
    elif shape.kind == "square":
        inside = np.maximum(abs(across), abs(down)) <= 0.9
    else:
        inside = (abs(across) <= (down + 1) / 2) & (down <= 1)
    share: np.ndarray = inside.reshape(len(rows) // FINE, FINE, len(columns) // FINE, FINE).mean((1, 3))
    return (sides[0], sides[1]), share
