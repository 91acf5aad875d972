"""Copies of tensors from a device to the CPU: small ones are packed into one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Shaped
from torch import Tensor

SMALL = 2**18  # numbers: smaller tensors are packed into one copy, since each copy waits for the GPU
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of a number


def to_host(tensors: Mapping[str, Shaped[Tensor, "..."]]) -> dict[str, Shaped[Tensor, "..."]]:
    """Copies tensors to the CPU, small ones packed by element size."""
    small = {name: one for name, one in tensors.items() if one.is_cuda and one.numel() <= SMALL}
    together: dict[str, Tensor] = {}
    for size in {one.itemsize for one in small.values()}:
        together |= copy_packed({name: one for name, one in small.items() if one.itemsize == size})
    return {name: together[name] if name in together else one.cpu() for name, one in tensors.items()}


def copy_packed(tensors: Mapping[str, Shaped[Tensor, "..."]]) -> dict[str, Shaped[Tensor, "..."]]:
    """Copies tensors of one element size in a single transfer; each result owns its memory.

    >>> copy_packed({"a": torch.ones(2), "b": torch.tensor([[3]], dtype=torch.int32)})
    {'a': tensor([1., 1.]), 'b': tensor([[3]], dtype=torch.int32)}
    """
    row = torch.cat([one.view(BITS[one.itemsize]).flatten() for one in tensors.values()]).cpu()
    pieces = row.split([one.numel() for one in tensors.values()])
    return {
        name: piece.clone().view(one.dtype).view(one.shape)
        for (name, one), piece in zip(tensors.items(), pieces, strict=True)
    }
