"""The kernels, judged by the definition in float64: on CUDA if there is a GPU, else in Triton's interpreter.

The interpreter wants TRITON_INTERPRET=1 before Triton is imported, so it gets a process of its own, which takes some of
the cases only: it is slow. On a GPU all cases run in all dtypes; compiling takes the time, and can be shared:
`seq 0 11 | xargs -P 12 -I@ env CLEARHEAD_SHARE=@/12 python -m pytest tests/lens/test_kernels.py`.
"""

import dataclasses
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from clearhead import Mask
from clearhead.attention import MultiHeadAttention
from clearhead.attention.call import check_call
from clearhead.errors import BackendError
from clearhead.lens import watch
from clearhead.lens.measures import measure_dispatch
from clearhead.lens.measures.definition import MeasureJob, Measures, measure_by_definition
from clearhead.lens.measures.kernels import launch
from clearhead.lens.measures.kernels.tile_shapes import TileShape, TileShapes, count_classes
from clearhead.lens.measures.measure_dispatch import plan_job, run_job
from tests.lens.cases import CASES, TIES, alone, pair
from tests.lens.tolerances import assert_exact, assert_same_keys, in_float64

ROOT = Path(__file__).parents[2]
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HERE = CUDA or launch.is_interpreted()
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
QUICK = [
    *("nothing hidden", "one query", "one key", "more top keys than keys", "no extras"),
    *("window both ways", "causal documents", "dense, by head"),
    *("window or prefix", "relative bias", "sinks of −inf and 60", "everything", "width 13"),
    *("every 5th, causal from the top left", "every 3rd, dense mask and bias", "nothing visible, sinks"),
    *("the first keys hidden by their bias",),
]


def shared(names: list[str]) -> list[str]:
    """The names that are this process's to try."""
    number, count = (int(part) for part in os.environ.get("CLEARHEAD_SHARE", "0/1").split("/"))
    return names[number::count]


def some(names: list[str]) -> list[str]:
    """Nothing where the kernels cannot run, and only what is quick in the interpreter."""
    return shared([name for name in names if CUDA or name in QUICK]) if HERE else []


def tiles(job: MeasureJob) -> TileShapes | None:
    """On a GPU those that are fast; in the interpreter few programs, but several tiles each way."""
    if CUDA:
        return None
    shape = TileShape(64, max(32, count_classes(job.top)) if job.blocks[1] < 8 else 64, 4, 1)
    return TileShapes(shape, shape, shape, TileShape(256, 0, 4, 1), TileShape(256, 256, 4, 1))


@pytest.fixture(autouse=True, scope="module")
def patched_once():
    """Triton's interpreter searches its modules at every call of a function within a kernel; once a launch will do."""
    if CUDA or not HERE:
        yield
        return
    interpreter = importlib.import_module("triton.runtime.interpreter")
    patch, launch, done = interpreter._patch_lang, interpreter.GridExecutor.__call__, set()

    def patch_once(function):
        if function in done:
            return None
        done.add(function)
        return patch(function)

    def launched(*arguments, **options):
        done.clear()
        return launch(*arguments, **options)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(interpreter, "_patch_lang", patch_once)
        monkeypatch.setattr(interpreter.GridExecutor, "__call__", launched)
        yield


def run(job: MeasureJob) -> Measures:
    assert launch.explain_refusal(job) is None
    return launch.run(job, tiles(job))


@pytest.mark.skipif(HERE, reason="the kernels are tried in this process")
def test_the_kernels_pass_these_tests_in_tritons_interpreter():
    pytest.importorskip("triton", reason="Triton is on Linux only")
    command = [sys.executable, "-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider", __file__]
    environment = os.environ | {"TRITON_INTERPRET": "1", "CLEARHEAD_CHECK_SHAPES": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@pytest.mark.skipif(HERE, reason="on a GPU they are compiled anyway, and the interpreter does not compile")
def test_the_kernels_compile_for_hopper_without_one(tmp_path):
    pytest.importorskip("triton", reason="Triton is on Linux only")
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "CLEARHEAD_CHECK_SHAPES": "0"}
    command = [sys.executable, "-m", "tests.lens.hopper"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-4000:]
    found = [line.split("; ") for line in done.stdout.splitlines()]
    names = {"scan_rows", "scan_columns", "select_top_keys", "select_from_all_keys", "sum_spans"}
    assert {name for _, name, *_ in found} == names
    assert max(int(shared) for _, _, shared, *_ in found) <= 227 * 1024  # what a multiprocessor has
    uses = ["wgmma", "cp.async.bulk.tensor"]
    assert [used for job, name, _, *used in found if job == "the fastest" and name.startswith("scan")] == [uses] * 2
    assert [name for job, name, *_ in found if job == "bare"] == ["scan_rows", "select_top_keys"]


