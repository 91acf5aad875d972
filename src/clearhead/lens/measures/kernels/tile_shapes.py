"""Tile shapes per pass and head width, tuned with `benchmarks/lens_speed.py --tune`."""

from __future__ import annotations

import functools
from typing import NamedTuple


class TileShape(NamedTuple):
    """A tile shape with its number of warps and pipeline stages.

    A register limit lets more tiles run at once, so that products of one overlap with exponentials of another.
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
    """The tile shapes of all kernels."""

    rows: TileShape
    columns: TileShape
    candidates: TileShape  # of the column pass, if it collects candidates for the top keys
    selection: TileShape  # its tiles have no keys
    selection_from_all: TileShape


def _use_for_all_passes(shape: TileShape, selection: TileShape, selection_from_all: TileShape) -> TileShapes:
    return TileShapes(shape, shape, shape, selection, selection_from_all)


# By the bytes of a row of q and k, rounded up: the first that is wide enough.
HALF: dict[int, TileShapes] = {
    128: _use_for_all_passes(TileShape(128, 128, 8, 3, 128), TileShape(8, 0, 1, 1), TileShape(64, 64, 4, 1)),
    256: TileShapes(
        rows=TileShape(128, 128, 4, 2),
        columns=TileShape(64, 128, 4, 2, 128),
        candidates=TileShape(64, 128, 4, 2, 128),
        selection=TileShape(8, 0, 1, 1),
        selection_from_all=TileShape(16, 256, 4, 2),
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
    """The tile shapes for heads of this width (a power of two), no larger than the job.

    `wide` keys make a pixel of the map: if that is few, and no power of two, tiles are narrow. Scores that are not
    `plain` products need more registers, so there is no limit for them.
    """
    table = FULL if itemsize == 4 else HALF
    tuned = next(shapes for limit, shapes in table.items() if width * itemsize <= limit)
    narrow = 32 if wide < 8 and wide & (wide - 1) else 128 if top else 256  # candidates take a bit for every eighth key

    def fitting(shape: TileShape) -> TileShape:
        queries = min(shape.queries, max(16, next_power_of_two(rows)))
        columns = min(shape.keys, max(count_classes(top), next_power_of_two(keys)), narrow)
        return TileShape(queries, columns, shape.warps, shape.stages, shape.registers if plain else None)

    rows_shape, columns, candidates = map(fitting, tuned[:3])
    return TileShapes(rows_shape, columns, candidates, tuned.selection, tuned.selection_from_all)


def count_classes(top: int) -> int:
    """How many classes of keys there are (key modulo this number); the row pass keeps the best score of each."""
    return 32 if top else 16


def count_slots(top: int) -> int:
    """The number of 32-bit words for the candidates of a query: more than it usually needs."""
    return 32 if top <= 8 else 64


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is at least n: 8 for 5 and for 8."""
    return 1 << max(n - 1, 0).bit_length()
