"""The processes that train one model, and how each computes: DDP or FSDP2, precision, compiled layers, CUDA graphs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.fx.experimental._config
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.errors import ConfigError
from clearhead.model import Model, PointerGenerator
from clearhead.model.devices import resolve_device
from clearhead.model.layers import Stack
from clearhead.tasks.objective import AnyObjective


@dataclass(frozen=True)
class Processes:
    """The rank of this process, the number of processes, and the device of this one."""

    rank: int
    count: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    def wait(self) -> None:
        """Waits until all processes have called it (a barrier)."""
        if self.count > 1:
            dist.barrier()

    def agree(self, value: float) -> float:
        """The value of the first process, in all of them, so that all decide alike."""
        if self.count == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.broadcast(shared, 0)
        return float(shared)

    def sum(self, value: float) -> float:
        if self.count == 1:
            return value
        total = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return float(total)


@contextmanager
def join_processes(device: str) -> Iterator[Processes]:
    """Joins the process group that torchrun started; without torchrun, just this process."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    rank, local = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
    resolved = resolve_device(device, local)
    if count == 1:
        yield Processes(0, 1, resolved)
        return
    if resolved.type == "cuda":
        torch.cuda.set_device(resolved)
    dist.init_process_group("nccl" if resolved.type == "cuda" else "gloo")
    try:
        yield Processes(rank, count, resolved)
    finally:
        dist.destroy_process_group()


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


class _CapturedGraph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: Any  # the tensors that it reads: a batch is copied into them
    loss: Tensor


class GraphedLoss:
    """Computes a loss and its gradients by `loss_of(batch)` at first, and by a captured CUDA graph from then on.

    Launching the thousands of kernels of a step takes Python longer than computing them takes the GPU. Batches (named
    tuples of tensors, as `Examples.collate` promises) come in few shapes, so each shape is captured the second
    time it occurs; the first time warms up compilation and autotuning. Graphs add gradients in place, so these are
    zeroed and never freed.
    """

    def __init__(self, loss_of: Callable[[Any], Tensor], parameters: Iterable[Tensor], device: torch.device) -> None:
        self.loss_of, self.device = loss_of, device
        self.factor = torch.ones((), device=device)
        self._graphs: dict[Any, _CapturedGraph | None] = {}
        self._pool: Any = None
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)

    def __call__(self, batch: Any, factor: float) -> Float[Tensor, ""]:
        """The loss; its gradients times `factor` are added to `.grad` of the parameters."""
        self.factor.fill_(factor)
        shape = tuple(tuple(tensor.shape) for tensor in batch)
        if shape not in self._graphs:
            self._graphs[shape] = None
            return self._run_passes(batch)
        captured = self._graphs[shape] or self._capture(shape, batch)
        for captured_tensor, tensor in zip(captured.inputs, batch, strict=True):
            captured_tensor.copy_(tensor)
        captured.graph.replay()
        return captured.loss.clone()

    def _run_passes(self, batch: Any) -> Tensor:
        loss = self.loss_of(batch)
        (loss * self.factor).backward()
        return loss.detach()

    def _capture(self, shape: Any, batch: Any) -> _CapturedGraph:
        inputs = type(batch)(*(tensor.clone() for tensor in batch))
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        with torch.cuda.graph(graph, pool=self._pool):
            loss = self._run_passes(inputs)
        self._pool = self._pool or graph.pool()
        captured = self._graphs[shape] = _CapturedGraph(graph, inputs, loss)
        return captured
