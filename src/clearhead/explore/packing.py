"""Packing: tensors as short text inside a page, and back again.

A weight becomes a level, round(weight · levels), so that 1000 levels err by at most 0.0005. What levels cost is their
entropy: those of n keys have a mean of levels / n, and so at most the bits of a geometric distribution with that mean
(2.7 for 512 keys). Deflate comes near to it if small levels go in pairs, two to a byte.
"""

from __future__ import annotations

import base64
import math
import zlib
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

FINE = (65535, 10000, 1000)  # levels, the finest that a page has room for
LEAST = 1000
ESCAPE = 15  # a nibble that says: more than fits, look into the rest
UNSAFE = {0: "\u0100", 13: "\u010d", 60: "\u013c"}  # HTML would change NUL, CR and <; the code & 127 is the same


class Packed(NamedTuple):
    """Bytes, compressed, and how to read them."""

    data: bytes
    how: dict[str, Any]


def pack_weights(
    weights: Float[Tensor, "heads rows columns"], levels: int = LEAST, scale: list[float] | None = None
) -> Packed:
    """Numbers between 0 and 1, or the `scale` of each head, as levels: each within scale / (2 · levels).

    >>> packed = pack_weights(torch.tensor([[[0.25, 0.75]]]))
    >>> unpack(packed.data, packed.how).tolist()
    [[[0.25, 0.75]]]
    """
    numbers = weights.double()
    if scale is not None:
        numbers = numbers / torch.tensor(scale, dtype=torch.double).clamp(min=1e-300).view(-1, 1, 1)
    values = (numbers * levels).round().clamp(0, levels).numpy().astype(np.uint16)
    how: dict[str, Any] = {"shape": list(weights.shape), "levels": levels}
    if scale is not None:
        how["scale"] = scale
    if values.size and values.mean() < ESCAPE / 3:
        raw, rest = _nibbles(values.ravel())
        return Packed(squeezed(raw), {**how, "pack": "nibbles", "rest": rest})
    return Packed(squeezed(_planes(values.ravel(), 2)), {**how, "planes": 2})


def pack_keys(keys: Int[Tensor, "heads queries top"]) -> Packed:
    """Positions, or −1 for none: each one more than it is."""
    planes = 2 if not keys.numel() or int(keys.max()) < 2**16 - 1 else 4
    raw = _planes((keys.long() + 1).numpy().ravel(), planes)
    return Packed(squeezed(raw), {"shape": list(keys.shape), "planes": planes})


def pack_numbers(numbers: Float[Tensor, "..."]) -> Packed:
    """Plain float32, little-endian."""
    raw = numbers.float().contiguous().numpy().astype("<f4").tobytes()
    return Packed(squeezed(raw), {"shape": list(numbers.shape), "type": "float32"})


def pack_bytes(numbers: NDArray[np.uint8]) -> Packed:
    return Packed(squeezed(numbers.tobytes()), {"shape": list(numbers.shape), "planes": 1})


def unpack(data: bytes, how: dict[str, Any]) -> NDArray[Any]:
    """The numbers again, as the page reads them: a key is still one more than it is."""
    raw, count = np.frombuffer(zlib.decompress(data, -15), np.uint8), math.prod(how["shape"])
    if how.get("type") == "float32":
        numbers: NDArray[Any] = raw.view("<f4").reshape(how["shape"])
        return numbers
    values = _from_nibbles(raw, count) if how.get("pack") == "nibbles" else _from_planes(raw, count, how["planes"])
    if "levels" not in how:
        return values.reshape(how["shape"])
    scale = np.array(how.get("scale", 1.0)).reshape(-1, 1, 1)
    found: NDArray[Any] = values.reshape(how["shape"]) * (scale / how["levels"])
    return found.astype(np.float32)


def levels_for(weights: int, keys: float, room: int) -> int:
    """The finest levels with which so many weights, of which `keys` make 1, surely fit into `room` bytes of base64."""
    for levels in FINE[:-1]:
        if 1.1 * weights * _bits(levels / max(keys, 1)) / 8 * 4 / 3 < room:  # deflate comes that near
            return levels
    return LEAST


def _bits(mean: float) -> float:
    """The most that a level can cost on average: the entropy of a geometric distribution."""
    return (1 + mean) * math.log2(1 + mean) - mean * math.log2(mean) if mean > 0 else 0.0


def squeezed(raw: bytes) -> bytes:
    """Deflate without a header. Runs and frequencies are all there is to find in weights: it is faster, and smaller."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_RLE)
    return packer.compress(raw) + packer.flush()


def as_text(data: bytes, coding: str) -> str:
    """Bytes as text that HTML leaves alone: "base64", or "seven", which takes a seventh more room instead of a third.

    >>> as_text(b"abc", "base64"), from_text(as_text(bytes(range(256)), "seven"), "seven") == bytes(range(256))
    ('YWJj', True)
    """
    if coding == "base64":
        return base64.b64encode(data).decode("ascii")
    bits = np.unpackbits(np.frombuffer(data, np.uint8))
    bits = np.append(bits, np.zeros(-len(bits) % 7, np.uint8))
    codes = bits.reshape(-1, 7) @ (1 << np.arange(6, -1, -1)).astype(np.uint8)
    return codes.astype(np.uint8).tobytes().decode("ascii").translate(UNSAFE)


def from_text(text: str, coding: str) -> bytes:
    """The bytes again, as the page reads them."""
    if coding == "base64":
        return base64.b64decode(text)
    codes = np.frombuffer(text.encode("utf-16-le"), "<u2").astype(np.uint8) & np.uint8(127)
    bits = np.unpackbits(codes.reshape(-1, 1), axis=1)[:, 1:].ravel()
    return np.packbits(bits[: len(bits) // 8 * 8]).tobytes()


def _nibbles(values: NDArray[np.uint16]) -> tuple[bytes, int]:
    """Two values a byte, the first one low; of those from 15 on what is more than 15 follows, in two planes."""
    small = np.minimum(values, ESCAPE).astype(np.uint8)
    small = np.append(small, np.uint8(0)) if small.size % 2 else small
    rest = values[values >= ESCAPE] - ESCAPE
    return (small[0::2] | small[1::2] << 4).tobytes() + _planes(rest, 2), int(rest.size)


def _from_nibbles(raw: NDArray[np.uint8], count: int) -> NDArray[np.uint32]:
    pairs = raw[: -(-count // 2)]
    values = np.stack([pairs & 15, pairs >> 4], 1).ravel()[:count].astype(np.uint32)
    more = values == ESCAPE
    values[more] += _from_planes(raw[len(pairs) :], int(more.sum()), 2)
    return values


def _planes(values: NDArray[Any], count: int) -> bytes:
    """All low bytes, then all of the next ones."""
    return b"".join(((values >> 8 * plane) & 255).astype(np.uint8).tobytes() for plane in range(count))


def _from_planes(raw: NDArray[np.uint8], count: int, planes: int) -> NDArray[np.uint32]:
    values = np.zeros(count, np.uint32)
    for plane in range(planes):
        values |= raw[plane * count : (plane + 1) * count].astype(np.uint32) << np.uint32(8 * plane)
    return values
