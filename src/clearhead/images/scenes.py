"""Scenes: small pictures of coloured shapes with captions, made by a program, to learn and to test with.

A caption names the shapes from the top left to the bottom right, each with where it is to the next one: "a red circle
left of a blue square above a green triangle". Where every shape is drawn is known, so it can be checked where a model
looks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, UInt8

from clearhead.errors import ConfigError

SIZE = 64  # pixels of a side
LARGEST = 0.1  # of the picture's area that a shape may cover
COLOURS = {
    "red": (214, 39, 40),
    "green": (44, 140, 44),
    "blue": (31, 90, 200),
    "yellow": (240, 200, 20),
    "purple": (130, 60, 160),
    "black": (20, 20, 20),
}
KINDS = ("circle", "square", "triangle", "cross")
PAIR_COLOURS, PAIR_KINDS = ("red", "green", "blue", "yellow"), ("circle", "square", "triangle")
PARTS = {"train": 0, "dev": 1, "test": 2}
GAP = 3  # pixels at least between two shapes, and by which one is clearly left of or above another
TRIES = 32  # places that are drawn at once
FINE = 4  # samples of a pixel's side: edges are smooth


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

    def covered(self, shape: int, rows: int, columns: int) -> Bool[np.ndarray, "rows columns"]:
        """The cells of a grid over the picture that a shape is in, if only with a part of a pixel."""
        box, share = _coverage(self.shapes[shape], len(self.pixels))
        drawn = np.zeros(self.pixels.shape[:2], dtype=bool)
        drawn[box] = share > 0
        cells: np.ndarray = drawn.reshape(rows, len(drawn) // rows, columns, len(drawn) // columns)
        return np.asarray(cells.any((1, 3)))


def make_scenes(part: str, count: int, *, fewest: int = 2, most: int = 4, size: int = SIZE) -> Iterator[Scene]:
    """Scenes of a part ("train", "dev", "test"): the same ones each time, others in each part.

    >>> scene = next(make_scenes("train", 1))
    >>> scene.pixels.shape, scene.text
    ((64, 64, 3), 'a purple circle above a yellow cross left of a black square above a black circle')
    """
    check_part(part)
    if not 1 <= fewest <= most <= 4:
        raise ConfigError(f"scenes have 1 to 4 shapes, got {fewest} to {most}")
    for number in range(count):
        chance = np.random.default_rng([PARTS[part], number, fewest, most, size])
        shapes = _place_shapes(chance, int(chance.integers(fewest, most + 1)), size)
        yield Scene(_draw(shapes, size), describe_shapes(shapes), shapes)


def make_pairs(part: str, count: int, *, size: int = SIZE) -> Iterator[Scene]:
    """Scenes of two large shapes beside or above each other, of few colours and kinds: soon learned.

    >>> next(make_pairs("train", 1)).text
    'a blue triangle above a yellow square'
    """
    check_part(part)
    for number in range(count):
        chance = np.random.default_rng([PARTS[part], number, size])
        looks = chance.permutation(len(PAIR_COLOURS) * len(PAIR_KINDS))[:2]
        radius = (LARGEST**0.5) * size / 2 * chance.uniform(0.9, 0.98, 2)
        half, edge = size / 2, radius + 1
        along = chance.uniform(edge, half - edge) + np.array([0, half])  # one in each half
        across = half + chance.uniform(-4, 4) + chance.uniform(-3, 3, 2)
        x, y = (along, across) if chance.integers(2) else (across, along)
        names = [(PAIR_COLOURS[look % len(PAIR_COLOURS)], PAIR_KINDS[look // len(PAIR_COLOURS)]) for look in looks]
        rows = zip(names, x.tolist(), y.tolist(), radius.tolist(), strict=True)
        shapes = tuple(Shape(colour, kind, *place) for (colour, kind), *place in rows)
        yield Scene(_draw(shapes, size), describe_shapes(shapes), shapes)


def describe_shapes(shapes: tuple[Shape, ...]) -> str:
    """The caption of shapes in this order.

    >>> describe_shapes((Shape("red", "circle", 9, 9, 5), Shape("blue", "square", 12, 30, 5)))
    'a red circle above a blue square'
    """
    words = [shapes[0].text]
    for one, other in pairwise(shapes):
        words += ["left of" if other.x - one.x > other.y - one.y else "above", other.text]
    return " ".join(words)


def check_part(part: str) -> None:
    """Refuses a part that there is not."""
    if part not in PARTS:
        raise ConfigError(f"scenes are of {', '.join(PARTS)}, got {part!r}")


def _place_shapes(chance: np.random.Generator, count: int, size: int) -> tuple[Shape, ...]:
    """Shapes that do not touch, in the order of their caption; places are drawn until one of TRIES fits."""
    largest = (LARGEST**0.5) * size / 2
    looks = chance.permutation(len(COLOURS) * len(KINDS))[:count]  # no two of the same colour and kind
    radius = chance.uniform(0.75, 0.98, count) * largest
    while True:
        places = chance.uniform(radius[:, None] + 1, size - radius[:, None] - 1, (TRIES, count, 2))
        order = places.sum(2).argsort(1)
        places, radii = np.take_along_axis(places, order[:, :, None], 1), radius[order]
        fitting = np.flatnonzero(_are_apart(places, radii) & _are_ordered(places))
        if len(fitting):
            first = fitting[0]
            named = [(list(COLOURS)[look % len(COLOURS)], KINDS[look // len(COLOURS)]) for look in looks[order[first]]]
            rows = zip(named, places[first].tolist(), radii[first].tolist(), strict=True)
            return tuple(Shape(colour, kind, x, y, size) for (colour, kind), (x, y), size in rows)


def _are_apart(places: np.ndarray, radii: np.ndarray) -> np.ndarray:
    """Of each try, whether no shape touches another."""
    apart = abs(places[:, :, None] - places[:, None]).max(3) - radii[:, :, None] - radii[:, None]
    return np.asarray((apart + 1e9 * np.eye(radii.shape[1]) > GAP).all((1, 2)))


def _are_ordered(places: np.ndarray) -> np.ndarray:
    """Of each try, whether the order of the shapes, and where each is to the next one, is clear to see."""
    across, down = np.moveaxis(np.diff(places, axis=1), 2, 0)
    return np.asarray(((across + down > 2 * GAP) & (abs(across - down) > 2 * GAP)).all(1))


def _draw(shapes: tuple[Shape, ...], size: int) -> UInt8[np.ndarray, "height width 3"]:
    canvas = np.full((size, size, 3), 255.0)
    for shape in shapes:
        box, share = _coverage(shape, size)
        canvas[box] += share[:, :, None] * (np.array(COLOURS[shape.colour]) - canvas[box])
    return canvas.round().astype(np.uint8)


def _coverage(shape: Shape, size: int) -> tuple[tuple[slice, slice], np.ndarray]:
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
    elif shape.kind == "triangle":
        inside = (abs(across) <= (down + 1) / 2) & (down <= 1)
    else:
        inside = (np.minimum(abs(across), abs(down)) <= 0.35) & (np.maximum(abs(across), abs(down)) <= 1)
    share: np.ndarray = inside.reshape(len(rows) // FINE, FINE, len(columns) // FINE, FINE).mean((1, 3))
    return (sides[0], sides[1]), share
