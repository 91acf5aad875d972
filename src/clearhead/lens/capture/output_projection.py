"""Norms of what heads add for each key, through the output projection as it computes: plain, adapted or quantised.

A plain linear layer is read by its weight. Any other module is called: by an adapter, a parametrization or quantised
weights it may compute something else than what its `weight` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from clearhead.errors import LensError
from clearhead.lens.analysis.norms import CHUNK, value_norms

LARGEST_DIFFERENCE = 0.03  # relative, between the sum of what heads add and the whole; 8-bit inputs explain 0.01
INPUT_SIZE = 8  # log2 of the largest input of a called module: large, so that its bias does not round away what it adds

ValueNorms = Callable[[Float[Tensor, "batch kv_heads keys d"]], Float[Tensor, "batch heads keys"]]


def make_value_norms(projection: nn.Module, heads: int, name: str) -> ValueNorms:
    """A function of values: ‖v_j W_O^h‖ of every head and key. LensError if the projection is not a linear map."""
    weight = read_weight(projection)
    if weight is not None:
        return lambda v: value_norms(v, weight, heads)
    if projection._forward_pre_hooks_with_kwargs:
        raise LensError(
            f"norms=True calls the output projection of {name!r} itself, a {type(projection).__name__}, but a forward "
            "hook gives it further arguments, such as adapters by sample; run without them, or omit norms"
        )
    return lambda v: _measure_by_calls(projection, v, heads, name)


def read_weight(projection: nn.Module) -> Float[Tensor, "width features"] | None:
    """The matrix of a plain linear layer, or of one with our own adapter; None where only a call tells it."""
    kind: Any = type(projection)
    if "forward" in vars(projection):
        return None
    if hasattr(kind, "effective_weight"):
        adapted: Tensor = kind.effective_weight(projection)
        return adapted
    weight = projection._parameters.get("weight")
    if type(weight) is not nn.Parameter or weight.ndim != 2 or not weight.is_floating_point():
        return None
    if kind.forward is nn.Linear.forward:
        return weight.detach()
    return weight.detach().T if (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D") else None


def _measure_by_calls(
    projection: nn.Module, v: Float[Tensor, "batch kv_heads keys d"], heads: int, name: str
) -> Float[Tensor, "batch heads keys"]:
    """‖f(x) − f(0)‖, where x holds the value of one key in the place of one head, and zeros elsewhere.

    With many keys f is first read as a matrix, row by row. In both cases the heads must add up to the whole.
    """
    batch, kv_heads, keys, d = v.shape
    if not batch * keys:
        return v.new_zeros(batch, heads, keys, dtype=torch.promote_types(v.dtype, torch.float32))
    values = v.detach().repeat_interleave(heads // kv_heads, 1).transpose(1, 2)  # batch keys heads d
    if batch * keys < d:
        places = torch.eye(heads, dtype=v.dtype, device=v.device)[:, :, None]
        added = _call(projection, (values[:, :, :, None] * places).flatten(-2))  # batch keys heads width
        _refuse_if_not_linear(_call(projection, values.flatten(-2)), added.sum(2), projection, name)
        norms: Tensor = torch.linalg.vector_norm(added, dim=-1).transpose(1, 2)
        return norms
    matrix = _call(projection, torch.eye(heads * d, dtype=v.dtype, device=v.device))
    whole = values[-1:, -1].flatten(-2)
    _refuse_if_not_linear(_call(projection, whole), whole.to(matrix.dtype) @ matrix, projection, name)
    return value_norms(v, matrix.T, heads)


def _call(projection: nn.Module, x: Float[Tensor, "*rows features"]) -> Float[Tensor, "*rows width"]:
    """f(x) − f(0) of a module f, in float32 or better, some rows at a time; hooks on the module are not called."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    rows = x.flatten(0, -2).to(dtype)
    _, exponent = torch.frexp(rows.abs().amax())
    scale = torch.ldexp(torch.ones((), dtype=dtype, device=x.device), INPUT_SIZE - exponent)
    outputs = []
    for batch in rows.split(max(1, CHUNK // x.shape[-1])):
        with _leave_unchanged(projection):
            out = projection.forward(torch.nn.functional.pad(batch * scale, (0, 0, 0, 1)).to(x.dtype)[None])[0]
        outputs.append((out[:-1] - out[-1:]).to(dtype) / scale)
    return torch.cat(outputs).view(*x.shape[:-1], -1)


def _refuse_if_not_linear(whole: Tensor, parts: Tensor, projection: nn.Module, name: str) -> None:
    difference = float((whole - parts).norm() / whole.norm().clamp(min=torch.finfo(whole.dtype).tiny))
    if difference > LARGEST_DIFFERENCE:  # not where numbers are NaN, which the record must show
        raise LensError(
            f"norms=True needs an output projection that is linear, but what the heads of {name!r} add by themselves "
            f"differs by {difference:.1%} from what its {type(projection).__name__} gives for all; call model.eval() "
            "if it drops some at random, else omit norms"
        )


@contextmanager
def _leave_unchanged(projection: nn.Module) -> Iterator[None]:
    """Within it a module can be called without dropout; its buffers and the random numbers stay as they were."""
    dropouts = [module for module in projection.modules() if isinstance(module, _DropoutNd) and module.training]
    buffers = [(buffer, buffer.clone()) for buffer in projection.buffers()]
    devices = {tensor.device for tensor in (*projection.parameters(), *projection.buffers()) if tensor.is_cuda}
    with torch.random.fork_rng(list(devices)):
        for dropout in dropouts:
            dropout.training = False
        try:
            for hook in projection._forward_pre_hooks.values():
                if type(hook).__module__.startswith("torch.nn.utils."):  # which compute its weight before every call
                    hook(projection, ())
            yield
        finally:
            for dropout in dropouts:
                dropout.training = True
            for buffer, before in buffers:
                if not torch.equal(buffer, before):
                    buffer.copy_(before)
