"""The pass along columns: each program keeps a tile of keys and loops over queries, whose logsumexp is known.

It also collects the candidates for the top keys of a query, all keys whose score reaches a threshold; and it fills
the map, if the row pass had no logsumexp yet.
"""

from typing import no_type_check

import triton
import triton.language as tl

from clearhead.lens.measures.kernels.tile_operations import (
    HIDDEN,
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
