"""Every fast backend against the float64 reference: outputs, gradients, and queries that see nothing."""

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead import Bias, Mask, attend
from clearhead.attention.backends import tiled
from tests.attention.cases import Case, cases, random
from tests.judging import assert_within_yardstick

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True, scope="module")
def small_tiles():
    """Blocks of 16 queries and 5 keys, so that small inputs have several and the seams are tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiled, "TILE_SCORES", 1)
        patch.setattr(tiled, "BLOCK_KEYS", 5)
        yield


def judge(case: Case, backend: str, dtype: torch.dtype, device: str, parameters: torch.dtype | None) -> None:
    """Output and gradients within the yardstick; queries that see nothing are zero in both."""
    given = case.to(dtype, device, parameters)
    exact = given.to(torch.float64, device)
    truth, plain, found = exact.attend("reference"), given.attend("reference"), given.attend(backend)
    eps, largest = torch.finfo(dtype).eps, given.tensors["v"].abs().max().item()
    assert found.dtype == dtype
    assert_within_yardstick(found, plain, truth, eps * largest, f"{backend}'s output")

    of_out = random(7, *truth.shape).to(device, dtype)
    truths, plains, founds = (c.gradients(out, of_out) for c, out in [(exact, truth), (given, plain), (given, found)])
    terms = exact.uncancelled(of_out)
    for name, gradient in founds.items():
        largest = terms[name].abs().max().item()
        assert_within_yardstick(gradient, plains[name], truths[name], eps * largest, f"{backend}'s gradient of {name}")

    blind = ~exact.visible().any(-1)
    assert not found[blind].any(), "a query that sees nothing yields zeros"
    assert not founds["q"][blind].any(), "a query that sees nothing has no gradient"


@pytest.mark.parametrize(
    ("backend", "dtype"), [*itertools.product(["sdpa", "tiled"], DTYPES), ("auto", torch.float32)], ids=str
)
@given(data=st.data())
def test_outputs_and_gradients_stay_within_the_yardstick(backend, dtype, device, data):
    case = data.draw(cases(softcap=backend != "sdpa"))
    judge(case, backend, dtype, device, data.draw(st.sampled_from([None, torch.float32])))


TINY = {"q": random(0, 2, 3, 5, 13), "k": random(1, 2, 3, 5, 13), "v": random(2, 2, 3, 5, 13)}
SINKS, ONE_SLOPE = {"sinks": random(3, 3)}, torch.tensor([0.5]).double()
ONCE_WRONG = {
    "sinks are divided by a scale of zero": Case(TINY | SINKS, options={"scale": 0.0}),
    "a negative scale shows hidden keys": Case(TINY, Mask.causal() & Mask.padding([3, 2]), options={"scale": -0.3}),
    "the sink joins a bias that is one for all keys": Case(TINY | SINKS | {"bias": random(4, 5, 1)}),
    "one length for all meets one for each": Case(TINY, Mask.prefix(4) & Mask.padding([3, 2])),
    "one document for all meets queries of many": Case(
        TINY, Mask.documents(torch.arange(5), torch.arange(10).view(2, 5) % 5)
    ),
    "a block of hidden keys lies between visible ones": Case(
        {"q": random(0, 2, 3, 5, 13), "k": random(1, 2, 3, 331, 13), "v": random(2, 2, 3, 331, 13)},
        Mask.prefix(3) | Mask.hidden(torch.arange(331) < 320),
    ),
    "one slope for all heads": Case(TINY | {"bias": ONE_SLOPE}, None, Bias.alibi(ONE_SLOPE)),
    "a float32 scale for half precision": Case(TINY | {"scale": random(5, 3)}),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", ["sdpa", "tiled"])
@pytest.mark.parametrize("name", ONCE_WRONG)
def test_regressions_stay_fixed(name, backend, dtype, device):
    judge(ONCE_WRONG[name], backend, dtype, device, torch.float32)


EMPTY_SECOND = {  # for two samples of 37 tokens, of which the second is all padding
    "padding": Mask.padding([31, 0]),
    "left padding": Mask.padding([31, 0], side="left"),
    "causal, padding": Mask.causal() & Mask.padding([31, 0]),
    "causal, left padding": Mask.causal() & Mask.padding([31, 0], side="left"),
    "causal, padding, no pad queries": Mask.causal() & Mask.padding([31, 0], queries=True),
    "visible": Mask.visible(torch.tensor([True, False])[:, None, None, None]) & Mask.causal(),
}


@pytest.mark.parametrize("mask", EMPTY_SECOND.values(), ids=EMPTY_SECOND)
@pytest.mark.parametrize("backend", ["reference", "sdpa", "tiled", "auto"])
def test_a_sample_of_nothing_but_padding_leaves_the_others_alone(backend, mask, device):
    case = Case({name: random(n, 2, 3, 37, 13) for n, name in enumerate("qkv")}, mask).to(torch.float32, device)
    alone = Case({name: tensor[:1] for name, tensor in case.tensors.items()}, Mask.visible(mask.dense(37, 37)[:1]))
    alone, exact = alone.to(torch.float32, device), alone.to(torch.float64, device)
    of_out = random(7, 2, 3, 37, 13).to(device, torch.float32)
    out, plain, truth = case.attend(backend), alone.attend("reference"), exact.attend("reference")
    of_case, of_plain, of_truth = (
        c.gradients(o, of_out[: len(o)]) for c, o in [(case, out), (alone, plain), (exact, truth)]
    )
    eps = torch.finfo(torch.float32).eps
    assert_within_yardstick(out[:1], plain, truth, eps * case.tensors["v"].abs().max().item(), "the clean sample")
    assert not out[1].any()
    for name in "qkv":
        rounding = eps * exact.uncancelled(of_out[:1])[name].abs().max().item()
        assert_within_yardstick(of_case[name][:1], of_plain[name], of_truth[name], rounding, f"its gradient of {name}")
        assert not of_case[name][1].any()


@pytest.mark.parametrize("backend", ["reference", "sdpa", "tiled", "auto"])
@pytest.mark.parametrize("sizes", [(0, 5, 7), (2, 0, 7), (2, 5, 0)], ids=["samples", "queries", "keys"])
def test_no_keys_give_zeros_and_no_queries_give_an_empty_result(backend, sizes, device):
    batch, queries, keys = sizes
    q = torch.ones(batch, 3, queries, 13, device=device, requires_grad=True)
    k = torch.ones(batch, 3, keys, 13, device=device, requires_grad=True)
    for mask in (None, Mask.causal(), Mask.causal(0) & Mask.padding(keys, queries=True).to(device)):
        out = attend(q, k, k, mask, backend=backend)
        assert out.shape == q.shape
        assert keys or not out.any()
        for gradient in torch.autograd.grad(out.sum(), (q, k)):
            assert gradient.isfinite().all()


@pytest.mark.parametrize("backend", ["reference", "sdpa", "tiled", "auto"])
def test_mixed_dtypes_are_legal_under_autocast_and_as_exact_as_its_dtype(backend, device):
    case = Case(
        {name: random(n, 2, 3, 37, 13) for n, name in enumerate("qkv")} | {"scale": random(3, 3)}, Mask.causal()
    )
    case = case.to(torch.float32, device)
    rounded = case.to(torch.bfloat16, device, torch.float32)
    exact = rounded.to(torch.float64, device)
    of_out = random(7, 2, 3, 37, 13).to(device, torch.bfloat16)
    mixed = replace(case, tensors=case.tensors | {"k": rounded.tensors["k"]})
    with torch.autocast(device, dtype=torch.bfloat16):
        out = mixed.attend(backend)
    plain, truth = rounded.attend("reference"), exact.attend("reference")
    eps = torch.finfo(torch.bfloat16).eps
    assert out.dtype == torch.bfloat16
    assert_within_yardstick(out, plain, truth, eps * case.tensors["v"].abs().max().item(), "the output")
    of_mixed, of_plain, of_truth = (c.gradients(o, of_out) for c, o in [(mixed, out), (rounded, plain), (exact, truth)])
    for name, size in exact.uncancelled(of_out).items():
        rounding = eps * size.abs().max().item()
        assert of_mixed[name].dtype == mixed.tensors[name].dtype
        assert_within_yardstick(of_mixed[name], of_plain[name], of_truth[name], rounding, f"the gradient of {name}")


def test_float64_goes_through_every_backend_in_float64(device):
    case = Case({name: random(n, 2, 3, 37, 13) for n, name in enumerate("qkv")}, Mask.causal()).to(
        torch.float64, device
    )
    for backend in ("sdpa", "tiled", "auto"):
        torch.testing.assert_close(case.attend(backend), case.attend("reference"), rtol=0, atol=1e-13)


def test_the_yardstick_can_fail():
    truth, near, far = torch.zeros(3).double(), torch.full((3,), 1e-7), torch.full((3,), 1e-3)
    assert_within_yardstick(near, near, truth, rounding=1e-7)
    with pytest.raises(AssertionError, match=r"off by 1\.00e-03, plain code by 1\.00e-07"):
        assert_within_yardstick(far, near, truth, rounding=1e-7)
    with pytest.raises(AssertionError, match="off by nan"):
        assert_within_yardstick(far * torch.nan, near, truth, rounding=1e-7)
    with pytest.raises(AssertionError, match="has shape"):
        assert_within_yardstick(near[:2], near, truth, rounding=1e-7)
