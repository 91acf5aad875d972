"""Trained weights that a run starts from: `[train] init_from`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from clearhead.model import ModelConfig

if TYPE_CHECKING:
    from clearhead.text import Tokenizer


@dataclass(frozen=True)
class Pretrained:
    """A trained model to start from: its weights by the names of our parameters, its configuration and tokenizer."""

    folder: Path
    config: ModelConfig
    tokenizer: Tokenizer
    tensors: Mapping[str, Tensor]
    labels: tuple[str, ...] = ()  # of its output head, if it has one
