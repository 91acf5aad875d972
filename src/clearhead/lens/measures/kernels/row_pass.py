"""The pass along rows: each program keeps a tile of queries and loops over keys; measures per query, and the map.

Sums over a tile are kept in eight columns, of every eighth key: in the layout of the tensor cores' results these
are sums within a thread, and threads exchange nothing before the end.
"""

from typing import no_type_check

import triton
import triton.language as tl

from clearhead.lens.measures.kernels.tile_operations import (
    FAR,
    HIDDEN,
    LN2,
    LOG2E,
    NOTHING,
    NUMBERS,
    add_bias,
    add_to_map,
    is_visible,
    load_tile,
    multiply_tiles,
    scale_product,
)


@triton.jit(do_not_specialize=NUMBERS)
@no_type_check
def scan_rows(
    q,
    q_place,
    k,
    k_place,
    mask,
    bias,
    runs,
    runs_sample,
    runs_head,
    others,
    others_sample,
    others_head,
    others_tile,
    scales,
    cap,
    sinks,
    given,
    out,
    cells,
    cells_sample,
    high,
    wide,
    columns,
    heads,
    group,
    queries,
    keys,
    rows,
    start,
    step,
    offset,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    TMA_Q: tl.constexpr,
    TMA_K: tl.constexpr,
    PRECISION: tl.constexpr,
    CAST: tl.constexpr,
    CAP: tl.constexpr,
    BIAS: tl.constexpr,
    TERMS: tl.constexpr,
    BOUNDS: tl.constexpr,
    DOCUMENTS: tl.constexpr,
    DENSE: tl.constexpr,
    SINKS: tl.constexpr,
    GIVEN: tl.constexpr,
    TOP: tl.constexpr,
    CLASSES: tl.constexpr,
    MAP: tl.constexpr,
    EVEN: tl.constexpr,
    TOUCHED: tl.constexpr,
    CHUNK: tl.constexpr,
    PARTS: tl.constexpr,
):
    tiles = tl.cdiv(rows, BM)
    sample, tile = tl.program_id(0) // tiles, tiles - 1 - tl.program_id(0) % tiles  # under a causal mask longest first
    b, h = sample // heads, sample % heads
    row = tile * BM + tl.arange(0, BM)
    i = start + step * row
    position = (i + offset).to(tl.float32)
    inside = row < rows
    at = sample.to(tl.int64) * rows + row
    scale = tl.load(scales + h)
    tile_q = load_tile(q, q_place, b, h, tile * BM, rows, BM, D, WIDTH, TMA_Q)
    if GIVEN:
        logsumexp = tl.load(given + at, mask=inside, other=float("-inf")) * LOG2E
        logsumexp = tl.where(logsumexp <= NOTHING, -HIDDEN, logsumexp)  # what is no number stays none
    else:
        logsumexp = tl.zeros([BM], tl.float32)
    cells += sample.to(tl.int64) * cells_sample
    largest = tl.full([BM, 8], HIDDEN, tl.float32)
    total = tl.zeros([BM, 8], tl.float32)
    spread = tl.zeros([BM, 8], tl.float32)
    away = tl.zeros([BM, 8], tl.float32)
    best = tl.full([BM, CLASSES // 8, 8], -3e38, tl.float32)
    where = tl.zeros([BM, CLASSES // 8, 8], tl.int32)

    run = runs + b * runs_sample + h * runs_head + tile * 5
    first, end, hole, hole_end = tl.load(run), tl.load(run + 1), tl.load(run + 2), tl.load(run + 3)
    beginning = tl.where(first == hole, hole_end, first)
    begins = tl.full([BM], FAR, tl.int32)
    if BIAS == 0:
        begins = tl.where(beginning < end, begins * 0 + beginning * BN, begins)
    # The next product comes last in a turn, and one too many: its keys arrive while this turn's scores are worked on.
    turns = end - first - (hole_end - hole)
    tile_k = load_tile(k, k_place, b, h // group, beginning * BN, keys, BN, D, WIDTH, TMA_K)
    product = multiply_tiles(tile_q, tile_k, PRECISION, CAST)
    for turn in tl.range(0, turns):
        n = first + turn
        behind = n >= hole
        n = tl.where(behind, n + hole_end - hole, n)
        x = scale_product(product, scale, cap, CAP)
        if BIAS > 0:
            j = n * BN + tl.arange(0, BN)
            x = add_bias(x, bias, b, h, i[:, None], j[None, :], queries, keys, BIAS)
            begins = tl.minimum(begins, tl.min(tl.where(x > NOTHING, j[None, :], FAR), 1))
        largest, total, spread, away, best, where, weights = accumulate_tile(
            x, largest, total, spread, away, best, where, logsumexp, position, n, tl.where(behind, -1.0, 1.0),
            BM, BN, CLASSES, GIVEN, TOP, True,
        )  # fmt: skip
        if MAP:
            add_to_map(
                weights, cells, high, wide, columns, tile * BM, n * BN, rows, BM, BN, EVEN, TOUCHED, CHUNK, PARTS
            )
        following = first + tl.minimum(turn + 1, turns - 1)
        following = tl.where(following >= hole, following + hole_end - hole, following)
        tile_k = load_tile(k, k_place, b, h // group, following * BN, keys, BN, D, WIDTH, TMA_K)
        product = multiply_tiles(tile_q, tile_k, PRECISION, CAST)

    others += b * others_sample + h * others_head + tile * others_tile
    for turn in tl.range(0, tl.load(run + 4)):
        n = tl.load(others + turn)
        tile_k = load_tile(k, k_place, b, h // group, n * BN, keys, BN, D, WIDTH, TMA_K)
        x = scale_product(multiply_tiles(tile_q, tile_k, PRECISION, CAST), scale, cap, CAP)
        j = n * BN + tl.arange(0, BN)
        x = add_bias(x, bias, b, h, i[:, None], j[None, :], queries, keys, BIAS)
        seen = is_visible(mask, b, h, i[:, None], j[None, :], queries, keys, TERMS, BOUNDS, DOCUMENTS, DENSE)
        x = tl.where(seen, x, HIDDEN)
        begins = tl.minimum(begins, tl.min(tl.where(x > NOTHING, j[None, :], FAR), 1))
        largest, total, spread, away, best, where, weights = accumulate_tile(
            x, largest, total, spread, away, best, where, logsumexp, position, n, 1.0,
            BM, BN, CLASSES, GIVEN, TOP, False,
        )  # fmt: skip
        if MAP:
            add_to_map(
                weights, cells, high, wide, columns, tile * BM, n * BN, rows, BM, BN, EVEN, TOUCHED, CHUNK, PARTS
            )

    peak = tl.max(tl.max(best, 1), 1)
    wrong = tl.sum(spread, 1) * 0  # no number, if one of the scores was none
    seen = (peak > NOTHING) | (wrong != 0)
    peak += wrong
    if GIVEN:
        entropy = -LN2 * tl.sum(spread, 1)
        distance = tl.sum(away, 1)
    else:
        most = tl.max(largest, 1)
        if SINKS:
            sink = tl.load(sinks + h)
            most = tl.maximum(most, sink)
        whole = tl.sum(total * tl.exp2(largest - most[:, None]), 1)
        if SINKS:
            whole += tl.exp2(sink - most)
        logsumexp = tl.where(seen, most + tl.log2(tl.where(seen, whole, 1.0)), -HIDDEN)
        below = largest - logsumexp[:, None]
        share = tl.exp2(below)
        entropy = -LN2 * tl.sum(share * (spread + below * total), 1)
        distance = tl.sum(share * away, 1)
        peak -= logsumexp
        best -= logsumexp[:, None, None]
    tl.store(out[0] + at, tl.where(seen, logsumexp, -HIDDEN), mask=inside)
    tl.store(out[1] + at, tl.where(seen, entropy, 0.0), mask=inside)
    tl.store(out[2] + at, tl.where(seen, tl.exp2(peak), 0.0), mask=inside)
    tl.store(out[3] + at, tl.where(seen, distance, 0.0), mask=inside)
    tl.store(out[4] + at, tl.where(seen, begins, -1), mask=inside)
    if TOP > 0:
        tl.store(out[5] + at, find_threshold(best, logsumexp, TOP), mask=inside)
    else:
        equal = best == tl.max(tl.max(best, 1), 1)[:, None, None]
        earliest = tl.min(tl.min(tl.where(equal, where, FAR), 1), 1)
        name = tl.arange(0, CLASSES // 8)[None, :, None] * 8 + tl.arange(0, 8)[None, None, :]
        bits = tl.where(equal & (where == earliest[:, None, None]), 1 << name, 0)
        tl.store(out[6] + at, earliest, mask=inside)
        tl.store(out[7] + at, tl.sum(tl.sum(bits, 1), 1), mask=inside)


@triton.jit
@no_type_check
def accumulate_tile(
    x,
    largest,
    total,
    spread,
    away,
    best,
    where,
    logsumexp,
    position,
    n,
    side,
    BM: tl.constexpr,
    BN: tl.constexpr,
    CLASSES: tl.constexpr,
    GIVEN: tl.constexpr,
    TOP: tl.constexpr,
    SURE: tl.constexpr,
):
    """The sums with one tile more, and its weights (as far as they are known: with a logsumexp that is given).

    Without one, weights are relative to the `largest` score of their column so far, and what was summed before is
    brought down to it. `best` is the largest score of each of CLASSES of keys, those of every so manieth key.
    SURE: nothing of the tile is hidden, and it lies on one side of its queries: `side` is 1 before, −1 behind.
    """
    pieces: tl.constexpr = BN // 8
    x = tl.reshape(x, [BM, pieces, 8])
    if GIVEN:
        x -= logsumexp[:, None, None]
    most = tl.max(tl.reshape(x, [BM, BN // CLASSES, CLASSES // 8, 8]), 1)
    if TOP == 0:
        better = most > best
        if not SURE:
            better = better | ((most == best) & (n < where))
        where = tl.where(better, n, where)
    best = tl.maximum(best, most)
    if not GIVEN:
        higher = tl.maximum(largest, tl.max(most, 1))
        base = tl.where(higher > NOTHING, higher, 0.0)
        x -= base[:, None, :]
        drop = largest - base
        shrink = tl.exp2(drop)
        spread = shrink * (spread + drop * total)
        total = shrink * total
        away = shrink * away
        largest = higher
    weights = tl.exp2(x)
    sums = tl.sum(weights, 1)
    spread += tl.sum(weights * x, 1)
    column = tl.arange(0, 8).to(tl.float32)[None, :]
    piece = tl.arange(0, pieces).to(tl.float32)[None, :, None] * 8
    if SURE:
        middle = position - (n * BN).to(tl.float32) - (BN - 1) / 2
        along = tl.sum(weights * (piece - (BN // 2 - 4)), 1)
        away += side * (sums * (middle[:, None] - (column - 3.5)) - along)
    else:
        apart = (position - (n * BN).to(tl.float32))[:, None, None] - piece - column[:, None, :]
        away += tl.sum(weights * tl.abs(apart), 1)
    if not GIVEN:
        total += sums
    return largest, total, spread, away, best, where, weights


@triton.jit
@no_type_check
def find_threshold(best, logsumexp, TOP: tl.constexpr):
    """A score that at least TOP keys reach, if there are so many: the TOP-th best of the classes, or a little less.

    Of equal ones all are passed over at once: then it is lower than it could be, and as true.
    """
    for _ in tl.range(TOP - 1):
        best = tl.where(best == tl.max(tl.max(best, 1), 1)[:, None][:, None, :], -3e38, best)
    score = tl.max(tl.max(best, 1), 1)
    # The next pass may round otherwise: 16 roundings of the scores lie between
    return tl.maximum(score - 1.9e-6 * (1 + tl.abs(score) + tl.abs(logsumexp)), NOTHING)
