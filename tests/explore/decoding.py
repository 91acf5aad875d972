"""Decodes the numbers in a page as page/data/tensor_decoding.js does, to check what a browser would read."""

from __future__ import annotations

import base64
import math
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clearhead.explore.tensor_encoding import ESCAPE


def decode_tensor(data: bytes, layout: dict[str, Any]) -> NDArray[Any]:
    """The numbers as the page decodes them; keys are still plus one."""
    raw, count = np.frombuffer(zlib.decompress(data, -15), np.uint8), math.prod(layout["shape"])
    if layout.get("type") == "float32":
        numbers: NDArray[Any] = raw.view("<f4").reshape(layout["shape"])
        return numbers
    values = (
        _from_nibbles(raw, count) if layout.get("pack") == "nibbles" else _from_planes(raw, count, layout["planes"])
    )
    if "levels" not in layout:
        return values.reshape(layout["shape"])
    scale = np.array(layout.get("scale", 1.0)).reshape(-1, 1, 1)
    found: NDArray[Any] = values.reshape(layout["shape"]) * (scale / layout["levels"])
    return found.astype(np.float32)


def from_text(text: str, coding: str) -> bytes:
    """The bytes again, as the page decodes them."""
    if coding == "base64":
        return base64.b64decode(text)
    codes = np.frombuffer(text.encode("utf-16-le"), "<u2").astype(np.uint8) & np.uint8(127)
    bits = np.unpackbits(codes.reshape(-1, 1), axis=1)[:, 1:].ravel()
    return np.packbits(bits[: len(bits) // 8 * 8]).tobytes()


def _from_nibbles(raw: NDArray[np.uint8], count: int) -> NDArray[np.uint32]:
    pairs = raw[: -(-count // 2)]
    values = np.stack([pairs & 15, pairs >> 4], 1).ravel()[:count].astype(np.uint32)
    more = values == ESCAPE
    values[more] += _from_planes(raw[len(pairs) :], int(more.sum()), 2)
    return values


def _from_planes(raw: NDArray[np.uint8], count: int, planes: int) -> NDArray[np.uint32]:
    values = np.zeros(count, np.uint32)
    for plane in range(planes):
        values |= raw[plane * count : (plane + 1) * count].astype(np.uint32) << np.uint32(8 * plane)
    return values
