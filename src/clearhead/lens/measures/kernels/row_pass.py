"""The passes along rows: each program keeps a tile of queries and loops over keys; measures per query, and the map.

Sums over a tile are kept in eight columns, one for each key modulo 8: in the layout of the tensor cores' results
these are sums within a thread, so that threads exchange nothing before the end.
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
    q, q_place, k, k_place, mask, bias, runs, runs_sample, runs_head, others, others_sample, others_head,
    others_tile, scales, cap, sinks, logsumexps, out, cells, cells_sample, high, wide, columns, heads, group, queries,
    keys, rows, start, step, offset,
    D: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, TMA_Q: tl.constexpr,
    TMA_K: tl.constexpr, PRECISION: tl.constexpr, CAST: tl.constexpr, CAP: tl.constexpr, BIAS: tl.constexpr,
    TERMS: tl.constexpr, BOUNDS: tl.constexpr, DOCUMENTS: tl.constexpr, DENSE: tl.constexpr, SINKS: tl.constexpr,
    GIVEN: tl.constexpr, TOP: tl.constexpr, CLASSES: tl.constexpr, MAP: tl.constexpr, EVEN: tl.constexpr,
    TOUCHED: tl.constexpr, CHUNK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
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
        logsumexp = tl.load(logsumexps + at, mask=inside, other=float("-inf")) * LOG2E
        logsumexp = tl.where(logsumexp <= NOTHING, -HIDDEN, logsumexp)  # NaN stays NaN
    else:
        logsumexp = tl.zeros([BM], tl.float32)
    cells += sample.to(tl.int64) * cells_sample
    largest = tl.full([BM, 8], HIDDEN, tl.float32)
    total = tl.zeros([BM, 8], tl.float32)
    log_sum = tl.zeros([BM, 8], tl.float32)
    distance_sum = tl.zeros([BM, 8], tl.float32)
    best = tl.full([BM, CLASSES // 8, 8], -3e38, tl.float32)
    best_tile = tl.zeros([BM, CLASSES // 8, 8], tl.int32)

    run = runs + b * runs_sample + h * runs_head + tile * 5
    first, end, hole, hole_end = tl.load(run), tl.load(run + 1), tl.load(run + 2), tl.load(run + 3)
    first_tile = tl.where(first == hole, hole_end, first)
    first_key = tl.full([BM], FAR, tl.int32)
    if BIAS == 0:
        first_key = tl.where(first_tile < end, first_key * 0 + first_tile * BN, first_key)
    # Software pipelining: the product of the next iteration is computed at the end of this one (once too often).
    run_length = end - first - (hole_end - hole)
    tile_k = load_tile(k, k_place, b, h // group, first_tile * BN, keys, BN, D, WIDTH, TMA_K)
    product = multiply_tiles(tile_q, tile_k, PRECISION, CAST)
    for iteration in tl.range(0, run_length):
        n = first + iteration
        behind = n >= hole
        n = tl.where(behind, n + hole_end - hole, n)
        x = scale_product(product, scale, cap, CAP)
        if BIAS > 0:
            j = n * BN + tl.arange(0, BN)
            x = add_bias(x, bias, b, h, i[:, None], j[None, :], queries, keys, BIAS)
            first_key = tl.minimum(first_key, tl.min(tl.where(x > NOTHING, j[None, :], FAR), 1))
        largest, total, log_sum, distance_sum, best, best_tile, weights = accumulate_tile(
            x, largest, total, log_sum, distance_sum, best, best_tile, logsumexp, position, n,
            tl.where(behind, -1.0, 1.0), BM, BN, CLASSES, GIVEN, TOP, True,
        )  # fmt: skip
        if MAP:
            add_to_map(
                weights, cells, high, wide, columns, tile * BM, n * BN, rows, BM, BN, EVEN, TOUCHED, CHUNK, PARTS
            )
        next_tile = first + tl.minimum(iteration + 1, run_length - 1)
        next_tile = tl.where(next_tile >= hole, next_tile + hole_end - hole, next_tile)
        tile_k = load_tile(k, k_place, b, h // group, next_tile * BN, keys, BN, D, WIDTH, TMA_K)
        product = multiply_tiles(tile_q, tile_k, PRECISION, CAST)

    others += b * others_sample + h * others_head + tile * others_tile
    for iteration in tl.range(0, tl.load(run + 4)):
        n = tl.load(others + iteration)
        tile_k = load_tile(k, k_place, b, h // group, n * BN, keys, BN, D, WIDTH, TMA_K)
        x = scale_product(multiply_tiles(tile_q, tile_k, PRECISION, CAST), scale, cap, CAP)
        j = n * BN + tl.arange(0, BN)
        x = add_bias(x, bias, b, h, i[:, None], j[None, :], queries, keys, BIAS)
        seen = is_visible(mask, b, h, i[:, None], j[None, :], queries, keys, TERMS, BOUNDS, DOCUMENTS, DENSE)
        x = tl.where(seen, x, HIDDEN)
        first_key = tl.minimum(first_key, tl.min(tl.where(x > NOTHING, j[None, :], FAR), 1))
        largest, total, log_sum, distance_sum, best, best_tile, weights = accumulate_tile(
            x, largest, total, log_sum, distance_sum, best, best_tile, logsumexp, position, n, 1.0,
            BM, BN, CLASSES, GIVEN, TOP, False,
        )  # fmt: skip
        if MAP:
            add_to_map(
                weights, cells, high, wide, columns, tile * BM, n * BN, rows, BM, BN, EVEN, TOUCHED, CHUNK, PARTS
            )

    peak = tl.max(tl.max(best, 1), 1)
    not_a_number = tl.sum(log_sum, 1) * 0  # NaN if one of the scores is
    seen = (peak > NOTHING) | (not_a_number != 0)
    peak += not_a_number
    if GIVEN:
        best_score = peak + logsumexp
        entropy = -LN2 * tl.sum(log_sum, 1)
        distance = tl.sum(distance_sum, 1)
    else:
        most = tl.max(largest, 1)
        if SINKS:
            sink = tl.load(sinks + h)
            most = tl.maximum(most, sink)
        normaliser = tl.sum(total * tl.exp2(largest - most[:, None]), 1)
        if SINKS:
            normaliser += tl.exp2(sink - most)
        logsumexp = tl.where(seen, most + tl.log2(tl.where(seen, normaliser, 1.0)), -HIDDEN)
        below = largest - logsumexp[:, None]
        share = tl.exp2(below)
        entropy = -LN2 * tl.sum(share * (log_sum + below * total), 1)
        distance = tl.sum(share * distance_sum, 1)
        best_score = peak
        peak -= logsumexp
        best -= logsumexp[:, None, None]
    tl.store(out[0] + at, tl.where(seen, logsumexp, -HIDDEN), mask=inside)
    tl.store(out[1] + at, tl.where(seen, entropy, 0.0), mask=inside)
    tl.store(out[2] + at, tl.where(seen, tl.exp2(peak), 0.0), mask=inside)
    tl.store(out[3] + at, tl.where(seen, distance, 0.0), mask=inside)
    tl.store(out[4] + at, tl.where(seen, first_key, -1), mask=inside)
    tl.store(out[6] + at, tl.where(seen, best_score * LN2, float("-inf")), mask=inside)
    if TOP > 0:
        tl.store(out[5] + at, find_threshold(best, logsumexp, TOP), mask=inside)
    else:
        equal = best == tl.max(tl.max(best, 1), 1)[:, None, None]
        earliest_tile = tl.min(tl.min(tl.where(equal, best_tile, FAR), 1), 1)
        class_number = tl.arange(0, CLASSES // 8)[None, :, None] * 8 + tl.arange(0, 8)[None, None, :]
        bits = tl.where(equal & (best_tile == earliest_tile[:, None, None]), 1 << class_number, 0)
        tl.store(out[7] + at, earliest_tile, mask=inside)
        tl.store(out[8] + at, tl.sum(tl.sum(bits, 1), 1), mask=inside)


@triton.jit
@no_type_check
def accumulate_tile(
    x, largest, total, log_sum, distance_sum, best, best_tile, logsumexp, position, n, side,
    BM: tl.constexpr, BN: tl.constexpr, CLASSES: tl.constexpr, GIVEN: tl.constexpr, TOP: tl.constexpr,
    SURE: tl.constexpr,
):  # fmt: skip
    """Adds one tile to the sums, and returns its weights (final only if the logsumexp is GIVEN).

    Without it, weights are relative to the `largest` score of their column so far, and earlier sums are rescaled to
    it (online softmax). `best` is the largest score of each class of keys, a class being the keys equal modulo CLASSES.
    SURE: nothing of the tile is hidden, and it lies on one side of its queries: `side` is 1 before, −1 behind them.
    """
    pieces: tl.constexpr = BN // 8
    x = tl.reshape(x, [BM, pieces, 8])
    if GIVEN:
        x -= logsumexp[:, None, None]
    most = tl.max(tl.reshape(x, [BM, BN // CLASSES, CLASSES // 8, 8]), 1)
    if TOP == 0:
        better = most > best
        if not SURE:
            better = better | ((most == best) & (n < best_tile))
        best_tile = tl.where(better, n, best_tile)
    best = tl.maximum(best, most)
    if not GIVEN:
        higher = tl.maximum(largest, tl.max(most, 1))
        base = tl.where(higher > NOTHING, higher, 0.0)
        x -= base[:, None, :]
        drop = largest - base
        shrink = tl.exp2(drop)
        log_sum = shrink * (log_sum + drop * total)
        total = shrink * total
        distance_sum = shrink * distance_sum
        largest = higher
    weights = tl.exp2(x)
    sums = tl.sum(weights, 1)
    log_sum += tl.sum(weights * x, 1)
    column = tl.arange(0, 8).to(tl.float32)[None, :]
    piece = tl.arange(0, pieces).to(tl.float32)[None, :, None] * 8
    if SURE:
        middle = position - (n * BN).to(tl.float32) - (BN - 1) / 2
        offset_sum = tl.sum(weights * (piece - (BN // 2 - 4)), 1)
        distance_sum += side * (sums * (middle[:, None] - (column - 3.5)) - offset_sum)
    else:
        apart = (position - (n * BN).to(tl.float32))[:, None, None] - piece - column[:, None, :]
        distance_sum += tl.sum(weights * tl.abs(apart), 1)
    if not GIVEN:
        total += sums
    return largest, total, log_sum, distance_sum, best, best_tile, weights


@triton.jit
@no_type_check
def find_threshold(best, logsumexp, TOP: tl.constexpr):
    """A score that at least TOP keys reach, or all that there are: the TOP-th best of the classes, or a little less.

    Equal scores are removed together, which can only lower the threshold.
    """
    for _ in tl.range(TOP - 1):
        best = tl.where(best == tl.max(tl.max(best, 1), 1)[:, None][:, None, :], -3e38, best)
    score = tl.max(tl.max(best, 1), 1)
    # The next pass may round differently: a margin of 16 rounding errors
    return tl.maximum(score - 1.9e-6 * (1 + tl.abs(score) + tl.abs(logsumexp)), NOTHING)


@triton.jit(do_not_specialize=[*NUMBERS, "count"])
@no_type_check
def sum_spans(
    q, q_place, k, k_place, mask, bias, spans, scales, cap, logsumexps, out, count, heads, group, queries, keys,
    rows, start, step, offset,
    D: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, TMA_Q: tl.constexpr,
    TMA_K: tl.constexpr, PRECISION: tl.constexpr, CAST: tl.constexpr, CAP: tl.constexpr, BIAS: tl.constexpr,
    TERMS: tl.constexpr, BOUNDS: tl.constexpr, DOCUMENTS: tl.constexpr, DENSE: tl.constexpr,
):  # fmt: skip
    """The mass on spans of keys: each program sums the weights of one tile of queries over the keys of one span.

    `spans` holds the first and the end of each of `count` spans; `logsumexps` are in units of ln 2.
    """
    tiles = tl.cdiv(rows, BM)
    number, span = tl.program_id(0) // count, tl.program_id(0) % count
    sample, tile = number // tiles, number % tiles
    b, h = sample // heads, sample % heads
    row = tile * BM + tl.arange(0, BM)
    inside = row < rows
    i = (start + step * row)[:, None]
    at = sample.to(tl.int64) * rows + row
    logsumexp = tl.load(logsumexps + at, mask=inside, other=-HIDDEN)
    scale = tl.load(scales + h)
    first, end = tl.load(spans + span * 2), tl.minimum(tl.load(spans + span * 2 + 1), keys)
    if TERMS == 1 and (BOUNDS >> 1) & 1:  # a causal bound: nothing is visible beyond it
        last = start + step * tl.minimum(tile * BM + BM - 1, rows - 1)
        end = tl.minimum(end, last + tl.load(mask[0] + b * mask[1] + 1) + 1)
    tile_q = load_tile(q, q_place, b, h, tile * BM, rows, BM, D, WIDTH, TMA_Q)
    # By key modulo 8: in the layout of the tensor cores' results these are sums within a thread
    sums = tl.zeros([BM, 8], tl.float32)
    for n in tl.range(first // BN, tl.cdiv(end, BN)):
        j = (n * BN + tl.arange(0, BN))[None, :]
        tile_k = load_tile(k, k_place, b, h // group, n * BN, keys, BN, D, WIDTH, TMA_K)
        x = scale_product(multiply_tiles(tile_q, tile_k, PRECISION, CAST), scale, cap, CAP)
        x = add_bias(x, bias, b, h, i, j, queries, keys, BIAS)
        seen = is_visible(mask, b, h, i, j, queries, keys, TERMS, BOUNDS, DOCUMENTS, DENSE)
        x = tl.where(seen & (j >= first) & (j < end), x, HIDDEN) - logsumexp[:, None]
        sums += tl.sum(tl.reshape(tl.exp2(x), [BM, BN // 8, 8]), 1)
    tl.store(out + at * count + span, tl.sum(sums, 1), mask=inside)
