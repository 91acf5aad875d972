"""Kernel arguments on the device: TMA descriptors or pointers, and small constant tensors cached per stream."""

from __future__ import annotations

import functools
import importlib.util
import os
import warnings
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor


def is_interpreted() -> bool:
    """Whether Triton runs its kernels in the interpreter."""
    return os.environ.get("TRITON_INTERPRET") == "1"


class TensorArgument(NamedTuple):
    """A tensor as a kernel argument: TMA descriptor or pointer, with offsets of samples and heads."""

    source: Any
    place: tuple[int, ...]
    described: bool


def place_tensor(x: Tensor, rows: int, width: int) -> TensorArgument:
    """A tensor (batch, heads, tokens, d) as an argument for kernels that read `rows` rows at a time.

    What fits into one tile goes by pointer: to describe it takes longer than to read it.
    """
    found = describe_tensor(x, rows, width) if x.shape[2] > rows else None
    return found or TensorArgument(x, x.stride(), False)


def describe_tensor(x: Tensor, rows: int, width: int, *, for_gluon: bool = False) -> TensorArgument | None:
    """A tensor as a TMA descriptor, or None where its strides do not allow one.

    None where its strides do not allow it, or its columns would run into the next head. Gluon wants to know how tiles
    will lie in shared memory.
    """
    if not has_tensor_memory_access(x.device):
        return None
    batch, heads, tokens, d = x.shape
    by_sample, by_head, by_row, by_number = x.stride()
    by_sample, by_head = by_sample if batch > 1 else 0, by_head if heads > 1 else 0
    itemsize = x.element_size()
    if by_number != 1 or by_row < d or by_row * itemsize % 16 or x.data_ptr() % 16 or by_sample % by_row:
        return None
    if by_head % by_row == 0:
        place, columns = (by_sample // by_row, by_head // by_row, 0), d
    elif (heads - 1) * by_head + d <= by_row and width == d and by_head * itemsize % 16 == 0:
        place, columns = (by_sample // by_row, 0, by_head), (heads - 1) * by_head + d
    else:
        return None
    length = (batch - 1) * place[0] + (heads - 1) * place[1] + tokens
    given = (x, [length, columns], [by_row, 1], [rows, width])
    if for_gluon:
        from triton.experimental.gluon.nvidia import hopper

        return TensorArgument(hopper.TensorDescriptor(*given, _layout((rows, width))), place, True)
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorArgument(TensorDescriptor(*given), place, True)


def has_tensor_memory_access(device: torch.device) -> bool:
    """Whether the GPU has an engine that copies tiles: Hopper and later do, and Triton's interpreter plays one."""
    return is_interpreted() or (device.type == "cuda" and get_capability(device)[0] >= 9)


@functools.cache
def get_capability(device: torch.device) -> tuple[int, int]:
    """What generation a GPU is of."""
    return torch.cuda.get_device_capability(device)


@functools.cache
def _layout(tile: tuple[int, int]) -> Any:
    """How a tile of half precision lies in shared memory."""
    from triton.experimental.gluon import language as gl

    return gl.NVMMASharedLayout.get_default_for(list(tile), gl.bfloat16)


def has_warpgroups(device: torch.device) -> bool:
    """Whether the GPU's tensor cores work for four warps at a time, as only Hopper's do, and Gluon is there."""
    if is_interpreted() or device.type != "cuda" or get_capability(device)[0] != 9:
        return False
    return not _failures and importlib.util.find_spec("triton.experimental.gluon") is not None


def is_gluon_failure(error: Exception) -> bool:
    """Whether it was this Triton's Gluon that could not do what we ask: then it is not asked again, and that is said.

    Gluon is young, and changes from release to release; the kernels in Triton give the same, a little later.
    """
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources, PTXASError

    failures = (CompilationError, OutOfResources, PTXASError, ImportError, AttributeError, TypeError)
    if not isinstance(error, failures) and "PassManager" not in str(error):
        return False
    _failures.append(error)
    warnings.warn(
        f"the lens takes its slower kernels: this Triton could not compile the one for Hopper "
        f"({type(error).__name__}: {str(error)[:200]})",
        RuntimeWarning,
        stacklevel=2,
    )
    return True


_failures: list[Exception] = []


def cache_on_device(key: Hashable, device: torch.device, make: Callable[[], Any]) -> Any:
    """What `make` returned the first time; one entry per CUDA stream, since other streams would not wait for it.

    >>> cpu = torch.device("cpu")
    >>> cache_on_device("a row", cpu, lambda: [1]) is cache_on_device("a row", cpu, lambda: [1])
    True
    """
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    whole = (key, device, stream)
    found = _cached.get(whole)
    if found is None and device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return make()  # it belongs to the graph
    if found is None:
        if len(_cached) > 63:
            _cached.clear()  # by another thread, too: so nothing is looked up twice
        found = _cached[whole] = make()
    return found


_cached: dict[Hashable, Any] = {}
