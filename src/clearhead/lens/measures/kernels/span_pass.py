"""The mass on spans of keys: each program sums the weights of one tile of queries over the keys of one span."""

from typing import no_type_check

import triton
import triton.language as tl

from clearhead.lens.measures.kernels.tile_operations import (
    HIDDEN,
    NUMBERS,
    add_bias,
    is_visible,
    load_tile,
    multiply_tiles,
    scale_product,
)


@triton.jit(do_not_specialize=[*NUMBERS, "count"])
@no_type_check
def sum_spans(
    q, q_place, k, k_place, mask, bias, spans, scales, cap, logsumexps, out, count, heads, group, queries, keys,
    rows, start, step, offset,
    D: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, TMA_Q: tl.constexpr,
    TMA_K: tl.constexpr, PRECISION: tl.constexpr, CAST: tl.constexpr, CAP: tl.constexpr, BIAS: tl.constexpr,
    TERMS: tl.constexpr, BOUNDS: tl.constexpr, DOCUMENTS: tl.constexpr, DENSE: tl.constexpr,
):  # fmt: skip
    """`spans` holds the first and the end of each of `count` spans; `logsumexps` are in units of ln 2."""
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
