"""Memory check: whether a model can be trained on a device at all, said before the first step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from clearhead.errors import ConfigError, TrainingError, out_of_memory
from clearhead.formatting import format_bytes
from clearhead.model.devices import empty_weights
from clearhead.tasks.processor import AnyProcessor
from clearhead.train.processes import Processes
from clearhead.train.recipe import Train

REMEDY = "make model.width, model.feedforward or model.layers smaller"


def check_memory(processor: AnyProcessor, train: Train, processes: Processes) -> None:
    """Refuses a model that needs more than the device's whole memory, activations not counted."""
    available, weights = device_memory(processes.device), count_weights(processor)
    copies = 4 + (train.average == "ema")  # itself, its gradient and the two moments of Adam
    if train.shard and processes.count > 1:
        copies = 1  # the others are in parts
    if train.lora_rank:
        copies = 1  # only the adapters have gradients, which are small
    needed = weights * copies * (8 if train.precision == "float64" else 4)
    if available is not None and needed > available:
        raise ConfigError(
            f"a model of {weights:,} weights needs at least {format_bytes(needed)} to be trained, and "
            f"{processes.device} has {format_bytes(available)}; {REMEDY}"
        )


def count_weights(processor: AnyProcessor) -> int:
    """How many weights the model has that a processor describes."""
    with empty_weights():
        return sum(parameter.numel() for parameter in processor.build().parameters())


def device_memory(device: torch.device) -> int | None:
    """All the memory of a device, in bytes; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on every system
        return None


@contextmanager
def refuse_out_of_memory(device: torch.device) -> Iterator[None]:
    """Context manager for building a model: running out of memory becomes an error that asks for a smaller model."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise TrainingError(f"the model does not fit into the memory of {device}; {REMEDY}") from error
