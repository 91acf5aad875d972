"""Device functions shared by the Triton kernels: load a tile, score it, mask it, add it to the map.

Scores are kept as x = score · log2(e), so that a weight is 2^(x − logsumexp), one multiply-add away from q·k.
Hidden scores are HIDDEN, which is finite, so that 0 times it is 0. For the map, weights are summed by pixel columns
and by chunks of CHUNK rows, each of which lies in one row of pixels or in two (PARTS).
"""

from typing import no_type_check

import triton
import triton.language as tl

HIDDEN = tl.constexpr(-1e30)
NOTHING = tl.constexpr(-1e29)  # scores below this are hidden, also after subtracting a logsumexp
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
FAR = tl.constexpr(2**30)
# Integers that differ from input to input: not specialised, or Triton would recompile for 1 and multiples of 16.
NUMBERS = [
    *("heads", "group", "queries", "keys", "rows", "start", "step", "offset"),
    *("runs_sample", "runs_head", "others_sample", "others_head", "others_tile"),
    *("cells_sample", "high", "wide", "columns", "cap"),
]


@triton.jit
@no_type_check
def load_tile(
    source, offsets, b, h, first, size, ROWS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, TMA: tl.constexpr
):
    """Some rows of one head, (ROWS, WIDTH), with zeros beyond its width.

    `source` is a descriptor, and `offsets` are rows and columns per sample and head; or it is a pointer, and
    `offsets` are its strides.
    """
    if TMA:
        tile = source.load([b * offsets[0] + h * offsets[1] + first, h * offsets[2]])
    else:
        rows, columns = first + tl.arange(0, ROWS), tl.arange(0, WIDTH)
        start = source + b.to(tl.int64) * offsets[0] + h.to(tl.int64) * offsets[1]
        inside = (rows < size)[:, None] & (columns < D)[None, :]
        cells = rows.to(tl.int64)[:, None] * offsets[2] + columns[None, :] * offsets[3]
        tile = tl.load(start + cells, mask=inside, other=0.0)
    return tile


@triton.jit
@no_type_check
def multiply_tiles(q, k, PRECISION: tl.constexpr, CAST: tl.constexpr):
    """q·kᵀ in float32. Triton's interpreter cannot multiply bfloat16: there it is cast."""
    if CAST:
        product = tl.dot(q.to(tl.float32), tl.trans(k.to(tl.float32)), input_precision="ieee")
    else:
        product = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    return product


@triton.jit
@no_type_check
def scale_product(product, scale, cap, CAP: tl.constexpr):
    """The capped score of a product, in units of ln 2, which `scale` and `cap` include."""
    x = product * scale
    if CAP:
        size = tl.abs(x)
        square = x * x
        # tanh: by its series where the quotient would lose digits
        series = 1 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835))))
        power = tl.exp2(-2.8853900817779268 * size)
        squashed = tl.where(size < 0.25, size * series, (1 - power) / (1 + power))
        x = cap * tl.where(x < 0, -squashed, squashed)
    return x


@triton.jit
@no_type_check
def add_bias(x, bias, b, h, i, j, queries, keys, BIAS: tl.constexpr):
    """The scores plus a bias, by distance from a vector (1) or from a tensor (2); a bias of −inf hides."""
    if BIAS > 0:
        row, column = tl.minimum(i, queries - 1), tl.minimum(j, keys - 1)
        start = bias[0] + b.to(tl.int64) * bias[1] + h.to(tl.int64) * bias[2]
        if BIAS == 1:
            number = tl.load(start + (column - row + queries - 1))
        else:
            number = tl.load(start + row.to(tl.int64) * bias[3] + column.to(tl.int64) * bias[4])
        number = number.to(tl.float32)
        x = tl.where(number > float("-inf"), x + number * LOG2E, HIDDEN)
    return x


