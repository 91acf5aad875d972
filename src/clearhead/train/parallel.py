"""Distribution over processes (DDP, FSDP2), compilation, attention kernels and precision of training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx.experimental._config
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.errors import ConfigError
from clearhead.model import Model, PointerGenerator
from clearhead.model.layers import Stack
from clearhead.tasks.objective import AnyObjective
from clearhead.train.processes import Processes


class LossModule(nn.Module):
    """A module from a batch to its loss, as DDP needs it."""

    def __init__(self, model: Model, objective: AnyObjective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Any) -> Float[Tensor, ""]:
        return self.objective.loss(self.model, batch)


def distribute(step: LossModule, model: Model, processes: Processes, *, shard: bool) -> nn.Module:
    """The module for one process, or wrapped for several that hold all weights (DDP) or shards (FSDP2)."""
    if processes.count == 1:
        return step
    if not shard:
        return nn.parallel.DistributedDataParallel(step)
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    for stack in model.modules():
        if isinstance(stack, Stack):
            for layer in stack.layers:
                fully_shard(layer)
    fully_shard(model, reshard_after_forward=False)  # the word vectors are needed again for the loss
    if isinstance(model, PointerGenerator):  # its loss calls these instead of the whole model
        for method in ("encode", "decode"):
            register_fsdp_forward_method(model, method)
    return step


@contextmanager
def unshard_weights(model: Model) -> Iterator[None]:
    """Context manager: gathers a sharded model's own weights (not its layers'), which decoding uses directly."""
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(model, FSDPModule):
        yield
        return
    model.unshard()
    try:
        yield
    finally:
        model.reshard()


def compile_layers(model: Model, objective: AnyObjective) -> None:
    """Compiles each layer by itself: this takes seconds, a whole model a minute. Sizes are dynamic, unless all batches
    of the task have the same.

    Compilation happens at the first passes, which should run within `distinguish_equal_sizes`.
    """
    for stack in model.modules():
        if isinstance(stack, Stack):
            for layer in stack.layers:
                layer.compile(dynamic=not objective.fixed_shapes)
    objective.compile_loss()


@contextmanager
def distinguish_equal_sizes() -> Iterator[None]:
    """Context manager: torch.compile treats sizes that happen to be equal as different ones.

    Else a first batch whose source and target are equally long would be compiled for such batches only.
    """
    with torch.fx.experimental._config.patch(use_duck_shape=False):  # type: ignore[attr-defined]
        yield


@contextmanager
def select_attention_kernels(length: float) -> Iterator[None]:
    """Context manager: enables the attention kernels that are fast for this mean length, as measured on an H200.

    cuDNN's is compiled again for every shape of a batch, which costs minutes. Up to about 64 tokens the
    memory-efficient one is faster than flash: 0.34 against 0.59 ms at 512 texts of 32 tokens, both passes.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled(), torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_flash_sdp(before[1] and length > 64)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before[0])
        torch.backends.cuda.enable_flash_sdp(before[1])


def resolve_precision(wanted: str, device: torch.device) -> str:
    """The precision of training; `auto` is bfloat16 on a GPU that supports it, else float32."""
    if wanted == "auto":
        return "bfloat16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32"
    if wanted == "float16" and device.type == "cpu":
        raise ConfigError("train.precision: float16 is for GPUs; choose float32 or bfloat16 on a CPU")
    return wanted
