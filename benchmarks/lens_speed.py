"""What the measures cost on a GPU, as a multiple of cuDNN's attention alone, which measures nothing.

    python benchmarks/lens_speed.py [--tune] [--only 16384] [--rounds 9]

The table sets our passes beside FlashAttention, FlexAttention with its logsumexp, and eager attention, which builds the
weights. `--tune` first tries tiles of many shapes for each pass, prints their times, and goes on with the best;
what it found belongs into `src/clearhead/lens/measures/kernels/tile_shapes.py`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import importlib.util
import math
import multiprocessing
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from clearhead import Mask
from clearhead.attention.call import check_call
from clearhead.attention.sdpa_logsumexp import LogsumexpMode
from clearhead.lens.measures.definition import MeasureJob, Measures
from clearhead.lens.measures.kernels import launch, tile_shapes
from clearhead.lens.measures.kernels.tile_shapes import TileShape, TileShapes
from clearhead.lens.measures.measure_dispatch import plan_job

from measuring import HEADER, Report, compare, hardware

Run = Callable[[], object]


class Size(NamedTuple):
    heads: int
    kv_heads: int
    tokens: int
    d: int
    causal: bool

    def __str__(self) -> str:
        return f"{self.heads}/{self.kv_heads}, {self.tokens:,}, {self.d}"

    @property
    def weights(self) -> int:
        """Bytes of the weights in bfloat16."""
        return self.heads * self.tokens**2 * 2


SIZES = [
    Size(16, 16, 4096, 64, False),
    Size(16, 16, 16384, 128, False),
    Size(16, 16, 16384, 128, True),
    Size(32, 8, 32768, 128, True),
    Size(32, 8, 131072, 128, True),
]
# What is promised for attention and its measures together, as a multiple of attention alone.
PROMISES = {"per query, map": 1.8, "and received": 2.2}
EVERYTHING = {4096: 2.5, 16384: 2.6, 32768: 2.6, 131072: 3.0}  # by tokens, with received and top 8

ROW_SHAPES = [
    *(TileShape(128, 128, 8, 2, 128), TileShape(128, 128, 8, 2), TileShape(128, 128, 8, 3), TileShape(128, 128, 4, 2)),
    *(TileShape(64, 128, 4, 2), TileShape(64, 128, 4, 3), TileShape(64, 128, 4, 2, 168), TileShape(64, 64, 4, 3, 128)),
    *(
        TileShape(128, 64, 4, 3),
        TileShape(128, 64, 8, 3, 128),
        TileShape(128, 64, 8, 2, 80),
        TileShape(256, 64, 8, 2, 128),
    ),
    *(TileShape(256, 64, 8, 3), TileShape(64, 256, 4, 2), TileShape(128, 256, 8, 2)),
]
COLUMN_SHAPES = [
    *(TileShape(128, 128, 8, 2, 128), TileShape(128, 128, 8, 2), TileShape(128, 128, 4, 2), TileShape(128, 128, 8, 3)),
    *(TileShape(64, 128, 4, 2), TileShape(64, 128, 4, 3), TileShape(64, 128, 4, 3, 168), TileShape(64, 128, 4, 2, 128)),
    *(TileShape(128, 64, 8, 2, 128), TileShape(128, 64, 4, 2, 168), TileShape(64, 64, 4, 3, 128)),
    *(TileShape(64, 256, 8, 3, 128), TileShape(64, 256, 4, 2), TileShape(128, 256, 8, 2), TileShape(256, 128, 8, 2)),
]
SELECTION_SHAPES = [TileShape(rows, 0, warps, 1) for rows, warps in ((8, 1), (4, 1), (2, 1), (8, 2), (16, 2), (16, 4))]


def tensors(size: Size) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    heads = (size.heads, size.kv_heads, size.kv_heads)
    q, k, v = (torch.randn(1, n, size.tokens, size.d, device="cuda", dtype=torch.bfloat16) for n in heads)
    return q, k, v


def job_of(q: Tensor, k: Tensor, size: Size, logsumexp: Tensor | None, **asked: int | bool) -> MeasureJob:
    mask = MASKS[size.causal]
    return plan_job(check_call(q, k, None, mask), logsumexp=logsumexp, **asked)


MASKS = {True: Mask.causal(), False: None}  # one object each: what is worked out about a mask is kept with it


def competitors(q: Tensor, k: Tensor, v: Tensor, size: Size) -> dict[str, Run]:
    """cuDNN's attention first: the peer."""
    bare = functools.partial(F.scaled_dot_product_attention, q, k, v, is_causal=size.causal, enable_gqa=True)

    def by(backend: SDPBackend) -> Run:
        def run() -> object:
            with sdpa_kernel(backend):
                return bare()

        return run

    def seen(**asked: int | bool) -> Run:
        def run() -> Measures:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), LogsumexpMode() as overheard:
                bare()
            found = overheard.logsumexp(q, keys=k.shape[2], scale=size.d**-0.5)
            assert found is not None
            return launch.run(job_of(q, k, size, found, **asked))

        return run

    def watched() -> Measures:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            bare()
        return launch.run(job_of(q, k, size, None))

    return {
        "cuDNN": by(SDPBackend.CUDNN_ATTENTION),
        "per query, map": seen(top=0, received=False),
        "and received": seen(top=0),
        "and top 8": seen(top=8),
        "everything, logsumexp not given": watched,
        "flash": by(SDPBackend.FLASH_ATTENTION),
    }