@triton.jit
@no_type_check
def is_visible(
    mask, b, h, i, j, queries, keys,
    TERMS: tl.constexpr, BOUNDS: tl.constexpr, DOCUMENTS: tl.constexpr, DENSE: tl.constexpr,
):  # fmt: skip
    """Whether query `i` may see key `j`, for indices that broadcast.

    One of TERMS terms must hold. A term holds if all its conditions do: bounds of j − i, j and i whose bits are set in
    BOUNDS, equal document ids if its bit is set in DOCUMENTS, and a boolean if it is set in DENSE.
    """
    inside = (j < keys) & (i >= 0)
    if TERMS > 0:
        row, column = tl.minimum(i, queries - 1), tl.minimum(j, keys - 1)
        seen = (i < 0) & (j < 0)
        for term in tl.static_range(TERMS):
            bound = mask[0] + b * mask[1] + term * 6
            holds = inside
            if (BOUNDS >> term * 6) & 1:
                holds = holds & (j - i >= tl.load(bound))
            if (BOUNDS >> term * 6 + 1) & 1:
                holds = holds & (j - i <= tl.load(bound + 1))
            if (BOUNDS >> term * 6 + 2) & 1:
                holds = holds & (j >= tl.load(bound + 2))
            if (BOUNDS >> term * 6 + 3) & 1:
                holds = holds & (j < tl.load(bound + 3))
            if (BOUNDS >> term * 6 + 4) & 1:
                holds = holds & (i >= tl.load(bound + 4))
            if (BOUNDS >> term * 6 + 5) & 1:
                holds = holds & (i < tl.load(bound + 5))
            if (DOCUMENTS >> term) & 1:
                of_query, of_key = tl.load(mask[2] + b * mask[3] + row), tl.load(mask[4] + b * mask[5] + column)
                holds = holds & (of_query == of_key)
            if (DENSE >> term) & 1:
                start = mask[6] + b.to(tl.int64) * mask[7] + h.to(tl.int64) * mask[8]
                holds = holds & (tl.load(start + row.to(tl.int64) * mask[9] + column.to(tl.int64) * mask[10]) != 0)
            seen = seen | holds
        inside = seen
    return inside


@triton.jit
@no_type_check
def add_to_map(
    weights, cells, high, wide, columns, first_row, first_key, rows,
    BM: tl.constexpr, BN: tl.constexpr, EVEN: tl.constexpr, TOUCHED: tl.constexpr, CHUNK: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """Adds the weights of a tile, (BM, BN / 8, 8), to the cells of its sample and head.

    EVEN: the tile is exactly TOUCHED pixels wide, or lies within one. Otherwise it overlaps up to TOUCHED pixels.
    """
    first = first_key // wide
    if EVEN:
        if TOUCHED * 8 <= BN:
            parts = tl.sum(tl.sum(tl.reshape(weights, [BM, TOUCHED, BN // 8 // TOUCHED, 8]), 2), 2)
        else:
            parts = tl.sum(tl.reshape(weights, [BM, TOUCHED, BN // TOUCHED]), 2)
        add_pixels(
            parts, cells, first + tl.arange(0, TOUCHED), high, columns, first_row, rows, BM, TOUCHED, CHUNK, PARTS
        )
    else:
        key = first_key + tl.arange(0, BN // 8)[None, :, None] * 8 + tl.arange(0, 8)[None, None, :]
        if (first_key + BN - 1) // wide == first:
            part = tl.sum(tl.sum(weights, 1), 1)[:, None]
            add_pixels(part, cells, first + tl.arange(0, 1), high, columns, first_row, rows, BM, 1, CHUNK, PARTS)
        else:
            for pixel in tl.static_range(TOUCHED):
                inside = (key >= (first + pixel) * wide) & (key < (first + pixel + 1) * wide)
                part = tl.sum(tl.sum(tl.where(inside, weights, 0.0), 1), 1)[:, None]
                add_pixels(
                    part, cells, first + pixel + tl.arange(0, 1), high, columns, first_row, rows, BM, 1, CHUNK, PARTS
                )


@triton.jit
@no_type_check
def add_pixels(
    parts, cells, column, high, columns, first_row, rows,
    BM: tl.constexpr, WIDE: tl.constexpr, CHUNK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Adds sums of each row, (BM, WIDE), to the cells of their chunks."""
    row = first_row + tl.arange(0, BM)
    chunk = first_row + tl.arange(0, BM // CHUNK) * CHUNK
    for part in tl.static_range(PARTS):
        sums = parts
        if PARTS > 1:
            line_in_chunk = row // high - (row - row % CHUNK) // high
            sums = tl.where((line_in_chunk == part)[:, None], parts, 0.0)
        if CHUNK > 1:
            sums = tl.sum(tl.reshape(sums, [BM // CHUNK, CHUNK, WIDE]), 1)
        line = chunk // high + part
        inside = (line * high < rows)[:, None] & (column < columns)[None, :]
        tl.atomic_add(cells + line[:, None] * columns + column[None, :], sums, mask=inside, sem="relaxed")
