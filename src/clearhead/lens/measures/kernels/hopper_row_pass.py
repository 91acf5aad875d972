"""The row pass for Hopper, in Gluon: it also sums what keys receive, which saves the column pass.

Gluon is Triton's language with explicit layouts, needed because the sums depend on which thread holds which score
(see `exchange_halves`), and because warps are specialised: one producer warp loads tiles of keys by TMA, and two or
three consumer warpgroups of 64 rows each reduce them. While one consumer multiplies, another exponentiates, and each
tile of keys is loaded once for all of them.

It needs the logsumexp, half precision, heads of 64 or 128 features, and scores that are plain products; everything
else goes to `row_pass`, which computes the same in Triton.
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

from clearhead.lens.measures.kernels import row_pass, tile_operations
from clearhead.lens.measures.kernels.tile_operations import FAR, HIDDEN, LN2, LOG2E, NOTHING, NUMBERS
from clearhead.lens.measures.kernels.tile_shapes import CONSUMER_ROWS

is_visible = gluon.jit(tile_operations.is_visible.fn)
find_threshold = gluon.jit(row_pass.find_threshold.fn)
BM = gl.constexpr(CONSUMER_ROWS)
WARPS = gl.constexpr(4)  # of a consumer: a warpgroup
LEAST = gl.constexpr(0xFF7FFFFF)  # the bits of the smallest float32


@gluon.jit(do_not_specialize=NUMBERS)
@no_type_check
def scan_rows(
    q, q_place, k, k_place, mask, runs, runs_sample, runs_head, others, others_sample, others_head, others_tile,
    scales, logsumexps, received, out, cells, cells_sample, high, wide, columns, heads, group, queries, keys, rows,
    start, step, offset,
    D: gl.constexpr, BN: gl.constexpr, CONSUMERS: gl.constexpr, REGISTERS: gl.constexpr, STAGES: gl.constexpr,
    TERMS: gl.constexpr, BOUNDS: gl.constexpr, DOCUMENTS: gl.constexpr, DENSE: gl.constexpr, TOP: gl.constexpr,
    CLASSES: gl.constexpr, RECEIVED: gl.constexpr, MAP: gl.constexpr, EVEN: gl.constexpr, TOUCHED: gl.constexpr,
    CHUNK: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    tile_rows: gl.constexpr = BM * CONSUMERS
    tiles = (rows + tile_rows - 1) // tile_rows
    sample, tile = gl.program_id(0) // tiles, tiles - 1 - gl.program_id(0) % tiles  # under a causal mask longest first
    b, h = sample // heads, sample % heads
    row = tile * tile_rows
    others += b * others_sample + h * others_head + tile * others_tile
    run = runs + b * runs_sample + h * runs_head + tile * 5
    first, end, hole, hole_end = gl.load(run), gl.load(run + 1), gl.load(run + 2), gl.load(run + 3)
    first_column = gl.where(first == hole, hole_end, first)
    first_column = gl.where(first_column < end, first_column * BN, FAR)
    run_length = end - first - (hole_end - hole)
    total = run_length + gl.load(run + 4)
    # Many tiles of one head run at a time: each starts elsewhere, so that not all add to the same keys at once.
    rotation = (tile * run_length) // tiles if RECEIVED else run_length * 0
    schedule = (others, first, hole, hole_end, run_length, total, rotation)

    # A ring buffer of STAGES tiles of keys. The barriers `full` say when a tile has arrived (the last one: when q
    # has), the barriers `empty` when all consumers have read it.
    tiles_q = gl.allocate_shared_memory(q.dtype, [CONSUMERS, BM, D], q.layout)
    tiles_k = gl.allocate_shared_memory(k.dtype, [STAGES, BN, D], k.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES + 1, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES + 1):
        mbarrier.init(full.index(stage), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(empty.index(stage), count=CONSUMERS)
    fence_async_shared()

    origin_q = (b * q_place[0] + h * q_place[1] + row, h * q_place[2])
    origin_k = (b * k_place[0] + h // group * k_place[1], h // group * k_place[2])
    for_producer = (q, k, origin_q, origin_k, tiles_q, tiles_k, full, empty, schedule)
    at = sample.to(gl.int64)
    out = (
        out,
        logsumexps + at * rows,
        received + at * keys,
        cells + at * cells_sample,
        high,
        wide,
        columns,
        at * rows,
    )
    for_consumer = (tiles_q, tiles_k, full, empty, schedule, row, first_column, gl.load(scales + h), mask, b, h)
    for_consumer = (for_consumer, out, (queries, keys, rows, start, step, offset))
    if CONSUMERS == 2:
        gl.warp_specialize(
            [
                (reduce_rows, (0, for_consumer, BN, STAGES, TERMS, BOUNDS, DOCUMENTS, DENSE,
                        TOP, CLASSES, RECEIVED, MAP, EVEN, TOUCHED, CHUNK, PARTS)),
                (reduce_rows, (1, for_consumer, BN, STAGES, TERMS, BOUNDS, DOCUMENTS, DENSE,
                        TOP, CLASSES, RECEIVED, MAP, EVEN, TOUCHED, CHUNK, PARTS)),
                (load_keys, (for_producer, BN, STAGES, CONSUMERS)),
            ],
            [WARPS, 1],
            [REGISTERS, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (reduce_rows, (0, for_consumer, BN, STAGES, TERMS, BOUNDS, DOCUMENTS, DENSE,
                        TOP, CLASSES, RECEIVED, MAP, EVEN, TOUCHED, CHUNK, PARTS)),
                (reduce_rows, (1, for_consumer, BN, STAGES, TERMS, BOUNDS, DOCUMENTS, DENSE,
                        TOP, CLASSES, RECEIVED, MAP, EVEN, TOUCHED, CHUNK, PARTS)),
                (reduce_rows, (2, for_consumer, BN, STAGES, TERMS, BOUNDS, DOCUMENTS, DENSE,
                        TOP, CLASSES, RECEIVED, MAP, EVEN, TOUCHED, CHUNK, PARTS)),
                (load_keys, (for_producer, BN, STAGES, CONSUMERS)),
            ],
            [WARPS, WARPS, 1],
            [REGISTERS, REGISTERS, 24],
        )  # fmt: skip


@gluon.jit
@no_type_check
def load_keys(for_producer, BN: gl.constexpr, STAGES: gl.constexpr, CONSUMERS: gl.constexpr):
    """The producer: loads the queries, then each tile of keys as soon as its stage is empty."""
    q, k, origin_q, origin_k, tiles_q, tiles_k, full, empty, schedule = for_producer
    mbarrier.expect(full.index(STAGES), q.block_type.nbytes * CONSUMERS)
    for consumer in gl.static_range(CONSUMERS):
        tma.async_copy_global_to_shared(
            q, [origin_q[0] + consumer * BM, origin_q[1]], full.index(STAGES), tiles_q.index(consumer)
        )
    for iteration in range(schedule[5]):
        stage = iteration % STAGES
        mbarrier.wait(empty.index(stage), ((iteration // STAGES) & 1) ^ 1)
        mbarrier.expect(full.index(stage), k.block_type.nbytes)
        at = [origin_k[0] + find_key_tile(iteration, schedule) * BN, origin_k[1]]
        tma.async_copy_global_to_shared(k, at, full.index(stage), tiles_k.index(stage))


@gluon.jit
@no_type_check
def reduce_rows(
    consumer, for_consumer,
    BN: gl.constexpr, STAGES: gl.constexpr, TERMS: gl.constexpr, BOUNDS: gl.constexpr, DOCUMENTS: gl.constexpr,
    DENSE: gl.constexpr, TOP: gl.constexpr, CLASSES: gl.constexpr, RECEIVED: gl.constexpr, MAP: gl.constexpr,
    EVEN: gl.constexpr, TOUCHED: gl.constexpr, CHUNK: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    """A consumer: the measures of its 64 rows."""
    for_consumer, out, sizes = for_consumer
    tiles_q, tiles_k, full, empty, schedule, row, first_column, scale, mask, b, h = for_consumer
    out, logsumexps, received, cells, high, wide, columns, at = out
    queries, keys, rows, start, step, offset = sizes
    hole_end, run_length, total = schedule[3], schedule[4], schedule[5]
    first_row = row + consumer * BM
    at += first_row

    product_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[WARPS, 1], instr_shape=[16, BN, 16]
    )
    zeros = gl.zeros([BM, BN], gl.float32, layout=product_layout)
    sums_layout: gl.constexpr = gl.SliceLayout(1, gl.reshape(zeros, [BM, BN // 8, 8]).type.layout)
    class_layout: gl.constexpr = gl.SliceLayout(1, gl.reshape(zeros, [BM, BN // CLASSES, CLASSES // 8, 8]).type.layout)
    row = first_row + gl.arange(0, BM, layout=gl.SliceLayout(1, product_layout))
    logsumexp = gl.load(logsumexps + row, mask=row < rows, other=float("-inf")) * LOG2E
    logsumexp = gl.where(logsumexp <= NOTHING, -HIDDEN, logsumexp)
    i = start + step * row
    first_key = gl.zeros([BM], gl.int32, layout=gl.SliceLayout(1, product_layout)) + first_column
    log_sum = gl.zeros([BM, 8], gl.float32, layout=sums_layout)
    distance_sum = gl.zeros([BM, 8], gl.float32, layout=sums_layout)
    best = gl.full([BM, CLASSES // 8, 8], LEAST, gl.uint32, layout=class_layout)
    best_tile = gl.zeros([BM, CLASSES // 8, 8], gl.int32, layout=class_layout)

    mbarrier.wait(full.index(STAGES), 0)
    tile_q = tiles_q.index(consumer)
    operand: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=product_layout, k_width=2)
    real = first_row + gl.arange(0, BM, layout=gl.SliceLayout(1, operand)) < rows  # rows after them are another head's
    registers_q = tile_q.load(operand)
    registers_q = gl.where(real[:, None], registers_q, gl.zeros(registers_q.shape, registers_q.dtype, layout=operand))
    for iteration in range(run_length):
        product = multiply_tiles(registers_q, tiles_k, full, empty, iteration, zeros, STAGES)
        n = find_key_tile(iteration, schedule)
        side = gl.where(n >= hole_end, -1.0, 1.0)
        log_sum, distance_sum, best, best_tile = accumulate_tile(
            product * scale - logsumexp[:, None], n, side, log_sum, distance_sum, best, best_tile,
            i + offset, received, cells, high, wide, columns, first_row, rows, keys,
            BN, TOP, CLASSES, RECEIVED, MAP, EVEN, TOUCHED, CHUNK, PARTS, True,
        )  # fmt: skip
    for iteration in range(run_length, total):
        product = multiply_tiles(tile_q, tiles_k, full, empty, iteration, zeros, STAGES)
        n = find_key_tile(iteration, schedule)
        j = n * BN + gl.arange(0, BN, layout=gl.SliceLayout(0, product_layout))
        seen = is_visible(mask, b, h, i[:, None], j[None, :], queries, keys, TERMS, BOUNDS, DOCUMENTS, DENSE)
        seen = seen & (row < rows)[:, None]
        first_key = gl.minimum(first_key, gl.min(gl.where(seen, j[None, :], FAR), 1))
        log_sum, distance_sum, best, best_tile = accumulate_tile(
            gl.where(seen, product * scale, HIDDEN) - logsumexp[:, None], n, 1.0, log_sum, distance_sum, best,
            best_tile, i + offset, received, cells, high, wide, columns, first_row, rows, keys,
            BN, TOP, CLASSES, RECEIVED, MAP, EVEN, TOUCHED, CHUNK, PARTS, False,
        )  # fmt: skip

    best = best.to(gl.float32, bitcast=True)
    best = gl.where(best == best, best, HIDDEN)
    class_best = gl.max(best, 1)
    peak = gl.max(class_best, 1)
    row_layout: gl.constexpr = peak.type.layout
    logsumexp, first_key = gl.convert_layout(logsumexp, row_layout), gl.convert_layout(first_key, row_layout)
    inside = first_row + gl.arange(0, BM, layout=row_layout) < rows
    at += gl.arange(0, BM, layout=row_layout)
    entropy = gl.convert_layout(-LN2 * gl.sum(log_sum, 1), row_layout)
    seen = (peak > NOTHING) | (entropy != entropy)
    distance = gl.convert_layout(gl.sum(distance_sum, 1), row_layout)
    gl.store(out[0] + at, gl.where(seen, logsumexp, -HIDDEN), mask=inside)
    gl.store(out[1] + at, gl.where(seen, entropy, 0.0), mask=inside)
    gl.store(out[2] + at, gl.where(seen, gl.exp2(peak) + entropy * 0, 0.0), mask=inside)
    gl.store(out[3] + at, gl.where(seen, distance, 0.0), mask=inside)
    gl.store(out[4] + at, gl.where(seen, first_key, -1), mask=inside)
    best_score = (peak + logsumexp) * LN2 + entropy * 0
    gl.store(out[6] + at, gl.where(seen, best_score, float("-inf")), mask=inside)
    if TOP > 0:
        gl.store(out[5] + at, find_threshold(best, logsumexp, TOP), mask=inside)
    else:
        equal = best == peak[:, None][:, None, :]
        first_tile = gl.min(gl.min(gl.where(equal, best_tile, FAR), 1), 1)
        group_of = gl.arange(0, CLASSES // 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, class_layout)))[None, :, None]
        class_number = (
            group_of * 8 + gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, class_layout)))[None, None, :]
        )
        bits = gl.where(equal & (best_tile == first_tile[:, None][:, None, :]), 1 << class_number, 0)
        gl.store(out[7] + at, first_tile, mask=inside)
        gl.store(out[8] + at, gl.sum(gl.sum(bits, 1), 1), mask=inside)


@gluon.jit
@no_type_check
def find_key_tile(iteration, schedule):
    """The tile of keys of an iteration: one of the run, its hole left out, or one of the others."""
    others, first, hole, hole_end, run_length, total, rotation = schedule
    turn = iteration + rotation
    n = first + gl.where(turn < run_length, turn, turn - run_length)
    n = gl.where(n >= hole, n + hole_end - hole, n)
    other = gl.load(others + (iteration - run_length), mask=(iteration >= run_length) & (iteration < total), other=0)
    return gl.where(iteration < run_length, n, other)


@gluon.jit
@no_type_check
def multiply_tiles(tile_q, tiles_k, full, empty, iteration, zeros, STAGES: gl.constexpr):
    """q·kᵀ of an iteration, as soon as its keys have arrived."""
    stage = iteration % STAGES
    mbarrier.wait(full.index(stage), (iteration // STAGES) & 1)
    product = warpgroup_mma(tile_q, tiles_k.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
    product = warpgroup_mma_wait(0, deps=[product])
    mbarrier.arrive(empty.index(stage), count=1)
    return product


@gluon.jit
@no_type_check
def accumulate_tile(
    x, n, side, log_sum, distance_sum, best, best_tile, position, received, cells, high, wide, columns, first_row,
    rows, keys,
    BN: gl.constexpr, TOP: gl.constexpr, CLASSES: gl.constexpr, RECEIVED: gl.constexpr, MAP: gl.constexpr,
    EVEN: gl.constexpr, TOUCHED: gl.constexpr, CHUNK: gl.constexpr, PARTS: gl.constexpr, SURE: gl.constexpr,
):  # fmt: skip
    """As `row_pass.accumulate_tile` with a given logsumexp; it also adds to the map and to `received`."""
    pieces: gl.constexpr = BN // 8
    x = gl.reshape(x, [BM, pieces, 8])
    tile_layout: gl.constexpr = x.type.layout
    sums_layout: gl.constexpr = gl.SliceLayout(1, tile_layout)
    # Of negative numbers the largest has the smallest bits, and integers are compared three at a time. At most one in
    # a row is positive, by rounding: no two weights are both 1.
    bits = x.to(gl.uint32, bitcast=True)
    class_best = gl.min(gl.reshape(bits, [BM, BN // CLASSES, CLASSES // 8, 8]), 1)
    if TOP == 0:
        better = class_best < best
        if RECEIVED or not SURE:  # tiles are not visited in the order of keys
            better = better | ((class_best == best) & (n < best_tile))
        best_tile = gl.where(better, n, best_tile)
    best = gl.minimum(best, class_best)
    weights = gl.exp2(x)
    log_sum += gl.sum(weights * x, 1)
    position = gl.convert_layout(position, gl.SliceLayout(1, sums_layout), assert_trivial=True)
    middle = (position - n * BN).to(gl.float32) - (BN - 1) / 2
    column = gl.arange(0, 8, layout=gl.SliceLayout(0, sums_layout)).to(gl.float32)[None, :] - 3.5
    piece = gl.arange(0, pieces, layout=gl.SliceLayout(0, gl.SliceLayout(2, tile_layout))).to(gl.float32) * 8 - (
        BN // 2 - 4
    )
    if MAP and EVEN and TOUCHED * 8 <= BN:
        pixels = gl.sum(gl.reshape(weights, [BM, TOUCHED, pieces // TOUCHED, 8]), 2)
        sums = gl.convert_layout(gl.sum(pixels, 1), sums_layout, assert_trivial=True)
    else:
        sums = gl.sum(weights, 1)
    if SURE:
        offset_sum = gl.sum(weights * piece[None, :, None], 1)
        distance_sum += side * (sums * (middle[:, None] - column) - offset_sum)
    else:
        apart = (middle[:, None] - column)[:, None, :] - piece[None, :, None]
        distance_sum += gl.sum(weights * gl.abs(apart), 1)
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
            key = (
                n * BN
                + gl.arange(0, pieces, layout=gl.SliceLayout(0, gl.SliceLayout(2, tile_layout)))[None, :, None] * 8
            )
            key = key + gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, tile_layout)))[None, None, :]
            for pixel in range(first, (n * BN + BN - 1) // wide + 1):
                inside = (key >= pixel * wide) & (key < (pixel + 1) * wide)
                part = gl.sum(gl.where(inside, weights, 0.0), 1)
                part = gl.sum(gl.expand_dims(part, 1), 2)
                add_pixels(part, cells, pixel, high, columns, first_row, rows, 1, CHUNK, PARTS)
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
    return log_sum, distance_sum, best, best_tile


@gluon.jit
@no_type_check
def exchange_halves(parts, STEP: gl.constexpr, WIDE: gl.constexpr):
    """One step of a butterfly reduction: of rows r and r ^ STEP one gets the sum of the left halves, one of the right.

    Eight rows, (WARPS, 8, WIDE), lie in eight threads. Reducing every column would take three shuffles a column;
    halving the columns at each of three steps takes less than one.
    """
    left, right = gl.split(gl.permute(gl.reshape(parts, [WARPS, 8, 2, WIDE // 2]), [0, 1, 3, 2]))
    row = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, left.type.layout)))[None, :, None]
    lower = (row & STEP) == 0
    outgoing = gl.where(lower, right, left)
    if STEP == 4:
        incoming = gl.inline_asm_elementwise(
            "shfl.sync.bfly.b32 $0, $1, 16, 31, -1;", "=f,f", [outgoing], dtype=gl.float32, is_pure=False, pack=1
        )
    elif STEP == 2:
        incoming = gl.inline_asm_elementwise(
            "shfl.sync.bfly.b32 $0, $1, 8, 31, -1;", "=f,f", [outgoing], dtype=gl.float32, is_pure=False, pack=1
        )
    else:
        incoming = gl.inline_asm_elementwise(
            "shfl.sync.bfly.b32 $0, $1, 4, 31, -1;", "=f,f", [outgoing], dtype=gl.float32, is_pure=False, pack=1
        )
    return gl.where(lower, left, right) + incoming


@gluon.jit
@no_type_check
def add_pixels(
    pixels, cells, first, high, columns, first_row, rows,
    WIDE: gl.constexpr, CHUNK: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    """As `tile_operations.add_pixels`: adds sums of each row, (BM, WIDE), to the cells of their chunks."""
    row = first_row + gl.arange(0, BM, layout=gl.SliceLayout(1, pixels.type.layout))
    for part in gl.static_range(PARTS):
        sums = pixels
        if PARTS > 1:
            line_in_chunk = row // high - (row - row % CHUNK) // high
            sums = gl.where((line_in_chunk == part)[:, None], pixels, 0.0)
        if CHUNK > 1:
            sums = gl.sum(gl.reshape(sums, [BM // CHUNK, CHUNK, WIDE]), 1)
        chunk = first_row + gl.arange(0, BM // CHUNK, layout=gl.SliceLayout(1, sums.type.layout)) * CHUNK
        pixel_row = chunk // high + part
        column = first + gl.arange(0, WIDE, layout=gl.SliceLayout(0, sums.type.layout))
        inside = (pixel_row * high < rows)[:, None] & (column < columns)[None, :]
        gl.atomic_add(cells + pixel_row[:, None] * columns + column[None, :], sums, mask=inside, sem="relaxed")
