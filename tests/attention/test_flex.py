"""FlexAttention: its mask and score functions on any case, uncompiled; then compiled, for a few."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.nn.attention import flex_attention

from clearhead import Bias, Mask
from clearhead.attention.backends import flex
from clearhead.attention.call import check_call
from tests.attention.cases import Case, cases, random
from tests.judging import assert_within_yardstick


def judge(case: Case, dtype: torch.dtype, device: str, run: Callable[[Case], Tensor]) -> None:
    given = case.to(dtype, device)
    exact = given.to(torch.float64, device)
    with torch.no_grad():
        found, plain, truth = run(given), given.attend("reference"), exact.attend("reference")
    rounding = torch.finfo(dtype).eps * given.tensors["v"].abs().max().item()
    assert found.dtype == dtype
    assert_within_yardstick(found, plain, truth, rounding, "flex's output")
    assert not found[~exact.visible().any(-1)].any(), "a query that sees nothing yields zeros"


@pytest.fixture(scope="module")
def uncompiled():
    """FlexAttention as plain functions; past `attend`, which knows what cannot be compiled for a CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        patch.setattr(flex, "call_compiled", flex_attention.flex_attention)
        yield lambda case: flex.run(check_call(**case.arguments()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@given(case=cases())
def test_masks_and_options_stay_within_the_yardstick(dtype, device, uncompiled, case):
    judge(case, dtype, device, uncompiled)


def sized(queries: int, keys: int, heads: int = 2, kv_heads: int = 2, d: int = 16, d_v: int = 16) -> dict:
    return {
        "q": random(0, 2, heads, queries, d),
        "k": random(1, 2, kv_heads, keys, d),
        "v": random(2, 2, kv_heads, keys, d_v),
    }


SLOPES, IDS = torch.tensor([0.5, 0.1]), torch.arange(300).div(70, rounding_mode="floor")
COMPILED = {
    "causal, padded, shared heads": Case(sized(300, 300, heads=4), Mask.causal() & Mask.padding([290, 131])),
    "alibi, capped, window or prefix": Case(
        sized(131, 300) | {"bias": SLOPES},
        Mask.window(60) | Mask.prefix([3, 140]),
        Bias.alibi(SLOPES),
        {"softcap": 3.0},
    ),
    "documents, blind sample, wide values": Case(
        sized(300, 300, d_v=32), Mask.documents(IDS) & Mask.padding([300, 0], queries=True)
    ),
}


@pytest.mark.unchecked
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_kernels_stay_within_the_yardstick(name, device):
    judge(COMPILED[name], torch.float32, device, lambda case: case.attend("flex"))
