"""Learning rates: warm-up and schedule of a run, and factors of single layers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping


def learning_rate(kind: str, peak: float, step: int, *, warmup: int, done: float) -> float:
    """The learning rate of a step (the first is 1), when the share `done` (0 to 1) of the run is completed.

    It rises for `warmup` steps, and after them it falls with 1/√step, or over the whole run on a half cosine or a
    line that end at zero, or stays. (A warm-up of more than 0.4 of the run meets the fall before it is over.)

    >>> [learning_rate("inverse-sqrt", 1.0, step, warmup=4, done=step / 64) for step in (1, 4, 16, 64)]
    [0.25, 1.0, 0.5, 0.25]
    >>> learning_rate("linear", 1.0, 48, warmup=4, done=0.75)
    0.25
    """
    rising = step / warmup if step < warmup else 1.0
    if kind == "inverse-sqrt":
        falling = math.sqrt(max(warmup, 1) / max(step, warmup, 1))
    elif kind == "cosine":
        falling = (1 + math.cos(math.pi * min(done, 1.0))) / 2
    elif kind == "linear":
        falling = 1 - min(done, 1.0)
    else:
        falling = 1.0
    return peak * min(rising, 1.0) * falling


def layer_factor(name: str, layers: Mapping[str, int], decay: float) -> float:
    """The factor of a parameter's learning rate: `decay` once for each layer from the output down to it.

    `layers` says how many layers a stack has. Output heads have the whole rate, embeddings the least.

    >>> names = ("to_labels.bias", "encoder.layers.1.x", "vocabulary.words.weight")
    >>> [layer_factor(name, {"encoder": 2}, 0.5) for name in names]
    [1.0, 0.5, 0.125]
    """
    return decay ** layer_depth(name, layers)


def layer_depth(name: str, layers: Mapping[str, int]) -> int:
    """How many layers lie between a parameter and the output: 0 for output heads, most for embeddings and patches."""
    if match := re.match(r"(encoder|decoder)\.layers\.(\d+)\.", name):
        return layers[match[1]] - int(match[2])
    if re.match(
        r"patches\.|(source_)?vocabulary\.words\.|(encoder|decoder)\.(positions|segments|embedding_norm)\.", name
    ):
        return max(layers.values()) + 1
    return 0
