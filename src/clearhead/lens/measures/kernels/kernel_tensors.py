"""The tensors of one job as kernel arguments: what all kernels read, what they write, and what the GPU can do."""

from __future__ import annotations

import functools
import math
import os
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.attention import biases
from clearhead.attention.call import Call
from clearhead.lens.measures.definition import MeasureJob, Measures
from clearhead.lens.measures.kernels import mask_plan
from clearhead.lens.measures.kernels.mask_plan import cache_on_device
from clearhead.lens.measures.kernels.tile_shapes import TileShape, count_slots, next_power_of_two

LOG2E = 1 / math.log(2)


class KernelInputs:
    """What all kernels read of a job."""

    def __init__(self, job: MeasureJob) -> None:
        call, rows = job.call, job.rows
        _, heads, queries, keys = call.sizes
        self.q = call.q[:, :, rows.start : rows.stop : rows.step].detach()  # the measured queries
        self.k = call.k.detach()
        self.mask = mask_plan.build_mask_arguments(call.mask, call.sizes, call.q.device)
        # Per head, from q·k to scores in units of ln 2; with a cap, to fractions of it
        self.scales = _build_scales(call)
        self.bias, kind = _build_bias(call, self.scales)  # of `tile_operations.add_bias`
        self.cap = 0.0 if call.softcap is None else call.softcap * LOG2E
        self.logsumexp = None if job.logsumexp is None else job.logsumexp.float().contiguous()
        # Heads, heads that share a key head, queries, keys, rows, first row, step, offset
        self.sizes = (heads, heads // call.k.shape[1], queries, keys, len(rows), rows.start, rows.step, job.offset)
        self.constants: dict[str, Any] = {
            "D": call.q.shape[3],
            "WIDTH": padded_width(call),
            "CAP": call.softcap is not None,
            "BIAS": kind,
            "TERMS": self.mask.terms,
            "BOUNDS": self.mask.bounds,
            "DOCUMENTS": self.mask.documents,
            "DENSE": self.mask.dense,
        }

    @property
    def product_constants(self) -> dict[str, Any]:
        """The constants of `tile_operations.multiply_tiles`."""
        # tf32 alone would cost 13 bits of float32; three products of it cost none that matter
        return {"PRECISION": "tf32x3" if self.q.dtype == torch.float32 else "ieee", "CAST": is_interpreted()}

    def place_tiles(self, shape: TileShape) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The first arguments of the kernels with tiles of this shape (q, k, mask and bias), and their constants."""
        width = self.constants["WIDTH"]
        q, q_place, q_described = place_tensor(self.q, shape.queries, width)
        k, k_place, k_described = place_tensor(self.k, shape.keys, width)
        arguments = (q, q_place, k, k_place, self.mask.arguments, self.bias)
        tile = {"BM": shape.queries, "BN": shape.keys, "TMA_Q": q_described, "TMA_K": k_described}
        return arguments, shape.options | tile | self.product_constants | self.constants

    def count_programs(self, tiles: int) -> tuple[int]:
        """The launch grid for this number of tiles of each head and sample."""
        return (tiles * self.q.shape[0] * self.q.shape[1],)


class KernelOutputs:
    """The tensors that the kernels write: results, and what one kernel leaves for the next."""

    def __init__(self, job: MeasureJob) -> None:
        (batch, heads, _, keys), rows, device = job.call.sizes, len(job.rows), job.call.q.device
        shape, dtype = (batch, heads, rows), torch.float32
        per_query = torch.empty(9 if job.top else 11, *shape, dtype=dtype, device=device).unbind()
        self.log2sumexp, self.entropy, self.peak, self.distance, self.first = per_query[:5]
        self.threshold, self.logsumexp = per_query[5:7]
        self.first_key, self.best_score = per_query[7].view(torch.int32), per_query[8]
        # Only without top keys: the tile of the best key, and its classes
        self.best = tuple(numbers.view(torch.int32) for numbers in per_query[9:])
        self.candidates: Tensor | None = None  # slots, of which the first counts the used ones
        if job.top:
            self.candidates = torch.empty(*shape, count_slots(job.top), dtype=torch.int32, device=device)
            self.candidates[..., 0] = 0
        self.top_keys = torch.empty(*shape, max(job.top, 1), dtype=torch.int32, device=device)
        self.top_weights = torch.empty(*shape, job.top, dtype=dtype, device=device)
        high, wide = job.blocks
        pixels = (-(-rows // high), -(-keys // wide)) if high else (0, 0)
        self.map = (torch.zeros if high else torch.empty)(batch, heads, *pixels, dtype=dtype, device=device)
        self.received = torch.empty(batch, heads, keys, dtype=dtype, device=device) if job.received else None
        self.span_mass = torch.empty(*shape, len(job.spans), dtype=dtype, device=device) if job.spans else None

    @property
    def row_pass(self) -> tuple[Float[Tensor, "batch heads rows"] | Int[Tensor, "batch heads rows"], ...]:
        """The argument `out` of the row passes."""
        per_query = (self.log2sumexp, self.entropy, self.peak, self.distance, self.first_key, self.threshold)
        return (*per_query, self.best_score, *self.best)

    def to_measures(self, job: MeasureJob) -> Measures:
        return Measures(
            logsumexp=self.logsumexp,
            entropy=self.entropy,
            peak=self.peak,
            peak_key=self.top_keys[..., 0],
            distance=self.distance,
            first=self.first,
            top_keys=self.top_keys[..., : job.top],
            top_weights=self.top_weights,
            received=self.received,
            map=self.map,
            max_score=self.best_score.amax(-1),
            span_mass=self.span_mass,
            span_names=tuple(job.spans),
        )


def padded_width(call: Call) -> int:
    """The width of a head as the kernels load it: a power of two, at least 16."""
    return max(16, next_power_of_two(call.q.shape[3]))


def _build_scales(call: Call) -> Tensor:
    heads, device, scale = call.q.shape[1], call.q.device, call.scale
    unit = LOG2E if call.softcap is None else 1 / call.softcap
    if isinstance(scale, Tensor):
        return (scale.detach().double().flatten() * unit).float().expand(heads).contiguous()
    number = scale * unit
    scales: Tensor = cache_on_device(
        ("scales", heads, number), device, lambda: torch.full((heads,), number, dtype=torch.float32, device=device)
    )
    return scales


def _build_bias(call: Call, unused: Tensor) -> tuple[tuple[Any, ...], int]:
    """What `add_bias` reads, and its kind: nothing (0), a number for each j − i (1), or the tensor itself (2)."""
    if call.bias is None:
        return (unused, 0, 0, 0, 0), 0
    bias = call.bias.replace(call.bias.parameter.detach().float())
    if isinstance(bias, biases.Dense):
        return (bias.parameter, *mask_plan.broadcast_strides(bias.parameter)), 2
    queries, keys = call.sizes[2:]
    last = torch.arange(queries - 1, queries, device=call.q.device)
    heads = torch.arange(bias.heads, device=call.q.device)[:, None]
    line = bias.at(heads * 0, heads, last, torch.arange(queries + keys - 1, device=call.q.device), queries, keys)
    return (line.contiguous(), 0, 0 if bias.heads == 1 else line.stride(0), 0, 0), 1


def is_interpreted() -> bool:
    """Whether Triton runs its kernels in the interpreter."""
    return os.environ.get("TRITON_INTERPRET") == "1"


# A tensor as a kernel argument: TMA descriptor or pointer, offsets of samples and heads, whether it is a descriptor.
TensorArgument = tuple[Any, tuple[int, ...], bool]


def place_tensor(x: Float[Tensor, "batch heads tokens d"], rows: int, width: int) -> TensorArgument:
    """A tensor as an argument for kernels that read `rows` rows at a time.

    What fits into one tile is passed as a pointer: making a descriptor takes longer than reading it.
    """
    descriptor = _describe_tensor(x, rows, width) if x.shape[2] > rows else None
    return descriptor or (x, x.stride(), False)


def _describe_tensor(x: Float[Tensor, "batch heads tokens d"], rows: int, width: int) -> TensorArgument | None:
    """A tensor as a TMA descriptor; None where its strides do not allow one, or a tile would run into the next head."""
    if not has_tensor_memory_access(x.device):
        return None
    batch, heads, tokens, d = x.shape
    by_sample, by_head, by_row, by_number = x.stride()
    by_sample, by_head = by_sample if batch > 1 else 0, by_head if heads > 1 else 0
    itemsize = x.element_size()
    if by_number != 1 or by_row < d or by_row * itemsize % 16 or x.data_ptr() % 16 or by_sample % by_row:
        return None
    if by_head % by_row == 0:
        offsets, columns = (by_sample // by_row, by_head // by_row, 0), d
    elif (heads - 1) * by_head + d <= by_row and width == d and by_head * itemsize % 16 == 0:
        offsets, columns = (by_sample // by_row, 0, by_head), (heads - 1) * by_head + d
    else:
        return None
    from triton.tools.tensor_descriptor import TensorDescriptor

    length = (batch - 1) * offsets[0] + (heads - 1) * offsets[1] + tokens
    return TensorDescriptor(x, [length, columns], [by_row, 1], [rows, width]), offsets, True


def has_tensor_memory_access(device: torch.device) -> bool:
    """Whether the GPU copies tiles by TMA: Hopper and later do, and Triton's interpreter simulates it."""
    return is_interpreted() or (device.type == "cuda" and get_capability(device)[0] >= 9)


@functools.cache
def get_capability(device: torch.device) -> tuple[int, int]:
    """The compute capability of a GPU."""
    return torch.cuda.get_device_capability(device)
