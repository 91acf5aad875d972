"""CUDA graphs: the forward and backward pass of a batch is captured once for each shape, and then replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


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
