"""The map's share of a tile: its weights, summed by pixel columns and by short chunks of rows.

A chunk is CHUNK rows that lie in one row of pixels, or in two (PARTS), so that none has to begin where a tile does.
"""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def pool(
    weights,
    cells,
    high,
    wide,
    columns,
    first_row,
    first_key,
    rows,
    BM: tl.constexpr,
    BN: tl.constexpr,
    EVEN: tl.constexpr,
    TOUCHED: tl.constexpr,
    CHUNK: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Adds the weights of a tile, (BM, BN / 8, 8), to the cells of its sample and head.

    EVEN: TOUCHED pixels make up the tile exactly, or the tile is a piece of one. Otherwise the tile touches up to
    TOUCHED of them.
    """
    first = first_key // wide
    if EVEN:
        if TOUCHED * 8 <= BN:
            parts = tl.sum(tl.sum(tl.reshape(weights, [BM, TOUCHED, BN // 8 // TOUCHED, 8]), 2), 2)
        else:
            parts = tl.sum(tl.reshape(weights, [BM, TOUCHED, BN // TOUCHED]), 2)
        add(parts, cells, first + tl.arange(0, TOUCHED), high, columns, first_row, rows, BM, TOUCHED, CHUNK, PARTS)
    else:
        key = first_key + tl.arange(0, BN // 8)[None, :, None] * 8 + tl.arange(0, 8)[None, None, :]
        if (first_key + BN - 1) // wide == first:
            part = tl.sum(tl.sum(weights, 1), 1)[:, None]
            add(part, cells, first + tl.arange(0, 1), high, columns, first_row, rows, BM, 1, CHUNK, PARTS)
        else:
            for pixel in tl.static_range(TOUCHED):
                inside = (key >= (first + pixel) * wide) & (key < (first + pixel + 1) * wide)
                part = tl.sum(tl.sum(tl.where(inside, weights, 0.0), 1), 1)[:, None]
                add(part, cells, first + pixel + tl.arange(0, 1), high, columns, first_row, rows, BM, 1, CHUNK, PARTS)


@triton.jit
@no_type_check
def add(
    parts,
    cells,
    column,
    high,
    columns,
    first_row,
    rows,
    BM: tl.constexpr,
    WIDE: tl.constexpr,
    CHUNK: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Sums of each row, (BM, WIDE), to the cells of their chunks."""
    row = first_row + tl.arange(0, BM)
    chunk = first_row + tl.arange(0, BM // CHUNK) * CHUNK
    for part in tl.static_range(PARTS):
        some = parts
        if PARTS > 1:
            own = row // high - (row - row % CHUNK) // high
            some = tl.where((own == part)[:, None], parts, 0.0)
        if CHUNK > 1:
            some = tl.sum(tl.reshape(some, [BM // CHUNK, CHUNK, WIDE]), 1)
        line = chunk // high + part
        inside = (line * high < rows)[:, None] & (column < columns)[None, :]
        tl.atomic_add(cells + line[:, None] * columns + column[None, :], some, mask=inside, sem="relaxed")
