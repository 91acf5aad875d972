"""The measures in Triton, host side: a pass along rows, a pass along columns, and a selection of top keys.

The row pass computes the measures of each query, in one pass over q·kᵀ if its logsumexp is known; the column pass
computes what keys receive, and finds candidates for the top keys. Only the number of tiles grows with queries · keys.
`TRITON_INTERPRET=1` runs the kernels on CPU tensors, slowly: that is how they are tested without a GPU.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor

from clearhead.attention import biases
from clearhead.lens.measures.definition import MeasureJob, Measures
from clearhead.lens.measures.kernels import mask_plan
from clearhead.lens.measures.kernels.kernel_tensors import (
    LOG2E,
    KernelInputs,
    KernelOutputs,
    get_capability,
    is_interpreted,
    padded_width,
)
from clearhead.lens.measures.kernels.tile_shapes import (
    TileShape,
    TileShapes,
    choose_shapes,
    count_classes,
    count_slots,
    next_power_of_two,
)

MAX_WIDTH = 256  # features of a head
MAX_TOP = 32  # top keys of each query
MAX_LENGTH = 2**19  # queries, and keys: a candidate's tile number and its bits share 32 bits


def explain_refusal(job: MeasureJob) -> str | None:
    """The reason why the kernels cannot do a job, or None."""
    call = job.call
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if call.q.device.type != "cuda" and not is_interpreted():
        return f"it runs on CUDA, and q is on {call.q.device}"
    if call.q.is_cuda and (torch.version.hip or get_capability(call.q.device) < (8, 0)):
        return (
            f"it needs an NVIDIA GPU of compute capability 8.0 or more, not {torch.cuda.get_device_name(call.q.device)}"
        )
    if call.q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"it computes in float32, and q is {call.q.dtype}"
    if 0 in call.sizes or 0 in (call.q.shape[3], len(job.rows)):
        return "there is nothing to measure"
    if call.q.shape[3] > MAX_WIDTH:
        return f"its heads are at most {MAX_WIDTH} wide, these are {call.q.shape[3]}"
    if job.top > MAX_TOP:
        return f"it finds the best {MAX_TOP} keys at most, not {job.top}"
    if max(call.sizes[2:]) > MAX_LENGTH:
        return f"it takes up to {MAX_LENGTH:,} queries and keys, not {max(call.sizes[2:]):,}"
    if call.bias is not None and not isinstance(call.bias, (biases.Alibi, biases.Relative, biases.Dense)):
        return f"it does not support {call.bias!r}"
    return mask_plan.explain_refusal(call.mask, call.sizes)


def run(job: MeasureJob, shapes: TileShapes | None = None) -> Measures:
    """The measures of a job, with the tile shapes of the tuned table unless others are given."""
    if job.rows.start >= job.rows.step:  # tile plans take tiles of rows for blocks of queries, from the first on
        job = job.start_at_first_row()
    with torch.cuda.device_of(job.call.q):
        inputs = KernelInputs(job)
        if shapes is None:
            call, sizes = job.call, (len(job.rows), job.call.k.shape[2], job.blocks[1], job.top)
            plain = call.bias is None and call.softcap is None
            shapes = choose_shapes(padded_width(call), call.q.element_size(), *sizes, plain)
        outputs = KernelOutputs(job)
        launch_row_pass(job, inputs, outputs, shapes.rows)
        if job.received or job.top or (job.logsumexp is None and job.blocks[0]):
            launch_column_pass(job, inputs, outputs, shapes)
        launch_selection(job, inputs, outputs, shapes)
        if outputs.span_mass is not None:
            launch_span_pass(job, inputs, outputs.log2sumexp, outputs.span_mass, shapes.rows)
        return outputs.to_measures(job)


def launch_row_pass(job: MeasureJob, inputs: KernelInputs, outputs: KernelOutputs, shape: TileShape) -> None:
    from clearhead.lens.measures.kernels.row_pass import scan_rows

    call, logsumexp = job.call, inputs.logsumexp
    plan = mask_plan.plan_rows(call.mask, call.sizes[2:], job.rows, job.offset, shape[:2], inputs.q.device)
    arguments, constants = inputs.place_tiles(shape)
    sinks = inputs.scales if call.sinks is None else call.sinks.detach().double().mul(LOG2E).float()
    scan_rows[inputs.count_programs(-(-len(job.rows) // shape.queries))](
        *(*arguments, *plan, inputs.scales, inputs.cap),
        *(sinks, inputs.scales if logsumexp is None else logsumexp, outputs.row_pass),
        *(*_map_arguments(job, inputs, outputs), *inputs.sizes),
        SINKS=call.sinks is not None,
        GIVEN=logsumexp is not None,
        TOP=job.top,
        CLASSES=count_classes(job.top),
        **_map_constants(job, shape, filled=logsumexp is not None),
        **constants,
    )


def launch_column_pass(job: MeasureJob, inputs: KernelInputs, outputs: KernelOutputs, shapes: TileShapes) -> None:
    from clearhead.lens.measures.kernels.column_pass import scan_columns

    shape, sizes = shapes.candidates if job.top else shapes.columns, job.call.sizes[2:]
    plan = mask_plan.plan_columns(job.call.mask, sizes, job.rows, shape[:2], inputs.q.device)
    arguments, constants = inputs.place_tiles(shape)
    candidates = (outputs.threshold, outputs.first_key if outputs.candidates is None else outputs.candidates)
    scan_columns[inputs.count_programs(-(-sizes[1] // shape.keys))](
        *(*arguments, *plan, inputs.scales, inputs.cap),
        *(outputs.log2sumexp, inputs.scales if outputs.received is None else outputs.received, candidates),
        *(*_map_arguments(job, inputs, outputs), *inputs.sizes),
        WARPS=min(shape.warps, shape.queries // 16),
        RECEIVED=outputs.received is not None,
        COLLECT=job.top > 0,
        SLOTS=count_slots(job.top),
        **_map_constants(job, shape, filled=job.logsumexp is None),
        **constants,
    )


def launch_span_pass(
    job: MeasureJob, inputs: KernelInputs, log2sumexp: Tensor, span_mass: Tensor, shape: TileShape
) -> None:
    """Sums the weights of each query over each span of keys, once the logsumexp is known."""
    from clearhead.lens.measures.kernels.row_pass import sum_spans

    edges, device = tuple((span.start, span.stop) for span in job.spans.values()), inputs.q.device
    spans = mask_plan.cache_on_device(
        ("spans", edges), device, lambda: torch.tensor(edges, dtype=torch.int32, device=device)
    )
    arguments, constants = inputs.place_tiles(shape)
    sum_spans[inputs.count_programs(-(-len(job.rows) // shape.queries) * len(edges))](
        *(*arguments, spans, inputs.scales, inputs.cap),
        *(log2sumexp, span_mass, len(edges), *inputs.sizes),
        **constants,
    )


def launch_selection(job: MeasureJob, inputs: KernelInputs, outputs: KernelOutputs, shapes: TileShapes) -> None:
    """Selects the first and the top keys among the candidates of the passes."""
    from clearhead.lens.measures.kernels.column_pass import select_from_all_keys, select_top_keys

    q, k = inputs.q, inputs.k
    logsumexp = outputs.logsumexp if inputs.logsumexp is None else inputs.logsumexp
    candidates = outputs.best if outputs.candidates is None else (outputs.threshold, outputs.candidates)
    arguments = (
        *(q, q.stride(), k, k.stride(), inputs.mask.arguments, inputs.bias, inputs.scales, inputs.cap),
        *((outputs.log2sumexp, outputs.first_key, logsumexp), candidates),
        *((outputs.first, outputs.top_keys, outputs.top_weights, outputs.logsumexp), *inputs.sizes),
    )
    constants = {"TOP": job.top, "SLOTS": count_slots(job.top), **inputs.constants}
    shape = shapes.selection
    select_top_keys[inputs.count_programs(-(-len(job.rows) // shape.queries))](
        *arguments,
        BM=shape.queries,
        BN=(shapes.candidates if job.top else shapes.rows).keys,
        CLASSES=count_classes(job.top),
        GIVEN=inputs.logsumexp is not None,
        **shape.options,
        **constants,
    )
    if job.top:
        shape = shapes.selection_from_all
        select_from_all_keys[inputs.count_programs(-(-len(job.rows) // shape.queries))](
            *arguments,
            BM=shape.queries,
            BN=shape.keys,
            LIST=next_power_of_two(job.top),
            **shape.options,
            **inputs.product_constants,
            **constants,
        )


def _map_arguments(job: MeasureJob, inputs: KernelInputs, outputs: KernelOutputs) -> tuple[Tensor | int, ...]:
    (high, wide), (rows, columns) = job.blocks, outputs.map.shape[2:]
    return (outputs.map if high else inputs.scales, rows * columns, high, wide, columns)


def _map_constants(job: MeasureJob, shape: TileShape, *, filled: bool) -> dict[str, Any]:
    """The constants of `tile_operations.add_to_map`, if this pass fills the map."""
    high, wide = job.blocks
    if not high or not filled:
        return {"MAP": False, "EVEN": True, "TOUCHED": 1, "CHUNK": 1, "PARTS": 1}
    even = shape.keys % wide == 0 or wide % shape.keys == 0
    touched = max(1, shape.keys // wide) if even else next_power_of_two((shape.keys - 2) // wide + 2)
    # Rows summed together, and the number of pixel rows that they can touch
    chunk, parts = (16, 2 if high % 16 else 1) if high >= 16 else (1, 1)
    return {"MAP": True, "EVEN": even, "TOUCHED": touched, "CHUNK": chunk, "PARTS": parts}
