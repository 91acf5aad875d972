"""Room: whether a model can be trained on a device at all, said before anything is written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from clearhead.errors import ConfigError, TrainingError, out_of_memory
from clearhead.model import ModelConfig
from clearhead.tasks import TASKS
from clearhead.train.processes import Processes
from clearhead.train.recipe import Recipe

REMEDY = "make model.width, model.feedforward or model.layers smaller"


def check_room(recipe: Recipe, processes: Processes) -> None:
    """Refuses a model whose layers alone are more than the device's whole memory."""
    there = memory_of(processes.device)
    weights = layer_weights(recipe)
    train = recipe.train
    copies = 4 + (train.average == "ema")  # itself, its gradient and the two means of Adam
    if train.shard and processes.count > 1:
        copies = 1  # the others are in parts
    needed = weights * copies * (8 if train.precision == "float64" else 4)
    if there is not None and needed > there:
        raise ConfigError(
            f"a model of {weights:,} weights and more needs at least {needed / 1e9:,.0f} GB to be trained, and "
            f"{processes.device} has {there / 1e9:,.0f}; {REMEDY}"
        )


def layer_weights(recipe: Recipe) -> int:
    """How many weights the model has beside those of its words, which nobody can count before there is a tokenizer."""
    changes = {key: value for key, value in recipe.model.items() if key != "shape"}
    config = ModelConfig.named(str(recipe.model.get("shape", "classic")), vocabulary=1, **changes)
    with torch.device("meta"):  # shapes without numbers
        model = TASKS[recipe.task].architecture(config)
    return sum(parameter.numel() for parameter in model.parameters())


def memory_of(device: torch.device) -> int | None:
    """All the memory of a device, in bytes; None if nobody tells."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on every system
        return None


@contextmanager
def fitting(device: torch.device) -> Iterator[None]:
    """While a model is built: what does not fit then would not fit with a smaller batch either."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise TrainingError(f"the model does not fit into the memory of {device}; {REMEDY}") from error
