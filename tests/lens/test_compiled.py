"""The compiled loop of the lens on a CPU, judged by the definition in float64, as all other methods are."""

import inspect
import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead import Mask
from clearhead.errors import BackendError
from clearhead.lens import measure
from clearhead.lens.measures import (
    compiled_rows,
    measure_dispatch,
    thread_pool,
    tile_job,
    tiled,
    top_keys,
)
from clearhead.lens.measures.measure_dispatch import plan_job, run_job
from tests.attention.cases import cases as attentions
from tests.lens.cases import CASES, TIES, random
from tests.lens.test_tiled import draw_detail, job_of
from tests.lens.tolerances import TENSORS, assert_exact, assert_same_keys


@pytest.fixture(params=["large tiles", "small tiles"])
def tiles(request: pytest.FixtureRequest, monkeypatch) -> None:
    if request.param == "small tiles":
        sizes = {"CPU_TILE_SCORES": 9000, "MAX_TILE_QUERIES": 31, "MASK_FROM_SCORES": 0, "MIN_MASK_BLOCK_KEYS": 16}
        for name, value in sizes.items():
            monkeypatch.setattr(tile_job, name, value)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.job().top <= tiled.MAX_COMPILED_TOP])
def test_every_measure_is_exact(name, tiles):
    job = CASES[name].job()
    assert_exact(run_job(job, "compiled"), job)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["causal, padding left", "everything", "a bias of −inf", "equal keys", "top 1"])
def test_half_precision_is_measured_in_float32(name, dtype):
    job = CASES[name].job(dtype)
    assert_exact(run_job(job, "compiled"), job)


@pytest.mark.parametrize("name", TIES)
def test_ties_go_to_the_smallest_key(name, tiles):
    job = CASES[name].job()
    assert_same_keys(run_job(job, "compiled"), job)


@given(data=st.data())
def test_any_attention_is_measured_exactly(data):
    job = job_of(data.draw(attentions()), "cpu", **draw_detail(data))
    assert_exact(run_job(job, "compiled"), job)


@pytest.mark.parametrize("keys", [1025, 2048, 8192, 9001])  # rows of 1, 8 and 64 strips
@pytest.mark.parametrize("top", [1, 8, 64])
def test_long_rows_have_the_right_top_keys(keys, top):
    q, k = random(3, 1, 2, 7, 5).float() * 3, random(4, 1, 2, keys, 5).float()
    k[0, 0, ::3] = k[0, 0, 0]  # a third of them are equal
    job = plan_job(measure_dispatch.check_call(q, k, None, None), top=top)
    found = run_job(job, "compiled")
    assert_exact(found, job)
    assert_same_keys(found, job)


def test_rows_of_equal_scores_name_the_first_keys():
    q, k = torch.zeros(1, 1, 3, 2), random(1, 1, 1, 1500, 2).float()
    seen = measure(q, k, Mask.causal(), backend="compiled")
    assert seen.top_keys[0, 0].tolist() == [list(range(8))] * 3
    assert seen.entropy[0, 0].tolist() == pytest.approx([math.log(n) for n in (1498, 1499, 1500)], rel=1e-6)


def test_zero_and_minus_zero_are_equal_scores():
    q, k = torch.tensor([1.0]).view(1, 1, 1, 1).expand(1, 1, 2, 1), torch.tensor([-0.0, 0.0, -0.0]).view(1, 1, 3, 1)
    assert measure(q, k, top=3, backend="compiled").top_keys[0, 0].tolist() == [[0, 1, 2]] * 2


