"""Spans, chosen queries and the largest score on a GPU, judged in float64; each case compiles kernels of its own.

Compiling takes the time, and can be shared:
`seq 0 4 | xargs -P 5 -I@ env CLEARHEAD_SHARE=@/5 python -m pytest tests/lens/test_selections_cuda.py`.
"""

import os
from typing import Any

import pytest
import torch

from clearhead import Bias, Mask, watch
from clearhead.attention.call import check_call
from clearhead.lens.measures.definition import MeasureJob, measure_by_definition
from clearhead.lens.measures.kernels import launch
from clearhead.lens.measures.measure_dispatch import plan_job, run_job
from clearhead.lens.measures.selections import find_query_runs
from tests.lens.seen_calls import built, tokens
from tests.lens.tolerances import TENSORS, assert_exact, in_float64

CUDA = torch.cuda.is_available()
pytestmark = pytest.mark.skipif(not CUDA, reason="there is no GPU")
SPANS = {"first": slice(0, 100), "middle": slice(700, 1300), "rest": slice(900, None), "empty": slice(9, 9)}
PADS = Mask.padding([1531, 907], side="left")


def build_job(heads: int, kv_heads: int, d: int, dtype: torch.dtype, given: bool, **options: Any) -> MeasureJob:
    torch.manual_seed(0)
    asked = {name: options.pop(name) for name in ("top", "pixels", "received") if name in options}
    q, k = (torch.randn(2, one, 1531, d, device="cuda").to(dtype) for one in (heads, kv_heads))
    mask = options.pop("mask").to("cuda")
    job = plan_job(check_call(q, k, None, mask, **options), spans=SPANS, **asked)
    return job._replace(logsumexp=measure_by_definition(in_float64(job)).logsumexp.float()) if given else job


ALIBI = Bias.alibi(6).to("cuda") if CUDA else None
OPTIONS = {"softcap": 5.0, "sinks": torch.arange(6.0), "bias": ALIBI}
JOBS: dict[str, dict[str, Any]] = {
    "a logsumexp, no top keys": {
        "heads": 4,
        "kv_heads": 2,
        "d": 128,
        "dtype": torch.bfloat16,
        "given": True,
        "mask": Mask.causal(),
        "top": 0,
    },
    "a logsumexp, padding": {
        "heads": 4,
        "kv_heads": 4,
        "d": 64,
        "dtype": torch.float16,
        "given": True,
        "mask": Mask.causal() & PADS,
    },
    "grouped heads": {
        "heads": 4,
        "kv_heads": 1,
        "d": 64,
        "dtype": torch.bfloat16,
        "given": False,
        "mask": Mask.causal(),
    },
    "everything": {
        "heads": 6,
        "kv_heads": 3,
        "d": 40,
        "dtype": torch.float32,
        "given": False,
        "mask": Mask.causal() & PADS,
        **OPTIONS,
    },
    "packed": {
        "heads": 2,
        "kv_heads": 2,
        "d": 80,
        "dtype": torch.bfloat16,
        "given": False,
        "mask": Mask.causal() & Mask.documents(torch.arange(1531) // 400),
        "top": 0,
    },
}
SELECTED = {
    "all": slice(None),
    "the last 64": slice(-64, None),
    "every 7th from 300 on": slice(300, 1500, 7),
    "two": (5, 1100),
}


def shared(names: list[str]) -> list[str]:
    number, count = (int(part) for part in os.environ.get("CLEARHEAD_SHARE", "0/1").split("/"))
    return names[number::count]


@pytest.mark.parametrize("name", shared([*JOBS]))
def test_spans_queries_and_largest_scores_are_exact(name):
    options = dict(JOBS[name])
    options["sinks"] = None if options.get("sinks") is None else options["sinks"].cuda()
    job = build_job(**options)
    for selected in SELECTED.values():
        for run in find_query_runs(selected, 0, job.call.q.shape[2]):
            lse = None if job.logsumexp is None else job.logsumexp[:, :, run.start : run.stop : run.step]
            part = job._replace(rows=run, logsumexp=lse, blocks=(-(-len(run) // 13), 97))
            assert launch.explain_refusal(part) is None
            assert_exact(run_job(part, "triton"), part)
            assert_exact(run_job(part.start_at_first_row(), "triton"), part)


@pytest.mark.parametrize("shape", shared(["modern", "alibi"]))
def test_a_model_is_seen_as_on_the_cpu(shape):
    model, text, mask = built("Decoder", shape), tokens(2, 300), Mask.padding([300, 171])
    options = {"queries": slice(-40, None), "spans": {"a": slice(0, 99), "b": slice(99, None)}, "itself": True}
    with watch(model, **options) as slow:
        model(text, mask=mask)
    model.cuda()
    with watch(model, **options) as fast:
        model(text.cuda(), mask=mask.to("cuda"))
    for name in slow.names:
        one, other = slow[name], fast[name]
        for measure in (*TENSORS, "itself", "received_mean"):
            value = getattr(one, measure)
            if value.is_floating_point():
                torch.testing.assert_close(getattr(other, measure), value, rtol=2e-4, atol=2e-4)
        assert torch.equal(one.seen_by, other.seen_by)
        torch.testing.assert_close(one.lookback(99), other.lookback(99), rtol=2e-4, atol=2e-4)
