"""The kernel for Hopper, judged on one; that it compiles is tried everywhere, in test_kernel.py."""

from __future__ import annotations

import pytest
import torch

from clearhead import Mask
from clearhead.attention.call import check_call
from clearhead.lens.measures.definition import measure_by_definition
from clearhead.lens.measures.kernels import kernel_tensors, launch
from clearhead.lens.measures.measure_dispatch import plan_job
from tests.lens.test_kernels import shared
from tests.lens.tolerances import assert_exact, in_float64

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
pytest.importorskip("triton")

CASES = {
    "nothing hidden": {},
    "causal": {"mask": Mask.causal()},
    "causal, offset": {"mask": Mask.causal(offset=100)},
    "window": {"mask": Mask.window(300)},
    "documents": {"mask": Mask.causal() & Mask.documents(torch.arange(1024)[None] // 300)},
    "uneven": {"mask": Mask.causal(), "tokens": 4099},
    "more keys": {"tokens": 700, "keys": 2300},
    "none seen by some": {"tokens": 700, "keys": 2300, "mask": Mask.window(3)},
    "no map": {"pixels": 0},
    "a coarse map": {"mask": Mask.causal(), "tokens": 1543, "pixels": 2},
    "grouped, float16": {"mask": Mask.causal(), "heads": (4, 2), "dtype": torch.float16},
    "narrow": {"mask": Mask.causal(), "width": 64},
    "huge scores": {"mask": Mask.causal(), "size": 12.0},
    "samples of their own lengths": {"mask": Mask.causal() & Mask.padding([900, 517]), "batch": 2},
    "few keys": {"tokens": 500, "keys": 71},
    "few rows": {"tokens": 130, "keys": 1000},
    "a third reader without rows": {"tokens": 185, "mask": Mask.causal()},
    "some of the rows": {"mask": Mask.causal(), "every": 4},
    "sinks": {"mask": Mask.causal(), "sinks": torch.tensor([0.3, 4.0])},
    "a scale for each head": {"scale": torch.tensor([0.05, 0.3])},
    "tokens before heads": {"mask": Mask.causal(), "packed": True},
}


@pytest.mark.skipif(not HOPPER, reason="there is no Hopper GPU")
@pytest.mark.parametrize("top", [0, 8])
@pytest.mark.parametrize("case", shared(list(CASES)))
def test_every_measure_is_exact(case, top):
    job = job_of(**CASES[case], top=top)
    assert plan(job) is not None
    assert_exact(launch.run(job), job)


@pytest.mark.skipif(not HOPPER, reason="there is no Hopper GPU")
@pytest.mark.parametrize("mask", [None, Mask.causal()])
@pytest.mark.parametrize("top", [0, 8])
def test_a_query_that_is_nan_affects_only_itself_and_what_its_head_receives(mask, top):
    job = job_of(mask=mask, tokens=700, top=top)
    good = launch.run(job)
    job.call.q[0, 1, 5] = torch.nan
    job.logsumexp[0, 1, 5] = torch.nan
    found = launch.run(job)
    others = torch.arange(700, device="cuda") != 5
    for name in ("entropy", "peak", "distance", "first", "peak_key"):
        torch.testing.assert_close(getattr(found, name)[:, 0], getattr(good, name)[:, 0])
        torch.testing.assert_close(getattr(found, name)[:, 1, others], getattr(good, name)[:, 1, others])
    torch.testing.assert_close(found.received[:, 0], good.received[:, 0])
    torch.testing.assert_close(found.map[:, 0], good.map[:, 0])
    assert found.entropy[0, 1, 5].isnan()
    assert found.peak[0, 1, 5].isnan()


@pytest.mark.skipif(not HOPPER, reason="there is no Hopper GPU")
def test_a_compile_failure_warns_once_and_uses_the_other_kernel(monkeypatch):
    from clearhead.lens.measures.kernels import hopper_row_pass

    monkeypatch.setattr(kernel_tensors, "_failures", [])
    monkeypatch.setattr(hopper_row_pass, "scan_rows", None)
    job = job_of(mask=Mask.causal(), top=0)
    with pytest.warns(RuntimeWarning, match="could not compile the one for Hopper"):
        assert_exact(launch.run(job), job)
    assert plan(job) is None


def test_unsupported_inputs_go_to_the_other_kernel(monkeypatch):
    monkeypatch.setattr(launch, "has_warpgroups", lambda device: True)
    monkeypatch.setattr(kernel_tensors, "has_tensor_memory_access", lambda device: True)
    q = torch.zeros(1, 2, 512, 128, dtype=torch.bfloat16)
    logsumexp = torch.zeros(1, 2, 512)

    def planned(q, **asked):
        return plan(plan_job(check_call(q, q, None, None), **({"logsumexp": logsumexp} | asked)))

    assert planned(q) is not None
    assert planned(q, logsumexp=None) is None
    assert planned(q.float()) is None
    assert planned(q[..., :96]) is None
    assert planned(q[:, :, :9], logsumexp=logsumexp[:, :, :9]) is None
    assert planned(q, pixels=171) is None  # pixels of three keys


def plan(job):
    return launch.plan_hopper_pass(job, launch.KernelInputs.of_job(job), launch.choose_job_shapes(job))


def job_of(
    mask=None,
    batch=1,
    tokens=1024,
    keys=None,
    width=128,
    heads=(2, 2),
    dtype=torch.bfloat16,
    size=1.0,
    packed=False,
    **asked,
):
    torch.manual_seed(0)
    q, k = (
        torch.randn(batch, number, length, width)
        for number, length in zip(heads, (tokens, keys or tokens), strict=True)
    )
    q, k = (tensor.to("cuda", dtype) for tensor in (q * size, k))
    if packed:  # as models have them
        q, k = (tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (q, k))
    options = {name: asked.pop(name).cuda() for name in ("sinks", "scale") if name in asked}
    call = check_call(q, k, None, None if mask is None else mask.to("cuda"), **options)
    logsumexp = measure_by_definition(in_float64(plan_job(call, top=0))).logsumexp.float()
    return plan_job(call, logsumexp=logsumexp, **asked)
