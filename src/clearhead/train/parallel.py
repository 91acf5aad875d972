"""How a model is spread over processes, compiled, and computed in fewer bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx.experimental._config
from torch import Tensor, nn

from clearhead.errors import ConfigError
from clearhead.model import Model
from clearhead.model.layers import Stack
from clearhead.tasks import AnyTask
from clearhead.train.processes import Processes


class Step(nn.Module):
    """A batch in, its loss out: what PyTorch's wrappers take for a model."""

    def __init__(self, model: Model, task: AnyTask) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, batch: Any) -> Tensor:
        return self.task.loss(self.model, batch)


def spread(step: Step, model: Model, processes: Processes, *, shard: bool) -> nn.Module:
    """The step for one process, or for several that hold the same weights (DDP) or parts of them (FSDP2)."""
    if processes.count == 1:
        return step
    if not shard:
        return nn.parallel.DistributedDataParallel(step)
    from torch.distributed.fsdp import fully_shard

    for stack in model.modules():
        if isinstance(stack, Stack):
            for layer in stack.layers:
                fully_shard(layer)
    fully_shard(model, reshard_after_forward=False)  # its words are needed once more, for the loss
    return step


@contextmanager
def whole(model: Model) -> Iterator[None]:
    """A sharded model's own weights (not its layers') gathered, so that it can be used in parts, as decoding does."""
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(model, FSDPModule):
        yield
        return
    model.unshard()
    try:
        yield
    finally:
        model.reshard()


def compiled(model: Model, task: AnyTask) -> None:
    """Compiles each layer by itself, for sizes of any kind: seconds, where a whole model takes a minute.

    Compilation happens at the first passes, which belong in `distinct_sizes`.
    """
    for stack in model.modules():
        if isinstance(stack, Stack):
            for layer in stack.layers:
                layer.compile(dynamic=True)
    task.compile_loss()


@contextmanager
def distinct_sizes() -> Iterator[None]:
    """Within it torch.compile takes sizes that happen to be equal for different ones; afterwards it is as before.

    Else a first batch whose sides are equally long would be compiled for such batches only.
    """
    with torch.fx.experimental._config.patch(use_duck_shape=False):  # type: ignore[attr-defined]
        yield


@contextmanager
def short_kernels(length: float) -> Iterator[None]:
    """The attention kernels that are quick for texts of this mean length, as measured on an H200.

    cuDNN's is compiled anew for every shape of a batch, which costs minutes. Up to about 64 tokens the
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


def precision_of(wanted: str, device: torch.device) -> str:
    """What `auto` means here: bfloat16 on a GPU that has it, else float32."""
    if wanted == "auto":
        return "bfloat16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32"
    if wanted == "float16" and device.type == "cpu":
        raise ConfigError("train.precision: float16 is for GPUs; choose float32 or bfloat16 on a CPU")
    return wanted
