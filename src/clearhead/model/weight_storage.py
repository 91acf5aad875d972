"""Weights on disk: stored in float32, in bfloat16 (half the size) or in int8 with scales (a quarter)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int8, Shaped
from torch import Tensor, nn

from clearhead.errors import CheckpointError, ConfigError

AnyTensor = Shaped[Tensor, "..."]
STORAGES = ("float32", "bfloat16", "int8")
SCALE = ".scale"


def pack_weights(model: nn.Module, storage: str) -> dict[str, AnyTensor]:
    """A model's tensors by name in the dtype of the storage; a shared one comes once, under its first name.

    Matrices take the storage's type; the few others (norms, biases) stay in float32. In int8 every row has a
    scale of its own, stored beside it as NAME.scale: no weight is off by more than half of its row's scale.

    >>> {name: str(weight.dtype) for name, weight in pack_weights(nn.Linear(3, 2), "int8").items()}
    {'weight': 'torch.int8', 'weight.scale': 'torch.float32', 'bias': 'torch.float32'}
    """
    return pack_tensors(unique_tensors(model), storage)


def pack_tensors(tensors: Mapping[str, AnyTensor], storage: str) -> dict[str, AnyTensor]:
    """What `pack_weights` gives, for tensors by name instead of a model."""
    if storage not in STORAGES:
        raise ConfigError(f"weights can be stored as {', '.join(STORAGES)}, not as {storage!r}")
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        value = tensor.detach().cpu()
        if not value.is_floating_point():
            stored[name] = value.contiguous()
        elif value.ndim == 2 and storage == "int8":
            stored[name], stored[name + SCALE] = to_int8(value, name)
        else:
            small = torch.bfloat16 if value.ndim == 2 and storage == "bfloat16" else torch.float32
            stored[name] = value.to(small).contiguous()
    return stored


def unpack_weights(stored: Mapping[str, AnyTensor]) -> dict[str, AnyTensor]:
    """The inverse of `pack_weights`: tensors in float32."""
    values = {}
    for name, tensor in stored.items():
        if name.endswith(SCALE) and name.removesuffix(SCALE) in stored:
            continue
        scale = stored.get(name + SCALE)
        if scale is not None:
            values[name] = tensor * scale[:, None]
        else:
            values[name] = tensor.float() if tensor.is_floating_point() else tensor
    return values


def load_weights(model: nn.Module, values: Mapping[str, AnyTensor]) -> None:
    """Loads tensors into a model, which may be on the meta device; names and shapes must match exactly."""
    wanted = unique_tensors(model)
    for name, tensor in wanted.items():
        if name not in values:
            raise CheckpointError(f"{name} is missing")
        if values[name].shape != tensor.shape:
            raise CheckpointError(f"{name} is {list(values[name].shape)}, the model needs {list(tensor.shape)}")
    for name in values:
        if name not in wanted:
            raise CheckpointError(f"the model has no tensor {name}")
    fresh = dict[int, Tensor]()
    for name, old in wanted.items():
        parameter = isinstance(old, nn.Parameter)
        fresh[id(old)] = nn.Parameter(values[name], old.requires_grad) if parameter else values[name]
    state = {name: fresh[id(old)] for name, old in model.state_dict(keep_vars=True).items()}
    model.load_state_dict(state, assign=True)


def unique_tensors(model: nn.Module) -> dict[str, AnyTensor]:
    """A model's tensors by name; one that several modules share comes under its first name only."""
    names: dict[int, str] = {}
    tensors = model.state_dict(keep_vars=True)
    for name, tensor in tensors.items():
        names.setdefault(id(tensor), name)
    return {name: tensors[name] for name in names.values()}


def to_int8(
    matrix: Float[Tensor, "rows columns"], name: str = "the matrix"
) -> tuple[Int8[Tensor, "rows columns"], Float[Tensor, " rows"]]:
    """A matrix as integers from -127 to 127, and the scale of each row.

    >>> to_int8(torch.tensor([[254.0, -2.0, 0.9], [0.0, 0.0, 0.0]]))[0]
    tensor([[127,  -1,   0],
            [  0,   0,   0]], dtype=torch.int8)
    """
    matrix = matrix.float()
    if not matrix.isfinite().all():
        raise CheckpointError(f"{name} contains infinities or NaN, which int8 cannot represent")
    tiny = torch.finfo(torch.float32).tiny
    scale = (matrix.abs().amax(dim=1) / 127).clamp(min=tiny) if matrix.numel() else matrix.new_ones(len(matrix))
    return (matrix / scale[:, None]).round().clamp(-127, 127).to(torch.int8), scale
