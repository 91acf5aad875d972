"""The shapes of the tiles, one table for each pass: what there is to tune, with `benchmarks/lens_speed.py --tune`."""

from __future__ import annotations

import functools
from typing import NamedTuple


class Shape(NamedTuple):
    """A tile of so many queries and keys, by so many warps, with so many tiles on their way.

    A limit of registers lets more tiles run at once, whose multiplying and exponentiating overlap.
    """

    queries: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None

    @property
    def options(self) -> dict[str, int]:
        """What Triton is told."""
        limit = {} if self.registers is None else {"maxnreg": self.registers}
        return {"num_warps": self.warps, "num_stages": self.stages} | limit


class Shapes(NamedTuple):
    """The tiles of each pass; `pick` has no keys."""

    rows: Shape
    columns: Shape
    collecting: Shape  # along columns, if candidates for the top keys are found on the way
    pick: Shape
    every: Shape  # for the few rows whose best keys are picked from all
    swift: Shape | None = None  # along rows, by the kernel for Hopper: the warps are those of a reader of 64 queries
    receiving: Shape | None = None  # the same, if what keys receive is summed up on the way


def _alike(shape: Shape, pick: Shape, every: Shape, *swift: Shape) -> Shapes:
    return Shapes(shape, shape, shape, pick, every, *swift)


READS = 64  # queries of a reader of the kernel for Hopper
SWIFT = Shape(3 * READS, 128, 4, 3, 160), Shape(2 * READS, 128, 4, 4, 232)


# By the bytes of a row of q and k, rounded up: the first that is wide enough.
HALF: dict[int, Shapes] = {
    64: _alike(Shape(128, 128, 8, 3, 128), Shape(8, 0, 1, 1), Shape(64, 64, 4, 1)),
    128: _alike(Shape(128, 128, 8, 3, 128), Shape(8, 0, 1, 1), Shape(64, 64, 4, 1), *SWIFT),
    256: Shapes(
        rows=Shape(128, 128, 4, 2),
        columns=Shape(64, 128, 4, 2, 128),
        collecting=Shape(64, 128, 4, 2, 128),
        pick=Shape(8, 0, 1, 1),
        every=Shape(16, 256, 4, 2),
        swift=SWIFT[0],
        receiving=SWIFT[1],
    ),
    512: _alike(Shape(64, 64, 4, 2), Shape(4, 0, 1, 1), Shape(32, 32, 4, 1)),
}
FULL: dict[int, Shapes] = {
    256: _alike(Shape(64, 64, 4, 2), Shape(8, 0, 1, 1), Shape(32, 64, 4, 1)),
    512: _alike(Shape(64, 64, 4, 2), Shape(4, 0, 1, 1), Shape(32, 32, 4, 1)),
    1024: _alike(Shape(64, 32, 4, 1), Shape(2, 0, 1, 1), Shape(16, 32, 4, 1)),
}


@functools.lru_cache(maxsize=64)
def shapes_for(width: int, itemsize: int, rows: int, keys: int, wide: int, top: int, plain: bool = True) -> Shapes:
    """The tiles for heads of this width (a power of two), no larger than there is to do.

    `wide` keys make a pixel of the map: where that is few, and not a power of two, tiles are narrow. Where scores
    are not `plain` products, there is more to hold, and no limit of registers.
    """
    table = FULL if itemsize == 4 else HALF
    found = next(shapes for limit, shapes in table.items() if width * itemsize <= limit)
    narrow = 32 if wide < 8 and wide & (wide - 1) else 128 if top else 256  # candidates take a bit for every eighth key

    def fitting(shape: Shape) -> Shape:
        queries = min(shape.queries, max(16, power(rows)))
        columns = min(shape.keys, max(classes(top), power(keys)), narrow)
        return Shape(queries, columns, shape.warps, shape.stages, shape.registers if plain else None)

    own, other, collecting = (fitting(shape) for shape in found[:3])
    enough = rows > 2 * READS and keys > 64 and narrow >= 128  # to fill its tiles more or less
    swift = found[5:] if plain and enough else ()
    return Shapes(own, other, collecting, found.pick, found.every, *swift)


def classes(top: int) -> int:
    """Into how many classes keys fall, of each of which the best score is kept: some more than keys are asked for."""
    return 32 if top else 16


def slots(top: int) -> int:
    """How many words of candidates a query may have: some more than it usually has."""
    return 32 if top <= 8 else 64


def power(n: int) -> int:
    """The next power of two.

    >>> power(5), power(8)
    (8, 8)
    """
    return 1 << max(n - 1, 0).bit_length()
