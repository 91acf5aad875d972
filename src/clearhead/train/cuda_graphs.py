"""CUDA graphs: the forward and backward pass of a batch is captured once for each shape, and then replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor


class _Recording(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: Any  # the tensors that it reads: a batch is copied into them
    loss: Tensor


class Replayed:
    """A loss and its gradients, computed by `loss_of(batch)` at first and by a recorded CUDA graph from then on.

    Launching the thousands of kernels of a step takes Python longer than computing them takes the GPU. Batches (named
    tuples of tensors, as `Examples.collate` promises) come in few shapes, so each shape is recorded at its second
    visit; the first warms up what is compiled or chosen by size. Gradients are added up in place, as graphs need, so
    they are zeroed and never freed.
    """

    def __init__(self, loss_of: Callable[[Any], Tensor], parameters: Iterable[Tensor], device: torch.device) -> None:
        self.loss_of, self.device = loss_of, device
        self.factor = torch.ones((), device=device)
        self._recordings: dict[Any, _Recording | None] = {}
        self._pool: Any = None
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)

    def __call__(self, batch: Any, factor: float) -> Tensor:
        """The loss; its gradients times `factor` are added to the weights'."""
        self.factor.fill_(factor)
        shape = tuple(tuple(tensor.shape) for tensor in batch)
        if shape not in self._recordings:
            self._recordings[shape] = None
            return self._both_passes(batch)
        recording = self._recordings[shape] or self._record(shape, batch)
        for mine, given in zip(recording.inputs, batch, strict=True):
            mine.copy_(given)
        recording.graph.replay()
        return recording.loss.clone()

    def _both_passes(self, batch: Any) -> Tensor:
        loss = self.loss_of(batch)
        (loss * self.factor).backward()
        return loss.detach()

    def _record(self, shape: Any, batch: Any) -> _Recording:
        inputs = type(batch)(*(tensor.clone() for tensor in batch))
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        with torch.cuda.graph(graph, pool=self._pool):
            loss = self._both_passes(inputs)
        self._pool = self._pool or graph.pool()
        recording = self._recordings[shape] = _Recording(graph, inputs, loss)
        return recording
