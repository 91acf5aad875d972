"""The logsumexp that fused kernels leave behind, and that nothing else changes by listening."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F

from clearhead import Mask, attend
from clearhead.attention.sdpa_logsumexp import LogsumexpMode, _observe_thread, observe_own_sdpa, observe_sdpa

CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "a scale": {"scale": 0.3},
    "grouped": {"enable_gqa": True},
}


def tensors(device, dtype, *, grouped=False):
    torch.manual_seed(0)
    q = torch.randn(2, 4, 37, 32, device=device).to(dtype)
    k, v = (torch.randn(2, 2 if grouped else 4, 37, 32, device=device).to(dtype) for _ in range(2))
    return q, k, v


@pytest.mark.parametrize("case", CASES)
def test_the_output_is_the_same_to_the_last_bit_and_the_logsumexp_is_its_own(case, device):
    options = CASES[case]
    q, k, v = tensors(device, torch.bfloat16, grouped=case == "grouped")
    expected = F.scaled_dot_product_attention(q, k, v, **options)
    with LogsumexpMode() as observer:
        out = F.scaled_dot_product_attention(q, k, v, **options)
    assert torch.equal(out, expected)
    scale = options.get("scale", 1 / math.sqrt(32))
    found = observer.logsumexp(q, keys=37, scale=scale, causal=case == "causal")
    scores = q.double() @ k.repeat_interleave(4 // k.shape[1], 1).double().mT * scale
    if case == "causal":
        scores = scores.masked_fill(torch.ones(37, 37, device=device).triu(1).bool(), -math.inf)
    torch.testing.assert_close(found.double(), scores.logsumexp(-1), rtol=0.0, atol=1e-4)


def test_gradients_are_the_same():
    q, k, v = tensors("cpu", torch.float32)
    grads = []
    for listening in (False, True):
        leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
        with LogsumexpMode() if listening else torch.enable_grad():
            out = F.scaled_dot_product_attention(*leaves, is_causal=True)
        grads.append(torch.autograd.grad(out.square().sum(), leaves))
    for one, other in zip(*grads, strict=True):
        assert torch.equal(one, other)


def test_a_logsumexp_of_other_inputs_is_not_returned():
    q, k, v = tensors("cpu", torch.float32)
    scale = 1 / math.sqrt(32)
    with LogsumexpMode() as observer:
        F.scaled_dot_product_attention(q, k, v)
    assert observer.logsumexp(q, keys=37, scale=scale) is not None
    assert observer.logsumexp(q.clone(), keys=37, scale=scale) is None
    assert observer.logsumexp(q, keys=36, scale=scale) is None
    assert observer.logsumexp(q, keys=37, scale=0.5) is None
    assert observer.logsumexp(q, keys=37, scale=torch.full((4,), scale)) is None
    assert observer.logsumexp(q, keys=37, scale=scale, causal=True) is None
    with observer:
        F.scaled_dot_product_attention(q, k, v)
    assert observer.logsumexp(q, keys=37, scale=scale) is None, "two calls, and who knows which"


@pytest.mark.parametrize(
    ("mask", "expected"),
    [(None, True), (Mask.causal(), True), (Mask.padding([30, 37]), False), (Mask.window(5), False)],
)
def test_our_attention_is_observed_where_nothing_but_the_kernel_hides(mask, expected):
    q, k, v = tensors("cpu", torch.float32)
    with LogsumexpMode() as observer:
        out = attend(q, k, v, mask, backend="sdpa")
    assert torch.equal(out, attend(q, k, v, mask, backend="sdpa"))
    assert (observer.logsumexp(q, keys=37, scale=1 / math.sqrt(32)) is not None) == expected


def test_nothing_is_observed_on_a_cpu():
    with observe_sdpa(torch.zeros(1, 1)) as observer:
        assert observer is None


def test_our_own_calls_are_observed_without_a_mode_and_only_in_their_thread():
    q, k, v = (torch.randn(2, 3, 7, 8) for _ in range(3))
    expected = attend(q, k, v)
    with _observe_thread() as observer:
        assert torch.equal(attend(q, k, v), expected)
        with _observe_thread() as other, ThreadPoolExecutor(1) as elsewhere:
            elsewhere.submit(attend, q, k, v).result()
        assert other.calls == []
    attend(q, k, v)
    assert len(observer.calls) == 1
    found = observer.logsumexp(q, keys=7, scale=8**-0.5)
    torch.testing.assert_close(found, (q @ k.mT * 8**-0.5).logsumexp(-1))
    with observe_own_sdpa(q) as none:  # on a CPU it saves nothing
        assert none is None
