"""Reductions over one tile of scores for `hopper_row_pass`: measures per query, the map, and `received`."""

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from clearhead.lens.measures.kernels.tile_shapes import READER_ROWS

BM = gl.constexpr(READER_ROWS)
WARPS = gl.constexpr(4)  # a warpgroup: so many read


@gluon.jit
@no_type_check
def accumulate_tile(
    x,
    n,
    side,
    spread,
    away,
    best,
    where,
    position,
    received,
    cells,
    high,
    wide,
    columns,
    first_row,
    rows,
    keys,
    BN: gl.constexpr,
    TOP: gl.constexpr,
    CLASSES: gl.constexpr,
    RECEIVED: gl.constexpr,
    MAP: gl.constexpr,
    EVEN: gl.constexpr,
    TOUCHED: gl.constexpr,
    CHUNK: gl.constexpr,
    PARTS: gl.constexpr,
    SURE: gl.constexpr,
):
    """As `rows.taken`, with a logsumexp that is given, and with the map and what keys receive."""
    pieces: gl.constexpr = BN // 8
    x = gl.reshape(x, [BM, pieces, 8])
    cube: gl.constexpr = x.type.layout
    eighths: gl.constexpr = gl.SliceLayout(1, cube)
    # Of numbers below zero, the greatest has the smallest bits, and bits are compared three at a time. Above zero, by
    # rounding, there is at most one in a row: no two weights are both 1.
    bits = x.to(gl.uint32, bitcast=True)
    most = gl.min(gl.reshape(bits, [BM, BN // CLASSES, CLASSES // 8, 8]), 1)
    if TOP == 0:
        better = most < best
        if RECEIVED or not SURE:  # tiles come in another order than keys do
            better = better | ((most == best) & (n < where))
        where = gl.where(better, n, where)
    best = gl.minimum(best, most)
    weights = gl.exp2(x)
    spread += gl.sum(weights * x, 1)
    position = gl.convert_layout(position, gl.SliceLayout(1, eighths), assert_trivial=True)
    middle = (position - n * BN).to(gl.float32) - (BN - 1) / 2
    column = gl.arange(0, 8, layout=gl.SliceLayout(0, eighths)).to(gl.float32)[None, :] - 3.5
    piece = gl.arange(0, pieces, layout=gl.SliceLayout(0, gl.SliceLayout(2, cube))).to(gl.float32) * 8 - (BN // 2 - 4)
    if MAP and EVEN and TOUCHED * 8 <= BN:
        pixels = gl.sum(gl.reshape(weights, [BM, TOUCHED, pieces // TOUCHED, 8]), 2)
        sums = gl.convert_layout(gl.sum(pixels, 1), eighths, assert_trivial=True)
    else:
        sums = gl.sum(weights, 1)
    if SURE:
        along = gl.sum(weights * piece[None, :, None], 1)
        away += side * (sums * (middle[:, None] - column) - along)
    else:
        apart = (middle[:, None] - column)[:, None, :] - piece[None, :, None]
        away += gl.sum(weights * gl.abs(apart), 1)
    if MAP:
        first = n * TOUCHED if EVEN and TOUCHED > 1 else n * BN // wide
        if EVEN and TOUCHED * 8 <= BN:
            add_pixels(gl.sum(pixels, 2), cells, first, high, columns, first_row, rows, TOUCHED, CHUNK, PARTS)
        elif EVEN:
            pixels = gl.sum(gl.reshape(weights, [BM, TOUCHED, BN // TOUCHED]), 2)
            add_pixels(pixels, cells, first, high, columns, first_row, rows, TOUCHED, CHUNK, PARTS)
        elif (n * BN + BN - 1) // wide == first:
            add_pixels(
                gl.sum(gl.expand_dims(sums, 1), 2), cells, first, high, columns, first_row, rows, 1, CHUNK, PARTS
            )
        else:
            key = n * BN + gl.arange(0, pieces, layout=gl.SliceLayout(0, gl.SliceLayout(2, cube)))[None, :, None] * 8
            key = key + gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, cube)))[None, None, :]
            for pixel in range(first, (n * BN + BN - 1) // wide + 1):
                inside = (key >= pixel * wide) & (key < (pixel + 1) * wide)
                some = gl.sum(gl.where(inside, weights, 0.0), 1)
                some = gl.sum(gl.expand_dims(some, 1), 2)
                add_pixels(some, cells, pixel, high, columns, first_row, rows, 1, CHUNK, PARTS)
    if RECEIVED:
        parts = gl.sum(gl.sum(gl.reshape(weights, [BM // WARPS // 16, WARPS, 2, 8, BN]), 2), 0)
        parts = exchange_halves(exchange_halves(exchange_halves(parts, 4, BN), 2, BN // 2), 1, BN // 4)
        shape: gl.constexpr = parts.type.layout  # row r has the keys from r · BN / 8 on
        j = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, shape)))[None, :, None] * (BN // 8)
        j = j + gl.arange(0, BN // 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, shape)))[None, None, :]
        j = gl.zeros([WARPS, 8, BN // 8], gl.int32, layout=shape) + n * BN + j
        if SURE:
            gl.atomic_add(received + j, parts, sem="relaxed")
        else:
            gl.atomic_add(received + j, parts, mask=j < keys, sem="relaxed")
    return spread, away, best, where


@gluon.jit
@no_type_check
def exchange_halves(parts, STEP: gl.constexpr, WIDE: gl.constexpr):
    """Rows r and r ^ STEP share their work: the one gets the sum of their left halves, the other of their right ones.

    Eight rows, (WARPS, 8, WIDE), lie in eight threads. To sum them up for each column would take three exchanges a
    column; with half of what is left given away, three times, it takes less than one.
    """
    left, right = gl.split(gl.permute(gl.reshape(parts, [WARPS, 8, 2, WIDE // 2]), [0, 1, 3, 2]))
    row = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, left.type.layout)))[None, :, None]
    lower = (row & STEP) == 0
    leaving = gl.where(lower, right, left)
    if STEP == 4:
        coming = gl.inline_asm_elementwise(
            "shfl.sync.bfly.b32 $0, $1, 16, 31, -1;", "=f,f", [leaving], dtype=gl.float32, is_pure=False, pack=1
        )
    elif STEP == 2:
        coming = gl.inline_asm_elementwise(
            "shfl.sync.bfly.b32 $0, $1, 8, 31, -1;", "=f,f", [leaving], dtype=gl.float32, is_pure=False, pack=1
        )
    else:
        coming = gl.inline_asm_elementwise(
            "shfl.sync.bfly.b32 $0, $1, 4, 31, -1;", "=f,f", [leaving], dtype=gl.float32, is_pure=False, pack=1
        )
    return gl.where(lower, left, right) + coming


@gluon.jit
@no_type_check
def add_pixels(
    pixels,
    cells,
    first,
    high,
    columns,
    first_row,
    rows,
    WIDE: gl.constexpr,
    CHUNK: gl.constexpr,
    PARTS: gl.constexpr,
):
    """As `pooling.add`: sums of each row, (BM, WIDE), to the cells of their chunks."""
    row = first_row + gl.arange(0, BM, layout=gl.SliceLayout(1, pixels.type.layout))
    for part in gl.static_range(PARTS):
        some = pixels
        if PARTS > 1:
            own = row // high - (row - row % CHUNK) // high
            some = gl.where((own == part)[:, None], pixels, 0.0)
        if CHUNK > 1:
            some = gl.sum(gl.reshape(some, [BM // CHUNK, CHUNK, WIDE]), 1)
        chunk = first_row + gl.arange(0, BM // CHUNK, layout=gl.SliceLayout(1, some.type.layout)) * CHUNK
        line = chunk // high + part
        column = first + gl.arange(0, WIDE, layout=gl.SliceLayout(0, some.type.layout))
        inside = (line * high < rows)[:, None] & (column < columns)[None, :]
        gl.atomic_add(cells + line[:, None] * columns + column[None, :], some, mask=inside, sem="relaxed")
