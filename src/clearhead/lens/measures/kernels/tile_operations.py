"""What all kernels share: tiles of q and k, scores in units of ln 2, who is visible.

Scores are kept as x = score · log2(e), so that a weight is 2^(x − logsumexp), and one multiply-add away from q·k.
What is hidden has a score of HIDDEN: finite, so that 0 times it is 0.
"""

from typing import no_type_check

import triton
import triton.language as tl

HIDDEN = tl.constexpr(-1e30)
NOTHING = tl.constexpr(-1e29)  # what is below this is hidden, also after a logsumexp was subtracted
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
FAR = tl.constexpr(2**30)
# Numbers that differ from text to text: a kernel is not compiled anew for those that are 1, or multiples of 16.
NUMBERS = [
    *("heads", "group", "queries", "keys", "rows", "start", "step", "offset"),
    *("runs_sample", "runs_head", "others_sample", "others_head", "others_tile"),
    *("cells_sample", "high", "wide", "columns", "cap"),
]


@triton.jit
@no_type_check
def tile_of(
    source, place, b, h, first, size, ROWS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, TMA: tl.constexpr
):
    """Some rows of one head, (ROWS, WIDTH), zeros beyond its width.

    `source` is a descriptor, and `place` says with which of its rows and columns a sample and a head begin; or it
    is a pointer, and `place` holds the strides.
    """
    if TMA:
        tile = source.load([b * place[0] + h * place[1] + first, h * place[2]])
    else:
        rows, columns = first + tl.arange(0, ROWS), tl.arange(0, WIDTH)
        start = source + b.to(tl.int64) * place[0] + h.to(tl.int64) * place[1]
        inside = (rows < size)[:, None] & (columns < D)[None, :]
        cells = rows.to(tl.int64)[:, None] * place[2] + columns[None, :] * place[3]
        tile = tl.load(start + cells, mask=inside, other=0.0)
    return tile


@triton.jit
@no_type_check
def products(q, k, PRECISION: tl.constexpr, CAST: tl.constexpr):
    """q·kᵀ in float32. Triton's interpreter cannot multiply bfloat16: there it is cast."""
    if CAST:
        product = tl.dot(q.to(tl.float32), tl.trans(k.to(tl.float32)), input_precision="ieee")
    else:
        product = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    return product


@triton.jit
@no_type_check
def scored(product, scale, cap, CAP: tl.constexpr):
    """The score of a product, in units of ln 2: `scale` and `cap` come multiplied with what makes it so."""
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
def biased(x, bias, b, h, i, j, queries, keys, BIAS: tl.constexpr):
    """The scores with their bias, of a line of numbers by distance (1) or of a tensor (2); one of −inf hides."""
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
def visible(
    mask,
    b,
    h,
    i,
    j,
    queries,
    keys,
    TERMS: tl.constexpr,
    BOUNDS: tl.constexpr,
    DOCUMENTS: tl.constexpr,
    DENSE: tl.constexpr,
):
    """Whether query `i` may look at key `j`, for any shapes that go together.

    Of TERMS conditions one must hold entirely: those of six bounds, of j − i, of j and of i, whose bits are set in
    BOUNDS; where its bit is set in DOCUMENTS, one document for both; where it is set in DENSE, a boolean.
    """
    inside = (j < keys) & (i >= 0)
    if TERMS > 0:
        row, column = tl.minimum(i, queries - 1), tl.minimum(j, keys - 1)
        seen = (i < 0) & (j < 0)
        for term in tl.static_range(TERMS):
            bound = mask[0] + b * mask[1] + term * 6
            one = inside
            if (BOUNDS >> term * 6) & 1:
                one = one & (j - i >= tl.load(bound))
            if (BOUNDS >> term * 6 + 1) & 1:
                one = one & (j - i <= tl.load(bound + 1))
            if (BOUNDS >> term * 6 + 2) & 1:
                one = one & (j >= tl.load(bound + 2))
            if (BOUNDS >> term * 6 + 3) & 1:
                one = one & (j < tl.load(bound + 3))
            if (BOUNDS >> term * 6 + 4) & 1:
                one = one & (i >= tl.load(bound + 4))
            if (BOUNDS >> term * 6 + 5) & 1:
                one = one & (i < tl.load(bound + 5))
            if (DOCUMENTS >> term) & 1:
                of_query, of_key = tl.load(mask[2] + b * mask[3] + row), tl.load(mask[4] + b * mask[5] + column)
                one = one & (of_query == of_key)
            if (DENSE >> term) & 1:
                start = mask[6] + b.to(tl.int64) * mask[7] + h.to(tl.int64) * mask[8]
                one = one & (tl.load(start + row.to(tl.int64) * mask[9] + column.to(tl.int64) * mask[10]) != 0)
            seen = seen | one
        inside = seen
    return inside
