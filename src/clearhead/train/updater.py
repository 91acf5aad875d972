"""Updater: one optimizer step from one or more accumulated batches, on one process or several; learning rates."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from clearhead.errors import CheckpointError, ConfigError
from clearhead.model import Model
from clearhead.model.layers import Stack
from clearhead.tasks.objective import AnyObjective
from clearhead.tasks.processor import Examples
from clearhead.text.batches import Batch
from clearhead.train.processes import (
    GraphedLoss,
    LossModule,
    Processes,
    compile_layers,
    distribute,
    resolve_precision,
)
from clearhead.train.recipe import Train

MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # AdamW's state of each weight


class Updater:
    """The model with its optimizer, gradient scaler and averaged weights; `update` changes the weights once.

    `new` names parameters that did not come from trained weights: they are never frozen, and learn at the whole rate.
    """

    def __init__(
        self,
        train: Train,
        objective: AnyObjective,
        model: Model,
        examples: Examples[Any],
        processes: Processes,
        seed: int,
        new: Collection[str] = (),
    ) -> None:
        self.train, self.objective, self.examples = train, objective, examples
        self.processes, self.seed = processes, seed
        self.new = frozenset(new)
        self.precision = resolve_precision(train.precision, processes.device)
        self.model = model.to(processes.device, torch.float64 if self.precision == "float64" else torch.float32)
        self.model.checkpointing = train.checkpointing
        self._freeze_layers()
        if train.compile:
            compile_layers(self.model, objective)
        self.forward = distribute(LossModule(self.model, objective), self.model, processes, shard=train.shard)
        # With adapters the other weights never change: they are neither in checkpoints nor in the average.
        self.parameters = {
            name: parameter
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad or not train.lora_rank
        }
        self.optimizer = self._make_optimizer()
        scaled = self.precision == "float16"
        self.scaler = torch.amp.GradScaler(processes.device.type, enabled=scaled)
        self.average = {
            name: parameter.detach().clone() for name, parameter in self.parameters.items() if train.average == "ema"
        }
        self.graphed: GraphedLoss | None = None
        if train.compile and processes.device.type == "cuda" and processes.count == 1 and not scaled:
            trained = [parameter for parameter in self.parameters.values() if parameter.requires_grad]
            self.graphed = GraphedLoss(self.compute_loss, trained, processes.device)

    def update(self, window: Sequence[Batch], step: int) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Changes the weights once, from all batches of a window; their summed loss, and the gradient's norm.

        The loss is divided by the predictions of the whole window over all processes, so that splitting a batch, or
        sharing it among processes, changes nothing but the order of additions.
        """
        # At least 1: a batch of packed rows may have nothing to predict.
        total = max(1, sum(int(self.examples.counts[batch.examples].sum()) for batch in window))
        self._seed_random(step)
        self.model.train()
        losses, shares = [], self.share_window(window)
        for number, share in enumerate(shares):
            last = number == len(shares) - 1
            with contextlib.nullcontext() if last else self._without_sync():
                losses.append(self._run_passes(*share, self.processes.count / total))  # processes are averaged
        self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.train.clip or math.inf, foreach=True)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=self.graphed is None)
        if self.average:
            # A smaller decay at the start: else the random initial weights would stay in the average for long.
            decay = min(self.train.decay, (1 + step) / (10 + step))
            torch._foreach_lerp_(_local(self.average), _local(self.parameters), 1 - decay)
        return torch.stack(losses).sum(), norm.full_tensor() if isinstance(norm, DTensor) else norm

    def share_window(self, window: Sequence[Batch]) -> list[tuple[Batch, float]]:
        """The batches that this process computes, with the weight of each; every process has equally many.

        A process that has none left takes part with a weight of 0.
        """
        rank, count = self.processes.rank, self.processes.count
        if count == 1:
            return [(batch, 1.0) for batch in window]
        if self.objective.splits_batches:
            parts = [(batch, batch.part(rank, count)) for batch in window]
            return [
                (part, 1.0) if len(part.examples) else (Batch(batch.examples[:1], batch.sizes), 0.0)
                for batch, part in parts
            ]
        share = [(batch, 1.0) for batch in window[rank::count]]
        return share + [(window[0], 0.0)] * (-(-len(window) // count) - len(share))

    def compute_loss(self, batch: Any) -> Float[Tensor, ""]:
        """The loss of a collated batch, in the precision of the run."""
        with self.autocast():
            loss: Tensor = self.forward(batch)
        return loss

    def set_learning_rate(self, step: int, done: float) -> None:
        train = self.train
        rate = learning_rate(train.schedule, train.learning_rate, step, warmup=train.warmup, done=done)
        for group in self.optimizer.param_groups:
            waits = step <= train.head_warmup and not group["head"]
            group["lr"] = 0.0 if waits else rate * group["factor"]

    @contextlib.contextmanager
    def use_average(self) -> Iterator[None]:
        """Context manager: the model has the averaged weights, if the recipe averages them."""
        if not self.average:
            yield
            return
        mine = _local(self.parameters)
        newest = [tensor.clone() for tensor in mine]
        with torch.no_grad():
            torch._foreach_copy_(mine, _local(self.average))
            try:
                yield
            finally:
                torch._foreach_copy_(mine, newest)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.precision not in ("bfloat16", "float16"):
            return contextlib.nullcontext()
        return torch.autocast(self.processes.device.type, getattr(torch, self.precision))

    def collect_tensors(self) -> dict[str, Tensor]:
        """Weights, averaged weights and the optimizer's moments in one flat dict, as a checkpoint stores them."""
        tensors = {f"model.{name}": parameter.detach() for name, parameter in self.parameters.items()}
        tensors |= {f"average.{name}": tensor for name, tensor in self.average.items()}
        for name, parameter in self.parameters.items():
            for moment, value in self.optimizer.state[parameter].items():
                tensors[f"optimizer.{name}.{moment}"] = value
        return tensors

    @torch.no_grad()
    def restore_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Copies the tensors of a checkpoint back into the model, the average and the optimizer."""
        for name, parameter in self.parameters.items():
            parameter.copy_(_get_tensor(tensors, f"model.{name}", parameter))
            if name in self.average:
                self.average[name].copy_(_get_tensor(tensors, f"average.{name}", parameter))
            state = {moment: tensors.get(f"optimizer.{name}.{moment}") for moment in MOMENTS}
            self.optimizer.state[parameter] = {
                moment: value.to(parameter.device) for moment, value in state.items() if value is not None
            }

    def allocate_moments(self) -> None:
        """Creates the optimizer's moments, which a sharded checkpoint is read into."""
        for parameter in self.parameters.values():
            zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            self.optimizer.state[parameter] = {"step": torch.zeros((), device=parameter.device), **zeros}

    def _run_passes(self, batch: Batch, weight: float, factor: float) -> Tensor:
        """Forward and backward pass of a batch; its loss."""
        tensors = self.examples.collate(batch)
        if self.graphed is not None:
            return self.graphed(tensors, factor)
        loss = self.compute_loss(tensors) * weight
        self.scaler.scale(loss * factor).backward()
        return loss.detach()

    @property
    def _layers(self) -> dict[str, int]:
        """How many layers each stack of the model has."""
        return {name: len(stack.layers) for name, stack in self.model.named_children() if isinstance(stack, Stack)}

    def _freeze_layers(self) -> None:
        """Excludes the embeddings and the lowest layers from training, as many as the recipe says."""
        frozen, layers = self.train.frozen_layers, self._layers
        if not frozen:
            return
        if frozen > max(layers.values()):
            raise ConfigError(
                f"train.frozen_layers: got {frozen}, but the model has only {max(layers.values())} layers; "
                "set at most that many"
            )
        for name, parameter in self.model.named_parameters():
            highest = layers.get(name.split(".")[0], max(layers.values())) - frozen
            if layer_depth(name, layers) > max(highest, 0) and name not in self.new:
                parameter.requires_grad_(False)
        if not any(parameter.requires_grad for parameter in self.model.parameters()):
            raise ConfigError(f"train.frozen_layers: {frozen} layers are all that could be trained; set fewer")

    def _make_optimizer(self) -> torch.optim.AdamW:
        """AdamW with weight decay for matrices; norms, biases and other vectors have none."""
        train, members = self.train, dict[tuple[bool, float, bool], list[Tensor]]()
        for name, parameter in self.parameters.items():
            if parameter.requires_grad:
                new = name in self.new
                head = train.head_warmup > 0 and (new or layer_depth(name, self._layers) == 0)
                factor = 1.0 if new else train.layer_decay ** layer_depth(name, self._layers)
                key = parameter.ndim < 2, factor, head
                members.setdefault(key, []).append(parameter)
        groups: list[dict[str, Any]] = []
        for (vector, factor, head), parameters in sorted(members.items(), key=lambda item: item[0]):
            decay = 0.0 if vector else train.weight_decay
            groups.append({"params": parameters, "weight_decay": decay, "factor": factor, "head": head})
        return torch.optim.AdamW(groups, lr=self.train.learning_rate, betas=self.train.betas, eps=1e-9, fused=True)

    def _seed_random(self, step: int) -> None:
        """Seeds PyTorch from the run's seed, the step and the rank, so that a checkpoint needs no random state."""
        state = np.random.SeedSequence([self.seed, step, self.processes.rank]).generate_state(1, np.uint64)
        torch.manual_seed(int(state[0] >> np.uint64(1)))

    @contextlib.contextmanager
    def _without_sync(self) -> Iterator[None]:
        """Context manager: gradients are not exchanged between processes."""
        if isinstance(self.forward, nn.parallel.DistributedDataParallel):
            with self.forward.no_sync():
                yield
        elif self.processes.count > 1:
            sharded: Any = self.model
            sharded.set_requires_gradient_sync(False)
            yield
            sharded.set_requires_gradient_sync(True)
        else:
            yield


@torch.no_grad()
def _local(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """The tensors themselves; of sharded ones the shard of this process."""
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach() for tensor in tensors.values()]


def _get_tensor(tensors: Mapping[str, Tensor], name: str, like: Tensor) -> Tensor:
    tensor = tensors.get(name)
    if tensor is None or tensor.shape != like.shape:
        got = "missing" if tensor is None else f"of shape {tuple(tensor.shape)}"
        raise CheckpointError(
            f"the checkpoint's {name} is {got}, the model's is of shape {tuple(like.shape)}; was the recipe changed?"
        )
    return tensor


def learning_rate(kind: str, peak: float, step: int, *, warmup: int, done: float) -> float:
    """The learning rate of a step (the first is 1), when the share `done` (0 to 1) of the run is completed.

    It rises for `warmup` steps. Then it stays, falls with 1/√step, or falls to zero at the end of the run, on a half
    cosine or a line. (A warm-up of more than 0.4 of the run meets the fall before it is over.)

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


def layer_depth(name: str, layers: Mapping[str, int]) -> int:
    """How many layers lie between a parameter and the output: 0 for output heads, most for embeddings and patches.

    `layers` says how many layers a stack has.

    >>> [layer_depth(name, {"encoder": 2}) for name in ("to_labels.bias", "encoder.layers.1.x", "vocabulary.words.w")]
    [0, 1, 3]
    """
    if match := re.match(r"(encoder|decoder)\.layers\.(\d+)\.", name):
        return layers[match[1]] - int(match[2])
    lowest = r"patches\.|(source_)?vocabulary\.words\.|(encoder|decoder)\.(positions|segments|embedding_norm)\."
    return max(layers.values()) + 1 if re.match(lowest, name) else 0
