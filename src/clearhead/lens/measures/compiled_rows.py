"""The measures of a tile in one compiled loop per row, for CPUs: numba instead of a dozen passes of PyTorch.

A row of scores is read from the cache three times: once for its largest scores, once to replace it by e = 2^t with
t = (score − base) · log2(e) while all sums over e are taken, and once to add its weights to the map and to `received`.
Partial sums of at most CHUNK numbers are float32, as vectors of the processor; their totals are float64.
"""

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, no_type_check

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

LANES = 64  # the number of columns is a multiple of this
SHORT = 1024  # most columns of a row whose largest scores are found at once
CHUNK = 512
NARROW = 16  # most columns of a pixel that are added one by one
NUMBER = np.float32
INFINITY, LN2, LOG2E = NUMBER(math.inf), math.log(2), NUMBER(1 / math.log(2))
LOG_OF_ZERO = NUMBER(-1e4)  # stands for log2(0): 0 times it is 0
SMALLEST = NUMBER(-190)  # 2 to this power is 0 in float32
ROUND = NUMBER(1.5 * 2**23)  # x + ROUND − ROUND is x, rounded to a whole number; the sum's last bits are that number
SCALE = 64  # exponents are this much higher while numbers below 2^−126 are computed
HALVES = np.polynomial.Chebyshev.interpolate(np.exp2, 6, domain=[-0.5, 0.5]).convert(kind=np.polynomial.Polynomial)
TERMS = tuple(map(NUMBER, HALVES.coef))  # of 2^x between −1/2 and 1/2, within 2e-9
NOTHING, HIDDEN = np.int64(-(2**63)), np.int64(-0x7F800001)  # −inf has the upper half HIDDEN, see `pack`
LOW_HALF = np.int64(2**32 - 1)
# Sums may be taken in any order, as vectors need it; NaN and infinity keep their meaning.
REORDERED = {"reassoc", "contract", "nsz"}


def compile_loop(*signature: str, **options: Any) -> Callable[[Any], Any]:
    """A decorator that compiles a function for this processor; the code is cached if a folder can be written."""

    def compile_function(function: Any) -> Any:
        plain = inspect.unwrap(function)  # without the checks of shapes that tests add
        compile_plain = functools.partial(
            numba.njit, *signature, nogil=True, boundscheck=False, error_model="numpy", **options
        )
        try:
            return compile_plain(cache=True)(plain)
        except RuntimeError:  # numba finds no folder for its cache
            return compile_plain()(plain)

    return compile_function


@intrinsic
@no_type_check
def to_bits(typing_context, number):
    """The bits of a float32 as an int32."""
    return numba.int32(numba.float32), lambda context, builder, _, values: builder.bitcast(values[0], ir.IntType(32))


@intrinsic
@no_type_check
def from_bits(typing_context, bits):
    """The float32 that has these bits."""
    return numba.float32(numba.int32), lambda context, builder, _, values: builder.bitcast(values[0], ir.FloatType())


@compile_loop(fastmath={"contract"})
@no_type_check
def exp2(x):
    """2^x for x ≤ 0 within 1 ulp: a polynomial for the fraction of x, and the whole number as an exponent."""
    x = SMALLEST if x < SMALLEST else x
    shifted = x + ROUND
    fraction = x - (shifted - ROUND)
    y = TERMS[6] * fraction + TERMS[5]
    y = y * fraction + TERMS[4]
    y = y * fraction + TERMS[3]
    y = y * fraction + TERMS[2]
    y = y * fraction + TERMS[1]
    y = y * fraction + TERMS[0]
    return y * from_bits((to_bits(shifted) + np.int32(127 + SCALE)) << np.int32(23)) * NUMBER(2.0**-SCALE)


@compile_loop()
@no_type_check
def pack(score, key):
    """An integer that is larger for a larger score, and of equal scores for the smaller key."""
    bits = to_bits(score + NUMBER(0))  # −0 becomes 0
    return (np.int64(bits ^ ((bits >> np.int32(31)) & np.int32(2**31 - 1))) << np.int64(32)) - np.int64(key)


@compile_loop()
@no_type_check
def unpack(packed):
    """The score and the key; −inf and −1 if the key is hidden."""
    key = -packed & LOW_HALF
    bits = np.int32((packed + key) >> np.int64(32))
    score = from_bits(bits ^ ((bits >> np.int32(31)) & np.int32(2**31 - 1)))
    return (-INFINITY, -1) if packed <= HIDDEN << np.int64(32) else (score, key)


