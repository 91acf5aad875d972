"""Response: what the server answers to a request of the page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

BINARY = "application/octet-stream"


class Response(NamedTuple):
    """The body of an HTTP response and its content type."""

    body: bytes
    content_type: str = BINARY

    @classmethod
    def from_json(cls, content: Any) -> Response:
        return cls(json.dumps(content, allow_nan=False).encode("ascii"), "application/json")

    @classmethod
    def from_numbers(cls, header: Mapping[str, Any], numbers: Float[Tensor, "..."] | None) -> Response:
        """One line of JSON followed by float32 numbers, little-endian."""
        raw = b"" if numbers is None else numbers.float().contiguous().numpy().astype("<f4").tobytes()
        return cls(json.dumps(header, allow_nan=False).encode("ascii") + b"\n" + raw)
