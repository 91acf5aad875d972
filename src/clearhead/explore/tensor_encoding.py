"""Encodes tensors as compact text inside a page; page/data/tensor_decoding.js decodes them.

A weight becomes a level, round(weight · levels), so 1000 levels err by at most 0.0005. Levels of n keys have a mean of
levels / n, so their entropy is at most that of a geometric distribution with this mean (2.7 bits for 512 keys). Deflate
comes close to it if small levels are stored two to a byte.
"""

from __future__ import annotations

import base64
import math
import zlib
from bisect import bisect_left
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from clearhead.explore.scene_json import BlockJson

MAX_RUNS = 4096  # of the counts of one attention; where masks are so irregular, a page does without them
LEVELS = (65535, 10000)  # finer numbers of levels, used if there is room
MIN_LEVELS = 1000
SAMPLING_MARGIN = 1.1  # by which all weights may need more bytes than a sample of them
MAX_ODD_LEVELS = 65532  # leaves three codes of 16 bits for NaN and infinities
ESCAPE = 15  # a nibble for values that do not fit: the rest follows after all nibbles
UNSAFE = {0: "\u0100", 13: "\u010d", 60: "\u013c"}  # HTML would change NUL, CR and <; the code & 127 is the same


class EncodedTensor(NamedTuple):
    """Compressed bytes, and the shape, type and levels that are needed to decode them."""

    data: bytes
    layout: BlockJson


def encode_weights(
    weights: Float[Tensor, "heads rows columns"], levels: int = MIN_LEVELS, scale: list[float] | None = None
) -> EncodedTensor:
    """Numbers from 0 to 1, or to the `scale` of each head, as levels: the error is at most scale / (2 · levels).

    Where any number is NaN or infinite, the next three integers stand for NaN, infinity and minus infinity.

    >>> encode_weights(torch.tensor([[[0.25, 0.75]]])).layout
    {'shape': [1, 1, 2], 'levels': 1000, 'planes': 2}
    """
    numbers = weights.to(torch.promote_types(weights.dtype, torch.float32))
    odd = not bool(numbers.isfinite().all())
    levels = min(levels, MAX_ODD_LEVELS) if odd else levels
    if scale is not None:
        numbers = numbers / torch.tensor(scale, dtype=numbers.dtype).clamp(min=1e-30).view(-1, 1, 1)
    finite = numbers.nan_to_num(0.0, 0.0, 0.0) if odd else numbers
    values = (finite * levels).round_().clamp_(0, levels).numpy().astype(np.uint16)
    layout: BlockJson = {"shape": list(weights.shape), "levels": levels}
    if odd:
        kinds = (numbers.isnan(), numbers == math.inf, numbers == -math.inf)
        for code, where in enumerate(kinds, start=levels + 1):
            values[where.numpy()] = code
        layout["odd"] = True
    if scale is not None:
        layout["scale"] = scale
    if values.size and values.mean() < ESCAPE / 3:
        raw, rest = _to_nibbles(values.ravel())
        return EncodedTensor(deflate(raw), {**layout, "pack": "nibbles", "rest": rest})
    return EncodedTensor(deflate(_to_planes(values.ravel(), 2)), {**layout, "planes": 2})


def encode_keys(keys: Int[Tensor, "heads queries top"]) -> EncodedTensor:
    """Positions, or −1 for none; each is stored plus one."""
    planes = 2 if not keys.numel() or int(keys.max()) < 2**16 - 1 else 4
    raw = _to_planes((keys.long() + 1).numpy().ravel(), planes)
    return EncodedTensor(deflate(raw), {"shape": list(keys.shape), "planes": planes})


def encode_floats(numbers: Float[Tensor, "..."]) -> EncodedTensor:
    """float32, little-endian."""
    raw = numbers.float().contiguous().numpy().astype("<f4").tobytes()
    return EncodedTensor(deflate(raw), {"shape": list(numbers.shape), "type": "float32"})


