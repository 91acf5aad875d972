"""The pass along rows once more, for Hopper's tensor cores: what keys receive is summed up on the way.

That saves the pass along columns, which would do half of the forward's arithmetic again for it. It is written in
Gluon, Triton's language with the layouts in sight, because it has to know which thread holds what: `halved` says why.
It wants the logsumexp, half precision, heads of 64 or 128 numbers, and scores that are plain products; everything
else goes to `rows`, which says the same in Triton.
"""

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from clearhead.lens.kernels import rows, scoring
from clearhead.lens.kernels.scoring import FAR, HIDDEN, LN2, LOG2E, NOTHING, NUMBERS

visible = gluon.jit(scoring.visible.fn)
threshold = gluon.jit(rows.threshold.fn)
barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier  # its name before Triton 3.7


@gluon.jit(do_not_specialize=NUMBERS)
@no_type_check
def look_along_rows(
    q,
    q_place,
    k,
    k_place,
    mask,
    runs,
    runs_sample,
    runs_head,
    others,
    others_sample,
    others_head,
    others_tile,
    scales,
    given,
    received,
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
    D: gl.constexpr,
    BM: gl.constexpr,
    BN: gl.constexpr,
    WARPS: gl.constexpr,
    STAGES: gl.constexpr,
    TERMS: gl.constexpr,
    BOUNDS: gl.constexpr,
    DOCUMENTS: gl.constexpr,
    DENSE: gl.constexpr,
    TOP: gl.constexpr,
    CLASSES: gl.constexpr,
    RECEIVED: gl.constexpr,
    MAP: gl.constexpr,
    EVEN: gl.constexpr,
    TOUCHED: gl.constexpr,
    CHUNK: gl.constexpr,
    PARTS: gl.constexpr,
):
    tiles = (rows + BM - 1) // BM
    sample, tile = gl.program_id(0) // tiles, tiles - 1 - gl.program_id(0) % tiles  # under a causal mask longest first
    b, h = sample // heads, sample % heads
    scale = gl.load(scales + h)
    at = sample.to(gl.int64) * rows + tile * BM
    cells += sample.to(gl.int64) * cells_sample
    received += sample.to(gl.int64) * keys
    others += b * others_sample + h * others_head + tile * others_tile
    run = runs + b * runs_sample + h * runs_head + tile * 5
    first, end, hole, hole_end = gl.load(run), gl.load(run + 1), gl.load(run + 2), gl.load(run + 3)
    beginning = gl.where(first == hole, hole_end, first)
    turns = end - first - (hole_end - hole)
    total = turns + gl.load(run + 4)
    # Many tiles of one head run at a time: they begin at different places, so that not all add to the same keys.
    tour = (others, first, hole, hole_end, turns, total, (tile * turns) // tiles if RECEIVED else 0)

    # Tiles of keys come by the copy engine into STAGES places in turn; a barrier each says when one has come.
    tile_q = gl.allocate_shared_memory(q.dtype, [BM, D], q.layout)
    tiles_k = gl.allocate_shared_memory(k.dtype, [STAGES, BN, D], k.layout)
    come = gl.allocate_shared_memory(gl.int64, [STAGES + 1, 1], mbarrier.MBarrierLayout())
    for place in gl.static_range(STAGES + 1):
        mbarrier.init(come.index(place), count=1)
    fence_async_shared()
    mbarrier.expect(come.index(STAGES), q.block_type.nbytes)
    own = [b * q_place[0] + h * q_place[1] + tile * BM, h * q_place[2]]
    tma.async_copy_global_to_shared(q, own, come.index(STAGES), tile_q)
    origin = (b * k_place[0] + h // group * k_place[1], h // group * k_place[2])
    for turn in gl.static_range(STAGES - 1):
        fetch(k, origin, turn, tour, tiles_k, come, BN, STAGES)

    square: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[WARPS, 1], instr_shape=[16, BN, 16])
    nothing = gl.zeros([BM, BN], gl.float32, layout=square)
    eighths: gl.constexpr = gl.SliceLayout(1, gl.reshape(nothing, [BM, BN // 8, 8]).type.layout)
    classed: gl.constexpr = gl.SliceLayout(1, gl.reshape(nothing, [BM, BN // CLASSES, CLASSES // 8, 8]).type.layout)
    row = tile * BM + gl.arange(0, BM, layout=gl.SliceLayout(1, square))
    logsumexp = gl.load(given + (at + (row - tile * BM)), mask=row < rows, other=float("-inf")) * LOG2E
    logsumexp = gl.where(logsumexp <= NOTHING, -HIDDEN, logsumexp)
    i = start + step * row
    begins = gl.full([BM], FAR, gl.int32, layout=gl.SliceLayout(1, square))
    begins = gl.where(beginning < end, begins * 0 + beginning * BN, begins)
    spread = gl.zeros([BM, 8], gl.float32, layout=eighths)
    away = gl.zeros([BM, 8], gl.float32, layout=eighths)
    best = gl.full([BM, CLASSES // 8, 8], -3e38, gl.float32, layout=classed)
    where = gl.zeros([BM, CLASSES // 8, 8], gl.int32, layout=classed)

    mbarrier.wait(come.index(STAGES), 0)
    for turn in range(turns):
        product = products(tile_q, tiles_k, come, turn, nothing, STAGES)
        fetch(k, origin, turn + STAGES - 1, tour, tiles_k, come, BN, STAGES)
        n = number(turn, tour)
        side = gl.where(n >= hole_end, -1.0, 1.0)
        spread, away, best, where = taken(
            product * scale - logsumexp[:, None], n, side, spread, away, best, where, i + offset,
            received, cells, high, wide, columns, tile * BM, rows, keys,
            BM, BN, WARPS, TOP, CLASSES, RECEIVED, MAP, EVEN, TOUCHED, CHUNK, PARTS, True,
        )  # fmt: skip
    for turn in range(turns, total):
        product = products(tile_q, tiles_k, come, turn, nothing, STAGES)
        fetch(k, origin, turn + STAGES - 1, tour, tiles_k, come, BN, STAGES)
        n = number(turn, tour)
        j = n * BN + gl.arange(0, BN, layout=gl.SliceLayout(0, square))
        seen = visible(mask, b, h, i[:, None], j[None, :], queries, keys, TERMS, BOUNDS, DOCUMENTS, DENSE)
        seen = seen & (row < rows)[:, None]
        begins = gl.minimum(begins, gl.min(gl.where(seen, j[None, :], FAR), 1))
        spread, away, best, where = taken(
            gl.where(seen, product * scale, HIDDEN) - logsumexp[:, None], n, 1.0, spread, away, best, where, i + offset,
            received, cells, high, wide, columns, tile * BM, rows, keys,
            BM, BN, WARPS, TOP, CLASSES, RECEIVED, MAP, EVEN, TOUCHED, CHUNK, PARTS, False,
        )  # fmt: skip
    for place in gl.static_range(STAGES + 1):
        mbarrier.invalidate(come.index(place))

    most = gl.max(best, 1)
    peak = gl.max(most, 1)
    line: gl.constexpr = peak.type.layout
    logsumexp, begins = gl.convert_layout(logsumexp, line), gl.convert_layout(begins, line)
    inside = tile * BM + gl.arange(0, BM, layout=line) < rows
    at += gl.arange(0, BM, layout=line)
    entropy = gl.convert_layout(-LN2 * gl.sum(spread, 1), line)
    seen = (peak > NOTHING) | (entropy != entropy)
    distance = gl.convert_layout(gl.sum(away, 1), line)
    gl.store(out[0] + at, gl.where(seen, logsumexp, -HIDDEN), mask=inside)
    gl.store(out[1] + at, gl.where(seen, entropy, 0.0), mask=inside)
    gl.store(out[2] + at, gl.where(seen, gl.exp2(peak) + entropy * 0, 0.0), mask=inside)
    gl.store(out[3] + at, gl.where(seen, distance, 0.0), mask=inside)
    gl.store(out[4] + at, gl.where(seen, begins, -1), mask=inside)
    if TOP > 0:
        gl.store(out[5] + at, threshold(best, logsumexp, TOP), mask=inside)
    else:
        equal = best == peak[:, None][:, None, :]
        earliest = gl.min(gl.min(gl.where(equal, where, FAR), 1), 1)
        group_of = gl.arange(0, CLASSES // 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, classed)))[None, :, None]
        name = group_of * 8 + gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, classed)))[None, None, :]
        bits = gl.where(equal & (where == earliest[:, None][:, None, :]), 1 << name, 0)
        gl.store(out[6] + at, earliest, mask=inside)
        gl.store(out[7] + at, gl.sum(gl.sum(bits, 1), 1), mask=inside)


@gluon.jit
@no_type_check
def number(turn, tour):
    """Which tile of keys a turn is about: one of the run, with its hole left out, or one of the others."""
    others, first, hole, hole_end, turns, total, shift = tour
    place = turn + shift
    n = first + gl.where(place < turns, place, place - turns)
    n = gl.where(n >= hole, n + hole_end - hole, n)
    other = gl.load(others + (turn - turns), mask=(turn >= turns) & (turn < total), other=0)
    return gl.where(turn < turns, n, other)


@gluon.jit
@no_type_check
def fetch(k, origin, turn, tour, tiles_k, come, BN: gl.constexpr, STAGES: gl.constexpr):
    """Sends for the keys of a turn, if there is one: by now, nobody reads what lay in their place before."""
    barrier()
    some = turn < tour[5]
    place = turn % STAGES
    mbarrier.expect(come.index(place), k.block_type.nbytes, pred=some)
    at = [origin[0] + number(turn, tour) * BN, origin[1]]
    tma.async_copy_global_to_shared(k, at, come.index(place), tiles_k.index(place), pred=some)


@gluon.jit
@no_type_check
def products(tile_q, tiles_k, come, turn, nothing, STAGES: gl.constexpr):
    """q·kᵀ of a turn, as soon as its keys have come."""
    place = turn % STAGES
    mbarrier.wait(come.index(place), (turn // STAGES) & 1)
    product = warpgroup_mma(tile_q, tiles_k.index(place).permute((1, 0)), nothing, use_acc=False, is_async=True)
    return warpgroup_mma_wait(0, deps=[product])


@gluon.jit
@no_type_check
def taken(
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
    BM: gl.constexpr,
    BN: gl.constexpr,
    WARPS: gl.constexpr,
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
    most = gl.max(gl.reshape(x, [BM, BN // CLASSES, CLASSES // 8, 8]), 1)
    if TOP == 0:
        better = most > best
        if RECEIVED or not SURE:  # tiles come in another order than keys do
            better = better | ((most == best) & (n < where))
        where = gl.where(better, n, where)
    best = gl.maximum(best, most)
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
            add(gl.sum(pixels, 2), cells, first, high, columns, first_row, rows, BM, TOUCHED, CHUNK, PARTS)
        elif EVEN:
            pixels = gl.sum(gl.reshape(weights, [BM, TOUCHED, BN // TOUCHED]), 2)
            add(pixels, cells, first, high, columns, first_row, rows, BM, TOUCHED, CHUNK, PARTS)
        elif (n * BN + BN - 1) // wide == first:
            add(gl.sum(gl.expand_dims(sums, 1), 2), cells, first, high, columns, first_row, rows, BM, 1, CHUNK, PARTS)
        else:
            key = n * BN + gl.arange(0, pieces, layout=gl.SliceLayout(0, gl.SliceLayout(2, cube)))[None, :, None] * 8
            key = key + gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, cube)))[None, None, :]
            for pixel in range(first, (n * BN + BN - 1) // wide + 1):
                inside = (key >= pixel * wide) & (key < (pixel + 1) * wide)
                some = gl.sum(gl.where(inside, weights, 0.0), 1)
                some = gl.sum(gl.expand_dims(some, 1), 2)
                add(some, cells, pixel, high, columns, first_row, rows, BM, 1, CHUNK, PARTS)
    if RECEIVED:
        parts = gl.sum(gl.sum(gl.reshape(weights, [BM // WARPS // 16, WARPS, 2, 8, BN]), 2), 0)
        parts = halved(halved(halved(parts, 4, BN, WARPS), 2, BN // 2, WARPS), 1, BN // 4, WARPS)
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
def halved(parts, STEP: gl.constexpr, WIDE: gl.constexpr, WARPS: gl.constexpr):
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
def add(
    pixels,
    cells,
    first,
    high,
    columns,
    first_row,
    rows,
    BM: gl.constexpr,
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
