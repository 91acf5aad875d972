"""Plan: what a checkpoint becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor

from clearhead.model.config import ModelConfig
from clearhead.model.huggingface.places import Place
from clearhead.model.transformer import Decoder, Encoder, EncoderDecoder

Model = Encoder | Decoder | EncoderDecoder


@dataclass(frozen=True)
class Plan:
    """The model to build, and where each of its parameters lies.

    `trunk` begins the names of the model itself; what else is in the file are heads for tasks. `harmless`
    matches the names, without trunk, of what may be left out without a word. `order` gives, for a width, their
    features in our order.
    """

    kind: type[Encoder] | type[Decoder] | type[EncoderDecoder]
    config: ModelConfig
    places: Iterable[Place]
    trunk: str
    harmless: str
    order: Callable[[int], Tensor] | None = None


def trunk_of(names: frozenset[str], prefix: str) -> str:
    """The prefix, if a model with a head was saved; nothing, if it was the model alone."""
    return prefix if any(name.startswith(prefix) for name in names) else ""
