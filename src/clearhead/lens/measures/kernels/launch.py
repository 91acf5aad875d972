"""The measures in Triton, host side: a pass along rows, a pass along columns, and a selection of top keys.

Along rows everything about a query is summed up, in one pass over q·kᵀ if its logsumexp is at hand; along columns,
what keys receive. Nothing grows with queries · keys but the number of tiles. `TRITON_INTERPRET=1` runs it on CPU
tensors, slowly: that is how it is tested where there is no GPU.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import torch
from torch import Tensor

from clearhead.attention import biases
from clearhead.attention.call import Call
from clearhead.lens.measures.definition import MeasureJob, Measures
from clearhead.lens.measures.kernels import mask_plan
from clearhead.lens.measures.kernels.device_tensors import (
    TensorArgument,
    cache_on_device,
    describe_tensor,
    get_capability,
    has_warpgroups,
    is_gluon_failure,
    is_interpreted,
    place_tensor,
)
from clearhead.lens.measures.kernels.tile_shapes import (
    READER_ROWS,
    TileShape,
    TileShapes,
    choose_shapes,
    count_classes,
    count_slots,
    next_power_of_two,
)

WIDEST = 256  # numbers a head
MOST = 32  # keys asked for of each query
LONGEST = 2**19  # queries, and keys: a candidate's tile and its bits share 32 bits
LOG2E = 1 / math.log(2)


def explain_refusal(job: MeasureJob) -> str | None:
    """The reason why the kernels cannot do a job, or None."""
    call = job.call
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if call.q.device.type != "cuda" and not is_interpreted():
        return f"it runs on CUDA, and q is on {call.q.device}"
    if call.q.is_cuda and (torch.version.hip or get_capability(call.q.device) < (8, 0)):
        return (
            f"it wants an NVIDIA GPU of compute capability 8.0 or more, not {torch.cuda.get_device_name(call.q.device)}"
        )
    if call.q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"it computes in float32, and q is {call.q.dtype}"
    if 0 in call.sizes or 0 in (call.q.shape[3], len(job.rows)):
        return "there is nothing to measure"
    if call.q.shape[3] > WIDEST:
        return f"its heads are at most {WIDEST} wide, these are {call.q.shape[3]}"
    if job.top > MOST:
        return f"it finds the best {MOST} keys at most, not {job.top}"
    if max(call.sizes[2:]) > LONGEST:
        return f"it takes up to {LONGEST:,} queries and keys, not {max(call.sizes[2:]):,}"
    if call.bias is not None and not isinstance(call.bias, (biases.Alibi, biases.Relative, biases.Dense)):
        return f"it does not know {call.bias!r}"
    return mask_plan.explain_refusal(call.mask, call.sizes)


def run(job: MeasureJob, shapes: TileShapes | None = None) -> Measures:
    """The measures of a job, with tiles of the shapes that are known to be fast, or of others."""
    with torch.cuda.device_of(job.call.q):
        work = KernelRun(job, shapes)
        try:
            work.along_rows()
        except Exception as error:
            if work.swift is None or not is_gluon_failure(error):
                raise
            return run(job, shapes)
        if (job.received and not work.early) or job.top or (job.logsumexp is None and job.blocks[0]):
            work.along_columns()
        work.pick()
        return work.result()


class KernelRun:
    """One job on the device: the tensors that the kernels read and write, and their launches."""

    def __init__(self, job: MeasureJob, shapes: TileShapes | None = None) -> None:
        call, rows = job.call, job.rows
        batch, heads, queries, keys = call.sizes
        self.job, self.call, self.width = job, call, max(16, next_power_of_two(call.q.shape[3]))
        if shapes is None:
            plain = call.bias is None and call.softcap is None
            about = (len(rows), keys, job.blocks[1], job.top, plain)
            shapes = choose_shapes(self.width, call.q.element_size(), *about)
        self.q, self.k = call.q[:, :, rows.start : rows.stop : rows.step].detach(), call.k.detach()
        # The swift pass along rows does what that along columns is for, as long as no candidates are asked for
        receiving = job.received and not job.top
        tall = shapes.receiving if receiving else shapes.swift
        self.swift = describe_for_hopper(job, self.q, self.k, tall)
        self.early = receiving and self.swift is not None
        self.placed: tuple[tuple[int, ...], tuple[TensorArgument, TensorArgument]] | None = None
        self.shapes = shapes if self.swift is None or tall is None else shapes._replace(rows=tall)
        self.samples, self.device = batch * heads, call.q.device
        self.sizes = (heads, heads // call.k.shape[1], queries, keys, len(rows), rows.start, rows.step, job.offset)
        self._begin((batch, heads, len(rows)), keys)
        self.scales, self.cap = self._scales()
        self.bias, kind = _bias_arguments(call, self.scales)
        self.rules = mask_plan.build_mask_arguments(call.mask, call.sizes, self.device)
        self.constants = {
            "D": call.q.shape[3],
            "WIDTH": self.width,
            "CAP": call.softcap is not None,
            "BIAS": kind,
            "TERMS": self.rules.terms,
            "BOUNDS": self.rules.bounds,
            "DOCUMENTS": self.rules.documents,
            "DENSE": self.rules.dense,
        }
        # tf32 alone would cost 13 bits of float32; three products of it cost none that matter
        self.products = {"PRECISION": "tf32x3" if call.q.dtype == torch.float32 else "ieee", "CAST": is_interpreted()}

    def _begin(self, shape: tuple[int, int, int], keys: int) -> None:
        """Allocates the results per query, per key and per pixel."""
        job, device, dtype = self.job, self.device, torch.float32
        self.given = None if job.logsumexp is None else job.logsumexp.float().contiguous()
        room = torch.empty(8 if job.top else 10, *shape, dtype=dtype, device=device).unbind()
        self.logsumexp, self.entropy, self.peak, self.distance, self.first, self.threshold, self.natural = room[:7]
        # first key; if no others are asked for, the best key's tile and classes
        self.whole = tuple(one.view(torch.int32) for one in room[7:])
        self.top_keys = torch.empty(*shape, max(job.top, 1), dtype=torch.long, device=device)
        self.top_weights = torch.empty(*shape, job.top, dtype=dtype, device=device)
        if job.top:  # the slots of each query, of which the first counts
            self.candidates = torch.empty(*shape, count_slots(job.top), dtype=torch.int32, device=device)
            self.candidates[..., 0] = 0
        # These are summed up as tiles come, but for what keys receive in a pass of its own.
        high, wide = job.blocks
        pixels = (-(-shape[2] // high), -(-keys // wide)) if high else (0, 0)
        self.cells = (torch.zeros if high else torch.empty)(*shape[:2], *pixels, dtype=dtype, device=device)
        self.received: Tensor | None = None
        if job.received:
            self.received = (torch.zeros if self.early else torch.empty)(*shape[:2], keys, dtype=dtype, device=device)

    def along_rows(self) -> None:
        job, shape, given = self.job, self.shapes.rows, self.given
        rows, sizes = job.rows, self.call.sizes[2:]
        plan = mask_plan.plan_rows(self.call.mask, sizes, rows, job.offset, shape[:2], self.device)
        out = (self.logsumexp, self.entropy, self.peak, self.distance, self.whole[0], self.threshold, *self.whole[1:])
        grid = (-(-len(rows) // shape.queries) * self.samples,)
        constants = {"TOP": job.top, "CLASSES": count_classes(job.top), **self._map_constants(shape, given is not None)}
        if self.swift is not None:
            from clearhead.lens.measures.kernels.hopper_row_pass import scan_rows as look_swiftly

            q, k = self.swift
            look_swiftly[grid](
                *(q.source, q.place, k.source, k.place, self.rules.arguments, *plan, self.scales, given),
                *(self.scales if self.received is None else self.received, out, *self._pixels(), *self.sizes),
                RECEIVED=self.early,
                **constants,
                **self._swift_constants(shape),
            )
            return
        from clearhead.lens.measures.kernels.row_pass import scan_rows

        sinks = self.scales if self.call.sinks is None else self.call.sinks.detach().double().mul(LOG2E).float()
        q, k = self._places(shape)
        scan_rows[grid](
            *(q.source, q.place, k.source, k.place, self.rules.arguments, self.bias, *plan, self.scales, self.cap),
            *(sinks, self.scales if given is None else given, out, *self._pixels(), *self.sizes),
            SINKS=self.call.sinks is not None,
            GIVEN=given is not None,
            **constants,
            **self._constants(shape, q, k),
        )

    def along_columns(self) -> None:
        from clearhead.lens.measures.kernels.column_pass import scan_columns

        job, shape = self.job, self.shapes.collecting if self.job.top else self.shapes.columns
        q, k = self._places(shape)
        rows, sizes = job.rows, self.call.sizes[2:]
        plan = mask_plan.plan_columns(self.call.mask, sizes, rows, shape[:2], self.device)
        found = (self.threshold, self.candidates if job.top else self.whole[0])
        received = self.scales if self.received is None else self.received
        scan_columns[(-(-sizes[1] // shape.keys) * self.samples,)](
            *(q.source, q.place, k.source, k.place, self.rules.arguments, self.bias, *plan, self.scales, self.cap),
            *(self.logsumexp, received, found, *self._pixels(), *self.sizes),
            WARPS=min(shape.warps, shape.queries // 16),
            RECEIVED=self.received is not None,
            COLLECT=job.top > 0,
            SLOTS=count_slots(job.top),
            **self._map_constants(shape, job.logsumexp is None),
            **self._constants(shape, q, k),
        )

    def pick(self) -> None:
        from clearhead.lens.measures.kernels.key_selection import select_from_all_keys, select_top_keys

        job, shape = self.job, self.shapes.pick
        q, k = self.q, self.k
        seen = (self.logsumexp, self.whole[0], self.natural if self.given is None else self.given)
        found = (self.threshold, self.candidates) if job.top else self.whole[1:]
        arguments = (
            *(q, q.stride(), k, k.stride(), self.rules.arguments, self.bias, self.scales, self.cap),
            *(seen, found, (self.first, self.top_keys, self.top_weights, self.natural), *self.sizes),
        )
        constants = {"TOP": job.top, "SLOTS": count_slots(job.top)}
        rows = len(job.rows)
        select_top_keys[(-(-rows // shape.queries) * self.samples,)](
            *arguments,
            BM=shape.queries,
            BN=(self.shapes.collecting if job.top else self.shapes.rows).keys,
            CLASSES=count_classes(job.top),
            GIVEN=self.given is not None,
            **shape.options,
            **constants,
            **self.constants,
        )
        if job.top:
            shape = self.shapes.every
            select_from_all_keys[(-(-rows // shape.queries) * self.samples,)](
                *arguments,
                BM=shape.queries,
                BN=shape.keys,
                LIST=next_power_of_two(job.top),
                **shape.options,
                **constants,
                **self.products,
                **self.constants,
            )

    def result(self) -> Measures:
        return Measures(
            logsumexp=self.natural,
            entropy=self.entropy,
            peak=self.peak,
            peak_key=self.top_keys[..., 0],
            distance=self.distance,
            first=self.first,
            top_keys=self.top_keys[..., : self.job.top],
            top_weights=self.top_weights,
            received=self.received,
            map=self.cells,
        )

    def _places(self, shape: TileShape) -> tuple[TensorArgument, TensorArgument]:
        """q and k as kernel arguments for tiles of this shape."""
        if self.placed is None or self.placed[0] != shape[:2]:
            places = place_tensor(self.q, shape.queries, self.width), place_tensor(self.k, shape.keys, self.width)
            self.placed = (shape[:2], places)
        return self.placed[1]

    def _constants(self, shape: TileShape, q: TensorArgument, k: TensorArgument) -> dict[str, Any]:
        described = {"TMA_Q": q.described, "TMA_K": k.described}
        return shape.options | {"BM": shape.queries, "BN": shape.keys} | described | self.products | self.constants

    def _swift_constants(self, shape: TileShape) -> dict[str, Any]:
        names = ("D", "TERMS", "BOUNDS", "DOCUMENTS", "DENSE")
        own = {"BN": shape.keys, "STAGES": shape.stages, "num_warps": shape.warps}
        readers = {"READERS": shape.queries // READER_ROWS, "REGISTERS": shape.registers}
        return own | readers | {name: self.constants[name] for name in names}

    def _scales(self) -> tuple[Tensor, float]:
        """Per-head factors from q·k to scores in units of ln 2 (with a cap: to fractions of it), and the cap."""
        cap, scale = self.call.softcap, self.call.scale
        unit = LOG2E if cap is None else 1 / cap
        if not isinstance(scale, Tensor):
            heads, number, device = self.call.q.shape[1], scale * unit, self.device
            scales = cache_on_device(
                ("scales", heads, number),
                device,
                lambda: torch.full((heads,), number, dtype=torch.float32, device=device),
            )
        else:
            scales = (scale.detach().double().flatten() * unit).float().expand(self.call.q.shape[1]).contiguous()
        return scales, 0.0 if cap is None else cap * LOG2E

    def _pixels(self) -> tuple[Tensor | int, ...]:
        (high, wide), (rows, columns) = self.job.blocks, self.cells.shape[2:]
        return (self.cells if high else self.scales, rows * columns, high, wide, columns)

    def _map_constants(self, shape: TileShape, now: bool) -> dict[str, Any]:
        """The constants of `add_to_map`, if this pass fills the map."""
        high, wide = self.job.blocks
        if not high or not now:
            return {"MAP": False, "EVEN": True, "TOUCHED": 1, "CHUNK": 1, "PARTS": 1}
        even = shape.keys % wide == 0 or wide % shape.keys == 0
        touched = max(1, shape.keys // wide) if even else next_power_of_two((shape.keys - 2) // wide + 2)
        chunk, parts = _choose_chunks(high)
        return {"MAP": True, "EVEN": even, "TOUCHED": touched, "CHUNK": chunk, "PARTS": parts}


def describe_for_hopper(
    job: MeasureJob, q: Tensor, k: Tensor, shape: TileShape | None
) -> tuple[TensorArgument, TensorArgument] | None:
    """q and k for the pass along rows in `kernels/hopper.py`; None where it does not serve."""
    if shape is None or job.logsumexp is None or not has_warpgroups(q.device):
        return None
    if q.dtype not in (torch.bfloat16, torch.float16) or q.shape[3] not in (64, 128):
        return None
    own = describe_tensor(q, READER_ROWS, q.shape[3], for_gluon=True)
    other = None if own is None else describe_tensor(k, shape.keys, q.shape[3], for_gluon=True)
    return None if own is None or other is None else (own, other)


def _choose_chunks(high: int) -> tuple[int, int]:
    """Rows summed together for the map, and the number of pixel rows that they can touch."""
    return (16, 2 if high % 16 else 1) if high >= 16 else (1, 1)


def _bias_arguments(call: Call, nothing: Tensor) -> tuple[tuple[Any, ...], int]:
    """What `scoring.biased` reads: nothing (0), a number for each j − i (1), or the tensor itself (2)."""
    if call.bias is None:
        return (nothing, 0, 0, 0, 0), 0
    own = call.bias.replace(call.bias.parameter.detach().float())
    if isinstance(own, biases.Dense):
        return (own.parameter, *mask_plan.broadcast_strides(own.parameter)), 2
    queries, keys = call.sizes[2:]
    last = torch.arange(queries - 1, queries, device=call.q.device)
    heads = torch.arange(own.heads, device=call.q.device)[:, None]
    line = own.at(heads * 0, heads, last, torch.arange(queries + keys - 1, device=call.q.device), queries, keys)
    return (line.contiguous(), 0, 0 if own.heads == 1 else line.stride(0), 0, 0), 1
