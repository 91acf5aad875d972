"""The pass along columns: each program keeps a tile of keys and loops over queries, whose logsumexp is known.

It also collects the candidates for the top keys of a query, all keys whose score reaches a threshold; and it fills
the map, if the row pass had no logsumexp yet. After it single keys are selected: the first visible key, whose weight is
measured, and the top keys. The passes have left a few candidates of each query; their scores are computed again.
"""

from typing import no_type_check

import triton
import triton.language as tl

from clearhead.lens.measures.kernels.tile_operations import (
    FAR,
    HIDDEN,
    LN2,
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
def scan_columns(
    q, q_place, k, k_place, mask, bias, runs, runs_sample, runs_head, others, others_sample, others_head,
    others_tile, scales, cap, logsumexps, received, candidates, cells, cells_sample, high, wide, columns, heads,
    group, queries, keys, rows, start, step, offset,
    D: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, WARPS: tl.constexpr,
    TMA_Q: tl.constexpr, TMA_K: tl.constexpr, PRECISION: tl.constexpr, CAST: tl.constexpr, CAP: tl.constexpr,
    BIAS: tl.constexpr, TERMS: tl.constexpr, BOUNDS: tl.constexpr, DOCUMENTS: tl.constexpr, DENSE: tl.constexpr,
    RECEIVED: tl.constexpr, COLLECT: tl.constexpr, SLOTS: tl.constexpr, MAP: tl.constexpr, EVEN: tl.constexpr,
    TOUCHED: tl.constexpr, CHUNK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(keys, BN)
    sample, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    b, h = sample // heads, sample % heads
    j = tile * BN + tl.arange(0, BN)
    scale = tl.load(scales + h)
    base = sample.to(tl.int64) * rows
    cells += sample.to(tl.int64) * cells_sample
    tile_k = load_tile(k, k_place, b, h // group, tile * BN, keys, BN, D, WIDTH, TMA_K)
    # By warp and by row modulo 8: in the layout of the tensor cores' results these are sums within a thread
    sums = tl.zeros([WARPS, 8, BN], tl.float32)

    run = runs + b * runs_sample + h * runs_head + tile * 5
    first, end = tl.load(run), tl.load(run + 1)
    # Software pipelining: what the next iteration needs is loaded at the end of this one (once too often)
    row = first * BM + tl.arange(0, BM)
    logsumexp = tl.load(logsumexps + base + row, mask=row < rows, other=-HIDDEN)
    limit = logsumexp
    if COLLECT:
        limit = tl.load(candidates[0] + base + row, mask=row < rows, other=-HIDDEN)
    tile_q = load_tile(q, q_place, b, h, first * BM, rows, BM, D, WIDTH, TMA_Q)
    product = multiply_tiles(tile_q, tile_k, PRECISION, CAST)
    for n in tl.range(first, end):
        at = base + n * BM + tl.arange(0, BM)
        x = scale_product(product, scale, cap, CAP)
        if BIAS > 0:
            i = start + step * (n * BM + tl.arange(0, BM))
            x = add_bias(x, bias, b, h, i[:, None], j[None, :], queries, keys, BIAS)
        x -= logsumexp[:, None]
        weights = tl.exp2(x)
        if RECEIVED:
            sums += tl.sum(tl.sum(tl.reshape(weights, [BM // WARPS // 16, WARPS, 2, 8, BN]), 2), 0)
        if COLLECT:
            slot, name = collect_candidates(x, limit, candidates, at, tile, BM, BN, SLOTS)
        if MAP:
            weights = tl.reshape(weights, [BM, BN // 8, 8])
            add_to_map(
                weights, cells, high, wide, columns, n * BM, tile * BN, rows, BM, BN, EVEN, TOUCHED, CHUNK, PARTS
            )
        next_row = tl.minimum(n + 1, end - 1) * BM
        logsumexp = tl.load(logsumexps + base + next_row + tl.arange(0, BM))
        if COLLECT:
            limit = tl.load(candidates[0] + base + next_row + tl.arange(0, BM))
        tile_q = load_tile(q, q_place, b, h, next_row, rows, BM, D, WIDTH, TMA_Q)
        product = multiply_tiles(tile_q, tile_k, PRECISION, CAST)
        if COLLECT:  # the slot comes from an atomic, whose latency the product hides
            write_candidate(candidates, at, slot, name, SLOTS)

    others += b * others_sample + h * others_head + tile * others_tile
    for iteration in tl.range(0, tl.load(run + 4)):
        n = tl.load(others + iteration)
        row = n * BM + tl.arange(0, BM)
        i = (start + step * row)[:, None]
        logsumexp = tl.load(logsumexps + base + row, mask=row < rows, other=-HIDDEN)
        tile_q = load_tile(q, q_place, b, h, n * BM, rows, BM, D, WIDTH, TMA_Q)
        x = scale_product(multiply_tiles(tile_q, tile_k, PRECISION, CAST), scale, cap, CAP)
        x = add_bias(x, bias, b, h, i, j[None, :], queries, keys, BIAS)
        seen = is_visible(mask, b, h, i, j[None, :], queries, keys, TERMS, BOUNDS, DOCUMENTS, DENSE)
        x = tl.where(seen & (row < rows)[:, None], x, HIDDEN) - logsumexp[:, None]
        weights = tl.exp2(x)
        if RECEIVED:
            sums += tl.sum(tl.sum(tl.reshape(weights, [BM // WARPS // 16, WARPS, 2, 8, BN]), 2), 0)
        if COLLECT:
            limit = tl.load(candidates[0] + base + row, mask=row < rows, other=-HIDDEN)
            slot, name = collect_candidates(x, limit, candidates, base + row, tile, BM, BN, SLOTS)
            write_candidate(candidates, base + row, slot, name, SLOTS)
        if MAP:
            weights = tl.reshape(weights, [BM, BN // 8, 8])
            add_to_map(
                weights, cells, high, wide, columns, n * BM, tile * BN, rows, BM, BN, EVEN, TOUCHED, CHUNK, PARTS
            )

    if RECEIVED:
        tl.store(received + sample.to(tl.int64) * keys + j, tl.sum(tl.sum(sums, 0), 0), mask=j < keys)


@triton.jit
@no_type_check
def collect_candidates(x, limit, candidates, at, tile, BM: tl.constexpr, BN: tl.constexpr, SLOTS: tl.constexpr):
    """The keys of a tile that reach the threshold of their query, as bits of eight words, one for each key modulo 8.

    A word that is not empty takes the next slot of its row; its upper bits are the tile's number. Slot 0 counts the
    slots in use.
    """
    bit = (1 << tl.arange(0, BN // 8))[None, :, None]
    reached = tl.reshape(x, [BM, BN // 8, 8]) >= limit[:, None, None]
    word = tl.sum(tl.where(reached, bit, 0), 1)
    name = ((tile * 8 + tl.arange(0, 8)) << (BN // 8))[None, :] | word
    name = tl.where(word != 0, name, 0)
    counter = candidates[1] + at[:, None] * SLOTS + tl.zeros([1, 8], tl.int32)
    slot = tl.atomic_add(counter, 1, mask=name != 0, sem="relaxed") + 1
    return tl.where(name != 0, slot, SLOTS), name


@triton.jit
@no_type_check
def write_candidate(candidates, at, slot, name, SLOTS: tl.constexpr):
    """Writes the words into their slots, unless the row has run out of them."""
    tl.store(candidates[1] + at[:, None] * SLOTS + slot, name, mask=slot < SLOTS)


@triton.jit(do_not_specialize=NUMBERS)
@no_type_check
def select_top_keys(
    q, q_place, k, k_place, mask, bias, scales, cap, seen, candidates, out, heads, group, queries, keys, rows, start,
    step, offset,
    D: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAP: tl.constexpr, BIAS: tl.constexpr,
    TERMS: tl.constexpr, BOUNDS: tl.constexpr, DOCUMENTS: tl.constexpr, DENSE: tl.constexpr, TOP: tl.constexpr,
    SLOTS: tl.constexpr, CLASSES: tl.constexpr, GIVEN: tl.constexpr,
):  # fmt: skip
    """The logsumexp, the weight of the first visible key, and the best TOP keys (if none are asked for, the best one).

    BN is the width of the tiles in which the candidates were found. `seen` holds the logsumexps in units of ln 2, the
    first keys, and the GIVEN logsumexps.
    """
    tiles = tl.cdiv(rows, BM)
    sample, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    b, h = sample // heads, sample % heads
    row = tile * BM + tl.arange(0, BM)
    inside = row < rows
    i = start + step * row
    at = sample.to(tl.int64) * rows + row
    logsumexp = tl.load(seen[0] + at, mask=inside, other=-HIDDEN)
    scale = tl.load(scales + h)
    tile_q = load_tile(q, q_place, b, h, tile * BM, rows, BM, D, WIDTH, False).to(tl.float32)

    begins = tl.load(seen[1] + at, mask=inside, other=-1)
    natural = logsumexp * LN2
    if GIVEN:
        natural = tl.load(seen[2] + at, mask=inside, other=0.0)
    tl.store(out[3] + at, tl.where(begins >= 0, natural, float("-inf")), mask=inside)
    begins = begins[:, None]
    score = score_key(tile_q, k, k_place, bias, b, h, group, i, begins, queries, keys, scale, cap, D, WIDTH, CAP, BIAS)
    first = tl.where(begins >= 0, tl.exp2(score - logsumexp[:, None]), 0.0)
    tl.store(out[0] + at, tl.sum(first, 1), mask=inside)

    if TOP == 0:
        number = tl.load(candidates[0] + at, mask=inside, other=0)
        bits = tl.where(logsumexp < -NOTHING, tl.load(candidates[1] + at, mask=inside, other=0), 0)
        best, key = tl.full([BM], HIDDEN, tl.float32), tl.full([BM], FAR, tl.int32)
        FEW: tl.constexpr = min(BN // CLASSES, 2)  # keys at a time: fewer registers each, more queries at once
        while tl.max(tl.where(bits != 0, 1, 0)) > 0:
            lowest = bits & -bits
            for begin in tl.range(0, BN // CLASSES, FEW):
                few = (begin + tl.arange(0, FEW)) * CLASSES
                j = tl.where((lowest != 0)[:, None], (number * BN + find_bit(lowest))[:, None] + few[None, :], -1)
                x = score_key(
                    tile_q, k, k_place, bias, b, h, group, i, j, queries, keys, scale, cap, D, WIDTH, CAP, BIAS
                )
                shown = is_visible(mask, b, h, i[:, None], j, queries, keys, TERMS, BOUNDS, DOCUMENTS, DENSE)
                x = tl.where(shown & (j >= 0), x, HIDDEN)
                most = tl.max(x, 1)
                smallest = tl.min(tl.where(x == most[:, None], j, FAR), 1)
                better = (most > best) | ((most == best) & (smallest < key))
                best, key = tl.where(better, most, best), tl.where(better, smallest, key)
            bits -= lowest
        tl.store(out[1] + at, tl.where(best > NOTHING, key, -1), mask=inside)
    else:
        count = tl.load(candidates[1] + at * SLOTS, mask=inside, other=0)
        count = tl.where(count < SLOTS, count, 0)[:, None]  # rows with more are left to `select_from_all_keys`
        # Two bits of each word are resolved, of four words at a time; two more (rare) if there are few words.
        most = tl.where(tl.max(count) <= SLOTS // 2, 4, 2)
        values = tl.full([BM, SLOTS // 2, 4], HIDDEN, tl.float32)
        names = tl.full([BM, SLOTS // 2, 4], -1, tl.int32)
        turn, few = tl.arange(0, SLOTS // 2)[None, :, None], tl.arange(0, 4)[None, :]
        left = tl.zeros([BM], tl.int32)
        for number in tl.range(tl.cdiv(tl.max(count), 4)):
            slot = number * 4 + few
            word = tl.load(candidates[1] + at[:, None] * SLOTS + slot + 1, mask=slot < count, other=0)
            bits, origin = word & ((1 << (BN // 8)) - 1), word >> (BN // 8)
            start_of = origin // 8 * BN + origin % 8
            bit_number = 0
            while (bit_number < most) & (tl.max(bits) > 0):
                lowest = bits & -bits
                j = tl.where(bits != 0, start_of + find_bit(lowest) * 8, -1)
                x = score_key(
                    tile_q, k, k_place, bias, b, h, group, i, j, queries, keys, scale, cap, D, WIDTH, CAP, BIAS
                )
                here = turn == number + bit_number % 2 * (SLOTS // 4) + bit_number // 2 * (SLOTS // 8)
                values = tl.where(here, tl.where(j >= 0, x, HIDDEN)[:, None, :], values)
                names = tl.where(here, j[:, None, :], names)
                bits -= lowest
                bit_number += 1
            left = tl.maximum(left, tl.max(bits, 1))
        tl.store(candidates[1] + at * SLOTS, SLOTS, mask=inside & (left > 0))
        values, names = tl.reshape(values, [BM, SLOTS * 2]), tl.reshape(names, [BM, SLOTS * 2])
        write_top_keys(values, names, logsumexp, out, at, inside, TOP)


@triton.jit(do_not_specialize=NUMBERS)
@no_type_check
def select_from_all_keys(
    q, q_place, k, k_place, mask, bias, scales, cap, seen, candidates, out, heads, group, queries, keys, rows, start,
    step, offset,
    D: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
    CAST: tl.constexpr, CAP: tl.constexpr, BIAS: tl.constexpr, TERMS: tl.constexpr, BOUNDS: tl.constexpr,
    DOCUMENTS: tl.constexpr, DENSE: tl.constexpr, TOP: tl.constexpr, LIST: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """The best TOP keys from all keys, for rows with too many candidates, as when all scores are equal."""
    tiles = tl.cdiv(rows, BM)
    sample, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    b, h = sample // heads, sample % heads
    row = tile * BM + tl.arange(0, BM)
    at = sample.to(tl.int64) * rows + row
    inside = row < rows
    over = tl.load(candidates[1] + at * SLOTS, mask=inside, other=0) >= SLOTS
    if tl.max(tl.where(over, 1, 0)) > 0:
        i = start + step * row
        logsumexp = tl.load(seen[0] + at, mask=inside, other=-HIDDEN)
        limit = tl.load(candidates[0] + at, mask=inside, other=-HIDDEN) + logsumexp
        scale = tl.load(scales + h)
        tile_q = load_tile(q, q_place, b, h, tile * BM, rows, BM, D, WIDTH, False)
        values = tl.full([BM, LIST], HIDDEN, tl.float32)
        names = tl.full([BM, LIST], -1, tl.int32)
        begins = tl.load(seen[1] + at, mask=inside & over, other=keys)
        end = keys
        if TERMS == 1 and (BOUNDS >> 1) & 1:  # a causal bound: nothing is visible beyond it
            last = tl.max(tl.where(inside & over, i, -keys))
            end = tl.minimum(keys, last + tl.load(mask[0] + b * mask[1] + 1) + 1)
        for n in tl.range(tl.min(begins) // BN, tl.cdiv(end, BN)):
            j = n * BN + tl.arange(0, BN)
            tile_k = load_tile(k, k_place, b, h // group, n * BN, keys, BN, D, WIDTH, False)
            x = scale_product(multiply_tiles(tile_q, tile_k, PRECISION, CAST), scale, cap, CAP)
            x = add_bias(x, bias, b, h, i[:, None], j[None, :], queries, keys, BIAS)
            shown = is_visible(mask, b, h, i[:, None], j[None, :], queries, keys, TERMS, BOUNDS, DOCUMENTS, DENSE)
            x = tl.where(shown & (over & inside)[:, None] & (x >= limit[:, None]), x, HIDDEN)
            better = tl.sum(tl.where(x > tl.min(values, 1)[:, None], 1, 0), 1)
            for _ in tl.range(tl.minimum(tl.max(better), LIST)):
                best = tl.max(x, 1)
                key = tl.min(tl.where(x == best[:, None], j[None, :], FAR), 1)
                values, names = insert_sorted(values, names, best, key, LIST)
                x = tl.where(j[None, :] == key[:, None], HIDDEN, x)
        write_top_keys(values, names, logsumexp, out, at, inside & over, TOP)


@triton.jit
@no_type_check
def score_key(
    tile_q, k, k_place, bias, b, h, group, i, j, queries, keys, scale, cap,
    D: tl.constexpr, WIDTH: tl.constexpr, CAP: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """The scores of a few keys for each query, (BM, few); −1 is no key."""
    column = tl.arange(0, WIDTH)[None, None, :]
    start = k + b.to(tl.int64) * k_place[0] + (h // group).to(tl.int64) * k_place[1]
    inside = ((j >= 0) & (j < keys))[:, :, None] & (column < D)
    row_k = tl.load(start + j.to(tl.int64)[:, :, None] * k_place[2] + column * k_place[3], mask=inside, other=0.0)
    x = scale_product(tl.sum(tile_q[:, None, :] * row_k.to(tl.float32), 2), scale, cap, CAP)
    return add_bias(x, bias, b, h, i[:, None], tl.maximum(j, 0), queries, keys, BIAS)


@triton.jit
@no_type_check
def find_bit(bit):
    """The number of the bit that is set: 0 for 1."""
    return (bit.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127  # the exponent of the float


@triton.jit
@no_type_check
def insert_sorted(values, names, value, name, LIST: tl.constexpr):
    """Replaces the smallest value of each list, if the new one is larger; of equal values the largest key goes."""
    least = tl.min(values, 1)
    slot = tl.arange(0, LIST)[None, :]
    oldest = tl.max(tl.where(values == least[:, None], names, -2), 1)
    leaving = tl.min(tl.where((values == least[:, None]) & (names == oldest[:, None]), slot, LIST), 1)
    better = (value > least) | ((value == least) & (value > NOTHING) & (name < oldest))
    here = better[:, None] & (slot == leaving[:, None])
    return tl.where(here, value[:, None], values), tl.where(here, name[:, None], names)


@triton.jit
@no_type_check
def write_top_keys(values, names, logsumexp, out, at, inside, TOP: tl.constexpr):
    """Writes the lists in order: largest first, of equal values the smallest key first."""
    for rank in tl.range(TOP):
        best = tl.max(values, 1)
        name = tl.min(tl.where((values == best[:, None]) & (best > NOTHING)[:, None], names, FAR), 1)
        exists = best > NOTHING
        tl.store(out[1] + at * TOP + rank, tl.where(exists, name, -1), mask=inside)
        tl.store(out[2] + at * TOP + rank, tl.where(exists, tl.exp2(best - logsumexp), 0.0), mask=inside)
        values = tl.where((names == name[:, None]) & exists[:, None], HIDDEN, values)
