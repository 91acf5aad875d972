"""The pass along rows for Hopper, in Gluon: it also sums what keys receive.

That saves the pass along columns, which would do half of the forward's arithmetic again for it. It is written in
Gluon, Triton's language with the layouts in sight, because it has to know which thread holds what (`hopper_sums` says
why), and because it divides the warps: one sends for the keys, and two or three warpgroups, 64 rows each, read them.
While one of them multiplies, another exponentiates, and what keys cost on their way through the chip, they cost once.

It wants the logsumexp, half precision, heads of 64 or 128 numbers, and scores that are plain products; everything
else goes to `row_pass`, which says the same in Triton.
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
from clearhead.lens.measures.kernels.hopper_reductions import BM, WARPS, accumulate_tile
from clearhead.lens.measures.kernels.tile_operations import FAR, HIDDEN, LN2, LOG2E, NOTHING, NUMBERS

is_visible = gluon.jit(tile_operations.is_visible.fn)
find_threshold = gluon.jit(row_pass.find_threshold.fn)
LEAST = gl.constexpr(0xFF7FFFFF)  # the bits of the least number


@gluon.jit(do_not_specialize=NUMBERS)
@no_type_check
def scan_rows(
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
    BN: gl.constexpr,
    READERS: gl.constexpr,
    REGISTERS: gl.constexpr,
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
    tall: gl.constexpr = BM * READERS
    tiles = (rows + tall - 1) // tall
    sample, tile = gl.program_id(0) // tiles, tiles - 1 - gl.program_id(0) % tiles  # under a causal mask longest first
    b, h = sample // heads, sample % heads
    row = tile * tall
    others += b * others_sample + h * others_head + tile * others_tile
    run = runs + b * runs_sample + h * runs_head + tile * 5
    first, end, hole, hole_end = gl.load(run), gl.load(run + 1), gl.load(run + 2), gl.load(run + 3)
    beginning = gl.where(first == hole, hole_end, first)
    beginning = gl.where(beginning < end, beginning * BN, FAR)
    turns = end - first - (hole_end - hole)
    total = turns + gl.load(run + 4)
    # Many tiles of one head run at a time: they begin at different places, so that not all add to the same keys.
    shift = (tile * turns) // tiles if RECEIVED else turns * 0
    tour = (others, first, hole, hole_end, turns, total, shift)

    # Tiles of keys come by the copy engine into STAGES places in turn. Barriers say of each place when its tile has
    # come (the last one: when q has), and when all have read it.
    tiles_q = gl.allocate_shared_memory(q.dtype, [READERS, BM, D], q.layout)
    tiles_k = gl.allocate_shared_memory(k.dtype, [STAGES, BN, D], k.layout)
    come = gl.allocate_shared_memory(gl.int64, [STAGES + 1, 1], mbarrier.MBarrierLayout())
    read = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for place in gl.static_range(STAGES + 1):
        mbarrier.init(come.index(place), count=1)
    for place in gl.static_range(STAGES):
        mbarrier.init(read.index(place), count=READERS)
    fence_async_shared()

    own = (b * q_place[0] + h * q_place[1] + row, h * q_place[2])
    origin = (b * k_place[0] + h // group * k_place[1], h // group * k_place[2])
    sent = (q, k, own, origin, tiles_q, tiles_k, come, read, tour)
    at = sample.to(gl.int64)
    out = (out, given + at * rows, received + at * keys, cells + at * cells_sample, high, wide, columns, at * rows)
    about = (tiles_q, tiles_k, come, read, tour, row, beginning, gl.load(scales + h), mask, b, h)
    about = (about, out, (queries, keys, rows, start, step, offset))
    if READERS == 2:
        gl.warp_specialize(
            [
                (reduce_rows, (0, about, BN, STAGES, TERMS, BOUNDS, DOCUMENTS, DENSE,
                        TOP, CLASSES, RECEIVED, MAP, EVEN, TOUCHED, CHUNK, PARTS)),
                (reduce_rows, (1, about, BN, STAGES, TERMS, BOUNDS, DOCUMENTS, DENSE,
                        TOP, CLASSES, RECEIVED, MAP, EVEN, TOUCHED, CHUNK, PARTS)),
                (load_keys, (sent, BN, STAGES, READERS)),
            ],
            [WARPS, 1],
            [REGISTERS, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (reduce_rows, (0, about, BN, STAGES, TERMS, BOUNDS, DOCUMENTS, DENSE,
                        TOP, CLASSES, RECEIVED, MAP, EVEN, TOUCHED, CHUNK, PARTS)),
                (reduce_rows, (1, about, BN, STAGES, TERMS, BOUNDS, DOCUMENTS, DENSE,
                        TOP, CLASSES, RECEIVED, MAP, EVEN, TOUCHED, CHUNK, PARTS)),
                (reduce_rows, (2, about, BN, STAGES, TERMS, BOUNDS, DOCUMENTS, DENSE,
                        TOP, CLASSES, RECEIVED, MAP, EVEN, TOUCHED, CHUNK, PARTS)),
                (load_keys, (sent, BN, STAGES, READERS)),
            ],
            [WARPS, WARPS, 1],
            [REGISTERS, REGISTERS, 24],
        )  # fmt: skip


@gluon.jit
@no_type_check
def load_keys(sent, BN: gl.constexpr, STAGES: gl.constexpr, READERS: gl.constexpr):
    """Sends for the queries, and for the keys of each turn as soon as all have read what lies in their place."""
    q, k, own, origin, tiles_q, tiles_k, come, read, tour = sent
    mbarrier.expect(come.index(STAGES), q.block_type.nbytes * READERS)
    for reader in gl.static_range(READERS):
        tma.async_copy_global_to_shared(q, [own[0] + reader * BM, own[1]], come.index(STAGES), tiles_q.index(reader))
    for turn in range(tour[5]):
        place = turn % STAGES
        mbarrier.wait(read.index(place), ((turn // STAGES) & 1) ^ 1)
        mbarrier.expect(come.index(place), k.block_type.nbytes)
        at = [origin[0] + next_phase(turn, tour) * BN, origin[1]]
        tma.async_copy_global_to_shared(k, at, come.index(place), tiles_k.index(place))


@gluon.jit
@no_type_check
def reduce_rows(
    reader,
    about,
    BN: gl.constexpr,
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
    """What one reader does: everything about its rows."""
    about, out, sizes = about
    tiles_q, tiles_k, come, read, tour, row, beginning, scale, mask, b, h = about
    out, given, received, cells, high, wide, columns, at = out
    queries, keys, rows, start, step, offset = sizes
    hole_end, turns, total = tour[3], tour[4], tour[5]
    first_row = row + reader * BM
    at += first_row

    square: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[WARPS, 1], instr_shape=[16, BN, 16])
    nothing = gl.zeros([BM, BN], gl.float32, layout=square)
    eighths: gl.constexpr = gl.SliceLayout(1, gl.reshape(nothing, [BM, BN // 8, 8]).type.layout)
    classed: gl.constexpr = gl.SliceLayout(1, gl.reshape(nothing, [BM, BN // CLASSES, CLASSES // 8, 8]).type.layout)
    row = first_row + gl.arange(0, BM, layout=gl.SliceLayout(1, square))
    logsumexp = gl.load(given + row, mask=row < rows, other=float("-inf")) * LOG2E
    logsumexp = gl.where(logsumexp <= NOTHING, -HIDDEN, logsumexp)
    i = start + step * row
    begins = gl.zeros([BM], gl.int32, layout=gl.SliceLayout(1, square)) + beginning
    spread = gl.zeros([BM, 8], gl.float32, layout=eighths)
    away = gl.zeros([BM, 8], gl.float32, layout=eighths)
    best = gl.full([BM, CLASSES // 8, 8], LEAST, gl.uint32, layout=classed)
    where = gl.zeros([BM, CLASSES // 8, 8], gl.int32, layout=classed)

    mbarrier.wait(come.index(STAGES), 0)
    tile_q = tiles_q.index(reader)
    operand: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=square, k_width=2)
    real = first_row + gl.arange(0, BM, layout=gl.SliceLayout(1, operand)) < rows  # after them come another head's
    held_q = tile_q.load(operand)
    held_q = gl.where(real[:, None], held_q, gl.zeros(held_q.shape, held_q.dtype, layout=operand))
    for turn in range(turns):
        product = multiply_tiles(held_q, tiles_k, come, read, turn, nothing, STAGES)
        n = next_phase(turn, tour)
        side = gl.where(n >= hole_end, -1.0, 1.0)
        spread, away, best, where = accumulate_tile(
            product * scale - logsumexp[:, None], n, side, spread, away, best, where, i + offset,
            received, cells, high, wide, columns, first_row, rows, keys,
            BN, TOP, CLASSES, RECEIVED, MAP, EVEN, TOUCHED, CHUNK, PARTS, True,
        )  # fmt: skip
    for turn in range(turns, total):
        product = multiply_tiles(tile_q, tiles_k, come, read, turn, nothing, STAGES)
        n = next_phase(turn, tour)
        j = n * BN + gl.arange(0, BN, layout=gl.SliceLayout(0, square))
        seen = is_visible(mask, b, h, i[:, None], j[None, :], queries, keys, TERMS, BOUNDS, DOCUMENTS, DENSE)
        seen = seen & (row < rows)[:, None]
        begins = gl.minimum(begins, gl.min(gl.where(seen, j[None, :], FAR), 1))
        spread, away, best, where = accumulate_tile(
            gl.where(seen, product * scale, HIDDEN) - logsumexp[:, None], n, 1.0, spread, away, best, where, i + offset,
            received, cells, high, wide, columns, first_row, rows, keys,
            BN, TOP, CLASSES, RECEIVED, MAP, EVEN, TOUCHED, CHUNK, PARTS, False,
        )  # fmt: skip

    best = best.to(gl.float32, bitcast=True)
    best = gl.where(best == best, best, HIDDEN)
    most = gl.max(best, 1)
    peak = gl.max(most, 1)
    line: gl.constexpr = peak.type.layout
    logsumexp, begins = gl.convert_layout(logsumexp, line), gl.convert_layout(begins, line)
    inside = first_row + gl.arange(0, BM, layout=line) < rows
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
        gl.store(out[5] + at, find_threshold(best, logsumexp, TOP), mask=inside)
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
def next_phase(turn, tour):
    """Which tile of keys a turn is about: one of the run, with its hole left out, or one of the others."""
    others, first, hole, hole_end, turns, total, shift = tour
    place = turn + shift
    n = first + gl.where(place < turns, place, place - turns)
    n = gl.where(n >= hole, n + hole_end - hole, n)
    other = gl.load(others + (turn - turns), mask=(turn >= turns) & (turn < total), other=0)
    return gl.where(turn < turns, n, other)


@gluon.jit
@no_type_check
def multiply_tiles(tile_q, tiles_k, come, read, turn, nothing, STAGES: gl.constexpr):
    """q·kᵀ of a turn, as soon as its keys have come."""
    place = turn % STAGES
    mbarrier.wait(come.index(place), (turn // STAGES) & 1)
    product = warpgroup_mma(tile_q, tiles_k.index(place).permute((1, 0)), nothing, use_acc=False, is_async=True)
    product = warpgroup_mma_wait(0, deps=[product])
    mbarrier.arrive(read.index(place), count=1)
    return product