def encode_bytes(numbers: NDArray[np.uint8]) -> EncodedTensor:
    return EncodedTensor(deflate(numbers.tobytes()), {"shape": list(numbers.shape), "planes": 1})


def encode_runs(counts: Int[Tensor, "heads tokens"] | None) -> list[list[list[int]]] | None:
    """Counts as runs [first, step, length], for each head; None if there are none, or too many runs.

    >>> encode_runs(torch.tensor([[1, 2, 3, 3, 3, 0]]))
    [[[1, 1, 3], [3, 0, 2], [0, 0, 1]]]
    """
    if counts is None:
        return None
    runs_of_heads: list[list[list[int]]] = []
    for numbers in counts.numpy():
        steps, start, runs = np.diff(numbers), 0, list[list[int]]()
        turns = [*np.flatnonzero(np.diff(steps)).tolist(), len(steps) - 1]  # after which steps another one follows
        while start < len(numbers):
            turn = bisect_left(turns, start)
            end = turns[turn] + 2 if turn < len(turns) else len(numbers)
            runs.append([int(numbers[start]), int(steps[start]) if end - start > 1 else 0, end - start])
            start = end
            if len(runs) > MAX_RUNS:
                return None
        runs_of_heads.append(runs)
    return runs_of_heads


def choose_levels(sample: Float[Tensor, "rows keys"], weights: int, room: int) -> int:
    """The finest levels with which `weights` weights fit into `room` bytes, as a sample of their rows shows.

    Levels for rows of more than 128 keys may take more room, up to eight times as much: even weights, 1 / keys, must
    stay distinct. They are then at most 32 times as many as the keys.
    """
    keys = sample.shape[-1]
    if not sample.numel():
        return LEVELS[0]

    def needs(levels: int) -> float:
        packed = encode_weights(sample[None], levels)
        return SAMPLING_MARGIN * weights * len(packed.data) / sample.numel()

    for levels in LEVELS:
        if needs(levels) * 4 / 3 < room:
            return levels
    wide = room * min(8.0, max(1.0, keys / 128))
    several = sorted({*LEVELS, *(times * keys for times in (32, 16, 8, 4, 2))}, reverse=True)
    for levels in several:
        if MIN_LEVELS < levels <= min(LEVELS[0], 32 * keys) and needs(levels) * 8 / 7 < wide:
            return levels
    return MIN_LEVELS


def deflate(raw: bytes) -> bytes:
    """Raw deflate with run-length matching only, which is faster and smaller for weights than searching for repeats."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_RLE)
    return packer.compress(raw) + packer.flush()


def to_text(data: bytes, coding: str) -> str:
    """Bytes as text that is safe in HTML: "base64", or "seven", which has seven bits a character and is shorter.

    >>> to_text(b"abc", "base64")
    'YWJj'
    """
    if coding == "base64":
        return base64.b64encode(data).decode("ascii")
    bits = np.unpackbits(np.frombuffer(data, np.uint8))
    bits = np.append(bits, np.zeros(-len(bits) % 7, np.uint8))
    codes = bits.reshape(-1, 7) @ (1 << np.arange(6, -1, -1)).astype(np.uint8)
    text = codes.astype(np.uint8).tobytes().decode("ascii")
    for code, safe in UNSAFE.items():  # faster than str.translate
        text = text.replace(chr(code), safe)
    return text


def _to_nibbles(values: NDArray[np.uint16]) -> tuple[bytes, int]:
    """Two values a byte, the first in the low bits; values from 15 on follow, minus 15, in two byte planes."""
    small = np.minimum(values, ESCAPE).astype(np.uint8)
    small = np.append(small, np.uint8(0)) if small.size % 2 else small
    rest = values[values >= ESCAPE] - ESCAPE
    return (small[0::2] | small[1::2] << 4).tobytes() + _to_planes(rest, 2), int(rest.size)


def _to_planes(values: NDArray[Any], count: int) -> bytes:
    """All low bytes, then all next higher bytes."""
    return b"".join(((values >> 8 * plane) & 255).astype(np.uint8).tobytes() for plane in range(count))