@pytest.mark.parametrize("number", [math.nan, -math.nan, math.inf])
@pytest.mark.parametrize("keys", [70, 3000])
def test_rows_with_nan_and_infinity_are_as_in_the_other_method(number, keys):
    q, k = random(5, 1, 2, 3, 4).float().abs(), random(6, 1, 2, keys, 4).float().abs()
    k[0, 1, keys // 2] = number
    found, other = (measure(q, k, backend=name, spans={"all": slice(None)}) for name in ("compiled", "tiled"))
    for name in set(TENSORS) - {"received", "map"}:
        torch.testing.assert_close(getattr(found, name), getattr(other, name), equal_nan=True, msg=name)
    assert found.received[0, 1].isnan().all()


def test_weights_too_small_for_normal_numbers_keep_their_digits():
    scores = torch.tensor([0.0, -60.0, -90.0, -100.0, -200.0])
    seen = measure(torch.ones(1, 1, 2, 1), scores.view(1, 1, 5, 1), scale=1.0, top=5, backend="compiled")
    for weight, score in zip(seen.map[0, 0, 0].tolist(), scores.tolist(), strict=True):
        error = torch.finfo(torch.float32).eps * (1 + abs(score))  # of a rounded score, in a weight
        assert weight == pytest.approx(math.exp(score), rel=error, abs=2**-149)


def test_every_power_of_two_is_within_one_unit_in_the_last_place():
    x = -torch.rand(100_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 126
    x = x.float()
    found = torch.tensor([compiled_rows.exp2(number) for number in x.numpy()], dtype=torch.float64)
    want = torch.exp2(x.double())
    assert float(((found - want).abs() / want).max()) <= torch.finfo(torch.float32).eps


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_are_exact_and_deterministic(threads, monkeypatch):
    monkeypatch.setattr(tile_job, "SPLIT_FROM", 1)
    monkeypatch.setattr(tile_job, "THREADS_FROM_SCORES", 1)
    monkeypatch.setattr(tiled, "COMPILED_THREADS_FROM_SCORES", 1)
    monkeypatch.setattr(tile_job, "CPU_TILE_SCORES", 9000)
    monkeypatch.setattr(thread_pool.torch, "get_num_threads", lambda: threads)
    job = CASES["everything"].job()
    seen, again = run_job(job, "compiled"), run_job(job, "compiled")
    assert_exact(seen, job)
    assert torch.equal(seen.received, again.received)


def test_rows_are_whole_vectors():
    assert top_keys.BLOCK % compiled_rows.LANES == 0


def test_it_is_chosen_for_many_scores_only(monkeypatch):
    taken = []
    monkeypatch.setitem(
        measure_dispatch.METHODS,
        "compiled",
        measure_dispatch.Method(lambda job: taken.append(job) or tiled.run(job), tiled.explain_compiled_refusal),
    )
    few, many = torch.zeros(1, 1, 64, 2), torch.zeros(1, 1, 512, 2)
    measure(few, few)
    assert not taken
    measure(many, many)
    assert len(taken) == 1
    measure(many.double(), many.double())
    measure(many, many, top=65)
    assert len(taken) == 1


def test_what_it_cannot_do_is_refused_by_name():
    x = torch.zeros(1, 1, 5, 2)
    with pytest.raises(BackendError, match="'compiled' cannot measure this: it computes in float32"):
        measure(x.double(), x.double(), backend="compiled")
    with pytest.raises(BackendError, match="at most, not 65; 'auto' would take 'tiled'"):
        measure(x, x, top=65, backend="compiled")


def test_without_numba_the_other_method_is_used():
    code = """
import sys
sys.modules["numba"] = None
import torch
from clearhead.errors import BackendError
from clearhead.lens import measure
x = torch.zeros(1, 1, 512, 2)
assert abs(float(measure(x, x).entropy[0, 0, 0]) - 6.238) < 1e-3
try:
    measure(x, x, backend="compiled")
except BackendError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "it needs numba, pip install 'clearhead[cpu]'" in done.stdout


def test_a_folder_that_cannot_be_written_only_costs_the_cache(monkeypatch):
    def refuse(*_: object, cache: bool = False, **options: object):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: (function, options)

    monkeypatch.setattr(compiled_rows.numba, "njit", refuse)
    function, options = compiled_rows.compile_loop()(abs)
    assert function is abs
    assert options["nogil"]


@pytest.mark.parametrize(("place", "reason"), [("DISABLE_JIT", "while NUMBA_DISABLE_JIT is set"), ("", "a full disk")])
def test_a_numba_that_cannot_compile_is_refused(place, reason, monkeypatch):
    if place:
        monkeypatch.setattr(compiled_rows.numba.config, place, True)
    else:

        class FullDisk:
            def find_spec(self, name: str, *_: object) -> None:
                if name == compiled_rows.__name__:
                    raise OSError("a full disk")

        monkeypatch.delitem(sys.modules, compiled_rows.__name__)
        monkeypatch.setattr(sys, "meta_path", [FullDisk(), *sys.meta_path])
    explain = inspect.unwrap(tiled._explain_missing_loop)
    monkeypatch.setattr(tiled, "_explain_missing_loop", explain)
    x = torch.zeros(1, 1, 512, 2)
    with pytest.raises(BackendError, match=f"'compiled' cannot measure this: .*{reason}.*; 'auto' would take 'tiled'"):
        measure(x, x, backend="compiled")
    assert measure(x, x).peak_key[0, 0, 0] == 0


@pytest.mark.parametrize("backend", ["compiled", "tiled"])
def test_a_pixel_of_hundreds_of_tiles_is_exact(backend):
    queries, sinks = 60_000, torch.tensor([1.3])  # equal weights, whose rounding errors all have the same sign
    x = torch.zeros(1, 1, queries, 1)
    seen = measure(x, x, Mask.window(3), sinks=sinks, pixels=1, top=0, backend=backend)
    visible = torch.arange(1, queries + 1).clamp(max=4).double()
    right = (visible / (visible + sinks.double().exp())).sum()
    assert abs(float(seen.map) - right) <= 8 * torch.finfo(torch.float32).eps * (1 + right)


@pytest.mark.parametrize("backend", ["compiled", "tiled"])
def test_the_default_device_of_pytorch_does_not_matter(backend):
    q, k = torch.zeros(1, 1, 5, 2), torch.zeros(1, 1, 7, 2)
    with torch.device("meta"):
        seen = measure(q, k, spans={"two": slice(0, 2)}, backend=backend)
    assert seen.mass["two"].tolist() == [[pytest.approx([2 / 7] * 5)]]