@pytest.mark.parametrize("dtype", DTYPES if CUDA else DTYPES[:1], ids=str)
@pytest.mark.parametrize("name", some([name for name in CASES if name not in TIES]))
def test_every_measure_is_exact(name, dtype):
    job = CASES[name].job(dtype, DEVICE)
    if launch.explain_refusal(job) is not None:
        assert job.call.q.numel() == 0 or job.call.k.numel() == 0 or not job.rows
        return
    assert_exact(run(job), job)


@pytest.mark.parametrize("dtype", DTYPES[1:2], ids=str)
@pytest.mark.parametrize("name", shared(["width 13"]) if HERE and not CUDA else [])
def test_half_precision_is_exact_in_the_interpreter_too(name, dtype):
    job = CASES[name].job(dtype)
    assert_exact(run(job), job)


@pytest.mark.parametrize(
    "name", some(["window both ways", "sinks of −inf and 60", "everything", "every 4th"][: 9 if CUDA else 1])
)
def test_a_given_logsumexp_gives_the_same_measures(name):
    job = CASES[name].job(device=DEVICE)
    given = job._replace(logsumexp=measure_by_definition(in_float64(job)).logsumexp.float())
    found = run(given)
    assert_exact(found, given)
    alone = launch.run(given._replace(top=0, received=False), tiles(job))  # no pass along columns
    for name in ("entropy", "distance", "peak_key", "map"):
        torch.testing.assert_close(getattr(alone, name), getattr(found, name), rtol=1e-5, atol=1e-5)


TIED = [("whole numbers, shared keys, window", 5), ("all alike", 0)]
TRIED = TIED if not CUDA else [(name, top) for name in shared(list(TIES)) for top in (0, 5)]


@pytest.mark.parametrize(("name", "top"), TRIED if HERE else [])
def test_ties_go_to_the_smallest_key(name, top):
    case = TIES[name] if CUDA else dataclasses.replace(TIES[name], q=TIES[name].q[:, :2], k=TIES[name].k[:, :1])
    job = case.job(device=DEVICE, top=top)
    found = run(job)
    assert_exact(found, job)
    assert_same_keys(found, job)


@pytest.mark.parametrize(
    "pixels", shared([*map(str, (197, 40, 13, 3, 99, 25, 50, 1)[: 8 if CUDA else 4])]) if HERE else []
)
def test_a_map_of_any_size_is_exact(pixels):
    q, k = (t.float().to(DEVICE) for t in pair(131, 197, heads=1, kv_heads=1))
    job = plan_job(check_call(q, k, None, Mask.causal()), pixels=int(pixels), top=0, received=False)
    given = job._replace(logsumexp=measure_by_definition(job).logsumexp)
    for one in (job, given):
        assert_exact(run(one), one)


LATE = ["causal, padding right, no pad queries", "causal documents", "everything", "dense bias"]
BEGUN = [(LATE[1], 3)] if not CUDA else [(name, step) for name in shared(LATE) for step in (1, 3)]


@pytest.mark.parametrize(("name", "step"), BEGUN if HERE else [])
def test_measured_rows_may_begin_late(name, step):
    job = CASES[name].job(device=DEVICE)
    job = job._replace(rows=range(70, job.call.q.shape[2], step))
    assert_exact(run(job), job)


def views(q, k):
    """The same numbers in other places: heads inside, a piece of a longer cache, odd strides, keys of all samples."""
    batch, heads, tokens, d = k.shape
    cache = torch.full((batch, heads, tokens + 61, d), torch.nan, device=k.device)
    cache[:, :, :tokens] = k
    odd = torch.zeros(batch, heads, tokens, d + 3, device=k.device)
    odd[..., 1 : d + 1] = k
    yield q, k
    yield q.transpose(1, 2).contiguous().transpose(1, 2), k.transpose(1, 2).contiguous().transpose(1, 2)
    yield q, torch.stack([k.transpose(1, 2)] * 2, 3)[:, :, :, 0].transpose(1, 2)
    yield q, cache[:, :, :tokens]
    yield q, odd[..., 1 : d + 1]
    yield q, k.transpose(2, 3).contiguous().transpose(2, 3)


@pytest.mark.parametrize("width", shared(["24", "16"][: 2 if CUDA else 1]) if HERE else [])
def test_tensors_may_have_any_strides(width):
    q, k = (t.float().to(DEVICE) for t in pair(19, 37, width=int(width), batch=2))
    found = [run(plan_job(check_call(*pair, None, None), pixels=5, top=2)) for pair in views(q, k)]
    for other in found[1:]:
        for name in ("logsumexp", "entropy", "received", "map", "top_weights", "first"):
            torch.testing.assert_close(getattr(other, name), getattr(found[0], name), rtol=1e-6, atol=1e-6)


def job_of(*, width: int = 16, dtype: torch.dtype = torch.float32, **asked) -> MeasureJob:
    q, k = (t.to(DEVICE, dtype) for t in pair(11, 13, width=width))
    return plan_job(check_call(q, k, None, None), **asked)


