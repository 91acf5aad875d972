"""Scenes of two to four small shapes, for benchmarks/captioning.py: it measures where a model looks in them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clearhead.images.scenes import (
    COLOURS,
    KINDS,
    LARGEST_SHARE,
    PARTS,
    SIZE,
    Scene,
    Shape,
    describe_shapes,
    draw_shapes,
)

FEWEST, MOST = 2, 4  # shapes of a scene
GAP = 3  # pixels at least between two shapes, and by which one is clearly left of or above another
TRIES = 32  # arrangements that are drawn at once


def make_scenes(part: str, count: int) -> Iterator[Scene]:
    """Scenes of a part ("train", "dev", "test"): the same ones each time, others in each part."""
    for number in range(count):
        chance = np.random.default_rng([PARTS[part], number, FEWEST, MOST, SIZE])
        shapes = _place_shapes(chance, int(chance.integers(FEWEST, MOST + 1)), SIZE)
        yield Scene(draw_shapes(shapes), describe_shapes(shapes), shapes)


def find_covered(scene: Scene, shape: int, rows: int, columns: int) -> np.ndarray:
    """The cells of a grid over the picture that a shape is in, if only with a part of a pixel."""
    drawn = (draw_shapes((scene.shapes[shape],)) != 255).any(2)
    return np.asarray(drawn.reshape(rows, SIZE // rows, columns, SIZE // columns).any((1, 3)))


def _place_shapes(chance: np.random.Generator, count: int, size: int) -> tuple[Shape, ...]:
    """Shapes that do not touch, in the order of their caption; places are drawn until one of TRIES fits."""
    largest = (LARGEST_SHARE**0.5) * size / 2
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