@compile_loop()
@no_type_check
def take_largest(packed, best):
    """Fills `best` with the largest of some different integers, in order, without branches to mispredict."""
    last = np.int64(2**63 - 1)
    for i in range(len(best)):
        largest = NOTHING
        for j in range(len(packed)):
            largest = max(largest, packed[j] if packed[j] < last else NOTHING)
        best[i] = last = largest


@compile_loop()
@no_type_check
def find_largest(scores, packed, maxima, best, more):
    """Fills `best` with the largest scores of a row and their keys, packed; the other arrays are overwritten.

    A long row is cut into strips of equal length, which are compared element by element. Each of the n largest scores
    stands in the column of one of the n largest of these maxima, so all others are skipped; with a tie for the last
    place, none is. `more` is one longer than `best`.
    """
    strips = 8 if len(scores) <= 8 * SHORT else LANES
    width = len(scores) // strips
    if len(scores) > SHORT:
        for j in range(width):
            maxima[j] = scores[j]
        for strip in range(1, strips):
            part = scores[strip * width : (strip + 1) * width]
            for j in range(width):
                maxima[j] = part[j] if part[j] > maxima[j] else maxima[j]
        for j in range(width):
            packed[j] = pack(maxima[j], j)
        take_largest(packed[:width], more)
        last, column = unpack(more[-2])
        if column >= 0 and unpack(more[-1])[0] < last:
            for i in range(len(best)):
                _, column = unpack(more[i])
                for strip in range(strips):
                    key = strip * width + column
                    packed[i * strips + strip] = pack(scores[key], key)
            take_largest(packed[: len(best) * strips], best)
            return
    for j in range(len(scores)):
        packed[j] = pack(scores[j], j)
    take_largest(packed[: len(scores)], best)


@compile_loop(fastmath=REORDERED)
@no_type_check
def sum_exponentials(scores, base, position):
    """Replaces a row of scores by e; Σ e, Σ e·log2(e) and Σ e·|position of query − position of key|."""
    total, log_sum, distance = 0.0, 0.0, 0.0
    for start in range(0, len(scores), CHUNK):
        part, query = scores[start : start + CHUNK], NUMBER(position - start)
        part_total, part_logs, part_distance = NUMBER(0), NUMBER(0), NUMBER(0)
        for j in range(len(part)):
            log = (part[j] - base) * LOG2E
            e = exp2(log)
            part_total += e
            part_logs += e * (LOG_OF_ZERO if log < LOG_OF_ZERO else log)
            part_distance += e * abs(query - NUMBER(np.int32(j)))
            part[j] = e
        total += part_total
        log_sum += part_logs
        distance += part_distance
    return total, log_sum, distance


@compile_loop(fastmath=REORDERED)
@no_type_check
def add_up(numbers):
    """Σ of some numbers."""
    total = 0.0
    for start in range(0, len(numbers), CHUNK):
        part, part_total = numbers[start : start + CHUNK], NUMBER(0)
        for j in range(len(part)):
            part_total += part[j]
        total += part_total
    return total


@compile_loop(fastmath=REORDERED)
@no_type_check
def add_weights(line, exponentials, share):
    """Adds e · share to a line."""
    for j in range(len(line)):
        line[j] += exponentials[j] * share


@compile_loop()
@no_type_check
def add_numbers(sums, line):
    """Adds a line to sums."""
    for j in range(len(line)):
        sums[j] += line[j]


@compile_loop()
@no_type_check
def add_pairs(numbers, sums):
    """Puts the sums of neighbours into `sums`."""
    for i in range(len(sums)):
        sums[i] = numbers[2 * i] + numbers[2 * i + 1]


