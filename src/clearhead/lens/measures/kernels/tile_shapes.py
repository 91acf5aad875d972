"""Tile shapes per pass and head width, tuned with `benchmarks/lens_speed.py --tune`."""

from __future__ import annotations

import functools
from typing import NamedTuple


class TileShape(NamedTuple):
    """A tile shape with its number of warps and pipeline stages.

    A limit of registers lets more tiles run at once, whose multiplying and exponentiating overlap.
    """

    queries: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None

    @property
    def options(self) -> dict[str, int]:
        """Launch options for Triton."""
        limit = {} if self.registers is None else {"maxnreg": self.registers}
        return {"num_warps": self.warps, "num_stages": self.stages} | limit


class TileShapes(NamedTuple):
    """The tile shapes of all passes; `pick` has no keys."""

    rows: TileShape
    columns: TileShape
    collecting: TileShape  # along columns, if candidates for the top keys are found on the way
    pick: TileShape
    every: TileShape  # for the few rows whose best keys are picked from all
    swift: TileShape | None = (
        None  # along rows, by the kernel for Hopper: the warps are those of a reader of 64 queries
    )
    receiving: TileShape | None = None  # the same, if what keys receive is summed up on the way


def _use_for_all_passes(shape: TileShape, pick: TileShape, every: TileShape, *swift: TileShape) -> TileShapes:
    return TileShapes(shape, shape, shape, pick, every, *swift)


READER_ROWS = 64  # queries of a reader of the kernel for Hopper
SWIFT = TileShape(3 * READER_ROWS, 128, 4, 3, 160), TileShape(2 * READER_ROWS, 128, 4, 4, 232)


# By the bytes of a row of q and k, rounded up: the first that is wide enough.
HALF: dict[int, TileShapes] = {
    64: _use_for_all_passes(TileShape(128, 128, 8, 3, 128), TileShape(8, 0, 1, 1), TileShape(64, 64, 4, 1)),
    128: _use_for_all_passes(TileShape(128, 128, 8, 3, 128), TileShape(8, 0, 1, 1), TileShape(64, 64, 4, 1), *SWIFT),
    256: TileShapes(
        rows=TileShape(128, 128, 4, 2),
        columns=TileShape(64, 128, 4, 2, 128),
        collecting=TileShape(64, 128, 4, 2, 128),
        pick=TileShape(8, 0, 1, 1),
        every=TileShape(16, 256, 4, 2),
        swift=SWIFT[0],
        receiving=SWIFT[1],
    ),
    512: _use_for_all_passes(TileShape(64, 64, 4, 2), TileShape(4, 0, 1, 1), TileShape(32, 32, 4, 1)),
}
FULL: dict[int, TileShapes] = {
    256: _use_for_all_passes(TileShape(64, 64, 4, 2), TileShape(8, 0, 1, 1), TileShape(32, 64, 4, 1)),
    512: _use_for_all_passes(TileShape(64, 64, 4, 2), TileShape(4, 0, 1, 1), TileShape(32, 32, 4, 1)),
    1024: _use_for_all_passes(TileShape(64, 32, 4, 1), TileShape(2, 0, 1, 1), TileShape(16, 32, 4, 1)),
}


@functools.lru_cache(maxsize=64)
def choose_shapes(
    width: int, itemsize: int, rows: int, keys: int, wide: int, top: int, plain: bool = True
) -> TileShapes:
    """The tiles for heads of this width (a power of two), no larger than there is to do.

    `wide` keys make a pixel of the map: where that is few, and not a power of two, tiles are narrow. Where scores
    are not `plain` products, there is more to hold, and no limit of registers.
    """
    table = FULL if itemsize == 4 else HALF
    found = next(shapes for limit, shapes in table.items() if width * itemsize <= limit)
    narrow = 32 if wide < 8 and wide & (wide - 1) else 128 if top else 256  # candidates take a bit for every eighth key

    def fitting(shape: TileShape) -> TileShape:
        queries = min(shape.queries, max(16, next_power_of_two(rows)))
        columns = min(shape.keys, max(count_classes(top), next_power_of_two(keys)), narrow)
        return TileShape(queries, columns, shape.warps, shape.stages, shape.registers if plain else None)

    own, other, collecting = (fitting(shape) for shape in found[:3])
    enough = rows > 2 * READER_ROWS and keys > 64 and narrow >= 128  # to fill its tiles more or less
    swift = found[5:] if plain and enough else ()
    return TileShapes(own, other, collecting, found.pick, found.every, *swift)


def count_classes(top: int) -> int:
    """Into how many classes keys fall, of each of which the best score is kept: some more than keys are asked for."""
    return 32 if top else 16


def count_slots(top: int) -> int:
    """How many words of candidates a query may have: some more than it usually has."""
    return 32 if top <= 8 else 64


def next_power_of_two(n: int) -> int:
    """The next power of two.

    >>> next_power_of_two(5), next_power_of_two(8)
    (8, 8)
    """
    return 1 << max(n - 1, 0).bit_length()