def test_refusals_name_their_reason(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert launch.explain_refusal(job_of()) is None
    assert "float64" in str(launch.explain_refusal(job_of(dtype=torch.float64)))
    assert "at most 256 wide, these are 257" in str(launch.explain_refusal(job_of(width=257)))
    assert "best 32 keys at most, not 33" in str(launch.explain_refusal(job_of(top=33)))
    assert "nothing to measure" in str(launch.explain_refusal(CASES["no keys"].job()))
    monkeypatch.delenv("TRITON_INTERPRET")
    job = CASES["causal"].job()
    assert launch.explain_refusal(job) == "it runs on CUDA, and q is on cpu"
    with pytest.raises(BackendError, match="it runs on CUDA, and q is on cpu; 'auto' would take 'tiled'"):
        run_job(job, "triton")


@pytest.mark.skipif(not CUDA, reason="there is no GPU to wait for, and no memory of it to measure")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
def test_on_a_gpu_nothing_waits_and_memory_grows_with_n_only():
    q = torch.randn(1, 8, 8192, 128, device="cuda", dtype=torch.bfloat16)
    job = plan_job(check_call(q, q, None, Mask.causal()))
    launch.run(job)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    try:
        torch.cuda.set_sync_debug_mode("error")
        launch.run(plan_job(check_call(q, q, None, Mask.causal())))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.max_memory_allocated() - before < 3 * q.numel() * 2


@pytest.mark.skipif(not HERE, reason="the kernels need a GPU, or Triton's interpreter")
@pytest.mark.filterwarnings("ignore:All-NaN slice encountered")
@pytest.mark.parametrize("given", [False, True])
def test_nan_is_propagated(given):
    q, k = (t.to(DEVICE, torch.float32) for t in alone(70))
    q[:, :, 40] = torch.nan
    call = check_call(q, k, None, Mask.causal())
    logsumexp = measure_by_definition(plan_job(call)).logsumexp if given else None
    job = plan_job(call, top=2, logsumexp=logsumexp)
    found = launch.run(job, tiles(job))
    for name in ("logsumexp", "entropy", "peak", "distance"):
        assert getattr(found, name).isnan().nonzero()[:, 2].unique().tolist() == [40], name
    assert (found.peak_key == -1).nonzero()[:, 2].unique().tolist() == [40]
    assert (found.top_keys[:, :, 40] == -1).all()


@pytest.mark.skipif(not HERE, reason="the kernels need a GPU, or Triton's interpreter")
@pytest.mark.parametrize("usual", [torch.float16, torch.float64])
def test_the_default_dtype_makes_no_difference(usual):
    q, k = (t.to(DEVICE, torch.float32) for t in alone(23))
    job = plan_job(check_call(q, k, None, Mask.causal()), pixels=3, top=0)
    torch.set_default_dtype(usual)
    try:
        found = launch.run(job, tiles(job))
    finally:
        torch.set_default_dtype(torch.float32)
    assert {found.entropy.dtype, found.received.dtype, found.map.dtype, found.top_weights.dtype} == {torch.float32}
    assert_exact(found, job)


@pytest.mark.skipif(not CUDA, reason="a large job takes a GPU")
@pytest.mark.parametrize("mask", [None, Mask.causal(), Mask.window(1000)], ids=["full", "causal", "window"])
def test_a_large_job_in_bfloat16_is_as_exact(mask):
    q, k = (torch.randn(1, heads, 4099, 128, device="cuda").bfloat16() for heads in (4, 2))
    job = plan_job(check_call(q, k, None, mask))
    assert_exact(launch.run(job), job)


@pytest.mark.skipif(not CUDA, reason="on a GPU only")
@pytest.mark.parametrize("mask", [None, Mask.causal()], ids=["full", "causal"])
def test_the_logsumexp_of_the_fused_kernel_is_used(mask, monkeypatch):
    attention = MultiHeadAttention(width=256, heads=4, kv_heads=2).to(DEVICE, torch.bfloat16)
    x = torch.randn(2, 331, 256, device=DEVICE).bfloat16()
    jobs = []
    monkeypatch.setitem(
        measure_dispatch.METHODS,
        "triton",
        measure_dispatch.Method(lambda job: jobs.append(job) or launch.run(job), launch.explain_refusal),
    )
    expected = attention(x, mask=mask)
    with watch(attention) as record:
        assert torch.equal(attention(x, mask=mask), expected)
    (job,) = jobs
    assert job.logsumexp is not None
    (name,) = record.names
    sight = record[name]
    torch.testing.assert_close(
        sight.logsumexp.double(), measure_by_definition(in_float64(job)).logsumexp.cpu(), rtol=1e-5, atol=1e-5
    )


def test_a_causal_job_is_small_enough_to_try_by_hand():
    """The yardstick of these tests can fail: one number off, and the judge says so."""
    q, k = (t.float() for t in alone(23))
    job = plan_job(check_call(q, k, None, Mask.causal()), pixels=3, top=2)
    found = measure_by_definition(job)
    assert_exact(found, job)
    with pytest.raises(AssertionError, match="distance is off"):
        assert_exact(dataclasses.replace(found, distance=found.distance + 1e-3), job)