@compile_loop()
@no_type_check
def add_pixels(pixels, line, spare, first, width):
    """Adds a line whose first column is key number `first` to a row of pixels of this width; overwrites the line.

    Even widths are halved by adding neighbours, which vectors can do.
    """
    if width == 1:
        add_numbers(pixels[first:], line)
        return
    pixel, inset = first // width, min(-first % width, len(line))
    if inset:
        pixels[pixel] += NUMBER(add_up(line[:inset]))
        pixel += 1
    whole = (len(line) - inset) // width
    rest = line[inset + whole * width :]
    if len(rest):
        pixels[pixel + whole] += NUMBER(add_up(rest))
    numbers, other = line[inset : inset + whole * width], spare
    while width % 2 == 0:
        width //= 2
        sums = other[: whole * width]
        add_pairs(numbers, sums)
        numbers, other = sums, numbers
    if width == 1:
        add_numbers(pixels[pixel:], numbers)
        return
    for column in range(width if width <= NARROW else 0):
        for i in range(whole):
            pixels[pixel + i] += numbers[i * width + column]
    for i in range(whole if width > NARROW else 0):
        pixels[pixel + i] += NUMBER(add_up(numbers[i * width : (i + 1) * width]))


ROWS, LISTS = "float32[:,:,:]", "float32[:,:,:,:]"
SIGNATURE = (
    f"void(float32[:,:,:,::1], float32[::1], {', '.join([ROWS] * 6)}, {LISTS}, int64[:,:,:,:], {LISTS}, "
    f"int64[:,::1], float64[:,:,:], {LISTS}, int64, int64, int64, int64, int64, int64, int64)"
)


@compile_loop(SIGNATURE)
@no_type_check
def measure_tile(
    scores, sinks, largest, logsumexp, entropy, peak, distance, first, top_weights, top_keys, span_mass, edges,
    received, pixels, columns, first_column, first_row, position, step, height, width,
):  # fmt: skip
    """Measures all rows of a tile, and adds its weights to `received` and `pixels`; overwrites `scores`.

    Arrays are (samples, heads, rows, …); those without elements are not filled. `columns` of the scores are keys, from
    number `first_column` on; the others are −inf. `position` is that of the first query, counted from the first
    column, `first_row` its number among the measured ones, and `step` the distance of two. A pixel is `height` ×
    `width` weights. `sinks` has one number per head, or none; `edges` are those of the spans, as columns.
    """
    samples, heads, rows, count = scores.shape
    top = top_keys.shape[3]
    packed, best, more = np.empty(count, np.int64), np.empty(top, np.int64), np.empty(top + 1, np.int64)
    maxima, line, spare = np.empty(count // 8, NUMBER), np.zeros(columns, NUMBER), np.empty(columns, NUMBER)
    mapped, summed = pixels.shape[2] > 0, pixels.shape[2] + received.shape[2] > 0
    for sample in range(samples):
        for head in range(heads):
            for row in range(rows):
                row_scores, index = scores[sample, head, row], (sample, head, row)
                find_largest(row_scores, packed, maxima, best, more)
                highest, _ = unpack(best[0])
                base = max(highest, sinks[head]) if len(sinks) else highest
                base = NUMBER(0) if base == -INFINITY else base
                visible = 0
                while visible < count - 1 and row_scores[visible] == -INFINITY:
                    visible += 1
                total, log_sum, apart = sum_exponentials(row_scores, base, position + row * step)
                normaliser = total + (math.exp(sinks[head] - base) if len(sinks) else 0.0)
                log, share = math.log(normaliser), 1 / normaliser
                if normaliser == 0:  # a query that sees nothing
                    log, share = 0.0, 1.0
                is_number = normaliser == normaliser
                largest[index] = highest if is_number or highest == INFINITY else NUMBER(math.nan)
                logsumexp[index] = base + log if highest > -INFINITY or not is_number else -INFINITY
                entropy[index] = (total * log - LN2 * log_sum) * share
                peak[index] = exp2((highest - base) * LOG2E) * share
                distance[index] = apart * share
                first[index] = row_scores[visible] * share
                row_weights, row_keys = top_weights[index], top_keys[index]
                for i in range(top):
                    score, key = unpack(best[i])
                    real = is_number and key >= 0
                    row_weights[i] = exp2((score - base) * LOG2E) * share if real else 0
                    row_keys[i] = key + first_column if real else -1
                for span in range(len(edges)):
                    span_mass[sample, head, row, span] = add_up(row_scores[edges[span, 0] : edges[span, 1]]) * share
                if not summed:
                    continue
                add_weights(line, row_scores, NUMBER(share))
                number = first_row + row
                if row == rows - 1 or (height and (number + 1) % height == 0):
                    if received.shape[2]:
                        add_numbers(received[sample, head, first_column:], line)
                    if mapped:
                        add_pixels(pixels[sample, head, number // height], line, spare, first_column, width)
                    line[:] = 0
