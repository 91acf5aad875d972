"""Every fast backend against the float64 reference: outputs, gradients, and queries that see nothing."""

import pytest
import torch
from hypothesis import event, given
from hypothesis import strategies as st

from clearhead.attention.backends import tiled
from tests.attention.cases import Case, cases, random
from tests.judging import assert_within_yardstick

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True, scope="module")
def small_tiles():
    """Blocks of 16 queries, so that small inputs have several and the seams are tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiled, "TILE", 1)
        yield


def judge(case: Case, backend: str, dtype: torch.dtype, device: str, parameters: torch.dtype | None) -> None:
    """Output and gradients within the yardstick; blind queries zero in both."""
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
    event(f"blind queries: {bool(blind.any())}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", ["sdpa", "tiled", "auto"])
@given(data=st.data())
def test_outputs_and_gradients_stay_within_the_yardstick(backend, dtype, device, data):
    case = data.draw(cases(softcap=backend != "sdpa"))
    judge(case, backend, dtype, device, data.draw(st.sampled_from([None, torch.float32])))
