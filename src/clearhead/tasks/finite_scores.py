"""Refuses scores of a model that are NaN or infinite: no answer follows from them, and JSON has no such numbers."""

from __future__ import annotations

from torch import Tensor

from clearhead.errors import DecodeError


def check_finite(scores: Tensor) -> None:
    """Raises DecodeError unless all of these scores, vectors or losses are finite."""
    if not bool(scores.isfinite().all()):
        raise DecodeError("the model's scores are NaN or infinite; check its weights and its input")