def flex(q: Tensor, k: Tensor, v: Tensor, size: Size) -> Run:
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

    def before(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return i >= j

    tokens = size.tokens
    blocks = (
        create_block_mask(before, None, None, tokens, tokens, device=q.device, _compile=True) if size.causal else None
    )
    fast = torch.compile(flex_attention)
    options = {"block_mask": blocks, "enable_gqa": True, "return_aux": AuxRequest(lse=True)}
    return lambda: fast(q, k, v, **options)


def eager(q: Tensor, k: Tensor, v: Tensor, size: Size) -> tuple[Tensor, Tensor]:
    k, v = (t.repeat_interleave(size.heads // size.kv_heads, 1) for t in (k, v))
    scores = q @ k.mT * (1 / math.sqrt(size.d))
    if size.causal:
        scores = scores.masked_fill(~Mask.causal().dense(size.tokens, size.tokens, q.device), -math.inf)
    weights = scores.softmax(-1, dtype=torch.float32).to(q.dtype)
    return weights @ v, weights


class Table(Report):
    """The table, with rows for competitors that do not run."""

    def __init__(self) -> None:
        super().__init__("lens_speed", "What the measures of attention cost, as a multiple of cuDNN's attention alone")

    def missing(self, case: str, size: Size, name: str, why: str) -> None:
        self.rows.append([case, str(size), name, why, *[""] * (len(HEADER) - 4)])
        print(" | ".join(f"{cell:<12}" for cell in self.rows[-1]), flush=True)


def tabulate(table: Table, size: Size, rounds: int) -> None:
    case = "causal" if size.causal else "full"
    q, k, v = tensors(size)
    runs = competitors(q, k, v, size)
    try:
        own = flex(q, k, v, size)
        own()
        runs["FlexAttention, logsumexp"] = own
    except Exception as error:
        table.missing(case, size, "FlexAttention, logsumexp", f"failed: {type(error).__name__}")
    if 5.5 * size.weights < torch.cuda.get_device_properties(0).total_memory * 0.9:
        runs["eager, with weights"] = lambda: eager(q, k, v, size)
    else:
        table.missing(case, size, "eager, with weights", f"does not fit: {size.weights / 1e9:,.0f} GB of weights")
    calls = max(1, min(20, int(2e12 / size.weights / 50)))
    timings = compare(runs, rounds=rounds, calls=calls)
    table.add(case, str(size), timings)
    for name, limit in {**PROMISES, "and top 8": EVERYTHING[size.tokens]}.items():
        table.judge(f"{size} {case}: {name}", timings[name].ratio, limit, " × cuDNN")
    memory = (timings["and top 8"].memory or 0.0) - q.numel() * 2  # less the output
    table.note(
        f"{size} {case}: everything took {memory / 1e6:,.0f} MB beyond the output, {memory / size.weights:.2%} of the "
        f"weights, {memory / (q.numel() * 2):.1f} × q; {timings['and top 8'].median * 1e3:.1f} ms with attention"
    )


def passes(job: MeasureJob, given: TileShapes) -> dict[str, Run]:
    """Each pass on its own, after those it builds on."""
    inputs = launch.KernelInputs(job)
    outputs = launch.KernelOutputs(job)

    def row_pass() -> None:
        launch.launch_row_pass(job, inputs, outputs, given.rows)

    def column_pass() -> None:
        if outputs.candidates is not None:
            outputs.candidates[..., 0] = 0
        launch.launch_column_pass(job, inputs, outputs, given)

    def selection() -> None:
        launch.launch_selection(job, inputs, outputs, given)

    row_pass()
    column_pass()
    return {"rows": row_pass, "columns": column_pass, "candidates": column_pass, "selection": selection}


def trial(size: Size, top: int, tried: TileShape | None, name: str) -> tuple[MeasureJob, TileShapes]:
    """A job in which one pass has tiles of another shape; without one, as the table of shapes has it."""
    q, k, _ = tensors(size)
    logsumexp = torch.full(q.shape[:3], math.log(size.tokens), device=q.device)
    job = job_of(q, k, size, logsumexp, top=top)
    wide = -(-size.tokens // 256)
    usual = tile_shapes.choose_shapes(size.d, 2, size.tokens, size.tokens, wide, top)
    return job, usual if tried is None else usual._replace(**{name: tried})


def warmed(case: tuple[Size, int, TileShape, str]) -> str | None:
    """Compiles one trial, in a process of its own, into the cache that all share; why it failed, or None."""
    size, top, tried, name = case
    try:
        runs = passes(*trial(size._replace(heads=1, kv_heads=1), top, tried, name))
        runs[name]()
        torch.cuda.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:80]}"
    return None


def milliseconds(run: Run, times: int = 7) -> float:
    for _ in range(2):
        run()
    taken = []
    for _ in range(times):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(end))
    return statistics.median(taken)


def tune(processes: int = 12) -> TileShapes:
    """The fastest shapes for heads 128 wide, by the sum of their times over the sizes that were promised."""
    sizes = SIZES[1:3]
    narrow = [shape for shape in COLUMN_SHAPES if shape.keys <= 128]
    candidates = {
        "rows": ROW_SHAPES,
        "columns": COLUMN_SHAPES,
        "candidates": narrow,
        "selection": SELECTION_SHAPES,
    }
    tops = {"columns": [0], "candidates": [8]}
    cases = [
        (size, top, shape, name)
        for name, tried in candidates.items()
        for shape in tried
        for top in tops.get(name, [0, 8])
        for size in sizes
    ]
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=spawn) as pool:
        failures = dict(zip(cases, pool.map(warmed, cases), strict=True))
    best: dict[str, TileShape] = {}
    for name, tried in candidates.items():
        totals: dict[TileShape, float] = {}
        for shape in tried:
            mine = [case for case in cases if case[2:] == (shape, name)]
            wrong = next((failures[case] for case in mine if failures[case] is not None), None)
            if wrong is not None:
                print(f"{name:18} {tuple(shape)!s:28} failed: {wrong}", flush=True)
                continue
            times = {(size, top): milliseconds(passes(*trial(size, top, shape, name))[name]) for size, top, *_ in mine}
            shown = "  ".join(
                f"{'causal' if size.causal else 'full'}, top {top}: {ms:.3f}" for (size, top), ms in times.items()
            )
            print(f"{name:18} {tuple(shape)!s:28} {shown}", flush=True)
            totals[shape] = sum(times.values())
        best[name] = min(totals, key=lambda shape: totals[shape])
        print(f"{name:18} best: {best[name]}", flush=True)
    return tile_shapes.HALF[256]._replace(**best)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", action="store_true", help="try many shapes of tiles first")
    parser.add_argument("--only", type=int, help="only sizes of this many tokens")
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        print(f"{Path(__file__).name}: there is no GPU here; lens_speed_cpu.py measures CPUs")
        return
    print(hardware())
    with torch.no_grad():
        if asked.tune:
            tile_shapes.HALF[256] = tune()
            print(tile_shapes.HALF[256])
        table = Table()
        if importlib.util.find_spec("flash_colreduce") is None:
            table.note("flash-colreduce is not installed here")
        for size in SIZES:
            if asked.only in (None, size.tokens):
                tabulate(table, size, asked.rounds if size.tokens < 2**17 else min(asked.rounds, 5))
                torch.cuda.empty_cache()
                table.save()


if __name__ == "__main__":
    main()
